"""Hits against their cost: every point, the bounds, and the front."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offstage.testbeds.lab.bounds.names import bound_name
from offstage.testbeds.lab.results.summary import BoundSummary, Interval, PointSummary
from offstage.testbeds.report.lab.facets import (
    each_facet,
    ends,
    hits_shown,
    left_out,
    looks_legend,
)
from offstage.testbeds.report.lab.hit_axis import SCALE_WORDS, Hits, hit_axis
from offstage.testbeds.report.lab.marks import (
    error_bar,
    interval_text,
    mark,
    paper_legend,
)
from offstage.testbeds.report.lab.series import Facet, Look, Metric, View, over_k
from offstage.testbeds.report.page.labels import ABOVE_LINE, AROUND, BESIDE, Labels
from offstage.testbeds.report.page.markup import key
from offstage.testbeds.report.page.numbers import percent, ratio
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curves", "pareto_figure"]

NAMED_MAX = 8
"""With more series, one that is not of the front is named only if it is isolated."""
ALONE = 50.0
"""The least distance from every other series' mark, in points."""
TICKS_MAX = 8
NOTE = 7.0
"""Font size of the text next to a point."""


@dataclass(frozen=True)
class Spot:
    """One point of the plot: hits over traffic."""

    look: Look
    point: PointSummary
    hit: Interval
    traffic: Interval

    @property
    def at(self) -> tuple[float, float]:
        """(traffic, hit rate)."""
        return self.traffic.value, self.hit.value


def pareto_figure(view: View) -> Figure:
    """Series over buffers, bounds, and the front that no point beats."""
    more = [key("var(--ink)", "front: no point has more hits for less", "line")]
    if any(point.bounds for facet in view.facets for point in facet.points):
        more.append(key("var(--muted)", "bound", "line emulated"))
    return Figure(
        "pareto",
        "Cost of the hits",
        each_facet(
            view,
            "hits-over-traffic",
            lambda drawn, facet: _draw(drawn, facet, view.metric),
            lambda facet: _said(facet, view.metric),
            height=3.9,
        ),
        f"Up and to the left is better. {SCALE_WORDS} Each mark is one policy at one buffer: the "
        f"share of "
        f"{view.metric.hit_words} that were staged in time, above the bytes read in multiples of "
        f"what demand-only LRU reads at {view.metric.traffic_words}. A line joins one policy over "
        "buffers, a dotted one the settings of one parameter at one buffer, such as a budget of "
        "reads; bars are 95 % intervals over requests; faint marks are beaten by another on "
        "both axes. Dashed: bounds at the same buffers; of these, clairvoyant is what was "
        "attainable under the cap.",
        looks_legend(view, more=more),
        left_out(view),
    )


def _said(facet: Facet, metric: Metric) -> str:
    said = "; ".join(
        f"{one.look.name} at {over_k(one.point.info.buffer_over_k)}: "
        f"{percent(one.hit.value)} at {ratio(one.traffic.value)}"
        for one in _spots(facet, metric)
    )
    return f"Hit rate against traffic, {facet.title}. {said}."


def _draw(drawn: Picture, facet: Facet, metric: Metric) -> None:
    spots, bounds = _spots(facet, metric), _bound_spots(facet, metric)
    traffic = [one.traffic.value for one in spots]
    traffic += [spent for _, spent, _ in bounds if spent is not None]
    low = min([*(t for t in traffic if t > 0), 1.0]) / 1.15
    high = max([*traffic, 1.0]) * 1.2
    axes = drawn.axes()
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    _traffic_ticks(axes, low, high)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(f"bytes read, over demand-only LRU at {metric.traffic_words}")
    y = hit_axis(drawn, axes, hits_shown(facet, metric))
    axes.axvline(1.0, color=colour("muted"), linewidth=0.7, linestyle=(0, (2, 3)))
    front = _front([one.at for one in spots])
    for series in facet.series:
        own = [one.at for one in spots if one.look == series.look]
        axes.plot(
            [t for t, _ in own],
            [y(h) for _, h in own],
            color=colour(series.look.colour),
            linewidth=1.0,
        )
    for curve in curves(spots):
        axes.plot(
            [one.traffic.value for one in curve],
            [y(one.hit.value) for one in curve],
            color=colour("muted"),
            linewidth=1.0,
            linestyle=(0, (1, 2)),
        )
    axes.step(
        [t for t, _ in front],
        [y(h) for _, h in front],
        where="post",
        color=colour("ink"),
        linewidth=0.9,
        alpha=0.45,
    )
    _draw_bounds(drawn, axes, facet, bounds, y)
    for one in spots:
        _mark(drawn, axes, one, front, metric, y)
    paper_legend(drawn, [series.look for series in facet.series])
    _label(drawn, axes, facet, spots, bounds, front, y)


def _spots(facet: Facet, metric: Metric) -> list[Spot]:
    found = []
    for series in facet.series:
        for point in series.points:
            hit, traffic = metric.hit_of(point), metric.traffic_of(point)
            if hit is not None and traffic is not None:
                found.append(Spot(series.look, point, hit, traffic))
    return found


def curves(spots: Sequence[Spot]) -> list[list[Spot]]:
    """The points of one policy at one buffer that differ in a single parameter, in its order."""
    families: dict[tuple[str, str, bool, float], list[Spot]] = {}
    for one in spots:
        info = one.point.info
        at = info.policy, info.eviction, info.granule, info.buffer_over_k
        families.setdefault(at, []).append(one)
    found = []
    for rows in families.values():
        settings = [one.point.info.parameters for one in rows]
        names = {name for own in settings for name in own}
        varied = [name for name in names if len({own.get(name) for own in settings}) > 1]
        if len(varied) == 1 and all(varied[0] in own for own in settings):
            found.append(sorted(rows, key=lambda one: one.point.info.parameters[varied[0]]))
    return found


Bound = tuple[str, float | None, float]


def _bound_spots(facet: Facet, metric: Metric) -> list[Bound]:
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


def _traffic_ticks(axes: "Axes", low: float, high: float) -> None:
    from matplotlib.ticker import NullLocator

    values = powers_of_two(low, high)
    step = max(1, math.ceil(len(values) / TICKS_MAX))
    shown = [value for value in values if round(math.log2(value)) % step == 0]
    if len(values) < 3:
        between = [1.5 * value for value in powers_of_two(low / 2, high)]
        shown = sorted([*shown, *(value for value in between if low <= value <= high)])
    axes.set_xticks(shown, [f"{value:g}×" for value in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def powers_of_two(low: float, high: float) -> list[float]:
    """The powers of two from `low` to `high`."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1)]


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(traffic, hits) of the points that no other point with at most their traffic equals in
    hits."""
    best, found = -math.inf, []
    for traffic, hit in sorted(set(points), key=lambda one: (one[0], -one[1])):
        if hit > best:
            best = hit
            found.append((traffic, hit))
    return found


def _mark(
    drawn: Picture,
    axes: "Axes",
    one: Spot,
    front: Sequence[tuple[float, float]],
    metric: Metric,
    y: Hits,
) -> None:
    faint = one.at not in front
    spent, at = one.traffic.value, y(one.hit.value)
    low, high = ends(one.hit)
    shade = one.look.colour
    error_bar(axes, (spent, spent), (y(low), y(high)), shade, faint)
    error_bar(axes, ends(one.traffic), (at, at), shade, faint)
    tip = (
        f"{one.look.name}, buffer {over_k(one.point.info.buffer_over_k)}"
        f"\nhit rate {interval_text(one.hit)}\ntraffic {interval_text(one.traffic, 'ratio')}"
        f"\ngap closed {interval_text(metric.gap_of(one.point))}"
    )
    mark(drawn, axes, one.look, spent, at, tip, size=7.0, faint=faint)


def _draw_bounds(
    drawn: Picture, axes: "Axes", facet: Facet, bounds: Sequence[Bound], y: Hits
) -> None:
    """Bounds with known traffic as dashed series, the others as lines across the plot."""
    dashed: Any = {"color": colour("muted"), "linewidth": 0.9, "linestyle": (0, (4, 3))}
    for name, rows in _by_name(bounds).items():
        label = bound_name(name)
        known = [(spent, hit) for spent, hit in rows if spent]
        if not known:
            words, hit = _across(facet, label, rows)
            drawn.tip(axes.axhline(y(hit), **dashed), f"bound: {words}\nhit rate {percent(hit)}")
            continue
        axes.plot([t for t, _ in known], [y(h) for _, h in known], **dashed)
        for spent, hit in known:
            (spot,) = axes.plot(
                [spent],
                [y(hit)],
                "o",
                markersize=4.5,
                zorder=3,
                clip_on=False,
                markerfacecolor=colour("surface"),
                markeredgecolor=colour("muted"),
                markeredgewidth=0.9,
            )
            tip = f"bound: {label}\nhit rate {percent(hit)}\ntraffic {ratio(spent or 0)}"
            drawn.tip(spot, tip)


def _by_name(bounds: Sequence[Bound]) -> dict[str, list[tuple[float | None, float]]]:
    found: dict[str, list[tuple[float | None, float]]] = {}
    for name, spent, hit in bounds:
        found.setdefault(name, []).append((spent, hit))
    return found


def _across(
    facet: Facet, label: str, rows: Sequence[tuple[float | None, float]]
) -> tuple[str, float]:
    """Name and hit rate of a bound without traffic, for every buffer or the current one."""
    at = facet.buffers.index(facet.middle)
    hits = [hit for _, hit in rows]
    if max(hits) - min(hits) < 1e-4:
        return label, hits[0]
    return f"{label} at {over_k(facet.middle)}", hits[min(at, len(hits) - 1)]


def _label(
    drawn: Picture,
    axes: "Axes",
    facet: Facet,
    spots: Sequence[Spot],
    bounds: Sequence[Bound],
    front: Sequence[tuple[float, float]],
    y: Hits,
) -> None:
    """Names of series first, those of the front before the others; then bounds; then buffers."""
    labels = Labels(drawn, axes, 7.0 if drawn.paper else 8.5)
    for one in spots:
        at, (low, high) = (one.traffic.value, y(one.hit.value)), ends(one.hit)
        labels.block(*at)
        labels.keep_off(ends(one.traffic), (at[1], at[1]))
        labels.keep_off((at[0], at[0]), (y(low), y(high)))
    for _, spent, hit in bounds:
        if spent:
            labels.block(spent, y(hit), 4.0)
    for series in facet.series:
        labels.along(
            [(one.traffic.value, y(one.hit.value)) for one in spots if one.look == series.look]
        )
    left, right = axes.get_xlim()
    for rows in _by_name(bounds).values():
        known = [(spent, y(hit)) for spent, hit in rows if spent]
        labels.along(
            known
            or [(left, y(_across(facet, "", rows)[1])), (right, y(_across(facet, "", rows)[1]))]
        )
    if not drawn.paper:
        _names(labels, spots, front, y)
    said: Any = {"color": colour("muted"), "style": "italic"}
    for name, rows in _by_name(bounds).items():
        known = [(spent, y(hit)) for spent, hit in rows if spent]
        if known:
            labels.add(*min(known, key=lambda at: at[1]), bound_name(name), **said)
        else:
            words, hit = _across(facet, bound_name(name), rows)
            labels.add(axes.get_xlim()[1], y(hit), words, ABOVE_LINE, **said)
    labels.size = NOTE
    for one in spots:
        if one.at in front:
            words = over_k(one.point.info.buffer_over_k)
            labels.add(one.traffic.value, y(one.hit.value), words, color=colour("muted"))


def _names(
    labels: Labels, spots: Sequence[Spot], front: Sequence[tuple[float, float]], y: Hits
) -> None:
    """The name of each series once: those of the front first, at their best point of it."""
    own: dict[str, list[tuple[bool, float, float]]] = {}
    for one in spots:
        rows = own.setdefault(one.look.name, [])
        rows.append((one.at in front, one.hit.value, one.traffic.value))
    crowded = len(own) > NAMED_MAX
    named = []
    for name, rows in own.items():
        others = [
            labels.at(one.traffic.value, y(one.hit.value)) for one in spots if one.look.name != name
        ]
        alone = [
            row
            for row in rows
            if row[0] or all(math.dist(labels.at(row[2], y(row[1])), at) > ALONE for at in others)
        ]
        if not crowded or alone:
            named.append((max(alone if crowded else rows), name))
    for (_, hit, spent), name in sorted(named, reverse=True):
        labels.add(spent, y(hit), name, BESIDE if crowded else AROUND)
