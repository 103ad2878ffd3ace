"""The table of runs, for a terminal and for the page: a row for each set of prefetchers."""

from collections.abc import Sequence

from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.markup import folded, section
from offstage.testbeds.report.page.numbers import show
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.page.void import void_cell, void_lines, void_markup
from offstage.testbeds.report.run.definitions import PROVENANCE_TEXTS, definition
from offstage.testbeds.report.run.plots import Colours
from offstage.testbeds.report.run.runs import Group, groups, labels, set_colours
from offstage.testbeds.report.run.void import reasons, why_void
from offstage.testbeds.table import NOTHING, Cell, Column, Part, Table

__all__ = [
    "best",
    "cell",
    "column_of",
    "console_table",
    "glossary",
    "run_cell",
    "runs_section",
    "runs_table",
]

COLUMNS = (
    "hit",
    "nontrivial_hit",
    "selection_hit",
    "late",
    "miss",
    "coverage",
    "accuracy",
    "traffic_ratio",
    "stall_ms_p50",
    "stall_ms_p99",
    "token_ms_p50",
    "tokens_per_s",
    "bytes_read",
    "blocks_corrupt",
)
CONSOLE_COLUMNS = (
    "hit",
    "nontrivial_hit",
    "selection_hit",
    "late",
    "traffic_ratio",
    "stall_ms_p99",
    "blocks_corrupt",
)
ONLY_WITH_PREFETCH = ("coverage", "accuracy")


def cell(run: RunResult, column: str) -> str:
    """A figure as text; a dash if it has no meaning for the run."""
    if column in ONLY_WITH_PREFETCH and not run.prefetchers:
        return "–"
    return show(column, getattr(run, column))


def best(group: Group, column: str) -> set[int]:
    """Indices in the group of the runs that are best in a column; none if all show the same."""
    better = definition(column).better
    shown = [cell(run, column) for run in group.runs]
    live = [at for at, text in enumerate(shown) if text != "–"]
    if not better or len({shown[at] for at in live}) < 2:
        return set()
    values = {at: float(getattr(group.runs[at], column)) for at in live}
    top = (max if better == "higher" else min)(values.values())
    winner = next(shown[at] for at in live if values[at] == top)
    # Equal text is marked equally.
    return {at for at in live if shown[at] == winner}


def runs_table(found: Sequence[Group]) -> Table:
    """A row for each set of prefetchers, by storage; the best of each storage is marked."""
    columns = [
        Column("run", left=True),
        *(column_of(key, key in CONSOLE_COLUMNS, better=True) for key in COLUMNS),
    ]
    colours = set_colours([run for group in found for run in group.runs])
    lines = void_lines(reasons(found, COLUMNS))
    return Table(columns, [_part(group, colours) for group in found], note="\n".join(lines))


def _part(group: Group, colours: Colours) -> Part:
    winners = {column: best(group, column) for column in COLUMNS}
    rows = []
    for at, run in enumerate(group.runs):
        cells: list[object] = [run_cell(group, at, colours)]
        for column in COLUMNS:
            mark = "best" if at in winners[column] else ""
            if column == "blocks_corrupt" and run.blocks_corrupt:
                mark = "bad"
            text, why = cell(run, column), why_void(group, run, column)
            cells.append(void_cell(Cell(text, mark), why if text != NOTHING else ""))
        rows.append(cells)
    return Part(rows, group.title, group.provenance, terse=group.where)


def runs_section(found: Sequence[Group]) -> str:
    """The table and, folded under it, the meaning of its columns."""
    return section(
        "runs",
        "The runs",
        as_html(runs_table(found), "table of runs") + void_markup(reasons(found, COLUMNS)),
        "One row for each set of prefetchers, all with the same staging buffer. In each column the "
        "best of each storage is marked, but never a void figure. Read hit rate, traffic and "
        "stall together: hits can always be bought with traffic.",
        glossary(COLUMNS, "What the columns mean"),
    )


def glossary(keys: Sequence[str], title: str) -> str:
    """Definitions with formulas, folded."""
    entries = []
    for key in keys:
        entry = definition(key)
        formula = f"<code>{escape(entry.formula)}</code>" if entry.formula else ""
        entries.append(f"<dt>{escape(entry.label)}</dt><dd>{escape(entry.text)} {formula}</dd>")
    for name, text in PROVENANCE_TEXTS.items():
        entries.append(f"<dt>{name}</dt><dd>{escape(text)}.</dd>")
    note = (
        "<p>D is the number of demands: selected blocks that were not in the HBM pool. Without "
        "prefetch means: the run without prefetch on the same storage, at the same buffer.</p>"
    )
    return folded(title, note + tag("dl", "".join(entries), class_="glossary"))


def console_table(summary: Summary) -> Table:
    """The runs for a terminal: the same table as the page's."""
    return runs_table(groups(summary.runs, summary.notes))


def column_of(key: str, brief: bool, *, better: bool = False) -> Column:
    """A figure's column; `better` gives the direction in its tip."""
    entry = definition(key)
    tip = entry.sentence
    if better and entry.better:
        tip += f"\n{entry.better} is better"
    return Column(entry.label, tip=tip, brief=brief)


def run_cell(group: Group, at: int, colours: Colours) -> Cell:
    """The name of a group's run in its colour."""
    run, name = group.runs[at], labels(group)[at]
    mark = colours[tuple(sorted(run.prefetchers))], group.provenance
    return Cell(name, terse=name.replace(" + ", "+"), swatch=mark)
