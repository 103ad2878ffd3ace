"""The report of a lab run: one self-contained HTML file, made from a LabSummary.

It shares page, style, script and marks with the report of a demo; here points have intervals and
bounds, and the first figure is hits against their cost.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.bindings.durable import write_text
from offstage.bindings.notes import Note
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.results.summary import WEAK_REQUESTS, LabSummary
from offstage.testbeds.report.bottleneck.figures import point_by_figures
from offstage.testbeds.report.bottleneck.section import ASK, bottleneck_section
from offstage.testbeds.report.bottleneck.tree import Bottleneck
from offstage.testbeds.report.lab.breakdowns import (
    fates_section,
    misses_figure,
    subsets_section,
    timeliness_figure,
)
from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS
from offstage.testbeds.report.lab.hints import hints_figure
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.pareto import pareto_figure
from offstage.testbeds.report.lab.plots import buffer_figure, layers_figure
from offstage.testbeds.report.lab.requests import requests_figure
from offstage.testbeds.report.lab.sentence import (
    best,
    lab_sentence,
    provenance,
    reference_point,
    setup,
    subject,
    workload_facts,
)
from offstage.testbeds.report.lab.series import Metric, View, over_k, view_of, workload_words
from offstage.testbeds.report.lab.table import glossary, points_section
from offstage.testbeds.report.lab.tier_table import tiers_section
from offstage.testbeds.report.lab.tiers import tiers_figures
from offstage.testbeds.report.lab.void import why_void
from offstage.testbeds.report.lab.weights_table import weights_section
from offstage.testbeds.report.page.files import SUMMARY_NAME, write_lab_summary
from offstage.testbeds.report.page.markup import chip, facts, section
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, size
from offstage.testbeds.report.page.page import Page, Tile
from offstage.testbeds.report.page.plot import Figure
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import SIGN

__all__ = ["figures_of", "render_lab", "write_lab_report", "write_results"]


def write_results(summary: LabSummary, out: Path) -> dict[str, Path]:
    """Writes summary, report and manifest of a run into `out`, the folder of its ledger; their
    paths."""
    paths = {
        "summary": out / SUMMARY_NAME,
        "report": out / "report.html",
        "manifest": out / "manifest.json",
    }
    write_lab_summary(summary, paths["summary"])
    write_lab_report(summary, paths["report"])
    write_text(paths["manifest"], as_json(summary.manifest))
    return paths


def write_lab_report(
    summary: LabSummary, path: str | Path, bottleneck: Bottleneck | None = None, judged: str = ""
) -> None:
    """Writes the report; RunFailed if the file cannot be written."""
    write_text(Path(path), render_lab(summary, bottleneck, judged))


def figures_of(summary: LabSummary) -> list[Figure]:
    """Every figure of the page."""
    found = _sections(summary)
    return [one for one in found if isinstance(one, Figure)]


def _sections(summary: LabSummary) -> list[Figure | str]:
    """The sections between the tiles and the description of the run."""
    view = view_of(summary.points)
    found: list[Figure | str | None] = []
    if view.facets:
        found = [
            pareto_figure(view),
            weights_section(view),
            points_section(view),
            buffer_figure(view),
            hints_figure(view),
            misses_figure(view),
            layers_figure(view),
            *tiers_figures(view),
            tiers_section(view),
            subsets_section(view),
            timeliness_figure(view),
            fates_section(view),
        ]
    found.append(requests_figure(summary.requests))
    return [one for one in found if one]


def render_lab(summary: LabSummary, bottleneck: Bottleneck | None = None, judged: str = "") -> str:
    """The page as text. `bottleneck`: one that a re-run checked; None: by figures alone. `judged`:
    the section of an acceptance, if there is one."""
    view = view_of(summary.points)
    tiles, of = _tiles(view)
    manifest = msgspec.to_builtins(summary.manifest)
    del manifest["workloads"]  # a section of their own
    keys = [entry.key for entry in LAB_DEFINITIONS]
    page = Page(
        title=f"Offstage: {summary.name}",
        sentence=lab_sentence(summary),
        setup=setup(summary),
        tiles=tiles,
        tiles_of=of,
        sections=[
            judged,
            *_sections(summary),
            _binds(view, summary, bottleneck),
            _workloads(summary),
        ],
        command=summary.manifest.command,
        again="Spec, seeds and version determine every figure: times are virtual, and the ledger "
        "is the same byte for byte.",
        foot=[
            facts("The spec", summary.spec),
            facts("The manifest", manifest),
            glossary("Every figure of summary.json", keys),
        ],
        version=summary.manifest.version,
        notes=noted(summary),
    )
    return str(page)


def _binds(view: View, summary: LabSummary, bottleneck: Bottleneck | None) -> str:
    """What binds the point that the sentence is about; empty without points, and of a sweep."""
    found = subject(view) if len(view.facets) == 1 else None
    if bottleneck is None and found is not None:
        bottleneck = point_by_figures(found[2], summary, ASK)
    return bottleneck_section(bottleneck) if bottleneck is not None else ""


def _tiles(view: View) -> tuple[list[Tile], str]:
    """The four most important figures, and their subject: the sentence's, or of a sweep their
    ranges."""
    if len(view.facets) > 1:
        return _sweep_tiles(view)
    found = subject(view)
    if found is None:
        return [], ""
    facet, look, point = found
    none, metric = reference_point(facet, facet.middle), view.metric
    hit, gap, traffic, stall = (
        metric.hit_of(point),
        metric.gap_of(point),
        metric.traffic_of(point),
        point.stall_ms_p99,
    )
    without = None if none is None else metric.hit_of(none)
    waited = None if none is None else none.stall_ms_p99
    why = why_void(point, metric.hit)
    sign, kind = (SIGN, "void") if why else ("", "")
    tiles = [
        Tile(
            _hits_name(metric),
            percent(hit.value) + sign if hit else "–",
            f"{percent(without.value)} without prefetch" if without else "",
            kind,
        ),
        Tile(
            "gap closed",
            percent(gap.value) + sign if gap else "–",
            "to the clairvoyant bound",
            kind,
        ),
        Tile("bytes read", ratio(traffic.value) if traffic else "–", _scale(metric)),
        Tile(
            "stall p99",
            milliseconds(stall.value) if stall else "–",
            f"{milliseconds(waited.value)} without prefetch" if waited else "",
        ),
    ]
    info = point.info
    note = (
        f"{look.name} on {facet.title}, buffer {over_k(facet.middle)} ({count(info.buffer_blocks)} "
        f"blocks of {size(info.block_bytes)} a layer), {interval_text(hit)}"
    )
    return tiles, f"{note}. {SIGN} says little about a policy: {why}" if why else note


def _hits_name(metric: Metric) -> str:
    return "non-trivial hits" if metric.hit == "nontrivial_hit" else "hits"


def _scale(metric: Metric) -> str:
    scale = "the reference" if metric.traffic == "traffic_vs_reference" else "no prefetch"
    return f"{scale} is 1"


def _sweep_tiles(view: View) -> tuple[list[Tile], str]:
    """Tiles of a sweep: ranges over the best policy of each setting."""
    metric = view.metric
    points = [best(facet, metric)[1] for facet in view.facets]
    tiles = []
    for name, of, form, under in (
        (_hits_name(metric), metric.hit_of, percent, ""),
        ("gap closed", metric.gap_of, percent, "to the clairvoyant bound"),
        ("bytes read", metric.traffic_of, ratio, _scale(metric)),
        ("stall p99", lambda point: point.stall_ms_p99, milliseconds, ""),
    ):
        values = [one.value for point in points if (one := of(point)) is not None]
        shown = [form(end) for end in (min(values), max(values))] if values else []
        tiles.append(Tile(name, _range(list(dict.fromkeys(shown))), under))
    middles = ", ".join(dict.fromkeys(over_k(facet.middle) for facet in view.facets))
    note = f"the best policy of each of {len(view.facets)} settings, buffer {middles}"
    return tiles, note


def _range(ends: Sequence[str]) -> str:
    """`80.1–96.2 %`: the unit is written once if both have the same."""
    if len(ends) < 2:
        return ends[0] if ends else "–"
    low, high = ends
    unit = next(
        (
            one
            for one in (" %", "×", " ms", " s", " µs")
            if low.endswith(one) and high.endswith(one)
        ),
        "",
    )
    return f"{low.removesuffix(unit)}–{high}"


def _workloads(summary: LabSummary) -> str:
    """The source of the selections, and that times are modelled."""
    names = dict.fromkeys(point.info.workload for point in summary.points)
    pieces = []
    for name in names:
        found = provenance(summary, name)
        label = f'<span class="chip {found}">{found}</span>' if found else ""
        title = f"<h3>{escape(workload_words(name))} {label} {chip('modelled')}</h3>"
        facts_shown = facts("What it is", workload_facts(summary, name)).replace(
            "<details>", "<details open>", 1
        )
        pieces.append(title + (facts_shown or "<p>The manifest does not describe it.</p>"))
    if not pieces:
        return ""
    caption = (
        "Synthetic selections are drawn from a process fitted to published figures; captured ones "
        "were recorded from a model. Reads and waits come from a model of the storage, in virtual "
        "time: nothing was timed on a device."
    )
    return section("workloads", "What was run", "".join(pieces), caption)


def noted(summary: LabSummary) -> dict[Note, str]:
    """The notes to read before quoting the figures, each with the points it applies to."""
    found = dict.fromkeys(summary.notes, "")
    weak = [point for point in summary.points if point.weak]
    if weak:
        words = f"fewer than {WEAK_REQUESTS} requests: intervals are weak"
        found[Note("weak", words)] = f"{len(weak)} of {len(summary.points)} points"
    for failed in summary.failed:
        note = Note("failed", failed.message)
        found[note] = "; ".join(filter(None, [found.get(note, ""), f"failed: {failed.point}"]))
    lost = sum(point.reads_failed for point in summary.points)
    if lost:
        found[Note("reads-failed", f"{lost:,} reads failed")] = ""
    return found
