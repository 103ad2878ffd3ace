"""Which axes of a drawn figure have no numbers, or too few to read a value from.

An axis with places of its own choice, such as the rows of bars, needs a name at one of them; any
other needs two numbers. Axes that share a scale need them once.
"""

from collections.abc import Iterator
from typing import Any

ENOUGH = 2


def unnumbered(figure: Any) -> list[str]:
    """A line for each axis of the figure that nobody can read."""
    found = []
    for at, axes in enumerate(figure.axes):
        if not axes.axison or not axes.get_visible():
            continue
        for name in ("x", "y"):
            alike = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
            most = max(len(list(numbers(getattr(one, f"{name}axis")))) for one in alike)
            if most < needed(getattr(axes, f"{name}axis")):
                found.append(f"axes {at}: {name} has {most} numbers in {axes.get_xlim()}")
    return found


def needed(axis: Any) -> int:
    from matplotlib.ticker import FixedLocator

    return 1 if isinstance(axis.get_major_locator(), FixedLocator) else ENOUGH


def numbers(axis: Any) -> Iterator[str]:
    """What is written at the ticks in view."""
    low, high = sorted(axis.get_view_interval())
    near = (high - low) * 1e-9
    for places, ticks, form in (
        (axis.get_majorticklocs(), axis.get_major_ticks(), axis.get_major_formatter()),
        (axis.get_minorticklocs(), axis.get_minor_ticks(), axis.get_minor_formatter()),
    ):
        for place, tick, text in zip(places, ticks, form.format_ticks(places), strict=False):
            shown = tick.label1.get_visible() or tick.label2.get_visible()
            if low - near <= place <= high + near and text and shown:
                yield text
