"""The plots over time and waiting: hit rate by step, stall per token, and when blocks arrived."""

import math
from collections.abc import Sequence

from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.page.markup import chip, key, legend
from offstage.testbeds.report.page.numbers import clock_ns, milliseconds, percent
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import void_markup
from offstage.testbeds.report.run.lead import Leads, lead_figure, lead_plot, lead_span
from offstage.testbeds.report.run.runs import Group, labels
from offstage.testbeds.report.run.void import HITS, TIMES, reasons

__all__ = [
    "Colours",
    "heading",
    "hit_rate_figure",
    "leads_figure",
    "legend_of",
    "shade",
    "stall_figure",
]

Colours = dict[tuple[str, ...], str]

BANDS_MAX = 75
POINTS_MAX = 400
STALL_FLOOR_MS = 0.001
PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999)
STALL_BANDS = 48


def shade(run: RunResult, colours: Colours) -> str:
    """The colour of a run's set."""
    return colours[tuple(sorted(run.prefetchers))]


def heading(group: Group, keys: Sequence[str], title: str = "") -> str:
    """A storage's name, or another title, and its provenance above a plot, and what is said against
    the figures that the plot shows."""
    named = f"<h3>{escape(title or group.title)} {chip(group.provenance)}</h3>"
    return named + void_markup(reasons([group], keys))


def legend_of(
    groups: Sequence[Group], colours: Colours, kind: str = "line", prefetching: bool = False
) -> str:
    """One key per set of prefetchers (only those that prefetch), then the line style of each
    provenance."""
    seen: dict[str, str] = {}
    for group in groups:
        for run, name in zip(group.runs, labels(group), strict=True):
            if prefetching and not run.prefetchers:
                continue
            seen.setdefault(name, colours[tuple(sorted(run.prefetchers))])
    entries = [key(shade, name, kind) for name, shade in seen.items()]
    for provenance in dict.fromkeys(group.provenance for group in groups):
        entries.append(key("var(--muted)", provenance, f"{kind} {provenance}"))
    return legend(entries)


# Hit rate by step


def hit_rate_figure(groups: Sequence[Group], colours: Colours) -> Figure:
    """Smoothed hit rate of each run over decode steps, raw values faint behind it."""
    low = _lowest([run for group in groups for run in group.runs])
    start = f" The scale starts at {low * 100:g} %." if low else ""
    return Figure(
        "steps",
        "Hit rate over decode steps",
        [_hit_rate_plot(group, colours, low) for group in groups],
        "Higher is better: the share of each step's demands that were staged in time, as a moving "
        f"average, with single steps faint behind it.{start}",
        legend_of(groups, colours),
    )


def _binned(run: RunResult, bins: int) -> list[tuple[float, int, int]]:
    """(middle step, hits in millionths, demands) of at most `bins` groups of steps."""
    count = len(run.hit_rate_by_step)
    width = max(1, math.ceil(count / bins))
    rows = []
    for first in range(0, count, width):
        span = range(first, min(first + width, count))
        live = [step for step in span if run.demands_by_step[step]]
        demands = sum(run.demands_by_step[step] for step in live)
        hits = sum(run.hit_rate_by_step[step] * run.demands_by_step[step] for step in live)
        rows.append((first + (len(span) - 1) / 2, round(hits * 1e6), demands))
    return rows


def _raw(run: RunResult) -> list[tuple[float, float]]:
    rows = _binned(run, POINTS_MAX)
    return [(step, hits / 1e6 / demands) for step, hits, demands in rows if demands]


def _smooth(run: RunResult) -> list[tuple[float, float]]:
    """Centred moving average over a 25th of the steps, weighted by demands."""
    rows = _binned(run, POINTS_MAX)
    half = max(2, len(rows) // 50)
    points = []
    for at, (step, _, _) in enumerate(rows):
        near = rows[max(0, at - half) : at + half + 1]
        demands = sum(row[2] for row in near)
        if demands:
            points.append((step, sum(row[1] for row in near) / 1e6 / demands))
    return points


def _lowest(runs: Sequence[RunResult]) -> float:
    """Where the scale starts: a twentieth below all but the few lowest single steps."""
    values = sorted(rate for run in runs for _, rate in _raw(run))
    if not values:
        return 0.0
    low = min(values[len(values) // 50], *(r for run in runs for _, r in _smooth(run)))
    return max(0.0, math.floor(low * 20) / 20)


def _hit_rate_plot(group: Group, colours: Colours, low: float) -> Plot:
    last = max([len(run.hit_rate_by_step) for run in group.runs] + [2]) - 1
    rows = [(run, name, _smooth(run)) for run, name in zip(group.runs, labels(group), strict=True)]

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.set(xlim=(0, last), ylim=(low, 1.0), xlabel="decode step")
        for run, _, _ in rows:
            axes.plot(
                *_clipped(_raw(run), low),
                color=colour(shade(run, colours)),
                alpha=0.17,
                linewidth=0.7,
            )
        for run, name, smooth in rows:
            axes.plot(
                *_clipped(smooth, low),
                color=colour(shade(run, colours)),
                label=name,
                linewidth=1.4,
                linestyle=LINE_STYLES[group.provenance],
            )
        count = min(BANDS_MAX, last + 1)
        for at in range(count):
            step = round((at + 0.5) * last / count)
            tips = [f"{percent(_near(points, step))}  {name}" for _, name, points in rows if points]
            drawn.band(
                axes,
                at * last / count,
                (at + 1) * last / count,
                "\n".join([f"step {step}", *reversed(tips)]),
            )
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")
        if drawn.paper:
            drawn.legend(axes)

    said = "; ".join(f"{name} {percent(run.hit)}" for run, name, _ in rows)
    return Plot(
        f"steps {group.title}",
        f"Hit rate over decode steps on {group.title}. All steps: {said}.",
        draw,
        height=2.9,
        heading=heading(group, HITS),
        paper_height=2.6,
    )


def _clipped(points: Sequence[tuple[float, float]], low: float) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [max(low, y) for _, y in points]


def _near(points: Sequence[tuple[float, float]], step: float) -> float:
    return min(points, key=lambda point: abs(point[0] - step))[1]


# Lead time


def leads_figure(groups: Sequence[Group], colours: Colours) -> Figure | str:
    """When prefetched blocks arrived, before need to the right and after it to the left."""
    found = [_leads(group, colours) for group in groups]
    span = lead_span([row for rows in found for row in rows])
    plots = (
        []
        if span is None
        else [
            lead_plot(rows, span, group.title, heading(group, ("late",)), group.provenance)
            for group, rows in zip(groups, found, strict=True)
        ]
    )
    return lead_figure(plots, legend_of(groups, colours, "area", prefetching=True))


def _leads(group: Group, colours: Colours) -> list[Leads]:
    return [
        Leads(name, shade(run, colours), run.late_ns_log2, run.lead_ns_log2)
        for run, name in zip(group.runs, labels(group), strict=True)
        if run.prefetchers
    ]


# Stall per token


def stall_figure(groups: Sequence[Group], colours: Colours) -> Figure:
    """Quantiles of the stall per token, the slowest tokens stretched out."""
    worst = [run.stall_ms_by_token[-1] for g in groups for run in g.runs if run.stall_ms_by_token]
    high = 10.0 ** math.ceil(math.log10(max([*worst, 0.1])) - 1e-9)
    values = sorted(v for g in groups for run in g.runs for v in run.stall_ms_by_token if v > 0)
    # All but the few shortest waits are visible.
    shortest = min(values[len(values) // 50] if values else high, high / 10)
    low = max(10.0 ** math.floor(math.log10(max(STALL_FLOOR_MS, shortest))), high / 1e5)
    return Figure(
        "stall",
        "Stall per token",
        [_stall_plot(group, colours, low, high) for group in groups],
        "Lower is better: the stall that a share of all tokens did not exceed, on a logarithmic "
        "scale; the slowest tokens are at the right, a line along the bottom means no wait.",
        legend_of(groups, colours),
    )


def _tail(share: float) -> float:
    """The position of a share of tokens: each further nine takes the same room."""
    return -math.log10(1.0 - share)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * (len(values) - 1) + 0.5))]


def _stall_plot(group: Group, colours: Colours, low: float, high: float) -> Plot:
    rows = [
        (run, name)
        for run, name in zip(group.runs, labels(group), strict=True)
        if run.stall_ms_by_token
    ]

    def draw(drawn: Picture) -> None:
        axes, end = drawn.axes(), _tail(0.999)
        axes.set_yscale("log")
        axes.set(xlim=(0, end), ylim=(low, high), xlabel="share of tokens")
        shares = [1.0 - 10 ** (-end * at / 160) for at in range(161)]
        for run, name in rows:
            values = [max(_quantile(run.stall_ms_by_token, share), low) for share in shares]
            axes.plot(
                [_tail(share) for share in shares],
                values,
                label=name,
                linewidth=1.4,
                color=colour(shade(run, colours)),
                linestyle=LINE_STYLES[group.provenance],
            )
        for at in range(STALL_BANDS):
            share = 1.0 - 10 ** (-end * (at + 0.5) / STALL_BANDS)
            tips = [f"{milliseconds(_quantile(r.stall_ms_by_token, share))}  {n}" for r, n in rows]
            drawn.band(
                axes,
                at * end / STALL_BANDS,
                (at + 1) * end / STALL_BANDS,
                "\n".join([f"{share * 100:.4g} % of tokens, at most", *tips]),
            )
        powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
        names = [clock_ns(10.0**power * 1e6) for power in powers]
        axes.set_yticks([10.0**power for power in powers], [f"≤ {names[0]}", *names[1:]])
        axes.minorticks_off()
        ticks = PERCENTILES[1:] if drawn.slim else PERCENTILES
        axes.set_xticks(
            [_tail(share) for share in ticks], [f"{share * 100:g} %" for share in ticks]
        )
        axes.grid(visible=False, axis="x")
        if drawn.paper:
            drawn.legend(axes)

    said = [
        f"{n} p50 {milliseconds(r.stall_ms_p50)}, p99 {milliseconds(r.stall_ms_p99)}"
        for r, n in rows
    ]
    return Plot(
        f"stall {group.title}",
        f"Stall per token on {group.title}. {'; '.join(said)}.",
        draw,
        height=2.9,
        heading=heading(group, TIMES),
        paper_height=2.6,
    )
