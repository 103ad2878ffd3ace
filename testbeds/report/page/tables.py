"""A `Table` as markup: the same object that a terminal draws, with hints, ranges and colours."""

from collections.abc import Sequence

from offstage.testbeds.report.page.markup import chip, swatch
from offstage.testbeds.report.page.tags import escape, tag, with_code
from offstage.testbeds.table import SIGN, Cell, Column, Part, Table

__all__ = ["as_html"]

CLASSES = ("bad", "void")
"""Marks of a cell that are a class of the style."""


def as_html(table: Table, label: str = "", kind: str = "") -> str:
    """The table in a box that scrolls on a narrow page. `label` names it for screen readers;
    `kind`: a class of the style."""
    heads = "".join(map(_head, table.columns))
    head = tag("thead", tag("tr", heads)) if table.heads else ""
    bodies = "".join(_body(table, part) for part in table.parts)
    drawn = tag("table", head + bodies)
    return tag(
        "div",
        drawn,
        class_=f"scroll {kind}".strip(),
        tabindex=0,
        role="region" if label else "",
        aria_label=label,
    )


def _head(column: Column) -> str:
    # A non-breaking hyphen: a narrow column would split the word.
    name = escape(column.title).replace("non-", "non\u2011")
    shown = tag("abbr", name, tabindex=0, data_tip=column.tip) if column.tip else name
    shown = (swatch(*column.swatch) if column.swatch else "") + shown
    if column.provenance:
        shown += "<br>" + chip(column.provenance)
    if column.note:
        shown += "<br>" + tag("span", escape(column.note), class_="chip modelled")
    return tag("th", shown, scope="col", class_="" if column.left else "number")


def _body(table: Table, part: Part) -> str:
    lines = []
    if part.title:
        mark = swatch(*part.swatch) if part.swatch else ""
        small = f" <small>{escape(part.small)}</small>" if part.small else ""
        chipped = f" {chip(part.provenance)}" if part.provenance else ""
        title = f"<span>{mark}{escape(part.title)}{small}{chipped}</span>"
        head = tag("th", title, colspan=len(table.columns), scope="rowgroup")
        lines.append(tag("tr", head, class_="group"))
    lines += [_row(table, row) for row in part.rows]
    lines += [_row(table, row, "bound-row") for row in part.bounds]
    return tag("tbody", "".join(lines))


def _row(table: Table, row: Sequence[object], kind: str = "") -> str:
    name, *rest = table.cells(row)
    shown = tag("th", _shown(name), scope="row", class_="" if table.columns[0].left else "number")
    for column, cell in zip(table.columns[1:], rest, strict=True):
        classes = [
            *([] if column.left else ["number"]),
            *([cell.mark] if cell.mark in CLASSES else []),
        ]
        shown += tag("td", _shown(cell), class_=" ".join(classes))
    return tag("tr", shown, class_=kind)


def _shown(cell: Cell) -> str:
    text = with_code(cell.text)
    if cell.tip:
        text = tag("abbr", text, tabindex=0, data_tip=cell.tip)
    if cell.mark == "void":
        text += tag("i", SIGN, class_="sign")  # which takes no room: the table is no wider
    if cell.mark == "best":
        text = f'<strong>{text}<span class="hidden"> (best)</span></strong>'
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    return (swatch(*cell.swatch) if cell.swatch else "") + text + small
