"""The plots over time and waiting: hit rate by step, lead time, stall per token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.markup import figure, key, legend, panel, panels
from offstage.testbeds.report.page.numbers import clock_ns, milliseconds, percent
from offstage.testbeds.report.run.runs import Group, labels

__all__ = [
    "LEAD_CAPTION",
    "LEAD_TITLE",
    "Colours",
    "Leads",
    "hit_rate_figure",
    "lead_chart",
    "lead_figure",
    "lead_span",
    "legend_of",
    "stall_figure",
]

Colours = dict[tuple[str, ...], str]

BANDS_MAX = 75
POINTS_MAX = 400
STALL_FLOOR_MS = 0.001
PERCENTILES = (0.0, 0.5, 0.9, 0.99, 0.999)
LEAD_TITLE = "How early blocks arrived"
LEAD_CAPTION = (
    "Right of the middle: prefetched blocks that arrived before they were needed, by how long "
    "before. Left of it: late ones, which the kernel waited for. Both times grow outwards on a "
    "logarithmic scale; heights are shares of each run's own blocks."
)


def colour(run: RunResult, colours: Colours) -> str:
    """`--c: ...` of a run's set, for a style attribute."""
    return f"--c:{colours[tuple(sorted(run.prefetchers))]}"


def legend_of(
    groups: Sequence[Group], colours: Colours, kind: str = "line", prefetching: bool = False
) -> str:
    """One key per set of prefetchers (only those that prefetch), then how provenance is drawn."""
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


def hit_rate_figure(groups: Sequence[Group], colours: Colours) -> str:
    """Smoothed hit rate of each run over decode steps, raw values faint behind it."""
    low = _lowest([run for group in groups for run in group.runs])
    body = panels(
        [
            panel(group.title, group.provenance, _hit_rate_plot(group, colours, low))
            for group in groups
        ]
    )
    start = f" The scale starts at {low * 100:g} %." if low else ""
    return figure(
        "steps",
        "Hit rate over decode steps",
        body,
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


def _hit_rate_plot(group: Group, colours: Colours, low: float) -> str:
    frame = svg.Frame()
    last = max([len(run.hit_rate_by_step) for run in group.runs] + [2]) - 1
    x = svg.Linear(0, last, frame.x0, frame.x1)
    y = svg.Linear(low, 1.0, frame.y0, frame.y1)
    lines, raws, said, smooth = [], [], [], []
    for run, name in zip(group.runs, labels(group), strict=True):
        raw = [(x(step), y(max(low, rate))) for step, rate in _raw(run)]
        raws.append(svg.path(raw, class_="raw", style=colour(run, colours)))
        smooth.append((name, _smooth(run)))
        line = [(x(step), y(max(low, rate))) for step, rate in smooth[-1][1]]
        lines.append(svg.path(line, class_="line", style=colour(run, colours)))
        said.append(f"{name} {percent(run.hit_rate)}")
    count = min(BANDS_MAX, last + 1)
    spans = []
    for at in range(count):
        step = round((at + 0.5) * last / count)
        rows = [f"{percent(_near(points, step))}  {name}" for name, points in smooth if points]
        edge = (frame.x1 - frame.x0) / count
        tip = "\n".join([f"step {step}", *reversed(rows)])
        spans.append((frame.x0 + at * edge, frame.x0 + (at + 1) * edge, tip))
    marks = [(y(v), f"{v * 100:g} %") for v in y.ticks(5)]
    axes = svg.y_axis(frame, marks) + svg.x_axis(
        frame, [(x(v), f"{v:g}") for v in x.ticks(6)], "decode step"
    )
    summary = f"Hit rate over decode steps on {group.title}. All steps: {'; '.join(said)}."
    return svg.chart(frame, axes + "".join(raws + lines) + svg.bands(frame, spans), summary)


def _near(points: Sequence[tuple[float, float]], step: float) -> float:
    return min(points, key=lambda point: abs(point[0] - step))[1]


# Lead time


@dataclass(frozen=True)
class Leads:
    """When one run's blocks arrived: counts by power of two of ns, after and before need."""

    name: str
    style: str
    late: Sequence[int]
    early: Sequence[int]


def lead_figure(groups: Sequence[Group], colours: Colours) -> str:
    """When prefetched blocks arrived, before need to the right and after it to the left."""
    found = [_leads(group, colours) for group in groups]
    span = lead_span([row for rows in found for row in rows])
    if span is None:
        body = '<p class="empty">No prefetched block was used, and no demand was late.</p>'
    else:
        body = panels(
            [
                panel(group.title, group.provenance, lead_chart(rows, span, group.title))
                for group, rows in zip(groups, found, strict=True)
            ]
        )
    keys = legend_of(groups, colours, "area", prefetching=True)
    return figure("lead", LEAD_TITLE, body, LEAD_CAPTION, keys)


def _leads(group: Group, colours: Colours) -> list[Leads]:
    return [
        Leads(name, colour(run, colours), run.late_ns_log2, run.lead_ns_log2)
        for run, name in zip(group.runs, labels(group), strict=True)
        if run.prefetchers
    ]


def lead_span(rows: Sequence[Leads]) -> tuple[int, int, int] | None:
    """Lowest bin shown, highest late bin, highest early bin; None where all are empty."""
    early = [i for row in rows for i, n in enumerate(row.early) if n]
    late = [i for row in rows for i, n in enumerate(row.late) if n]
    if not early and not late:
        return None
    # Bins below 8 us are one: nothing that small is distinguished here.
    return 13, max([*late, 17]), max([*early, 17])


def _folded(counts: Sequence[int], low: int, high: int) -> list[int]:
    """Bins `low` to `high`; what lies below is added to the first."""
    padded = [*counts, *([0] * (high + 1 - len(counts)))]
    return [sum(padded[: low + 1]), *padded[low + 1 : high + 1]]


def lead_chart(leads: Sequence[Leads], span: tuple[int, int, int], title: str) -> str:
    """The runs of one panel over each other, each as shares of its own blocks."""
    frame = svg.Frame(left=40)
    low, late_high, early_high = span
    late_bins, early_bins = late_high - low + 1, early_high - low + 1
    gap = 1.0
    unit = (frame.x1 - frame.x0) / (late_bins + early_bins + gap)
    middle = frame.x0 + (late_bins + gap / 2) * unit
    rows = []
    for one in leads:
        late = _folded(one.late, low, late_high)
        early = _folded(one.early, low, early_high)
        if total := sum(late) + sum(early):
            rows.append((one, [n / total for n in late], [n / total for n in early]))
    top = max((v for row in rows for v in (*row[1], *row[2])), default=0.01) * 1.08
    y = svg.Linear(0, top, frame.y0, frame.y1)
    late_edges = [middle - (gap / 2 + late_bins - i) * unit for i in range(late_bins + 1)]
    early_edges = [middle + (gap / 2 + i) * unit for i in range(early_bins + 1)]
    zone = svg.tag(
        "rect", x=frame.x0, y=frame.y1, width=late_edges[-1] - frame.x0,
        height=frame.y0 - frame.y1, class_="late-zone",
    )  # fmt: skip
    areas = []
    for one, late_shares, early_shares in rows:
        for edges, shares in ((late_edges, late_shares[::-1]), (early_edges, early_shares)):
            heights = [y(share) for share in shares]
            areas.append(svg.steps(edges, heights, frame.y0, class_="area", style=one.style))
    spans = _lead_tips(rows, low, late_edges, early_edges)
    axes = _lead_axes(frame, y, span, late_edges, early_edges, middle)
    said = [f"{one.name}: {percent(sum(early))} early" for one, _, early in rows]
    summary = f"When prefetched blocks arrived on {title}. {'; '.join(said)}."
    return svg.chart(frame, zone + axes + "".join(areas) + svg.bands(frame, spans), summary)


def _lead_tips(
    rows: Sequence[tuple[Leads, list[float], list[float]]],
    low: int,
    late_edges: Sequence[float],
    early_edges: Sequence[float],
) -> list[tuple[float, float, str]]:
    spans = []
    for side, edges, word in ((0, late_edges, "late"), (1, early_edges, "early")):
        bins = len(edges) - 1
        for at in range(bins):
            power = low + (at if side else bins - 1 - at)
            first = "under " if power == low else f"{clock_ns(2.0**power)} to "
            lines = [
                f"{percent((late, early)[side][power - low])}  {one.name}"
                for one, late, early in rows
            ]
            tip = "\n".join([f"{first}{clock_ns(2.0 ** (power + 1))} {word}", *lines])
            spans.append((edges[at], edges[at + 1], tip))
    return spans


def _lead_axes(
    frame: svg.Frame,
    y: svg.Linear,
    span: tuple[int, int, int],
    late_edges: Sequence[float],
    early_edges: Sequence[float],
    middle: float,
) -> str:
    low = span[0]
    marks = []
    for power in range(20, 64, 5):
        for edges in (early_edges, late_edges[::-1]):
            if power - low < len(edges):
                # 2^20 ns is 1.05 ms: the label says the round figure that the bin's edge is near.
                marks.append((edges[power - low], _round_clock(power)))
    shares = [(y(v), f"{v * 100:g} %") for v in y.ticks(4)]
    need = svg.tag("line", x1=middle, x2=middle, y1=frame.y1, y2=frame.y0, class_="need")
    words = (
        svg.text(middle, frame.y0 + 16, "need", class_="tick mid strong")
        + svg.text(late_edges[-1] - 6, frame.y1 + 12, "← late", class_="note end")
        + svg.text(early_edges[0] + 6, frame.y1 + 12, "early →", class_="note")
    )
    title = "arrival, before or after need"
    return svg.y_axis(frame, shares) + svg.x_axis(frame, marks, title) + need + words


def _round_clock(power: int) -> str:
    """2^10 ns as 1 µs, 2^15 as 32 µs, 2^20 as 1 ms, ...: binary steps by their decimal name."""
    unit = ("ns", "µs", "ms", "s")[min(3, power // 10)]
    return f"{2 ** (power - 10 * min(3, power // 10))} {unit}"


# Stall per token


def stall_figure(groups: Sequence[Group], colours: Colours) -> str:
    """Quantiles of the stall per token, the slowest tokens stretched out."""
    worst = [run.stall_ms_by_token[-1] for g in groups for run in g.runs if run.stall_ms_by_token]
    high = 10.0 ** math.ceil(math.log10(max([*worst, 0.1])) - 1e-9)
    values = sorted(v for g in groups for run in g.runs for v in run.stall_ms_by_token if v > 0)
    # All but the few shortest waits are in sight.
    shortest = min(values[len(values) // 50] if values else high, high / 10)
    low = max(10.0 ** math.floor(math.log10(max(STALL_FLOOR_MS, shortest))), high / 1e5)
    body = panels(
        [
            panel(group.title, group.provenance, _stall_plot(group, colours, low, high))
            for group in groups
        ]
    )
    return figure(
        "stall",
        "What each token waited",
        body,
        "Lower is better: the stall that a share of all tokens did not exceed, on a logarithmic "
        "scale; the slowest tokens stand at the right, a line along the bottom is no wait.",
        legend_of(groups, colours),
    )


def _tail(share: float) -> float:
    """Where a share of tokens stands: each further nine takes the same room."""
    return -math.log10(1.0 - share)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * (len(values) - 1) + 0.5))]


def _stall_plot(group: Group, colours: Colours, low: float, high: float) -> str:
    frame = svg.Frame(left=54, right=18)
    x = svg.Linear(0, _tail(0.999), frame.x0, frame.x1)
    y = svg.Log(low, high, frame.y0, frame.y1)
    rows = [
        (run, name)
        for run, name in zip(group.runs, labels(group), strict=True)
        if run.stall_ms_by_token
    ]
    lines = []
    for run, _ in rows:
        values = run.stall_ms_by_token
        shares = [1.0 - 10 ** (-x.high * at / 160) for at in range(161)]
        points = [(x(_tail(share)), y(_quantile(values, share))) for share in shares]
        lines.append(svg.path(points, class_="line", style=colour(run, colours)))
    spans = []
    for at in range(48):
        share = 1.0 - 10 ** (-x.high * (at + 0.5) / 48)
        tips = [f"{milliseconds(_quantile(r.stall_ms_by_token, share))}  {n}" for r, n in rows]
        left, right = (frame.x0 + (at + i) * (frame.x1 - frame.x0) / 48 for i in (0, 1))
        spans.append((left, right, "\n".join([f"{share * 100:.4g} % of tokens, at most", *tips])))
    marks = [(y(v), clock_ns(v * 1e6)) for v in y.ticks()]
    marks[0] = (marks[0][0], f"≤ {marks[0][1]}")
    ticks = [(x(_tail(share)), f"{share * 100:g} %") for share in PERCENTILES]
    axes = svg.y_axis(frame, marks) + svg.x_axis(frame, ticks, "share of tokens")
    said = [f"{n} p50 {milliseconds(r.stall_ms_p50)}, p99 {milliseconds(r.stall_ms_p99)}"
            for r, n in rows]  # fmt: skip
    summary = f"Stall per token on {group.title}. {'; '.join(said)}."
    return svg.chart(frame, axes + "".join(lines) + svg.bands(frame, spans), summary)
