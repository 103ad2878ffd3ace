"""Tables in a terminal that is too narrow for them: no column is left out, no word is broken.

A column whose cells may wrap keeps `READABLE` cells. Where there are fewer for it, it yields: its
text stands below each row, over the whole width; the column with the longest text yields first.

If that is not enough, columns are folded: the leading, left-aligned ones are names and are in every
part; of the others each part has as many as fit, and the rows that have any of them. A table that
fits is unchanged.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from offstage.bindings.errors import printable
from offstage.testbeds.table import Table as Data

__all__ = ["Folded", "WholeWords", "folded"]

T = TypeVar("T")
KEPT = "\n\t\xa0\u2009\u202f"  # line ends, and spaces that our own words have
WIDEST = 1000
READABLE = 28
"""Cells of a column of sentences: fewer break its words."""
INDENT = 4
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
        free = options.update_width(WIDEST)

        def fits(chosen: Sequence[Column]) -> bool:
            part = _part(self.table, chosen, READABLE)
            return Measurement.get(console, free, part).maximum <= options.max_width

        beside = list(self.table.columns)
        below: list[Column] = []
        while not fits(beside) and (longest := _longest(console, beside)) is not None:
            below.insert(0, beside.pop(longest))
        if not fits(beside):
            yield from self._parts(fits)
        elif below:
            yield from self._stacked(console, options, beside, below)
        else:
            yield self.table

    def _stacked(
        self,
        console: Console,
        options: ConsoleOptions,
        beside: Sequence[Column],
        below: Sequence[Column],
    ) -> Iterator[RenderableType]:
        """Each row, and under it what stands in the columns that yielded."""
        part = _part(self.table, beside)
        part.title, part.caption = None, None
        for column, width in zip(
            part.columns, part._calculate_column_widths(console, options), strict=True
        ):
            column.width = width - part._get_padding_width(column._index)
        if self.table.title:
            yield Text.from_markup(str(self.table.title), style="bold")
        if self.table.show_header:
            yield _only(part, [])
            if len(below) == 1:
                yield _under(Text(str(below[0].header), style="bold"))
        part.show_header = False
        for at in range(self.table.row_count):
            yield _only(part, [at])
            for column in below:
                cell = column._cells[at]
                if len(below) > 1 and isinstance(cell, Text) and cell:
                    cell = Text.assemble((f"{column.header}: ", "bold"), cell)
                if str(cell):
                    yield _under(cell)
        if self.table.caption:
            yield _under(self.table.caption, 0)

    def _parts(self, fits: Callable[[Sequence[Column]], bool]) -> Iterator[RenderableType]:
        columns = self.table.columns
        keys = _keys(columns)
        if not 0 < keys < len(columns):
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
                yield ""
                _leave_out_empty(part, keys)
            if not fits(part.columns):
                _let_names_wrap(part, keys)
            rest = rest[count:]
            part.title = part.title if first else None
            part.caption = None if rest else part.caption
            yield part
            first = False


class WholeWords(Columns):
    """Texts beside each other, in which a word that is too long goes on in the next line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for one in self.renderables:
            if isinstance(one, Text):
                one.overflow = "fold"
        yield from super().__rich_console__(console, options)


def _longest(console: Console, columns: Sequence[Column]) -> int | None:
    """The column that yields: of those that may wrap, but not the first, the one with the longest
    text; None if there is none."""
    lengths = {
        at: max(
            (Measurement.get(console, console.options, cell).maximum for cell in one._cells),
            default=0,
        )
        for at, one in enumerate(columns)
        if at and not one.no_wrap
    }
    return max(lengths, key=lambda at: (lengths[at], at)) if lengths else None


def _under(cell: RenderableType, indent: int = INDENT) -> Table:
    """Text over the whole width, in its own lines."""
    line = Table(box=None, show_header=False, padding=(0, 0, 0, indent))
    line.add_column(overflow="fold")
    line.add_row(cell)
    return line


def _keys(columns: Sequence[Column]) -> int:
    """Leading left-aligned columns."""
    return next((at for at, one in enumerate(columns) if one.justify == "right"), len(columns))


def _part(table: Table, columns: Sequence[Column], wrapped: int | None = None) -> Table:
    """The table with these columns, and all of its rows; those that may wrap no wider than
    `wrapped`."""
    part = copy.copy(table)
    part.columns = []
    for at, column in enumerate(columns):
        own = copy.copy(column)
        own._index = at
        if wrapped and not own.no_wrap:
            own.max_width = wrapped
        part.columns.append(own)
    return part


def _only(table: Table, rows: Sequence[int]) -> Table:
    """The table with these of its rows."""
    part = _part(table, table.columns)
    part.rows = [part.rows[at] for at in rows]
    for column in part.columns:
        column._cells = [column._cells[at] for at in rows]
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
