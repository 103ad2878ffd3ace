"""The section of a page, and the table of a terminal, on what binds a run."""

from offstage.asic_model.twice import PARTS
from offstage.testbeds.report.bottleneck.tree import (
    DEFINED,
    Bottleneck,
    MemberBinds,
    Step,
    signed,
)
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, size
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import tag, with_code
from offstage.testbeds.table import Cell, Column, Table

__all__ = [
    "ASK",
    "absences",
    "bottleneck_section",
    "bottleneck_table",
    "members_section",
    "members_table",
    "unchanged",
]

TITLE = "What binds"
CAPTION = "A step binds by its figure from the limit beside it on."
CHECKED = (
    "The run was run again in virtual time with one step changed at a time, which is the check: "
    "what gains most tokens/s binds."
)
ASK = "`offstage report --bottleneck RUN` makes one, of a run that keeps its decisions"

COLUMNS = (
    Column("step", left=True),
    Column("figure"),
    Column("binds from", percent, brief=False),
)
RERUN = (
    Column("tokens/s", "{:,.4g}".format, tip="Of all sessions, in virtual time."),
    Column("stall", milliseconds, tip="Mean wait of a token for blocks, in virtual time."),
    Column("gain", tip="In tokens/s, over the unchanged re-run."),
    Column("gain then", tip="Once what binds is changed, over that."),
    Column("changed", left=True, brief=False),
)


MEMBERS = (
    Column("member", left=True),
    Column("demands", count),
    Column("load", ratio, tip="Demands over weight, in those of the mean member."),
    Column("hit rate", percent),
    Column("read", brief=False, tip="From its drive."),
    Column("a token waits", tip="For this member alone, in the mean, in virtual time."),
    *(Column(part, tip=f"{DEFINED[part]}, in virtual time") for part in PARTS),
)
MEMBERS_CAPTION = (
    "A token asks all members at once and goes on when the last has answered: of the tier, the "
    "member that it waits for longest binds."
)


def bottleneck_table(found: Bottleneck) -> Table:
    """A row for each step; without a re-run its figures alone."""
    rows: list[list[object]] = []
    columns = COLUMNS if found.binds is None else COLUMNS + RERUN
    for one in found.steps:
        row: list[object] = [
            Cell(one.name, "best" if one.name == found.binds else "", tip=DEFINED[one.name]),
            _figure(one),
            one.binds_from,
        ]
        if found.binds is not None:
            row += [*_rerun(one), one.change]
        rows.append(row)
    return Table.of(columns, rows)


def unchanged(found: Bottleneck) -> str:
    """The run and its re-run without a change, in a sentence; empty without a re-run."""
    if found.tokens_per_s is None or found.stall_ms is None:
        return ""
    told = (
        f"Run again unchanged, {found.subject} gives {found.tokens_per_s:,.4g} tokens/s, and a "
        f"token waits {milliseconds(found.stall_ms)} (modelled)"
    )
    if found.run_tokens_per_s is not None:
        waited = found.run_stall_ms
        told += f"; the run itself gave {found.run_tokens_per_s:,.4g}"
        told += f", and a token waited {milliseconds(waited)}" if waited is not None else ""
        told += f" ({found.run_provenance})"
    return f"{told}."


def absences(found: Bottleneck) -> list[str]:
    """Why figures and re-runs are absent, each reason once."""
    told: dict[tuple[str, str], list[str]] = {}
    for one in found.steps:
        if one.figure is None:
            told.setdefault(("No figures for", one.figure_absent), []).append(one.name)
        if found.binds is not None and one.gain is None:
            told.setdefault(("Not run again with a change of", one.rerun_absent), []).append(
                one.name
            )
    return [f"{what} {', '.join(names)}: {why}." for (what, why), names in told.items()]


def bottleneck_section(found: Bottleneck) -> str:
    """The section of the page."""
    lines = [found.sentence, found.reading, unchanged(found), *absences(found)]
    body = "".join(tag("p", with_code(line)) for line in lines if line)
    body += as_html(bottleneck_table(found), f"what binds {found.subject}")
    caption = CAPTION if found.binds is None else f"{CAPTION} {CHECKED}"
    return section("bottleneck", TITLE, body, f"{found.subject}. {caption}")


def members_table(found: Bottleneck) -> Table:
    """A row for each member of a pod."""
    return Table.of(MEMBERS, [_member(one, found.member) for one in found.members])


def members_section(found: Bottleneck) -> str:
    """The section of a page on the members of a pod."""
    body = as_html(members_table(found), f"members of {found.subject}")
    return section("members", "Which member binds", body, MEMBERS_CAPTION)


def _member(one: MemberBinds, slowest: str | None) -> list[object]:
    wait = Cell("–", tip=one.absent) if one.stall_ms is None else milliseconds(one.stall_ms)
    read = Cell("–", tip="it was gone") if one.bytes_read < 0 else size(one.bytes_read)
    shares = [
        percent(one.used[part]) if part in one.used else Cell("–", tip=one.absent) for part in PARTS
    ]
    name = Cell(one.name, "best" if one.name == slowest else "", tip=one.state)
    return [name, one.demands, one.load, one.hit_rate, read, wait, *shares]


def _figure(one: Step) -> Cell:
    if one.figure is None:
        return Cell("–", tip=one.figure_absent)
    mark = "missed" if one.figure >= one.binds_from else ""
    return Cell(percent(one.figure), mark, tip=one.provenance)


def _rerun(one: Step) -> list[object]:
    return [one.tokens_per_s, one.stall_ms, *map(_gain, (one.gain, one.gain_then))]


def _gain(value: float | None) -> str | None:
    return None if value is None else signed(value)
