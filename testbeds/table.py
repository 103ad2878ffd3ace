"""A table as data: columns with a title and a form, rows of values, and who draws it.

A terminal draws it by `drawn`, a page by `report.page.tables.as_html`. A value is written by its
column's form, in one place; a value with a mark, a range or a colour is a `Cell`.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as Drawn
from rich.text import Text

__all__ = ["NOTHING", "SIGN", "Cell", "Column", "Part", "Swatch", "Table", "answers"]

NOTHING = "–"
SIGN = "†"
"""Of a void figure."""
STYLES = {
    "": "",
    "best": "bold green",
    "good": "green",
    "missed": "yellow",
    "void": "dim",
    "bad": "bold red",
    "dim": "dim",
}
"""By the mark of a cell or a part, its style in a terminal."""


Swatch = tuple[str, str]
"""A colour and the shape that it is shown in."""


@dataclass(frozen=True)
class Column:
    """One column. `form` formats a value; `left`: names and words; `wrap`: sentences,
    which go on below; `tip` says what the column means; `brief`: a terminal has it too. `short` is
    its title there, where it is another one; a page shows swatch, provenance and `note` beside the
    title."""

    title: str
    form: Callable[[Any], str] = str
    left: bool = False
    wrap: bool = False
    tip: str = ""
    brief: bool = True
    short: str = ""
    swatch: Swatch | None = None
    provenance: str = ""
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A value as text. `small`: its range, below it on a page; `terse`: the text of a terminal,
    where it is another one."""

    text: str
    mark: str = ""
    small: str = ""
    tip: str = ""
    terse: str = ""
    swatch: Swatch | None = None


@dataclass(frozen=True)
class Part:
    """Rows under a heading of their own. `bounds`: rows that are no results, behind the others;
    `terse`: the heading of a terminal, where it is another one."""

    rows: Sequence[Sequence[object]]
    title: str = ""
    provenance: str = ""
    small: str = ""
    terse: str = ""
    swatch: Swatch | None = None
    bounds: Sequence[Sequence[object]] = ()


@dataclass(frozen=True)
class Table:
    """Columns and rows. A row may be shorter than the columns: the rest is empty."""

    columns: Sequence[Column]
    parts: Sequence[Part]
    title: str = ""
    note: str = ""
    heads: bool = True

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        rows: Iterable[Sequence[object]],
        title: str = "",
        note: str = "",
        *,
        heads: bool = True,
    ) -> "Table":
        """One part without a heading."""
        return cls(columns, [Part(list(rows))], title, note, heads)

    @classmethod
    def named(
        cls,
        names: Sequence[str],
        rows: Iterable[Sequence[object]],
        title: str = "",
        *,
        left: int = 1,
        wrap: Sequence[str] = (),
    ) -> "Table":
        """Columns by their titles alone; the first `left` of them are words, and values texts."""
        columns = [Column(name, left=at < left, wrap=name in wrap) for at, name in enumerate(names)]
        return cls.of(columns, rows, title)

    def cells(self, row: Sequence[object]) -> list[Cell]:
        """A row as text, one cell for each column."""
        given = [*row, *[""] * (len(self.columns) - len(row))]
        return [_cell(column, value) for column, value in zip(self.columns, given, strict=True)]

    def drawn(self) -> Drawn:
        """The table for a terminal: no cell is cut; `cli.folded` folds it if that is narrow."""
        shown = [at for at, column in enumerate(self.columns) if column.brief]
        table = Drawn(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            caption=self.note or None,
            caption_justify="left",
            box=None,
            pad_edge=False,
            header_style="bold",
            padding=(0, 1, 0, 0),
            show_header=self.heads,
        )
        wraps = any(one.wrap for one in self.columns)
        for at in shown:
            column = self.columns[at]
            table.add_column(
                self._heading(at),
                justify="left" if column.left else "right",
                no_wrap=not column.wrap,
                overflow="fold",
                vertical="top" if wraps else "bottom",
            )
        for number, part in enumerate(self.parts):
            if number and part.title:
                table.add_row()
            if part.title:
                table.add_row(Text(part.terse or part.title, style="dim"))
            for row in part.rows:
                cells = self.cells(row)
                table.add_row(*(_text(cells[at]) for at in shown))
            for row in part.bounds:
                cells = self.cells(row)
                if any(cells[at].text not in ("", NOTHING) for at in shown[1:]):
                    table.add_row(*(_text(cells[at], "dim") for at in shown))
        return table

    def _heading(self, at: int) -> str:
        """No wider than the figures below it, as far as its words let it."""
        column = self.columns[at]
        title = column.short or column.title
        if column.left or not title:
            return title
        rows = [row for part in self.parts for row in (*part.rows, *part.bounds)]
        cells = (self.cells(row)[at] for row in rows)
        widest = max((len(cell.terse or cell.text) for cell in cells), default=0)
        width = max(widest, *map(len, title.split()))
        return textwrap.fill(title, width, break_long_words=False, break_on_hyphens=False)

    def __rich__(self) -> Drawn:
        return self.drawn()


def answers(found: Mapping[str, bool | None]) -> Table:
    """A row for each verdict, by its key in words. None: the run could not tell."""
    said = {True: Cell("yes", "good"), False: Cell("NO", "bad"), None: Cell("not judged")}
    rows = [[key.replace("_", " "), said[met]] for key, met in found.items()]
    return Table.of([Column("what must hold", left=True), Column("", left=True)], rows, heads=False)


def _cell(column: Column, value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell(NOTHING)
    return Cell(value if isinstance(value, str) else column.form(value))


def _text(cell: Cell, mark: str = "") -> Text:
    return Text(cell.terse or cell.text, style=STYLES[mark or cell.mark])
