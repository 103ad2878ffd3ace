"""The rest of a lab report's figures: misses by reason, the worst subsets, timeliness, fates."""

from offstage.bindings.ledger import share
from offstage.testbeds.lab.results.summary import PointSummary, Subset
from offstage.testbeds.report.lab.facets import FACETS_MAX, left_out, looks_legend
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.series import Facet, Look, Metric, View, over_k
from offstage.testbeds.report.lab.void import reasons
from offstage.testbeds.report.page.bars import Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import Segment, bar, bar_row, key, legend, section, swatch
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.page.void import void_markup
from offstage.testbeds.report.run.definitions import END_TEXTS
from offstage.testbeds.report.run.lead import Leads, lead_figure, lead_plot, lead_span
from offstage.testbeds.table import Cell, Column, Table

__all__ = ["fates_section", "misses_figure", "subsets_section", "timeliness_figure"]

MISSES = ("late", "cold", "capacity", "policy")
READ_FATES = ("used", "late", "unused", "cancelled", "dropped")


def _heading(view: View, facet: Facet) -> str:
    title = facet.title if len(view.facets) > 1 else f"buffer {over_k(facet.middle)}"
    against = [point for _, point in facet.at(facet.middle)]
    return f"<h3>{escape(title)}</h3>" + void_markup(reasons(against))


# Why demands missed


def misses_figure(view: View) -> Figure:
    """Late and missed demands by reason, at the middle buffer; longest is worst."""
    return Figure(
        "misses",
        "Why demands were not staged in time",
        [_misses_plot(view, facet) for facet in view.facets[:FACETS_MAX]],
        f"Shorter is better: the share of {view.metric.hit_words} that were not staged in time, by "
        "reason, at the middle buffer. The longest bar fills its panel. Capacity: demand-only LRU "
        "would have missed it too. Policy: it would not.",
        legend([key(f"var(--end-{end})", end, tip=END_TEXTS[end]) for end in MISSES]),
        left_out(view),
    )


def _misses_plot(view: View, facet: Facet) -> Plot:
    """Markup on the page, since names are above their bars and wrap; drawn for paper."""
    found = facet.at(facet.middle)
    most = max((sum(_misses(point, view.metric)) for _, point in found), default=0.0)
    markup = [_miss_row(look, point, view.metric, most) for look, point in found]
    rows: list[Row] = [
        (
            look.name,
            (_miss_segments(point, view.metric, most),),
            percent(sum(_misses(point, view.metric))),
        )
        for look, point in found
    ]
    keys = [(f"end-{end}", end) for end in MISSES]
    xlabel = f"of {view.metric.hit_words}, %"
    return Plot(
        f"misses {facet.title}" if len(view.facets) > 1 else "misses",
        f"Why demands were not staged in time, {facet.title}",
        lambda drawn: draw_bars(drawn, rows, keys, xlabel, most or 1.0),
        heading=_heading(view, facet),
        by_hand="".join(markup),
        paper_height=bars_height(rows, keys),
    )


def _misses(point: PointSummary, metric: Metric) -> list[float]:
    ends, of = (
        (point.nontrivial_ends, point.nontrivial)
        if metric.hit == "nontrivial_hit"
        else (point.ends, point.demands)
    )
    return [share(ends.get(end, 0), of) for end in MISSES]


def _miss_segments(point: PointSummary, metric: Metric, most: float) -> list[Segment]:
    return [
        Segment(
            share / (most or 1.0),
            f"var(--end-{end})",
            f"{end}: {percent(share)}\n{END_TEXTS[end]}",
        )
        for end, share in zip(MISSES, _misses(point, metric), strict=True)
    ]


def _miss_row(look: Look, point: PointSummary, metric: Metric, most: float) -> str:
    shares = _misses(point, metric)
    segments = _miss_segments(point, metric, most)
    segments.append(Segment(max(0.0, 1.0 - sum(shares) / (most or 1.0)), "transparent", ""))
    listed = ", ".join(f"{end} {percent(s)}" for end, s in zip(MISSES, shares, strict=True))
    drawn = bar(segments, "plain", f"{look.name}: {listed}")
    return bar_row(swatch(*look.swatch) + escape(look.name), percent(sum(shares)), drawn)


# The worst subsets


SUBSETS = (
    "worst layer",
    "worst tenth of requests",
    "first 64 steps",
    "16 steps after turns",
)


def subsets_section(view: View) -> str:
    """Worst layer, worst tenth of requests, first steps and turns, each with the whole."""
    columns = [Column("policy", left=True), *map(Column, ("all", *SUBSETS))]
    pieces = []
    for facet in view.facets[:FACETS_MAX]:
        rows = [_subset_row(look, point, view) for look, point in facet.at(facet.middle)]
        title = f"{facet.title}, buffer {over_k(facet.middle)}"
        table = as_html(Table.of(columns, rows), f"worst subsets, {title}", "points")
        pieces.append(f"<h3>{escape(title)}</h3>{table}")
    caption = (
        f"The hit rate over {view.metric.hit_words} of subsets that an average hides, with 95 % "
        "intervals over requests."
    )
    return section("parts", "Where it is worst", "".join(pieces), caption)


def _subset_row(look: Look, point: PointSummary, view: View) -> list[Cell]:
    subsets = (point.worst_layer, point.worst_requests, point.first_steps, point.turn_steps)
    cells = [look.cell(), _subset_cell(interval_text(view.metric.hit_of(point)))]
    return cells + [_subset_cell(_subset_text(one, view.metric), one) for one in subsets]


def _subset_text(subset: Subset | None, metric: Metric) -> str:
    if subset is None:
        return "–"
    return interval_text(subset.nontrivial_hit if metric.hit == "nontrivial_hit" else subset.hit)


def _subset_cell(text: str, subset: Subset | None = None) -> Cell:
    value, _, rest = text.partition(" (")
    under = rest.removesuffix(")")
    if subset is not None and subset.layer is not None:
        under = f"layer {subset.layer}" + (f", {under}" if under else "")
    return Cell(value, small=under)


# Timeliness and fates


def timeliness_figure(view: View) -> Figure | str:
    """When prefetched blocks arrived, before or after need, at the middle buffer."""
    found = [(facet, _leads(facet)) for facet in view.facets[:FACETS_MAX]]
    span = lead_span([row for _, rows in found for row in rows])
    plots = (
        []
        if span is None
        else [lead_plot(rows, span, facet.title, _heading(view, facet)) for facet, rows in found]
    )
    return lead_figure(plots, looks_legend(view, "area"))


def _leads(facet: Facet) -> list[Leads]:
    """Lead times of the points that prefetched; without prefetch lateness has no meaning."""
    return [
        Leads(look.name, look.colour, point.late_ns_log2, point.lead_ns_log2)
        for look, point in facet.at(facet.middle)
        if point.fates
    ]


def fates_section(view: View) -> str:
    """Fates of prefetched blocks, by cause, at the middle buffer."""
    rows = [
        row
        for facet in view.facets[:FACETS_MAX]
        for look, point in facet.at(facet.middle)
        for row in _fate_rows(view, facet, look, point)
    ]
    columns = [Column("policy", left=True), Column("brought by", left=True), Column("read", count)]
    columns += map(Column, READ_FATES)
    body = tag("p", "Nothing was prefetched.", class_="empty")
    if rows:
        body = as_html(Table.of(columns, rows), "prefetched blocks by cause", "points")
    return section(
        "fates",
        "Fates of prefetched blocks",
        body,
        "Fates of the blocks that were read ahead at the middle buffer, as shares of the blocks "
        "read. Dropped candidates were never read and cost nothing.",
    )


def _fate_rows(view: View, facet: Facet, look: Look, point: PointSummary) -> list[list[object]]:
    where = f", {facet.title}" if len(view.facets) > 1 else ""
    rows: list[list[object]] = []
    for cause, fates in point.fates.items():
        read = sum(fates[fate] for fate in READ_FATES[:4])
        shown = (
            count(fates[fate]) if fate == "dropped" or not read else percent(fates[fate] / read)
            for fate in READ_FATES
        )
        rows.append([look.cell(look.name + where), cause, read, *shown])
    return rows
