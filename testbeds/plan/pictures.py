"""A plan's pictures: the cost of each place, over users and over the gap, and a trace's curves."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from offstage.testbeds.plan.curves import CurvePoint, Curves
from offstage.testbeds.plan.result import Plan
from offstage.testbeds.plan.table import label, shown
from offstage.testbeds.report.page.numbers import percent
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour, plain_logs
from offstage.testbeds.report.page.plot import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bars", "bought", "over", "reuse"]

COLOURS = (
    "set-none",
    "set-1",
    "set-pattern",
    "set-3",
    "set-window",
    "set-shared",
    "set-2",
    "set-5",
    "set-4",
)
KEPT = {
    "opt": ("set-none", "the optimum (OPT)"),
    "lru": ("set-pattern", "every block is written, LRU eviction"),
    "ttl 300 s": ("set-3", "LRU, dropped after 5 min idle"),
    "ttl 1800 s": ("set-5", "LRU, dropped after 30 min idle"),
    "second touch": ("set-window", "written at the second request"),
    "class-aware": ("set-shared", "single-turn unshared blocks are not written"),
}
GB = 1e9


def _colours(plan: Plan) -> dict[str, str]:
    return {one.name: colour(COLOURS[at % len(COLOURS)]) for at, one in enumerate(plan.places)}


def bars(plan: Plan) -> Plot:
    """Dollars per million tokens by place, each with its range."""
    rows = [one for one in plan.places if one.figures["usd_per_mtok"] is not None]
    height = 1.0 + 0.42 * len(rows)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for at, one in enumerate(rows):
            cost = one.figures["usd_per_mtok"]
            assert cost is not None
            (bar,) = axes.barh(
                at,
                cost.value,
                height=0.6,
                color=_colours(plan)[one.name],
                alpha=1.0 if one.works else 0.35,
            )
            note = f"\n{one.note}" if one.note else ""
            drawn.tip(bar, f"{label(one.name)}: {shown(cost, '$/Mtok')}{note}")
            axes.plot([cost.low, cost.high], [at, at], color=colour("ink"), linewidth=1.2)
        axes.set_yticks(range(len(rows)), [label(one.name) for one in rows])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel("dollars per million tokens")

    return Plot(
        "cost", "Dollars per million tokens by place", draw, height=height, paper_height=height
    )


def over(plan: Plan, by: str) -> Plot:
    """The same cost over users, or over the seconds until the next turn."""
    lines = plan.over_users if by == "users" else plan.over_gap
    x = "users" if by == "users" else "seconds from an answer to the session's next turn"

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        colours = _colours(plan)
        for name, points in lines.items():
            found = [(x, y) for x, y in points if y is not None]
            if found:
                (line,) = axes.plot(
                    *zip(*found, strict=True),
                    color=colours[name],
                    label=label(name),
                    linestyle=LINE_STYLES["modelled"] if name == "recompute" else "-",
                )
                drawn.tip(line, label(name))
        if by == "gap":
            _marks(plan, axes)
        plain_logs(axes, x="number", y="number" if by == "gap" else "")
        if by == "users":
            axes.set_ylim(bottom=0)
        axes.set(xlabel=x, ylabel="dollars per million tokens")
        drawn.legend(axes)

    said = f"Dollars per million tokens over {x}, by place"
    return Plot(f"cost over {by}", said, draw, height=3.4, legend_rows=len(lines), paper_height=3.4)


def _marks(plan: Plan, axes: "Axes") -> None:
    """The break-even points of the five-minute rule."""
    rule = next(one.figure for one in plan.rules if one.name == "dram_over_flash")
    if rule is not None:
        axes.axvspan(rule.low, rule.high, color=colour("grid"), zorder=0)
        axes.axvline(rule.value, color=colour("muted"), linewidth=1.0)
        axes.annotate(
            "DRAM | flash",
            (rule.value, 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            color=colour("muted"),
        )


def reuse(curves: Curves) -> Plot:
    """The share of re-accesses within a time: those that a TTL keeps."""

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.plot(*zip(*curves.reuse, strict=True), color=colour("set-pattern"))
        plain_logs(axes, x="number")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: percent(value).replace(".0", ""))
        axes.set(xlabel="seconds since the block was last used", ylabel="share of re-accesses")

    said = "Share of re-accesses within a time since the last use"
    return Plot("reuse", said, draw, height=3.0)


def bought(curves: Curves) -> Plot:
    """The benefit of a capacity: hits, writes per hit, and years of flash of that size."""

    def draw(drawn: Picture) -> None:
        parts = drawn.figure.subplots(3, 1, sharex=True)
        for name, points in sorted(curves.kept.items(), key=lambda one: list(KEPT).index(one[0])):
            line = partial(
                _line,
                points=points,
                color=colour(KEPT[name][0]),
                marker=None if name == "lru" else "o",
                markersize=3.5,
                linestyle=LINE_STYLES["modelled" if name == "opt" else "measured"],
            )
            line(parts[0], key="hit_rate", label=KEPT[name][1])
            line(parts[1], key="written_per_hit")
            line(parts[2], key="life_years")
        if curves.needed_bytes is not None:
            for axes in parts:
                axes.axvline(curves.needed_bytes / GB, color=colour("muted"), linewidth=1.0)
        plain_logs(parts[0], x="number")
        plain_logs(parts[1], y="number")
        plain_logs(parts[2], y="number")
        parts[0].yaxis.set_major_formatter(lambda value, _: percent(value).replace(".0", ""))
        parts[0].set_ylim(bottom=0)
        parts[0].set_ylabel("hits, of all blocks")
        parts[1].set_ylabel("blocks written for a hit")
        parts[2].set_ylabel("years until worn out")
        parts[2].set_xlabel("capacity, GB of KV")
        drawn.legend(parts[0])

    said = "Hits, writes for each hit and years of drive life over capacity"
    return Plot("capacity", said, draw, height=6.6, legend_rows=len(curves.kept), paper_height=6.0)


def _line(axes: "Axes", points: Sequence[CurvePoint], key: str, **style: Any) -> None:
    found = [
        (one.capacity_bytes / GB, getattr(one, key))
        for one in points
        if getattr(one, key) is not None and getattr(one, key) > 0
    ]
    if found:
        axes.plot(*zip(*found, strict=True), **style)
