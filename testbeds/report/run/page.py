"""The report of a run: one HTML file that needs nothing else, and its table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offstage.bindings.durable import write_text
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.markup import facts, folded, section
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, show, size
from offstage.testbeds.report.page.page import Page, Tile
from offstage.testbeds.report.page.plot import Figure
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.run.baselines import baselines_section
from offstage.testbeds.report.run.columns import column_of, run_cell
from offstage.testbeds.report.run.curve import curve_figure
from offstage.testbeds.report.run.definitions import DEFINITIONS, PROVENANCE_TEXTS, definition
from offstage.testbeds.report.run.figures import fates_figure, served_figure
from offstage.testbeds.report.run.plots import Colours, hit_rate_figure, leads_figure, stall_figure
from offstage.testbeds.report.run.runs import (
    Group,
    baseline,
    groups,
    label,
    set_colours,
    subject,
)
from offstage.testbeds.report.run.stages import stages_figure
from offstage.testbeds.report.run.timeline import timeline_figure
from offstage.testbeds.report.run.wear import wear_section
from offstage.testbeds.table import Cell, Column, Part, Table

__all__ = [
    "best",
    "cell",
    "console_table",
    "figures_of",
    "glossary",
    "render",
    "runs_section",
    "runs_table",
    "setup_line",
    "write_report",
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
    """A figure as text; a dash where it has no meaning for the run."""
    if column in ONLY_WITH_PREFETCH and not run.prefetchers:
        return "–"
    return show(column, getattr(run, column))


def best(group: Group, column: str) -> set[int]:
    """Indices in the group of the runs that are best in a column; none where all show the same."""
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


def runs_table(found: Sequence[Group]) -> Table:
    """A row for each set of prefetchers, by storage; the best of each storage is marked."""
    columns = [
        Column("run", left=True),
        *(column_of(key, key in CONSOLE_COLUMNS, better=True) for key in COLUMNS),
    ]
    colours = set_colours([run for group in found for run in group.runs])
    return Table(columns, [_part(group, colours) for group in found])


def _part(group: Group, colours: Colours) -> Part:
    winners = {column: best(group, column) for column in COLUMNS}
    rows = []
    for at, run in enumerate(group.runs):
        cells: list[object] = [run_cell(group, at, colours)]
        for column in COLUMNS:
            mark = "best" if at in winners[column] else ""
            if column == "blocks_corrupt" and run.blocks_corrupt:
                mark = "bad"
            cells.append(Cell(cell(run, column), mark))
        rows.append(cells)
    return Part(rows, group.title, group.provenance, terse=group.where)


def runs_section(found: Sequence[Group]) -> str:
    """The table and, folded under it, what its columns mean."""
    return section(
        "runs",
        "The runs",
        as_html(runs_table(found), "table of runs"),
        "One row for each set of prefetchers, all with the same staging buffer; the best of each "
        "storage is marked in every column. Read hit rate, traffic and stall together: hits can "
        "always be bought with traffic.",
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
    return runs_table(groups(summary.runs))


# The report of a run: one HTML file that needs nothing else, made from a Summary.


def write_report(summary: Summary, path: str | Path) -> None:
    """Writes the report; RunFailed where the file cannot be written."""
    write_text(Path(path), render(summary))


def render(summary: Summary) -> str:
    """The page as text."""
    found = groups(summary.runs)
    sections: list[object] = []
    if found:
        wear = wear_section(found, set_colours(summary.runs))
        sections = [runs_section(found), baselines_section(summary), *figures_of(summary), wear]
    tiles, of = _tiles(found[0]) if found else ([], "")
    keys = [entry.key for entry in DEFINITIONS]
    page = Page(
        title=f"Offstage: {_title(summary)}",
        sentence=summary.sentence,
        setup=setup_line(summary),
        tiles=tiles,
        tiles_of=of,
        sections=sections,
        command=summary.command,
        again=f"Offstage {escape(summary.version)}, seed {summary.seed}. The seed fixes the "
        "workload; times are of this machine and of this moment.",
        foot=[
            facts("The workload, in full", summary.workload),
            facts("The machine", summary.machine),
            glossary(keys, "Every figure of summary.json"),
        ],
        version=summary.version,
        notes=summary.noted(),
    )
    return str(page)


def figures_of(summary: Summary) -> list[Figure | str]:
    """Every figure of the page, or what stands there where there is nothing to draw."""
    found, colours = groups(summary.runs), set_colours(summary.runs)
    if not found:
        return []
    figures = [
        hit_rate_figure(found, colours),
        served_figure(found, colours),
        leads_figure(found, colours),
        stall_figure(found, colours),
        curve_figure(found, summary.curve, colours),
        fates_figure(found, colours),
        timeline_figure(summary),
        stages_figure(found),
    ]
    return [one for one in figures if one is not None]


def _title(summary: Summary) -> str:
    sets = dict.fromkeys(label(run) for run in summary.runs)
    return ", ".join(sets) or "no runs"


def _tiles(group: Group) -> tuple[list[Tile], str]:
    """The four figures to look at first, of the leading group's fullest set of prefetchers, and
    what they are of."""
    run, without = subject(group), baseline(group)
    rows = [
        ("hit rate", percent(run.hit), "{} without prefetch", "hit", percent),
        ("bytes read", ratio(run.traffic_ratio), "{} without prefetch", "bytes_read", size),
        (
            "stall p99",
            milliseconds(run.stall_ms_p99),
            "{} without prefetch",
            "stall_ms_p99",
            milliseconds,
        ),
    ]
    tiles = []
    for name, value, note, key, form in rows:
        if key == "bytes_read":
            under = size(run.bytes_read)
            if without is not None:
                under = f"{under}, {note.format(size(without.bytes_read))}"
            if run.read_amplification:
                under = (
                    f"{under}, {ratio(run.read_amplification)} of what was demanded, "
                    f"{size(run.bytes_spared)} spared"
                )
        else:
            under = note.format(form(getattr(without, key))) if without is not None else ""
        tiles.append(Tile(name, value, under))
    corrupt = f"{count(run.blocks_corrupt)} corrupt"
    compared = count(run.blocks_verified + run.blocks_corrupt)
    tiles.append(Tile("blocks compared", compared, corrupt, "bad" if run.blocks_corrupt else ""))
    return tiles, f"{label(run)} on {group.where}"


# What was run and on what, in one line under the sentence.


def setup_line(summary: Summary) -> str:
    """Workload, geometry, machine, seed and provenance; what the summary lacks is left out."""
    pieces = [_text(summary.workload, "sentence"), _geometry(summary.workload)]
    pieces.append(_machine(summary.machine))
    storages = ", ".join(group.where for group in groups(summary.runs))
    pieces.append(f"storage: {storages}" if storages else "")
    pieces.append(f"seed {summary.seed}")
    return ". ".join(_capital(piece.rstrip(".")) for piece in pieces if piece) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _geometry(workload: Mapping[str, Any]) -> str:
    name, note = _text(workload, "geometry"), _text(workload, "geometry_note")
    text = ", ".join(piece for piece in (name, note) if piece)
    return f"model geometry {text}" if text else ""


def _machine(machine: Mapping[str, Any]) -> str:
    pieces = [_text(machine, "processor")]
    cores = machine.get("core_count")
    if isinstance(cores, int):
        pieces.append(f"{cores} cores")
    memory = machine.get("memory_bytes")
    if isinstance(memory, int):
        pieces.append(f"{size(memory)} of memory")
    kernel = _text(machine, "kernel")
    pieces.append(f"kernel {kernel}" if kernel else "")
    return ", ".join(piece for piece in pieces if piece)
