"""A table as data: columns with a title and a form, rows of values, and who draws it.

One object is what a terminal, a page and a program get: `drawn` for the first, `report.page.tables`
for the second, `records` for the third. A value is written by its column's form, in one place; what
has more to say than a value (a mark, a range, a colour) is a `Cell`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table as Drawn
from rich.text import Text

__all__ = ["NOTHING", "Cell", "Column", "Part", "Table", "answers"]

NOTHING = "–"
STYLES = {
    "": "",
    "best": "bold green",
    "good": "green",
    "missed": "yellow",
    "bad": "bold red",
    "dim": "dim",
}
"""By the mark of a cell or a part, its style in a terminal."""


@dataclass(frozen=True)
class Column:
    """What stands in a column. `form` writes a value; `left`: names and words; `tip` says what the
    column means; `brief`: a terminal has it too, there under `short` where that is given."""

    title: str
    form: Callable[[Any], str] = str
    left: bool = False
    tip: str = ""
    brief: bool = True
    short: str = ""


@dataclass(frozen=True)
class Cell:
    """A value as text. `small`: its range, below it on a page; `swatch`: colour and kind."""

    text: str
    mark: str = ""
    small: str = ""
    tip: str = ""
    swatch: tuple[str, str] | None = None


@dataclass(frozen=True)
class Part:
    """Rows under a heading of their own, with the provenance of all of them. `terse` is the heading
    in a terminal, where it is another one there."""

    rows: Sequence[Sequence[object]]
    title: str = ""
    provenance: str = ""
    small: str = ""
    terse: str = ""
    swatch: tuple[str, str] | None = None
    bounds: Sequence[Sequence[object]] = ()
    """Rows that are no results, behind the others."""


@dataclass(frozen=True)
class Table:
    """Columns and rows. A row may be shorter than the columns: the rest is empty."""

    columns: Sequence[Column]
    parts: Sequence[Part]
    title: str = ""
    note: str = ""
    heads: bool = field(default=True, kw_only=True)

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
        return cls(columns, [Part(list(rows))], title, note, heads=heads)

    def cells(self, row: Sequence[object]) -> list[Cell]:
        """A row as text, one cell for each column."""
        given = [*row, *[""] * (len(self.columns) - len(row))]
        return [_cell(column, value) for column, value in zip(self.columns, given, strict=True)]

    def records(self) -> list[dict[str, object]]:
        """The values by the titles of their columns; a cell as its text."""
        return [
            {
                column.title: value.text if isinstance(value, Cell) else value
                for column, value in zip(self.columns, row, strict=False)
            }
            for part in self.parts
            for row in (*part.rows, *part.bounds)
        ]

    def drawn(self) -> Drawn:
        """For a terminal: no cell is cut, and `cli.folded` goes on below where it is narrow."""
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
        for at in shown:
            column = self.columns[at]
            name = column.short or column.title  # figures are narrower than their names
            table.add_column(
                name if column.left else name.replace(" ", "\n"),
                justify="left" if column.left else "right",
                no_wrap=True,
                vertical="bottom",
            )
        for number, part in enumerate(self.parts):
            if number and (part.title or part.terse):
                table.add_row()
            if part.title:
                table.add_row(Text(part.terse or part.title, style="dim"))
            for row in part.rows:
                cells = self.cells(row)
                table.add_row(*(_text(cells[at]) for at in shown))
            for row in part.bounds:
                cells = self.cells(row)
                if any(cells[at].text not in ("", NOTHING) for at in shown[1:]):
                    table.add_row(*(Text(cells[at].text, style="dim") for at in shown))
        return table


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


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=STYLES[cell.mark])
