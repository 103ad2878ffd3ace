"""The rest of a lab report's figures: why demands missed, the worst subsets, timeliness, fates."""

from collections.abc import Sequence

from offstage.testbeds.lab.results.summary import PointSummary, Subset
from offstage.testbeds.report.lab.facets import FACETS_MAX, left_out, looks_legend
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.series import Facet, Look, Metric, View, over_k
from offstage.testbeds.report.page.bars import Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import Segment, bar, key, legend, swatch
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.run.definitions import END_TEXTS
from offstage.testbeds.report.run.lead import Leads, lead_figure, lead_plot, lead_span

__all__ = ["fates_section", "misses_figure", "subsets_section", "timeliness_figure"]

MISSES = ("late", "cold", "capacity", "policy")
READ_FATES = ("used", "late", "unused", "cancelled", "dropped")


def _heading(view: View, facet: Facet) -> str:
    title = facet.title if len(view.facets) > 1 else f"buffer {over_k(facet.middle)}"
    return f"<h3>{escape(title)}</h3>"


def _swatch(look: Look) -> str:
    return swatch(look.colour, "dot" if look.mark == "circle" else look.mark)


# Why demands missed


def misses_figure(view: View) -> Figure:
    """Late and missed demands by reason, at the middle buffer; longest is worst."""
    return Figure(
        "misses",
        "Why blocks were not there",
        [_misses_plot(view, facet) for facet in view.facets[:FACETS_MAX]],
        f"Shorter is better: the share of {view.metric.hit_words} that were not staged in time, by "
        "reason, at the middle buffer. The longest bar of a panel fills it. Capacity: demand-only "
        "LRU would have missed it too. Policy: it would not.",
        legend([key(f"var(--end-{end})", end, tip=END_TEXTS[end]) for end in MISSES]),
        left_out(view),
    )


def _misses_plot(view: View, facet: Facet) -> Plot:
    """Markup on the page, as names stand above their bars and wrap; drawn for paper."""
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
        f"Why blocks were not there, {facet.title}",
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
    return [ends.get(end, 0) / max(1, of) for end in MISSES]


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
    note = f'<span class="note">{percent(sum(shares))}</span>'
    head = tag("p", _swatch(look) + escape(look.name) + note, class_="bar-label")
    return tag("div", head + bar(segments, "plain", f"{look.name}: {listed}"), class_="bar-row")


# The worst subsets


def subsets_section(view: View) -> str:
    """Worst layer, worst tenth of requests, first steps and turns beside the whole."""
    pieces = []
    for facet in view.facets[:FACETS_MAX]:
        rows = "".join(_subset_row(look, point, view) for look, point in facet.at(facet.middle))
        names = (
            "policy",
            "all",
            "worst layer",
            "worst tenth of requests",
            "first 64 steps",
            "16 steps behind turns",
        )
        head = "".join(
            tag("th", escape(name), scope="col", class_="number" if at else "")
            for at, name in enumerate(names)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        title = f"{facet.title}, buffer {over_k(facet.middle)}"
        scroll = tag(
            "div",
            table,
            class_="scroll points",
            tabindex=0,
            role="region",
            aria_label=f"worst subsets, {title}",
        )
        pieces.append(f"<h3>{escape(title)}</h3>{scroll}")
    caption = (
        f"The hit rate over {view.metric.hit_words} of demands that an average hides, with 95 % "
        "intervals over requests."
    )
    body = f'{"".join(pieces)}<p class="caption">{escape(caption)}</p>'
    title = '<h2 id="parts-title">Where it is worst</h2>'
    return tag("section", title + body, id="parts", aria_labelledby="parts-title")


def _subset_row(look: Look, point: PointSummary, view: View) -> str:
    cells = [tag("th", _swatch(look) + escape(look.name), scope="row")]
    cells.append(_subset_cell(interval_text(view.metric.hit_of(point))))
    for subset in (point.worst_layer, point.worst_requests, point.first_steps, point.turn_steps):
        cells.append(_subset_cell(_subset_text(subset, view.metric), subset))
    return f"<tr>{''.join(cells)}</tr>"


def _subset_text(subset: Subset | None, metric: Metric) -> str:
    if subset is None:
        return "–"
    return interval_text(subset.nontrivial_hit if metric.hit == "nontrivial_hit" else subset.hit)


def _subset_cell(text: str, subset: Subset | None = None) -> str:
    value, _, rest = text.partition(" (")
    under = rest.removesuffix(")")
    if subset is not None and subset.layer is not None:
        under = f"layer {subset.layer}" + (f", {under}" if under else "")
    small = f"<small>{escape(under)}</small>" if under else ""
    return tag("td", escape(value) + small, class_="number")


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
    """Of the points that prefetched anything: what was late without a prefetch says nothing."""
    return [
        Leads(look.name, look.colour, point.late_ns_log2, point.lead_ns_log2)
        for look, point in facet.at(facet.middle)
        if point.fates
    ]


def fates_section(view: View) -> str:
    """What became of prefetched blocks, by cause, at the middle buffer."""
    rows: list[str] = []
    for facet in view.facets[:FACETS_MAX]:
        for look, point in facet.at(facet.middle):
            rows += _fate_rows(view, facet, look, point)
    if not rows:
        body = '<p class="empty">Nothing was prefetched.</p>'
    else:
        names = ("policy", "brought by", "read", *READ_FATES)
        head = "".join(
            tag("th", name, scope="col", class_="number" if at > 1 else "")
            for at, name in enumerate(names)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        body = tag(
            "div",
            table,
            class_="scroll points",
            tabindex=0,
            role="region",
            aria_label="prefetched blocks by cause",
        )
    caption = (
        "Blocks that were read ahead at the middle buffer, and what became of them as shares of "
        "those read. Dropped candidates were never read and cost nothing."
    )
    return tag(
        "section",
        '<h2 id="fates-title">What became of prefetched blocks</h2>'
        f'{body}<p class="caption">{escape(caption)}</p>',
        id="fates",
        aria_labelledby="fates-title",
    )


def _fate_rows(view: View, facet: Facet, look: Look, point: PointSummary) -> Sequence[str]:
    rows = []
    where = f", {facet.title}" if len(view.facets) > 1 else ""
    for cause, fates in point.fates.items():
        read = sum(fates[fate] for fate in READ_FATES[:4])
        cells = [
            tag("th", _swatch(look) + escape(look.name + where), scope="row"),
            tag("td", escape(cause)),
            tag("td", count(read), class_="number"),
        ]
        for fate in READ_FATES:
            shown = (
                count(fates[fate]) if fate == "dropped" or not read else percent(fates[fate] / read)
            )
            cells.append(tag("td", shown, class_="number"))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return rows
