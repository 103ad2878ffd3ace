"""The gain of the DPU: its runs and a host that keeps its blocks itself, as a table.

On each storage: the tier with the most prefetchers and without prefetch, then every baseline of
that provenance. The workload, the HBM pool and the pace are those of the tier's runs; memory
between HBM and the drive has a column, because it differs.
"""

from collections.abc import Sequence

from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import ratio, show
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.page.void import void_cell, void_lines, void_markup
from offstage.testbeds.report.run.runs import Group, groups, label, reference_run, subject
from offstage.testbeds.report.run.table import column_of
from offstage.testbeds.report.run.void import why_void
from offstage.testbeds.table import Cell, Column, Part, Table

__all__ = ["baselines_section", "baselines_sentence", "baselines_table"]

COLUMNS = (
    "staging_bytes",
    "hit",
    "late",
    "miss",
    "fetch_ms_p50",
    "fetch_ms_p99",
    "stall_ms_p50",
    "stall_ms_p99",
    "tokens_per_s",
    "bytes_read",
    "blocks_corrupt",
)
CONSOLE_COLUMNS = (
    "hit",
    "late",
    "miss",
    "fetch_ms_p50",
    "fetch_ms_p99",
    "stall_ms_p99",
    "tokens_per_s",
)
NAMES = {"g2": "G2: host memory, then the drive", "g3": "G3: the drive alone"}
CAPTION = (
    "The same sessions, selections, HBM pool and pace; every block is compared. G3 reads blocks "
    "that the HBM pool lacks from the drive. G2 also keeps an LRU cache of them in host memory, "
    "as large as the DPU's, and reads its misses from the drive, where plain offload would have "
    "to compute them again. Neither prefetches, and both run on the host's cores. On a real drive "
    "they bypass the page cache."
)

Row = tuple[str, RunResult]


def _rows(group: Group, beside: Sequence[RunResult]) -> list[Row]:
    """The tier's runs of one storage, and the baselines of the same provenance."""
    fullest, without = subject(group), reference_run(group)
    rows = [(f"DPU, {label(fullest)}", fullest)]
    if without is not None and without is not fullest:
        rows.append((f"DPU, {label(without)}", without))
    found = [one for one in beside if one.provenance == group.provenance]
    return rows + [(f"{NAMES.get(one.name, one.name)} ({one.storage})", one) for one in found]


def _tables(summary: Summary) -> list[tuple[Group, list[Row]]]:
    there = {one.provenance for one in summary.baselines}
    return [
        (group, _rows(group, summary.baselines))
        for group in groups(summary.runs, summary.notes)
        if group.provenance in there
    ]


def baselines_sentence(summary: Summary) -> str:
    """How much shorter the fetches and stalls of the fullest run are; "" without baselines."""
    pieces = []
    for group, rows in _tables(summary):
        run = rows[0][1]
        for _, one in rows:
            if one not in summary.baselines or not run.fetch_ms_p99 or not run.stall_ms_p99:
                continue
            fetch, stall = (
                ratio(getattr(one, key) / getattr(run, key))
                for key in ("fetch_ms_p99", "stall_ms_p99")
            )
            pieces.append(f"{one.name} on {group.where}: fetch p99 {fetch}, stall p99 {stall}")
    said = "; ".join(pieces)
    return f"Baselines over the DPU with {rows[0][0][5:]}: {said}." if pieces else ""


def baselines_section(summary: Summary) -> str:
    """The table of the page; empty without baselines."""
    table = baselines_table(summary)
    if table is None:
        return ""
    said = tag("p", escape(baselines_sentence(summary)), class_="caption")
    noted = void_markup(_reasons(_tables(summary)))
    body = as_html(table, "table of baselines") + noted + said
    return section("baselines", "Compared with a host without a DPU", body, CAPTION)


def baselines_table(summary: Summary) -> Table | None:
    """The table for terminal and page; None without baselines."""
    found = _tables(summary)
    if not found:
        return None
    columns = [
        Column("run", left=True, short="compared with a host without a DPU"),
        *(column_of(key, key in CONSOLE_COLUMNS) for key in COLUMNS),
    ]
    parts = [
        Part(
            [[name, *(_cell(group, run, key) for key in COLUMNS)] for name, run in rows],
            group.title,
            group.provenance,
            terse=group.where,
        )
        for group, rows in found
    ]
    return Table(columns, parts, note="\n".join(void_lines(_reasons(found))))


def _cell(group: Group, run: RunResult, key: str) -> Cell:
    return void_cell(Cell(show(key, getattr(run, key))), why_void(group, run, key))


def _reasons(found: Sequence[tuple[Group, list[Row]]]) -> list[str]:
    """What is said against figures of the table, run by run."""
    return [
        f"{name}: {why}"
        for group, rows in found
        for name, run in rows
        for why in dict.fromkeys(why_void(group, run, key) for key in COLUMNS)
        if why
    ]
