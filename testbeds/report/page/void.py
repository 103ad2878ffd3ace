"""A figure that a note makes void: greyed, with a sign, and what the note says close by.

The notes themselves are under the headline of every page. A reader who looks at one figure alone
must see it there too.
"""

import dataclasses
from collections.abc import Iterable

from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.table import SIGN, Cell

__all__ = ["SIGN", "void_cell", "void_lines", "void_markup"]


def void_cell(cell: Cell, why: str) -> Cell:
    """The cell of a table with the sign, which a page adds by the mark, and `why` as its hint;
    unchanged if there is no reason."""
    if not why:
        return cell
    return dataclasses.replace(
        cell,
        terse=(cell.terse or cell.text) + SIGN,
        mark="void",
        tip=f"{cell.tip}\n{why}" if cell.tip else why,
    )


def void_lines(reasons: Iterable[str]) -> list[str]:
    """Each reason once, as a line under a table."""
    return [f"{SIGN} {why}" for why in dict.fromkeys(reasons)]


def void_markup(reasons: Iterable[str]) -> str:
    """The same for a page; empty if there is none."""
    return "".join(tag("p", escape(line), class_="void") for line in void_lines(reasons))
