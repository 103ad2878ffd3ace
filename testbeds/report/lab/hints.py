"""The cost of hints: hits over the bytes that hosts send ahead of demands.

Scores and guesses cross the fabric in addition to the blocks. A line joins one policy at one
buffer over the limits of its hints; a policy without hints is a line across. Nothing here can
fail.
"""

from collections.abc import Sequence

from offstage.testbeds.lab.results.summary import PointSummary
from offstage.testbeds.report.lab.hit_axis import SCALE_WORDS, Hits, hit_axis
from offstage.testbeds.report.lab.series import Facet, Metric, View, over_k
from offstage.testbeds.report.lab.void import reasons
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.pictures import Picture, colour, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import void_markup

__all__ = ["hints_figure"]

FACETS_MAX = 6
LIMITS = ("hint_scores_max", "hint_every_steps", "hint_score_bits")
SHADES = ("set-pattern", "set-1", "set-2", "set-5", "set-4", "set-3")


def hints_figure(view: View) -> Figure | None:
    """None if no point's hosts send anything, as in results from before they were counted."""
    shown = [one for one in view.facets if any(_hints(point) for point in one.points)][:FACETS_MAX]
    if not shown:
        return None
    plots = [_plot(one, view.metric) for one in shown]
    caption = (
        "Up and to the left is better. Scores and guesses that hosts send ahead of demands, in KiB "
        "per token and session over the fabric. A line joins one policy at one buffer over the "
        "limits of its hints; the dotted line across is a policy without hints at that buffer. "
        f"{SCALE_WORDS}"
    )
    return Figure("hints", "Cost of the hints", plots, caption)


def _hints(point: PointSummary) -> float:
    return point.hint_bytes_per_token.value if point.hint_bytes_per_token else 0.0


def _groups(facet: Facet) -> dict[tuple[str, float], list[PointSummary]]:
    """Points by policy (without the limits of its hints) and buffer, ascending in bytes."""
    found: dict[tuple[str, float], list[PointSummary]] = {}
    for point in facet.points:
        if _hints(point):
            info = point.info
            kept = [
                f"{key}={value}"
                for key, value in sorted(info.parameters.items())
                if key not in LIMITS
            ]
            name = info.policy.partition(" (")[0] + (f" ({', '.join(kept)})" if kept else "")
            found.setdefault((name, info.buffer_over_k), []).append(point)
    return {key: sorted(points, key=_hints) for key, points in found.items()}


def _shades(facet: Facet, groups: dict[tuple[str, float], list[PointSummary]]) -> dict[str, str]:
    """The policy's colour in the other plots; another one if two would share it."""
    own = {id(point): series.look.colour for series in facet.series for point in series.points}
    free = [f"var(--{shade})" for shade in SHADES]
    found: dict[str, str] = {}
    for (name, _), points in groups.items():
        if name not in found:
            unused = [one for one in [own[id(points[0])], *free] if one not in found.values()]
            found[name] = unused[0] if unused else own[id(points[0])]
    return found


def _plot(facet: Facet, metric: Metric) -> Plot:
    groups = _groups(facet)
    shades = _shades(facet, groups)
    said = [
        f"{point.info.policy}, {over_k(buffer)}: {percent(hit.value)} at "
        f"{_hints(point) / 1024:.1f} KiB"
        for (_, buffer), points in groups.items()
        for point in points
        if (hit := metric.hit_of(point))
    ]

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        found = [hit.value for point in facet.points if (hit := metric.hit_of(point))]
        y = hit_axis(drawn, axes, found)
        for (name, buffer), points in groups.items():
            rows = [(point, hit.value) for point in points if (hit := metric.hit_of(point))]
            shade = colour(shades[name])
            axes.plot(
                [_hints(point) / 1024 for point, _ in rows],
                [y(hit) for _, hit in rows],
                color=shade,
                label=f"{name}, {over_k(buffer)}",
                linestyle="-" if buffer == max(facet.buffers) else (0, (4.5, 2.2)),
            )
            _tips(drawn, rows, y, shade)
        for point in facet.points:
            hit = metric.hit_of(point)
            if point.info.policy == "none" and hit:
                axes.axhline(y(hit.value), color=colour("muted"), linestyle=":")
        plain_logs(axes, x="number")
        axes.set(xlabel="hints, KiB a token", ylabel=f"hits of {metric.hit_words}")
        drawn.legend(axes)

    words = f"Hit rate over hint bytes, {facet.title}. {'; '.join(said)}."
    return Plot(
        f"hints {facet.title}",
        words,
        draw,
        heading=f"<h3>{escape(facet.title)}</h3>" + void_markup(reasons(facet.points)),
        height=3.4,
        legend_rows=len(groups),
        paper_height=3.2,
    )


def _tips(drawn: Picture, rows: Sequence[tuple[PointSummary, float]], y: Hits, shade: str) -> None:
    """A separate mark for each point, with its description."""
    axes = drawn.figure.axes[0]
    for point, hit in rows:
        spot = axes.scatter([_hints(point) / 1024], [y(hit)], color=shade, s=26, zorder=3)
        kv = point.kv_bytes_per_token
        share = f", {_hints(point) / kv.value:.2%} of the KV" if kv and kv.value else ""
        drawn.tip(
            spot,
            f"{point.info.policy}\nhit rate {percent(hit)}\n"
            f"{_hints(point) / 1024:,.1f} KiB a token{share}",
        )
