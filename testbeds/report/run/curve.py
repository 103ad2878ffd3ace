"""The hit-versus-traffic curve: the cost of a hit rate. Either figure alone says little."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from offstage.testbeds.live.results import CurvePoint, RunResult
from offstage.testbeds.report.page.labels import Labels
from offstage.testbeds.report.page.markup import key, legend
from offstage.testbeds.report.page.numbers import percent, ratio
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.void import void_markup
from offstage.testbeds.report.run.plots import Colours, shade
from offstage.testbeds.report.run.runs import Group, labels
from offstage.testbeds.report.run.void import reasons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve_figure"]

# A ring around a dot: two runs with equal figures are both visible.
SIZES = {"measured": 7.5, "emulated": 12.0, "modelled": 16.0}
CURVES = ("var(--set-1)", "var(--set-2)", "var(--set-3)", "var(--set-4)", "var(--set-5)")


def curve_figure(groups: Sequence[Group], curve: Sequence[CurvePoint], colours: Colours) -> Figure:
    """Runs as points, the policies of `curve` as lines with their provenance."""
    seen = {name: shade(run, colours) for run, name, _ in _runs(groups)}
    keys = [key(own, name, "dot") for name, own in seen.items()]
    keys += [
        key("var(--muted)", name, f"dot {name}")
        for name in dict.fromkeys(group.provenance for group in groups)
    ]
    keys += [
        key(own, f"{policy} ({provenance})", f"line {provenance}")
        for (policy, provenance), own in _shades(curve, colours).items()
    ]
    return Figure(
        "curve",
        "Cost of the hits",
        [_plot(groups, curve, colours)],
        "Up and to the left is better: each point is a run, with its hit rate over the bytes read, "
        "in multiples of no prefetch; a line shows one policy at several settings."
        + _beside(groups, curve),
        legend(keys),
        void_markup(reasons(groups, ("hit", "traffic_ratio"))),
    )


def _beside(groups: Sequence[Group], curve: Sequence[CurvePoint]) -> str:
    """The same core on the same demands in virtual time, for each run."""
    pairs = []
    for run, name, group in _runs(groups):
        for point in curve:
            if point.run == run.name:
                pairs.append(
                    f"{name}, {group.provenance}: {percent(run.hit)} live, "
                    f"{percent(point.hit)} again"
                )
    if not pairs:
        return ""
    return f" The same core on the same demands in virtual time: {'; '.join(pairs)}."


def _runs(groups: Sequence[Group]) -> list[tuple[RunResult, str, Group]]:
    return [
        (run, name, group)
        for group in groups
        for run, name in zip(group.runs, labels(group), strict=True)
    ]


def _shades(curve: Sequence[CurvePoint], colours: Colours) -> dict[tuple[str, str], str]:
    """Colour by policy and provenance: a policy named after a set of prefetchers (`window+ema`
    or `window+ema, ...`) has the set's."""
    shades: dict[tuple[str, str], str] = {}
    for point in curve:
        name = point.policy.split(",")[0].strip()
        names = () if name == "no prefetch" else tuple(sorted(name.split("+")))
        free = CURVES[len(shades) % len(CURVES)]
        shades.setdefault((point.policy, point.provenance), colours.get(names, free))
    return shades


def _plot(groups: Sequence[Group], curve: Sequence[CurvePoint], colours: Colours) -> Plot:
    runs = _runs(groups)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        _axes(drawn, axes, [run for run, _, _ in runs], curve)
        _lines(drawn, axes, curve, colours)
        for run, name, group in runs:
            _point(drawn, axes, run, name, group, colours)
        if drawn.paper:
            _legend(drawn, axes, groups, colours)
        _label(drawn, axes, groups, curve)

    said = "; ".join(
        f"{name} on {group.where}: {percent(run.hit)} at {ratio(run.traffic_ratio)}"
        for run, name, group in runs
    )
    return Plot(
        "hits-over-traffic",
        f"Hit rate against traffic. {said}.",
        draw,
        height=3.6,
        paper_height=3.0,
    )


def _axes(
    drawn: Picture, axes: "Axes", runs: Sequence[RunResult], curve: Sequence[CurvePoint]
) -> None:
    from matplotlib.ticker import MaxNLocator

    traffic = [r.traffic_ratio for r in runs] + [p.traffic_ratio for p in curve]
    rates = [r.hit for r in runs] + [p.hit for p in curve]
    left, right = min([*traffic, 1.0]), max([*traffic, 1.1])
    margin = (right - left) * 0.08
    low = max(0.0, math.floor((min([*rates, 0.95]) - 0.02) * 20) / 20)
    axes.set(
        xlim=(max(0.0, left - margin), right + margin),
        ylim=(low, 1.0),
        xlabel="bytes read, over those without prefetch",
    )
    axes.xaxis.set_major_locator(MaxNLocator(4 if drawn.slim else 8))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}×")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
    axes.grid(visible=False, axis="x")
    axes.axvline(1.0, color=colour("muted"), linewidth=0.7, linestyle=(0, (2, 3)))
    axes.set_title("↖ better", loc="left", color=colour("muted"), fontsize=8)


def _lines(drawn: Picture, axes: "Axes", curve: Sequence[CurvePoint], colours: Colours) -> None:
    """One line per policy and provenance through its settings in order, each with a mark."""
    for (policy, provenance), own in _shades(curve, colours).items():
        rows = [p for p in curve if (p.policy, p.provenance) == (policy, provenance)]
        axes.plot(
            [p.traffic_ratio for p in rows],
            [p.hit for p in rows],
            linewidth=1.4,
            color=colour(own),
            linestyle=LINE_STYLES[provenance],
        )
        for point in rows:
            (mark,) = axes.plot(
                [point.traffic_ratio],
                [point.hit],
                "o",
                markersize=4.5,
                clip_on=False,
                markerfacecolor=colour("surface"),
                markeredgecolor=colour(own),
            )
            tip = f"{policy}: {point.label}\n{provenance}\nhit rate {percent(point.hit)}"
            drawn.tip(mark, f"{tip}\ntraffic {ratio(point.traffic_ratio)}")


def _point(
    drawn: Picture, axes: "Axes", run: RunResult, name: str, group: Group, colours: Colours
) -> None:
    own, measured = colour(shade(run, colours)), group.provenance == "measured"
    (mark,) = axes.plot(
        [run.traffic_ratio],
        [run.hit],
        "o",
        markersize=SIZES[group.provenance],
        markerfacecolor=own if measured else "none",
        clip_on=False,
        zorder=4,
        markeredgecolor=colour("surface") if measured else own,
        markeredgewidth=1.0 if measured else 1.8,
    )
    tip = f"{name}\n{group.where}\nhit rate {percent(run.hit)}\ntraffic {ratio(run.traffic_ratio)}"
    drawn.tip(mark, tip, spot="spot")


def _legend(drawn: Picture, axes: "Axes", groups: Sequence[Group], colours: Colours) -> None:
    from matplotlib.lines import Line2D

    seen = {
        f"{name}, {group.provenance}": (shade(run, colours), group.provenance)
        for run, name, group in _runs(groups)
    }
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            markersize=5,
            markeredgecolor=colour(own),
            markerfacecolor=colour(own) if provenance == "measured" else "none",
        )
        for own, provenance in seen.values()
    ]
    drawn.keys(handles, list(seen), fontsize=6.5)


def _label(
    drawn: Picture, axes: "Axes", groups: Sequence[Group], curve: Sequence[CurvePoint]
) -> None:
    """Names next to the points of the first group, if they do not overlap."""
    placed = Labels(drawn, axes, 8.5)
    if drawn.paper:
        return
    for run, _, group in _runs(groups):
        placed.block(run.traffic_ratio, run.hit, SIZES[group.provenance] / 2 + 1)
    for key_of in dict.fromkeys((point.policy, point.provenance) for point in curve):
        placed.along(
            [
                (point.traffic_ratio, point.hit)
                for point in curve
                if (point.policy, point.provenance) == key_of
            ]
        )
    for run, name in zip(groups[0].runs, labels(groups[0]), strict=True) if groups else ():
        placed.add(run.traffic_ratio, run.hit, name, reach=3.0)
