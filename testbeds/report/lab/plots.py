"""Hit rate over the size of the buffer, and by layer: a plot per facet."""

from typing import TYPE_CHECKING

from offstage.testbeds.lab.bounds.names import bound_name
from offstage.testbeds.lab.results.summary import PointSummary
from offstage.testbeds.report.lab.facets import (
    FACETS_MAX,
    each_facet,
    ends,
    hits_shown,
    left_out,
    looks_legend,
)
from offstage.testbeds.report.lab.hit_axis import SCALE_WORDS, Hits, hit_axis
from offstage.testbeds.report.lab.marks import (
    DASHES,
    error_bar,
    interval_text,
    mark,
    paper_legend,
)
from offstage.testbeds.report.lab.series import Facet, Look, Metric, View, over_k
from offstage.testbeds.report.page.labels import BEFORE, Labels
from offstage.testbeds.report.page.markup import key
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["buffer_figure", "layers_figure"]

DRAWN_MAX = 8
"""Lines by layer; the others' values are shown on hover."""


def buffer_figure(view: View) -> Figure:
    """Hit rate of each series and bound over the size of the buffer."""
    more = [key("var(--muted)", "bound", "line emulated")]
    return Figure(
        "buffer",
        "Hits over the size of the buffer",
        each_facet(
            view,
            "hits-over-buffer",
            lambda drawn, facet: _buffer(drawn, facet, view.metric),
            lambda facet: _said(facet, view.metric),
            height=3.9,
        ),
        f"Higher is better: the share of {view.metric.hit_words} staged in time, over the size of "
        "the staging buffer in multiples of the selection k, with 95 % intervals over requests. "
        f"{SCALE_WORDS} Dashed: the bounds at that buffer.",
        looks_legend(view, more=more),
        left_out(view),
    )


def _said(facet: Facet, metric: Metric) -> str:
    said = [
        f"{series.look.name} at {over_k(point.info.buffer_over_k)}: {percent(hit.value)}"
        for series in facet.series
        for point in series.points
        if (hit := metric.hit_of(point))
    ]
    return f"Hit rate over the buffer, {facet.title}. {'; '.join(said)}."


def _buffer(drawn: Picture, facet: Facet, metric: Metric) -> None:
    axes = drawn.axes()
    axes.set_xscale("log", base=2)
    buffers = facet.buffers
    spread = 1.12 if len(buffers) > 1 else 2.0
    # Names of bounds are left of their first point if there is room.
    before = spread if drawn.slim else (2.0 * buffers[-1] / buffers[0]) ** 0.14
    axes.set_xlim(buffers[0] / max(spread, before), buffers[-1] * spread)
    axes.set_xticks(buffers, [over_k(buffer) for buffer in buffers])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("staging buffer")
    y = hit_axis(drawn, axes, hits_shown(facet, metric))
    marks = []
    for series in facet.series:
        rows = [(p.info.buffer_over_k, hit) for p in series.points if (hit := metric.hit_of(p))]
        axes.plot(
            [b for b, _ in rows],
            [y(hit.value) for _, hit in rows],
            color=colour(series.look.colour),
            linewidth=1.5,
        )
        for buffer, hit in rows:
            low, high = ends(hit)
            tip = f"{series.look.name}, buffer {over_k(buffer)}\nhit rate {interval_text(hit)}"
            error_bar(axes, (buffer, buffer), (y(low), y(high)), series.look.colour)
            mark(drawn, axes, series.look, buffer, y(hit.value), tip, size=5.5)
            marks.append((buffer, y(hit.value)))
    _bounds_over_buffer(drawn, axes, facet, metric, y, marks)


def _bounds_over_buffer(
    drawn: Picture,
    axes: "Axes",
    facet: Facet,
    metric: Metric,
    y: Hits,
    marks: list[tuple[float, float]],
) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    for buffer in facet.buffers:
        for bound in facet.bounds(buffer):
            if (found := metric.hit_of(bound)) is not None:
                rows.setdefault(bound.name, []).append((buffer, found.value))
    grey = colour("muted")
    for name, values in rows.items():
        axes.plot(
            [b for b, _ in values],
            [y(hit) for _, hit in values],
            color=grey,
            linewidth=0.9,
            linestyle=(0, (4, 3)),
        )
        for buffer, hit in values:
            (spot,) = axes.plot(
                [buffer],
                [y(hit)],
                "o",
                markersize=4.0,
                markeredgecolor=grey,
                markerfacecolor=colour("surface"),
                zorder=3,
                clip_on=False,
            )
            drawn.tip(
                spot, f"bound: {bound_name(name)}, buffer {over_k(buffer)}\nhit rate {percent(hit)}"
            )
    paper_legend(drawn, [series.look for series in facet.series])
    labels = Labels(drawn, axes, 7.0 if drawn.paper else 8.5)
    for at in marks:
        labels.block(*at)
    for values in rows.values():
        labels.along([(buffer, y(hit)) for buffer, hit in values])
        for buffer, hit in values:
            labels.block(buffer, y(hit), 3.0)
    for series in facet.series:
        labels.along(
            [
                (p.info.buffer_over_k, y(found.value))
                for p in series.points
                if (found := metric.hit_of(p))
            ]
        )
    for name, values in rows.items():
        buffer, hit = values[0]
        labels.add(buffer, y(hit), bound_name(name), BEFORE, color=grey, style="italic")


def layers_figure(view: View) -> Figure:
    """Hit rate of each layer, at the middle buffer."""
    crowded = any(len(facet.series) > DRAWN_MAX for facet in view.facets)
    drawn = f" Drawn are the {DRAWN_MAX} with the most hits; hovering shows all." if crowded else ""
    shown = {look for facet in view.facets[:FACETS_MAX] for look, _ in _drawn(facet)}
    return Figure(
        "layers",
        "Hits by layer",
        each_facet(
            view,
            "hits-by-layer",
            lambda drawn, facet: _layers(drawn, facet, view.metric),
            lambda facet: f"Hit rate by layer, {facet.title}.",
            height=3.6,
        ),
        f"Higher is better: the share of {view.metric.hit_words} staged in time in each layer, at "
        f"a buffer of {_middles(view)}. {SCALE_WORDS} One slow layer delays every token.{drawn}",
        looks_legend(view, "line", only=shown),
        left_out(view),
    )


def _middles(view: View) -> str:
    return " or ".join(dict.fromkeys(over_k(facet.middle) for facet in view.facets))


def _drawn(facet: Facet) -> list[tuple[Look, PointSummary]]:
    """The best at the middle buffer, and no prefetch, the common reference."""
    rows = facet.at(facet.middle)
    return rows[:DRAWN_MAX] + [row for row in rows[DRAWN_MAX:] if row[1].info.policy == "none"]


def _by_layer(point: PointSummary, metric: Metric) -> list[float | None]:
    nontrivial = metric.hit == "nontrivial_hit"
    return point.nontrivial_hit_by_layer if nontrivial else point.hit_by_layer


def _layers(drawn: Picture, facet: Facet, metric: Metric) -> None:
    from matplotlib.ticker import MaxNLocator

    rows = [(look, _by_layer(point, metric)) for look, point in facet.at(facet.middle)]
    shown = [(look, _by_layer(point, metric)) for look, point in _drawn(facet)]
    count = max((len(values) for _, values in rows), default=1)
    axes = drawn.axes()
    axes.set_xlim(-0.5, count - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("layer")
    y = hit_axis(drawn, axes, [hit for _, hits in shown for hit in hits if hit is not None])
    for look, values in shown:
        spots = [(at, y(rate)) for at, rate in enumerate(values) if rate is not None]
        axes.plot(
            [at for at, _ in spots],
            [hit for _, hit in spots],
            linewidth=1.5,
            color=colour(look.colour),
            linestyle=DASHES[look.mark],
        )
    for at in range(count):
        tips = [
            f"{percent(rate)}  {look.name}"
            for look, values in rows
            if at < len(values) and (rate := values[at]) is not None
        ]
        drawn.band(axes, at - 0.5, at + 0.5, "\n".join([f"layer {at}", *tips]))
    paper_legend(drawn, [look for look, _ in shown], lines=True)
