"""The colours of devices and units, the same everywhere in a comparison."""

from collections.abc import Sequence
from typing import Any

from offstage.testbeds.report.compare.columns import Column
from offstage.testbeds.report.page.pictures import LINE_STYLES, colour

__all__ = ["UNITS_MAX", "colours", "line_style", "unit_colours", "variables"]

# The measured device has the page's accent; its model is grey; the rest in order.
MEASURED, OWN_MODEL = "set-shared", "set-none"
OTHERS = ("set-window", "set-2", "set-pattern", "set-1", "set-5", "set-4", "set-3")
UNITS = (
    "set-pattern",
    "set-window",
    "set-shared",
    "set-1",
    "set-5",
    "set-4",
    "set-2",
    "set-3",
    "set-none",
    "end-late",
    "end-cold",
    "end-policy",
)
UNITS_MAX = len(UNITS)


def variables(columns: Sequence[Column]) -> list[str]:
    """The CSS variable of each column, without its dashes."""
    names, free = [], 0
    for number, column in enumerate(columns):
        if column.provenance != "modelled" and number == 0:
            names.append(MEASURED)
        elif column.device.startswith("dpu_"):
            names.append(OWN_MODEL)
        else:
            names.append(OTHERS[free % len(OTHERS)])
            free += 1
    return names


def colours(columns: Sequence[Column]) -> list[str]:
    """The same colours, for matplotlib."""
    return [colour(name) for name in variables(columns)]


def line_style(column: Column) -> Any:
    """The line style: by provenance, as everywhere."""
    return LINE_STYLES[column.provenance]


def unit_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour of its own for each of at most `UNITS_MAX` units, in the order of a fetch."""
    return {name: colour(shade) for name, shade in zip(names, UNITS[: len(names)], strict=True)}
