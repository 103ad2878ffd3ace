"""The table of runs: as HTML with definitions on hover and beside it, and for the terminal."""

from collections.abc import Sequence
from html import escape

from rich.table import Table
from rich.text import Text

from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.markup import chip, swatch
from offstage.testbeds.report.page.numbers import show
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.definitions import PROVENANCE_TEXTS, definition
from offstage.testbeds.report.run.plots import Colours
from offstage.testbeds.report.run.runs import Group, groups, labels

__all__ = ["best", "cell", "console_table", "glossary", "runs_section"]

COLUMNS = (
    "hit_rate", "nontrivial_hit_rate", "late_rate", "miss_rate", "coverage", "accuracy",
    "traffic_ratio", "stall_ms_p50", "stall_ms_p99", "token_ms_p50", "bytes_read", "hbm_share",
    "blocks_corrupt",
)  # fmt: skip
CONSOLE_COLUMNS = (
    "hit_rate", "nontrivial_hit_rate", "late_rate", "miss_rate", "traffic_ratio", "stall_ms_p99",
    "blocks_corrupt",
)  # fmt: skip
ONLY_WITH_PREFETCH = ("coverage", "accuracy")


def cell(run: RunResult, column: str) -> str:
    """A figure as text; a dash where it has no meaning for the run."""
    if column in ONLY_WITH_PREFETCH and not run.prefetchers:
        return "–"
    return show(column, getattr(run, column))


def best(group: Group, column: str) -> set[int]:
    """Places in the group of the runs that are best in a column; none where all show the same."""
    better = definition(column).better
    shown = [cell(run, column) for run in group.runs]
    live = [at for at, text in enumerate(shown) if text != "–"]
    if not better or len({shown[at] for at in live}) < 2:
        return set()
    values = {at: float(getattr(group.runs[at], column)) for at in live}
    top = (max if better == "higher" else min)(values.values())
    winner = next(shown[at] for at in live if values[at] == top)
    # What reads the same is marked the same.
    return {at for at in live if shown[at] == winner}


def runs_section(found: Sequence[Group], colours: Colours) -> str:
    """The table and, folded under it, what its columns mean."""
    head = tag("th", "run", scope="col") + "".join(_head(column) for column in COLUMNS)
    rows = [row for group in found for row in _group_rows(group, colours)]
    table = f"<table><thead><tr>{head}</tr></thead>{''.join(rows)}</table>"
    caption = (
        "One row for each set of prefetchers, all with the same staging buffer; the best of each "
        "storage is marked in every column. Read hit rate, traffic and stall together: hits can "
        "always be bought with traffic."
    )
    scroll = tag(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label="table of runs"
    )
    return tag(
        "section",
        f'<h2 id="runs-title">The runs</h2>{scroll}<p class="caption">{escape(caption)}</p>'
        + glossary(COLUMNS, "What the columns mean"),
        id="runs",
        aria_labelledby="runs-title",
    )


def _head(column: str) -> str:
    entry = definition(column)
    tip = entry.sentence + (f"\n{entry.better} is better" if entry.better else "")
    label = tag("abbr", escape(entry.label), tabindex=0, data_tip=tip)
    return tag("th", label, scope="col", class_="number")


def _group_rows(group: Group, colours: Colours) -> list[str]:
    span = len(COLUMNS) + 1
    title = f"<span>{escape(group.title)} {chip(group.provenance)}</span>"
    rows = [tag("tr", tag("th", title, colspan=span, scope="rowgroup"), class_="group")]
    winners = {column: best(group, column) for column in COLUMNS}
    for at, (run, name) in enumerate(zip(group.runs, labels(group), strict=True)):
        mark = swatch(colours[tuple(sorted(run.prefetchers))], group.provenance)
        cells = [tag("th", mark + escape(name), scope="row", title=run.name)]
        for column in COLUMNS:
            text = escape(cell(run, column))
            if at in winners[column]:
                text = f'<strong>{text}<span class="hidden"> (best)</span></strong>'
            bad = " bad" if column == "blocks_corrupt" and run.blocks_corrupt else ""
            cells.append(tag("td", text, class_=f"number{bad}"))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return [f"<tbody>{''.join(rows)}</tbody>"]


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
    return (
        f"<details><summary>{escape(title)}</summary>{note}"
        f'<dl class="glossary">{"".join(entries)}</dl></details>'
    )


def console_table(summary: Summary) -> Table:
    """The runs as one table for a terminal of 80 columns or more."""
    table = Table(pad_edge=False, header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    for column in CONSOLE_COLUMNS:
        width = max([len(definition(column).label), *(len(cell(r, column)) for r in summary.runs)])
        table.add_column(definition(column).label, justify="right", no_wrap=True, min_width=width)
    for number, group in enumerate(groups(summary.runs)):
        if number:
            table.add_row()
        table.add_row(Text(group.where, style="dim"))
        winners = {column: best(group, column) for column in CONSOLE_COLUMNS}
        for at, (run, name) in enumerate(zip(group.runs, labels(group), strict=True)):
            cells = []
            for column in CONSOLE_COLUMNS:
                style = "bold green" if at in winners[column] else ""
                if column == "blocks_corrupt" and run.blocks_corrupt:
                    style = "bold red"
                cells.append(Text(cell(run, column), style=style))
            table.add_row(Text(name.replace(" + ", "+")), *cells)
    return table
