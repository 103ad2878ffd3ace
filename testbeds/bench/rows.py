"""The result of every bench: rows of a figure against its reference, each with its aim; verdicts.

Each bench returns its own subclass of `BenchResult`, with its figures by name. Whether an aim is
reached or a verdict is kept is decided here once, by values and never by words; a terminal, a
page and a program have it from the same object.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.bindings.units import (
    format_count,
    format_rate,
    format_seconds,
    format_size,
    format_time,
)
from offstage.testbeds.table import Cell, Column, Table, answers

__all__ = ["UNITS", "Aim", "BenchResult", "Comparison", "Row", "aimed", "check_size"]

Comparison = Literal["<=", "<", ">="]
UNITS: dict[str, Callable[[float], str]] = {
    "ns": format_time,
    "bytes": lambda value: format_size(round(value)),
    "bytes/s": format_rate,
    "MB/s": lambda value: f"{value:,.0f} MB/s",
    "M/s": lambda value: f"{value / 1e6:.3g} M/s",
    "/s": lambda value: f"{value:,.0f}/s",
    "seconds": format_seconds,
    "s": lambda value: f"{value:.1f} s",
    "count": format_count,
    "%": lambda value: f"{100 * value:.1f} %",
    "points": lambda value: f"{value:g} points",
    "part": lambda value: f"{value:.3f}",
    "index": lambda value: f"{value:.4f}",
    "value": lambda value: f"{value:g}",
    "x": lambda value: f"{value:g}x",
}
"""How a figure is written, by its unit. Values are in base units: `M/s` is per second, and `%` a
share. `seconds` is written in the unit that fits, `s` is not."""
HELD: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda value, bound: value <= bound,
    "<": lambda value, bound: value < bound,
    ">=": lambda value, bound: value >= bound,
}


class Aim(msgspec.Struct, frozen=True):
    """A value and its bound, both in `unit`; `of` names the value for a reader. None: no value
    came about, so the aim is missed."""

    value: float | None
    comparison: Comparison
    bound: float
    unit: str
    met: bool
    of: str = ""

    def __str__(self) -> str:
        return f"{self.comparison} {UNITS[self.unit](self.bound)} {self.of}".rstrip()


def check_size(rounds: int, scale: float) -> None:
    """BadInput, naming the option, for a bench of no rounds or of another scale than it has."""
    if rounds < 1:
        raise BadInput(f"{rounds}", "--rounds", "give 1 or more")
    if not 0 < scale <= 10:
        raise BadInput(f"{scale:g}", "--scale", "give one above 0, up to 10")


def aimed(
    value: float | None, comparison: Comparison, bound: float, unit: str = "value", of: str = ""
) -> Aim:
    """An aim, judged: `met` is whether the value keeps to the bound."""
    met = value is not None and HELD[comparison](value, bound)
    return Aim(value, comparison, bound, unit, met, of)


class Row(msgspec.Struct, frozen=True):
    """One figure: ours and the reference's, in the same unit, and their ratio. A pair is the
    least and the most of several. `ratio_range`: the ratio's 95 % interval, where both were taken
    in the same rounds; it judges no aim."""

    name: str
    unit: str
    ours: float | tuple[float, float] | None = None
    reference: float | tuple[float, float] | None = None
    ratio: float | None = None
    aim: Aim | None = None
    note: str = ""
    ratio_range: tuple[float, float] | None = None


class BenchResult(msgspec.Struct, kw_only=True):
    """What a bench found. A kind of bench adds its own figures, and says in `about` how they were
    measured."""

    provenance: str = "measured"
    seed: int = 0
    rows: list[Row] = []
    verdicts: dict[str, bool | None] = {}
    """What must hold, by key; None: the run could not tell."""
    broken: list[str] = []
    """What ended the run early."""
    notes: list[Note] = []

    @property
    def missed(self) -> list[str]:
        """Every aim that was not reached, with its row."""
        return [f"{one.name} {one.aim}" for one in self.rows if one.aim and not one.aim.met]

    @property
    def failures(self) -> list[str]:
        """Why the run failed: what broke it, and verdicts that are no."""
        kept = [key.replace("_", " ") for key, met in self.verdicts.items() if met is False]
        return [*self.broken, *(f"{name}: NO" for name in kept)]

    def about(self) -> list[str]:
        """How it was measured, a line each."""
        return []

    def tables(self) -> list[Table]:
        """What a terminal shows, in order."""
        found = [rows_table(self.rows)] if self.rows else []
        return [*found, *self.own_tables(), *([answers(self.verdicts)] if self.verdicts else [])]

    def own_tables(self) -> list[Table]:
        """Tables of this bench in addition to its rows."""
        return []

    def document(self) -> dict[str, object]:
        """What `--out` and `--format json` write."""
        found: dict[str, object] = msgspec.to_builtins(self)
        return found | {
            "aims_met": not self.missed,
            "verdicts_met": False not in self.verdicts.values(),
        }


def rows_table(rows: Sequence[Row]) -> Table:
    """A line for each row; the last column, if any row has an aim, tells whether it was reached.
    Columns without values are left out."""
    columns = [
        Column("", left=True),
        Column("ours"),
        Column("reference"),
        Column("ratio"),
        Column("aim", left=True),
        Column("", left=True),
    ]
    lines = [_line(one) for one in rows]
    kept = [at for at in range(len(columns)) if any(line[at] != "" for line in lines)]
    return Table.of([columns[at] for at in kept], [[line[at] for at in kept] for line in lines])


def _line(row: Row) -> list[object]:
    goal = row.aim
    told = row.note if goal is None else str(goal)
    met = "" if goal is None else Cell("reached", "good") if goal.met else Cell("missed", "missed")
    return [row.name, _figure(row, row.ours), _figure(row, row.reference), _ratio(row), told, met]


def _ratio(row: Row) -> str:
    if row.ratio is None or row.ratio_range is None:
        return "" if row.ratio is None else f"{row.ratio:.3f}"
    low, high = row.ratio_range
    return f"{row.ratio:.2f} ({low:.2f}-{high:.2f})"


def _figure(row: Row, value: float | tuple[float, float] | None) -> str:
    if value is None:
        return ""
    form = UNITS[row.unit]
    return "-".join(map(form, value)) if isinstance(value, tuple) else form(value)
