"""Marks of a lab plot: points of six shapes, error bars, a legend for paper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.report.lab.series import Look
from offstage.testbeds.report.page.numbers import percent, ratio
from offstage.testbeds.report.page.pictures import Picture, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import LineStyleType

__all__ = [
    "DASHES",
    "error_bar",
    "interval_text",
    "mark",
    "paper_legend",
]

SHAPES = {"circle": "o", "square": "s", "triangle": "^", "star": "*", "diamond": "D", "wedge": "v"}
DASHES: "dict[str, LineStyleType]" = {
    "circle": "-",
    "square": (0, (5, 2)),
    "triangle": (0, (1.2, 1.6)),
    "star": (0, (6, 2, 1.5, 2)),
    "diamond": (0, (2.6, 1.4)),
    "wedge": (0, (6, 1.4, 1.4, 1.4, 1.4, 1.4)),
}
"""Lines of one colour are distinguished as their marks are."""


def mark(
    drawn: Picture,
    axes: "Axes",
    look: Look,
    x: float,
    y: float,
    tip: str,
    size: float = 6.0,
    faint: bool = False,
) -> None:
    """The series' shape at a point; `tip` is shown on hover and read out."""
    (spot,) = axes.plot(
        [x],
        [y],
        SHAPES[look.mark],
        color=colour(look.colour),
        alpha=0.55 if faint else 1.0,
        markersize=size * (1.4 if look.mark == "star" else 1.0),
        zorder=4,
        markeredgecolor=colour("surface"),
        markeredgewidth=0.7,
        linestyle="none",
        clip_on=False,
    )
    drawn.tip(spot, tip, spot="spot faint" if faint else "spot")


def error_bar(
    axes: "Axes", x: tuple[float, float], y: tuple[float, float], shade: str, faint: bool = False
) -> None:
    """A line from one end of an interval to the other; nothing if they are equal."""
    if x[0] != x[1] or y[0] != y[1]:
        axes.plot(x, y, color=colour(shade), linewidth=1.2, alpha=0.38 if faint else 1.0, zorder=3)


def paper_legend(drawn: Picture, looks: Sequence[Look], lines: bool = False) -> None:
    """On paper the legend is part of the picture; a page has a separate one."""
    if not drawn.paper:
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=colour(look.colour),
            linestyle=DASHES[look.mark] if lines else "none",
            marker="" if lines else SHAPES[look.mark],
            markersize=4.5,
        )
        for look in looks
    ]
    drawn.keys(handles, [look.name for look in looks], fontsize=6.5, handlelength=2.4)


def interval_text(interval: Interval | None, kind: str = "share") -> str:
    """`91.2 % (90.8 to 91.6)`; a dash without a value."""
    if interval is None:
        return "–"
    form = {"share": percent, "ratio": ratio}[kind]
    if interval.low is None or interval.high is None:
        return form(interval.value)
    low, high = (
        form(end).removesuffix(" %").removesuffix("×") for end in (interval.low, interval.high)
    )
    return f"{form(interval.value)} ({low} to {high})"
