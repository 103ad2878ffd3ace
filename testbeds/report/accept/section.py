"""The judgement of a run as a table of a terminal, and as a section of its page."""

from offstage.testbeds.report.accept.judge import Acceptance, Judged
from offstage.testbeds.report.accept.rules import IN_WORDS, RULES
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.table import Cell, Column, Table

__all__ = ["acceptance_section", "acceptance_table"]

COLUMNS = (
    Column("limit", left=True),
    Column("verdict", left=True),
    Column("figure"),
    Column("to be", left=True),
    Column("from", left=True),
    Column("source", left=True, brief=False),
)
CAPTION = (
    "Of several sources the worst is judged. A figure that no source has is absent, and stands "
    "against the tier only where the limits require it."
)
MARKS = {"pass": "good", "fail": "missed", "absent": ""}


def acceptance_table(found: Acceptance) -> Table:
    """A row for each limit."""
    return Table.of(COLUMNS, [_row(one) for one in found.limits])


def acceptance_section(found: Acceptance) -> str:
    """The section of the page."""
    body = tag("p", escape(found.sentence))
    body += as_html(acceptance_table(found), f"acceptance of {found.subject}")
    return section("acceptance", "Acceptance", body, f"{found.subject}. {CAPTION}")


def _row(one: Judged) -> list[object]:
    shown = RULES[one.name].shown
    return [
        Cell(one.name, tip=one.text),
        Cell(one.verdict, MARKS[one.verdict]),
        "–" if one.value is None else shown(one.value),
        f"{IN_WORDS[one.comparison]} {shown(one.limit)}",
        one.provenance or one.reason,
        one.source,
    ]
