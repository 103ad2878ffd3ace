"""Tables in a terminal that is too narrow for them: columns are folded below, none is left out.

The leading, left-aligned columns are names and are in every part; of the others each part has as
many as fit, and the rows that have any of them. A table that fits, or that has names only, is
unchanged.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from offstage.bindings.errors import printable
from offstage.testbeds.table import Table as Data

__all__ = ["Folded", "folded"]

T = TypeVar("T")
KEPT = "\n\t\xa0\u2009\u202f"  # line ends, and spaces that our own words have
WIDEST = 1000
NOTHING = "–"


def folded(shown: RenderableType) -> RenderableType:
    """The same, with every table split into as many parts as the terminal needs, and no control
    characters in its text."""
    if isinstance(shown, Data):
        return folded(shown.drawn())
    if isinstance(shown, Table):
        shown.title = None if shown.title is None else _safe(shown.title)
        for column in shown.columns:
            column.header = _safe(column.header)
            column._cells = [_safe(cell) for cell in column._cells]
        return Folded(shown)
    if isinstance(shown, Group):
        return Group(*map(folded, shown.renderables))
    return _safe(shown)


def _safe(cell: T) -> T | str | Text:
    if isinstance(cell, str):
        return printable(cell, KEPT)
    if isinstance(cell, Text) and (plain := printable(cell.plain, KEPT)) != cell.plain:
        return Text(plain, cell.style)
    return cell


class Folded:
    """One table in parts."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for at, part in enumerate(self._parts(console, options)):
            if at:
                yield ""
            yield part

    def _parts(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        columns = self.table.columns
        keys = _keys(columns)
        free = options.update_width(WIDEST)

        def fits(chosen: Sequence[Column]) -> bool:
            part = _part(self.table, chosen)
            return Measurement.get(console, free, part).maximum <= options.max_width

        if not 0 < keys < len(columns) or fits(columns):
            yield self.table
            return
        names, rest = columns[:keys], columns[keys:]
        first = True
        while rest:
            count = len(rest)
            while count > 1 and not fits([*names, *rest[:count]]):
                count -= 1
            part = _part(self.table, [*names, *rest[:count]])
            if not first:
                _leave_out_empty(part, keys)
            if not fits(part.columns):
                _let_names_wrap(part, keys)
            part.title = part.title if first else None
            yield part
            rest, first = rest[count:], False


def _keys(columns: Sequence[Column]) -> int:
    """Leading left-aligned columns."""
    return next((at for at, one in enumerate(columns) if one.justify == "right"), len(columns))


def _part(table: Table, columns: Sequence[Column]) -> Table:
    """The table with these columns, and all of its rows."""
    part = copy.copy(table)
    part.columns = []
    for at, column in enumerate(columns):
        own = copy.copy(column)
        own._index = at
        part.columns.append(own)
    return part


def _leave_out_empty(part: Table, keys: int) -> None:
    """Leave out rows that have no value in this part's columns and some in others."""
    shown = [
        at
        for at in range(part.row_count)
        if any(str(column._cells[at]) != NOTHING for column in part.columns[keys:])
    ]
    part.rows = [part.rows[at] for at in shown]
    for column in part.columns:
        column._cells = [column._cells[at] for at in shown]


def _let_names_wrap(part: Table, keys: int) -> None:
    for column in part.columns[:keys]:
        column.no_wrap, column.overflow, column.min_width = False, "fold", None
