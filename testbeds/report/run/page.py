"""The report of a run: one self-contained HTML file."""

from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.testbeds.live.results import Summary
from offstage.testbeds.report.bottleneck.figures import run_by_figures
from offstage.testbeds.report.bottleneck.section import ASK, bottleneck_section
from offstage.testbeds.report.bottleneck.tree import Bottleneck
from offstage.testbeds.report.page.markup import facts
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, size
from offstage.testbeds.report.page.page import Page, Tile
from offstage.testbeds.report.page.plot import Figure
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import SIGN, void_lines
from offstage.testbeds.report.run.baselines import baselines_section
from offstage.testbeds.report.run.curve import curve_figure
from offstage.testbeds.report.run.definitions import DEFINITIONS
from offstage.testbeds.report.run.figures import fates_figure, served_figure
from offstage.testbeds.report.run.model import model_section
from offstage.testbeds.report.run.plots import hit_rate_figure, leads_figure, stall_figure
from offstage.testbeds.report.run.runs import (
    Group,
    groups,
    label,
    reference_run,
    set_colours,
    subject,
)
from offstage.testbeds.report.run.stages import stages_figure
from offstage.testbeds.report.run.table import glossary, runs_section
from offstage.testbeds.report.run.timeline import timeline_figure
from offstage.testbeds.report.run.void import why_void
from offstage.testbeds.report.run.wear import wear_section

__all__ = ["figures_of", "render", "setup_line", "write_report"]


def write_report(
    summary: Summary, path: str | Path, bottleneck: Bottleneck | None = None, judged: str = ""
) -> None:
    """Writes the report; RunFailed if the file cannot be written."""
    write_text(Path(path), render(summary, bottleneck, judged))


def render(summary: Summary, bottleneck: Bottleneck | None = None, judged: str = "") -> str:
    """The page as text. `bottleneck`: one that a re-run checked; None: by figures alone. `judged`:
    the section of an acceptance, if there is one."""
    found = groups(summary.runs, summary.notes)
    sections: list[object] = [judged, model_section(summary.model)]
    if found:
        wear = wear_section(found, set_colours(summary.runs))
        binds = bottleneck or run_by_figures(subject(found[0]), ASK)
        sections += [runs_section(found), baselines_section(summary), bottleneck_section(binds)]
        sections += [*figures_of(summary), wear]
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
        again=f"Offstage {escape(summary.version)}{_seeded(summary)}. Times are those of this "
        "machine at that time.",
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
    """Every figure of the page, or the text in its place if there is nothing to draw."""
    found, colours = groups(summary.runs, summary.notes), set_colours(summary.runs)
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
    """The four most important figures, of the leading group's fullest set of prefetchers, and
    their subject."""
    run, without = subject(group), reference_run(group)
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
    tiles, against = [], []
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
        why = why_void(group, run, "traffic_ratio" if key == "bytes_read" else key)
        against += [why] if why else []
        tiles.append(Tile(name, value + SIGN * bool(why), under, "void" * bool(why)))
    corrupt = f"{count(run.blocks_corrupt)} corrupt"
    compared = count(run.blocks_verified + run.blocks_corrupt)
    tiles.append(Tile("blocks compared", compared, corrupt, "bad" if run.blocks_corrupt else ""))
    return tiles, ". ".join([f"{label(run)} on {group.where}", *void_lines(against)])


# What was run and on what, in one line under the sentence.


def setup_line(summary: Summary) -> str:
    """Workload, geometry, machine, seed and provenance; storages only of a summary with runs."""
    load, own = summary.workload, summary.machine
    of = "model geometry" if summary.model is None else "model"
    storages = ", ".join(group.where for group in groups(summary.runs))
    pieces = [
        load.sentence,
        f"{of} {load.geometry}, {load.geometry_note}",
        f"{own.processor}, {own.core_count} cores, {size(own.memory_bytes)} of memory, "
        f"kernel {own.kernel}",
        f"storage: {storages}" if storages else "",
        f"seed {summary.seed}" if summary.model is None else "",
    ]
    first = _capital(pieces[0]) if summary.model is None else pieces[0]  # a model's own name
    told = [first, *map(_capital, filter(None, pieces[1:]))]
    return ". ".join(piece.rstrip(".") for piece in told) + "."


def _seeded(summary: Summary) -> str:
    """What fixes the workload, where anything is drawn."""
    return f", seed {summary.seed}, which fixes the workload" if summary.model is None else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
