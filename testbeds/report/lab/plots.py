"""The plots of hit rate in a lab report: against traffic, over the buffer, and by layer.

Each facet is one plot. Alone it takes the whole width and is drawn a second time for narrow pages.
"""

import math
from collections.abc import Callable, Collection, Sequence
from html import escape

from offstage.testbeds.lab.results.summary import BoundSummary, Interval, PointSummary
from offstage.testbeds.report.lab.marks import (
    ABOVE_LINE,
    AROUND,
    BEFORE,
    BESIDE,
    SCALE_WORDS,
    Hits,
    Labels,
    error_bar,
    hit_axis,
    interval_text,
    mark,
    powers_of_two,
)
from offstage.testbeds.report.lab.series import (
    Facet,
    Look,
    Metric,
    Series,
    View,
    bound_name,
    over_k,
)
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.markup import figure, key, legend, panels
from offstage.testbeds.report.page.numbers import percent, ratio

__all__ = ["FACETS_MAX", "buffer_figure", "each_facet", "layers_figure", "looks_legend",
           "pareto_figure"]  # fmt: skip

WIDE = svg.Frame(width=820, height=420, left=54, right=24, top=16, bottom=44)
NARROW = svg.Frame(width=380, height=400, left=52, right=12, top=16, bottom=44)
PANEL = svg.Frame(width=440, height=330, left=52, right=12, top=14, bottom=44)
FACETS_MAX = 12
"""Facets that are drawn; the rest are in the table and in summary.json."""
RADIUS = 5.0
NAMED_MAX = 8
"""With more series, one that is not of the front is only named where it stands alone."""
ALONE = 70.0
"""So far from every other series' mark."""
DRAWN_MAX = 8
"""Lines by layer; what the others have is shown by hovering."""


def each_facet(view: View, draw: Callable[[svg.Frame, Facet], str]) -> str:
    """One facet wide, and again for narrow pages; several as panels under their titles."""
    if len(view.facets) == 1:
        return "".join(
            svg.tag("div", draw(frame, view.facets[0]), class_=class_)
            for frame, class_ in ((WIDE, "wide"), (NARROW, "narrow"))
        )
    pieces = [
        svg.tag("div", f"<h3>{escape(one.title)}</h3>{draw(PANEL, one)}", class_="panel")
        for one in view.facets[:FACETS_MAX]
    ]
    left = len(view.facets) - FACETS_MAX
    note = f'<p class="empty">{left} more are in the table below.</p>' if left > 0 else ""
    return panels(pieces) + note


def looks_legend(
    view: View, kind: str = "dot", more: Sequence[str] = (), only: Collection[Look] | None = None
) -> str:
    """One key per series, or per one of `only`, then `more`."""
    keys = [
        key(look.colour, look.name, kind if look.mark == "circle" else f"{kind} {look.mark}")
        for look in view.looks
        if only is None or look in only
    ]
    return legend([*keys, *more])


def _ends(interval: Interval) -> tuple[float, float]:
    low = interval.value if interval.low is None else interval.low
    return low, interval.value if interval.high is None else interval.high


def _hits(facet: Facet, metric: Metric) -> list[float]:
    """Every hit rate that a plot of the facet shows, ends of intervals too."""
    found = [metric.hit_of(point) for point in facet.points]
    found += [metric.hit_of(bound) for b in facet.buffers for bound in facet.bounds(b)]
    return [end for one in found if one is not None for end in _ends(one)]


# Hits against traffic


def pareto_figure(view: View) -> str:
    """Series over buffers, bounds beside them, and the front that no point beats."""
    more = [key("var(--ink)", "front: no point has more hits for less", "line")]
    if any(point.bounds for facet in view.facets for point in facet.points):
        more.append(key("var(--muted)", "bound", "line emulated"))
    return figure(
        "pareto",
        "What the hits cost",
        each_facet(view, lambda frame, facet: _pareto(frame, facet, view.metric)),
        f"Up and to the left is better. {SCALE_WORDS} Each mark is one policy at one buffer: the "
        f"share of "
        f"{view.metric.hit_words} that were staged in time, above the bytes read in multiples of "
        f"what demand-only LRU reads at {view.metric.traffic_words}. A line joins one policy over "
        "buffers; bars are 95 % intervals over requests; faint marks are beaten by another on "
        "both axes. Dashed: bounds at the same buffers; of these, clairvoyant is what was "
        "attainable under the cap.",
        looks_legend(view, more=more),
    )


def _pareto(frame: svg.Frame, facet: Facet, metric: Metric) -> str:
    spots = _spots(facet, metric)
    bounds = _bound_spots(facet, metric)
    traffic = [t.value for _, _, _, t in spots] + [t for _, t, _ in bounds if t is not None]
    low = min([*(t for t in traffic if t > 0), 1.0]) / 1.15
    high = max([*traffic, 1.0]) * 1.2
    x = svg.Log(low, high, frame.x0, frame.x1)
    y, hit_lines = hit_axis(frame, _hits(facet, metric))
    title = f"bytes read, over demand-only LRU at {metric.traffic_words}"
    axes = hit_lines + svg.x_axis(frame, _traffic_ticks(x), title)
    one = svg.tag("line", x1=x(1.0), x2=x(1.0), y1=frame.y1, y2=frame.y0, class_="need")
    front = _front([(t.value, h.value) for _, _, h, t in spots])
    labels = Labels(frame)
    for _, _, hit, spent in spots:
        at, ends = (x(spent.value), y(hit.value)), (_ends(spent), _ends(hit))
        labels.block(*at)
        labels.keep_off((x(ends[0][0]), x(ends[0][1])), (at[1] - 3, at[1] + 3))
        labels.keep_off((at[0] - 3, at[0] + 3), (y(ends[1][0]), y(ends[1][1])))
    for _, spent_by, found in bounds:
        if spent_by:
            labels.block(x(spent_by), y(found), 5)
    lines = [_pareto_line(one_series, metric, x, y) for one_series in facet.series]
    lines.append(_front_line(front, x, y))
    names = _pareto_names(spots, front, x, y, labels)
    drawn = [_bounds_in_pareto(frame, facet, bounds, x, y, labels)]
    drawn += [_pareto_mark(spot, front, metric, x, y) for spot in spots]
    drawn.append(names)
    drawn += [
        labels.add(x(t.value), y(h.value), over_k(point.info.buffer_over_k), "note")
        for _, point, h, t in spots
        if (t.value, h.value) in front
    ]
    said = "; ".join(
        f"{look.name} at {over_k(point.info.buffer_over_k)}: {percent(h.value)} at {ratio(t.value)}"
        for look, point, h, t in spots
    )
    summary = f"Hit rate against traffic, {facet.title}. {said}."
    return svg.chart(frame, axes + one + "".join(lines + drawn), summary)


Spot = tuple[Look, PointSummary, Interval, Interval]


def _spots(facet: Facet, metric: Metric) -> list[Spot]:
    found = []
    for series in facet.series:
        for point in series.points:
            hit, traffic = metric.hit_of(point), metric.traffic_of(point)
            if hit is not None and traffic is not None:
                found.append((series.look, point, hit, traffic))
    return found


def _bound_spots(facet: Facet, metric: Metric) -> list[tuple[str, float | None, float]]:
    """(name, traffic if known, hit rate) of every bound at every buffer."""
    found = []
    for buffer in facet.buffers:
        for bound in facet.bounds(buffer):
            hit = metric.hit_of(bound)
            if hit is not None:
                found.append((bound.name, _bound_traffic(bound, metric), hit.value))
    return found


def _bound_traffic(bound: BoundSummary, metric: Metric) -> float | None:
    traffic: float | None = getattr(bound, metric.traffic)
    return traffic


def _traffic_ticks(x: svg.Log) -> list[tuple[float, str]]:
    values = powers_of_two(x.low, x.high)
    step = max(1, math.ceil(len(values) / 8))
    shown = [value for value in values if round(math.log2(value)) % step == 0]
    if len(values) < 3:
        between = [1.5 * value for value in powers_of_two(x.low / 2, x.high)]
        shown = sorted([*shown, *(value for value in between if x.low <= value <= x.high)])
    return [(x(value), f"{value:g}×") for value in shown]


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(traffic, hits) that no other has at least as many hits for as little."""
    best, found = -math.inf, []
    for traffic, hit in sorted(set(points), key=lambda one: (one[0], -one[1])):
        if hit > best:
            best = hit
            found.append((traffic, hit))
    return found


def _pareto_line(series: Series, metric: Metric, x: svg.Log, y: Hits) -> str:
    pairs = [(metric.traffic_of(point), metric.hit_of(point)) for point in series.points]
    spots = [(x(t.value), y(h.value)) for t, h in pairs if t is not None and h is not None]
    return svg.path(spots, class_="line thin", style=f"--c:{series.look.colour}")


def _front_line(front: Sequence[tuple[float, float]], x: svg.Log, y: Hits) -> str:
    """A stair: between two points of the front nothing better is known than the left one."""
    steps: list[tuple[float, float]] = []
    for traffic, hit in front:
        if steps:
            steps.append((x(traffic), steps[-1][1]))
        steps.append((x(traffic), y(hit)))
    return svg.path(steps, class_="front")


def _pareto_mark(
    spot: Spot, front: Sequence[tuple[float, float]], metric: Metric, x: svg.Log, y: Hits
) -> str:
    look, point, hit, traffic = spot
    at = x(traffic.value), y(hit.value)
    faint = (traffic.value, hit.value) not in front
    low, high = _ends(hit)
    left, right = _ends(traffic)
    bars = error_bar((at[0], at[0]), (y(low), y(high)), look.colour, faint)
    bars += error_bar((x(left), x(right)), (at[1], at[1]), look.colour, faint)
    tip = (
        f"{look.name}, buffer {over_k(point.info.buffer_over_k)}"
        f"\nhit rate {interval_text(hit)}\ntraffic {interval_text(traffic, 'ratio')}"
        f"\ngap closed {interval_text(metric.gap_of(point))}"
    )
    class_ = "spot faint" if faint else "spot"
    return bars + mark(look, *at, RADIUS, class_, tip)


def _bounds_in_pareto(
    frame: svg.Frame,
    facet: Facet,
    bounds: Sequence[tuple[str, float | None, float]],
    x: svg.Log,
    y: Hits,
    labels: Labels,
) -> str:
    """Bounds with known traffic as dashed series, the others as lines across the plot."""
    pieces = []
    for name in dict.fromkeys(name for name, _, _ in bounds):
        rows = [(traffic, hit) for other, traffic, hit in bounds if other == name]
        label = bound_name(name)
        spots = [(x(traffic), y(hit)) for traffic, hit in rows if traffic]
        if spots:
            pieces.append(svg.path(spots, class_="bound"))
            for (px, py), (traffic, hit) in zip(spots, rows, strict=False):
                tip = f"{_bound_tip(label, hit)}\ntraffic {ratio(traffic or 0)}"
                pieces.append(svg.tag("circle", cx=px, cy=py, r=3.5, class_="bound-mark",
                                     data_tip=tip))  # fmt: skip
            highest = max(spots, key=lambda at: -at[1])
            pieces.append(labels.add(*highest, label, "name bound-name"))
            continue
        # Every buffer alike, or the buffer at hand.
        at = facet.buffers.index(facet.middle)
        same = max(hit for _, hit in rows) - min(hit for _, hit in rows) < 1e-4
        hit = rows[0][1] if same else rows[min(at, len(rows) - 1)][1]
        words = label if same else f"{label} at {over_k(facet.middle)}"
        across = [(frame.x0, y(hit)), (frame.x1, y(hit))]
        pieces.append(svg.path(across, class_="bound", data_tip=_bound_tip(words, hit)))
        pieces.append(labels.add(frame.x1, y(hit), words, "name bound-name", ABOVE_LINE))
    return "".join(pieces)


def _bound_tip(words: str, hit: float) -> str:
    return f"bound: {words}\nhit rate {percent(hit)}"


def _pareto_names(
    spots: Sequence[Spot],
    front: Sequence[tuple[float, float]],
    x: svg.Log,
    y: Hits,
    labels: Labels,
) -> str:
    """The name of each series once: those of the front first, at their best point of it."""
    own: dict[str, list[tuple[bool, float, float]]] = {}
    for look, _, hit, spent in spots:
        leads = (spent.value, hit.value) in front
        own.setdefault(look.name, []).append((leads, hit.value, spent.value))
    crowded = len(own) > NAMED_MAX
    named = []
    for name, rows in own.items():
        others = [(x(t.value), y(h.value)) for look, _, h, t in spots if look.name != name]
        alone = [
            row for row in rows
            if row[0] or all(math.dist((x(row[2]), y(row[1])), at) > ALONE for at in others)
        ]  # fmt: skip
        if not crowded or alone:
            named.append((max(alone if crowded else rows), name))
    return "".join(
        labels.add(x(spent), y(hit), name, around=BESIDE if crowded else AROUND)
        for (_, hit, spent), name in sorted(named, reverse=True)
    )


# Hits over the buffer


def buffer_figure(view: View) -> str:
    """Hit rate of each series and bound over the size of the buffer."""
    more = [key("var(--muted)", "bound", "line emulated")]
    return figure(
        "buffer",
        "Hits over the size of the buffer",
        each_facet(view, lambda frame, facet: _buffer(frame, facet, view.metric)),
        f"Higher is better: the share of {view.metric.hit_words} staged in time, over the size of "
        "the staging buffer in multiples of the selection k, with 95 % intervals over requests. "
        f"{SCALE_WORDS} Dashed: the best that could be reached at that buffer.",
        looks_legend(view, more=more),
    )


def _buffer(frame: svg.Frame, facet: Facet, metric: Metric) -> str:
    buffers = facet.buffers
    spread = 1.12 if len(buffers) > 1 else 2.0
    # Names of bounds stand left of their first point where that leaves room for them.
    before = 1.0 + 0.2 * math.log2(2 * buffers[-1] / buffers[0]) if frame.width > 600 else spread
    x = svg.Log(buffers[0] / max(spread, before), buffers[-1] * spread, frame.x0, frame.x1)
    y, hit_lines = hit_axis(frame, _hits(facet, metric))
    ticks, last = [], -math.inf
    for buffer in buffers:
        if x(buffer) - last > 34:
            last = x(buffer)
            ticks.append((last, over_k(buffer)))
    axes = hit_lines + svg.x_axis(frame, ticks, "staging buffer")
    labels, pieces, said = Labels(frame), [], []
    for series in facet.series:
        rows = [(p.info.buffer_over_k, hit) for p in series.points if (hit := metric.hit_of(p))]
        spots = [(x(buffer), y(hit.value)) for buffer, hit in rows]
        pieces.append(svg.path(spots, class_="line", style=f"--c:{series.look.colour}"))
        for (px, py), (buffer, hit) in zip(spots, rows, strict=True):
            low, high = _ends(hit)
            tip = f"{series.look.name}, buffer {over_k(buffer)}\nhit rate {interval_text(hit)}"
            pieces.append(error_bar((px, px), (y(low), y(high)), series.look.colour))
            pieces.append(mark(series.look, px, py, 4.0, "spot", tip))
            labels.block(px, py)
            said.append(f"{series.look.name} at {over_k(buffer)}: {percent(hit.value)}")
    pieces.append(_bounds_over_buffer(facet, metric, x, y, labels))
    summary = f"Hit rate over the buffer, {facet.title}. {'; '.join(said)}."
    return svg.chart(frame, axes + "".join(pieces), summary)


def _bounds_over_buffer(facet: Facet, metric: Metric, x: svg.Log, y: Hits, labels: Labels) -> str:
    rows: dict[str, list[tuple[float, float]]] = {}
    for buffer in facet.buffers:
        for bound in facet.bounds(buffer):
            if (found := metric.hit_of(bound)) is not None:
                rows.setdefault(bound.name, []).append((buffer, found.value))
    pieces = []
    for name, values in rows.items():
        spots = [(x(buffer), y(hit)) for buffer, hit in values]
        pieces.append(svg.path(spots, class_="bound"))
        for (px, py), (buffer, hit) in zip(spots, values, strict=True):
            tip = _bound_tip(f"{bound_name(name)}, buffer {over_k(buffer)}", hit)
            pieces.append(svg.tag("circle", cx=px, cy=py, r=3.0, class_="bound-mark", data_tip=tip))
            labels.block(px, py, 4)
    for name, values in rows.items():
        spots = [(x(buffer), y(hit)) for buffer, hit in values]
        pieces.append(labels.add(*spots[0], bound_name(name), "name bound-name", BEFORE))
    return "".join(pieces)


# Hits by layer


def layers_figure(view: View) -> str:
    """Hit rate of each layer, at the middle buffer."""
    crowded = any(len(facet.series) > DRAWN_MAX for facet in view.facets)
    drawn = f" Drawn are the {DRAWN_MAX} with the most hits; hovering shows all." if crowded else ""
    shown = {look for facet in view.facets[:FACETS_MAX] for look, _ in _drawn(facet)}
    return figure(
        "layers",
        "Hits by layer",
        each_facet(view, lambda frame, facet: _layers(frame, facet, view.metric)),
        f"Higher is better: the share of {view.metric.hit_words} staged in time in each layer, at "
        f"a buffer of {_middles(view)}. {SCALE_WORDS} One slow layer holds up every token.{drawn}",
        looks_legend(view, "line", only=shown),
    )


def _middles(view: View) -> str:
    return " or ".join(dict.fromkeys(over_k(facet.middle) for facet in view.facets))


def _drawn(facet: Facet) -> list[tuple[Look, PointSummary]]:
    """The best at the middle buffer, and no prefetch, which all are compared with."""
    rows = facet.at(facet.middle)
    return rows[:DRAWN_MAX] + [row for row in rows[DRAWN_MAX:] if row[1].info.policy == "none"]


def _by_layer(point: PointSummary, metric: Metric) -> list[float | None]:
    nontrivial = metric.hit == "nontrivial_hit"
    return point.nontrivial_hit_by_layer if nontrivial else point.hit_by_layer


def _layers(frame: svg.Frame, facet: Facet, metric: Metric) -> str:
    rows = [(look, _by_layer(point, metric)) for look, point in facet.at(facet.middle)]
    drawn = [(look, _by_layer(point, metric)) for look, point in _drawn(facet)]
    count = max((len(values) for _, values in rows), default=1)
    x = svg.Linear(-0.5, count - 0.5, frame.x0, frame.x1)
    y, hit_lines = hit_axis(frame, [hit for _, hits in drawn for hit in hits if hit is not None])
    lines = []
    for look, values in drawn:
        spots = [(x(at), y(rate)) for at, rate in enumerate(values) if rate is not None]
        lines.append(svg.path(spots, class_=f"line {look.mark}", style=f"--c:{look.colour}"))
    spans = []
    for at in range(count):
        tips = [
            f"{percent(rate)}  {look.name}" for look, values in rows
            if at < len(values) and (rate := values[at]) is not None
        ]  # fmt: skip
        spans.append((x(at - 0.5), x(at + 0.5), "\n".join([f"layer {at}", *tips])))
    ticks = [(x(v), f"{v:g}") for v in x.ticks(8) if v == int(v) and v >= 0]
    axes = hit_lines + svg.x_axis(frame, ticks, "layer")
    summary = f"Hit rate by layer, {facet.title}."
    return svg.chart(frame, axes + "".join(lines) + svg.bands(frame, spans), summary)
