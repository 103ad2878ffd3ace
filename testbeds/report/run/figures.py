"""The figures of counts: where demands were served, what became of prefetches, hit over traffic."""

import math
from collections.abc import Sequence
from html import escape

from offstage.bindings.layouts import ENDS
from offstage.testbeds.live.results import CurvePoint, RunResult
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.markup import (
    Segment,
    bar,
    figure,
    key,
    legend,
    panel,
    panels,
    swatch,
)
from offstage.testbeds.report.page.numbers import count, percent, ratio
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.definitions import END_TEXTS, FATE_TEXTS
from offstage.testbeds.report.run.plots import Colours, colour
from offstage.testbeds.report.run.runs import MISS_ENDS, Group, hits, labels

__all__ = ["curve_figure", "fates_figure", "served_figure"]

SERVED = ("hbm", *ENDS)
FATES = ("used", "late", "unused", "cancelled")
CAUSE_LABELS = {"pattern": "pattern (ema)"}


def served_figure(groups: Sequence[Group], colours: Colours) -> str:
    """Shares of the selections by who served them."""
    present = [end for end in SERVED if any(_served(r)[end] for g in groups for r in g.runs)]
    keys = [key(f"var(--end-{end})", _end_label(end), tip=END_TEXTS[end]) for end in present]
    provenances = dict.fromkeys(group.provenance for group in groups)
    keys += [key("var(--muted)", name, name) for name in provenances]
    pieces = []
    for group in groups:
        rows = [
            _row(run, name, colours, _served_bars(run, group), _served_note(run))
            for run, name in zip(group.runs, labels(group), strict=True)
        ]
        pieces.append(panel(group.title, group.provenance, "".join(rows)))
    return figure(
        "served",
        "Where the selected blocks came from",
        panels(pieces),
        "The thin bar is every block the kernels read, split into what the GPU's HBM pool held and "
        "what it demanded of the DPU; the thick bar is those demands alone: staged in time and "
        "thanks to what, then late, then missed.",
        legend(keys),
    )


def _end_label(end: str) -> str:
    if end == "hbm":
        return "HBM pool"
    return f"miss: {end}" if end in MISS_ENDS else end


def _served(run: RunResult) -> dict[str, int]:
    return {"hbm": max(0, run.selected - run.demands), **{e: run.ends.get(e, 0) for e in ENDS}}


def _served_bars(run: RunResult, group: Group) -> str:
    """All selections as a thin bar, the demands among them as a thick one."""
    served = _served(run)
    selected, demands = max(1, sum(served.values())), max(1, run.demands)
    thin = [
        Segment(
            served["hbm"] / selected,
            "var(--end-hbm)",
            f"HBM pool: {percent(served['hbm'] / selected)} of selections, "
            f"{count(served['hbm'])} blocks\n{END_TEXTS['hbm']}",
        ),
        Segment(
            run.demands / selected,
            "var(--muted)",
            f"demands: {percent(run.demands / selected)} of selections, "
            f"{count(run.demands)} blocks\nasked of the DPU: the thick bar",
        ),
    ]
    thick = [
        Segment(
            served[end] / demands,
            f"var(--end-{end})",
            f"{_end_label(end)}: {percent(served[end] / demands)} of demands, "
            f"{percent(served[end] / selected)} of selections, {count(served[end])} blocks"
            f"\n{END_TEXTS[end]}",
        )
        for end in ENDS
    ]
    said = ", ".join(f"{_end_label(e)} {percent(served[e] / demands)}" for e in ENDS if served[e])
    pool = f"HBM pool {percent(served['hbm'] / selected)} of selections"
    return bar(thin, "thin", pool) + bar(thick, group.provenance, f"of demands: {said}")


def _served_note(run: RunResult) -> str:
    lost = run.demands - hits(run)
    return f"{percent(lost / max(1, run.demands))} late or missed"


def _row(run: RunResult, name: str, colours: Colours, content: str, note: str) -> str:
    mark = swatch(colours[tuple(sorted(run.prefetchers))])
    head = f'{mark}{escape(name)}<span class="note">{escape(note)}</span>'
    return tag("div", tag("p", head, class_="bar-label") + content, class_="bar-row")


def fates_figure(groups: Sequence[Group], colours: Colours) -> str:
    """What became of the blocks that were read ahead, and the same as a table by prefetcher."""
    pieces, rows = [], []
    for group in groups:
        bars = []
        for run, name in zip(group.runs, labels(group), strict=True):
            sums = _fate_sums(run)
            if not any(sums[fate] for fate in FATES):
                continue
            bars.append(_row(run, name, colours, _fate_bar(run, group, sums), _fate_note(sums)))
            rows += _fate_rows(run, name, group)
        if bars:
            pieces.append(panel(group.title, group.provenance, "".join(bars)))
    if not pieces:
        body = '<p class="empty">Nothing was prefetched.</p>'
    else:
        body = panels(pieces) + _fate_table(rows)
    return figure(
        "fates",
        "What became of prefetched blocks",
        body,
        "Each bar is every block that was read ahead of a demand: the longer its first segment, "
        "the less was read for nothing; candidates dropped before they were read are only in the "
        "table.",
        legend([key(f"var(--fate-{fate})", fate, tip=FATE_TEXTS[fate]) for fate in FATES]),
    )


def _fate_sums(run: RunResult) -> dict[str, int]:
    return {
        fate: sum(row.get(fate, 0) for row in run.fates.values()) for fate in (*FATES, "dropped")
    }


def _fate_bar(run: RunResult, group: Group, sums: dict[str, int]) -> str:
    total = sum(sums[fate] for fate in FATES)
    segments = []
    for fate in FATES:
        by_cause = [
            f"{_cause(cause)}: {count(row[fate])}" for cause, row in run.fates.items()
            if row.get(fate)
        ]  # fmt: skip
        head = f"{fate}: {percent(sums[fate] / total)}, {count(sums[fate])} blocks"
        tip = "\n".join([head, FATE_TEXTS[fate], *by_cause])
        segments.append(Segment(sums[fate] / total, f"var(--fate-{fate})", tip))
    said = ", ".join(f"{fate} {percent(sums[fate] / total)}" for fate in FATES)
    return bar(segments, group.provenance, said)


def _fate_note(sums: dict[str, int]) -> str:
    read = sum(sums[fate] for fate in FATES)
    return f"{percent(sums['used'] / read)} of {count(read)} used"


def _cause(cause: str) -> str:
    return CAUSE_LABELS.get(cause, cause)


def _fate_rows(run: RunResult, name: str, group: Group) -> list[str]:
    rows = []
    for cause, row in run.fates.items():
        cells = "".join(
            tag("td", count(row.get(fate, 0)), class_="number") for fate in (*FATES, "dropped")
        )
        where = f"{name}, {group.title}"
        head = tag("th", escape(where), scope="row") + tag("td", escape(_cause(cause)))
        rows.append(f"<tr>{head}{cells}</tr>")
    return rows


def _fate_table(rows: Sequence[str]) -> str:
    names = ("run", "brought by", *FATES, "dropped")
    head = "".join(
        tag("th", name, scope="col", class_="number" if name in FATE_TEXTS else "")
        for name in names
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    inner = tag("div", table, class_="scroll", tabindex=0, role="region",
                aria_label="prefetched blocks by prefetcher")  # fmt: skip
    return f"<details><summary>By prefetcher, as a table</summary>{inner}</details>"


# The hit-versus-traffic curve: what a hit rate cost. Either figure alone says little.

WIDE = svg.Frame(width=820, height=400, left=54, right=78, top=16, bottom=44)
NARROW = svg.Frame(width=440, height=380, left=46, right=14, top=52, bottom=40)
LABEL_HEIGHT = 15
# A ring around a dot: two runs that came out alike are both seen.
RADIUS = {"measured": 5.5, "emulated": 9.0, "modelled": 12.0}
CURVES = ("var(--set-1)", "var(--set-2)", "var(--set-3)", "var(--set-4)", "var(--set-5)")


def curve_figure(groups: Sequence[Group], curve: Sequence[CurvePoint], colours: Colours) -> str:
    """Runs as points, the policies of `curve` as lines with their provenance. Drawn twice: a page
    shows the one that suits its width."""
    body = svg.tag("div", _plot(WIDE, groups, curve, colours), class_="wide")
    body += svg.tag("div", _plot(NARROW, groups, curve, colours), class_="narrow")
    seen = {name: colours[tuple(sorted(run.prefetchers))] for run, name, _ in _runs(groups)}
    keys = [key(shade, name, "dot") for name, shade in seen.items()]
    keys += [
        key("var(--muted)", name, f"dot {name}")
        for name in dict.fromkeys(group.provenance for group in groups)
    ]
    keys += [
        key(shade, f"{policy} ({provenance})", f"line {provenance}")
        for (policy, provenance), shade in _shades(curve, colours).items()
    ]
    return figure(
        "curve",
        "What the hits cost",
        body,
        "Up and to the left is better: each point is a run, with its hit rate above the bytes it "
        "read in multiples of no prefetch; a line shows one policy at several settings."
        + _beside(groups, curve),
        legend(keys),
    )


def _beside(groups: Sequence[Group], curve: Sequence[CurvePoint]) -> str:
    """What the same core has of the same demands in virtual time, beside each run."""
    pairs = []
    for run, name, group in _runs(groups):
        for point in curve:
            if point.run == run.name:
                pairs.append(f"{name}, {group.provenance}: {percent(run.hit_rate)} live, "
                             f"{percent(point.hit_rate)} again")  # fmt: skip
    if not pairs:
        return ""
    return f" The same core on the same demands in virtual time: {'; '.join(pairs)}."


def _runs(groups: Sequence[Group]) -> list[tuple[RunResult, str, Group]]:
    return [(run, name, group) for group in groups
            for run, name in zip(group.runs, labels(group), strict=True)]  # fmt: skip


def _shades(curve: Sequence[CurvePoint], colours: Colours) -> dict[tuple[str, str], str]:
    """Colour by policy and provenance: a policy named after a set of prefetchers (`window+ema` or
    `window+ema, ...`) has the set's own."""
    shades: dict[tuple[str, str], str] = {}
    for point in curve:
        name = point.policy.split(",")[0].strip()
        names = () if name == "no prefetch" else tuple(sorted(name.split("+")))
        free = CURVES[len(shades) % len(CURVES)]
        shades.setdefault((point.policy, point.provenance), colours.get(names, free))
    return shades


def _plot(
    frame: svg.Frame, groups: Sequence[Group], curve: Sequence[CurvePoint], colours: Colours
) -> str:
    runs = _runs(groups)
    x, y = _scales(frame, [run for run, _, _ in runs], curve)
    pieces = [_axes(frame, x, y), _lines(curve, colours, x, y)]
    pieces += [_point(run, name, group, colours, x, y) for run, name, group in runs]
    pieces.append(_direct_labels(frame, groups, x, y))
    said = "; ".join(
        f"{name} on {group.where}: {percent(run.hit_rate)} at {ratio(run.traffic_ratio)}"
        for run, name, group in runs
    )
    return svg.chart(frame, "".join(pieces), f"Hit rate against traffic. {said}.")


def _scales(
    frame: svg.Frame, runs: Sequence[RunResult], curve: Sequence[CurvePoint]
) -> tuple[svg.Linear, svg.Linear]:
    traffic = [r.traffic_ratio for r in runs] + [p.traffic_ratio for p in curve]
    rates = [r.hit_rate for r in runs] + [p.hit_rate for p in curve]
    left, right = min([*traffic, 1.0]), max([*traffic, 1.1])
    margin = (right - left) * 0.08
    low = max(0.0, math.floor((min([*rates, 0.95]) - 0.02) * 20) / 20)
    return (
        svg.Linear(max(0.0, left - margin), right + margin, frame.x0, frame.x1),
        svg.Linear(low, 1.0, frame.y0, frame.y1),
    )


def _axes(frame: svg.Frame, x: svg.Linear, y: svg.Linear) -> str:
    marks = [(y(v), f"{v * 100:g} %") for v in y.ticks(6)]
    title = "bytes read, over those without prefetch"
    ticks = [(x(v), f"{v:g}×") for v in x.ticks(7 if frame.width > 600 else 4)]
    one = x(1.0)
    reference = svg.tag("line", x1=one, x2=one, y1=frame.y1, y2=frame.y0, class_="need")
    return svg.y_axis(frame, marks) + svg.x_axis(frame, ticks, title) + reference + _better(frame)


def _better(frame: svg.Frame) -> str:
    """The arrow towards the better corner, outside the plot, where no run can stand: beside it, or
    above it where the page is narrow."""
    if frame.right > 60:
        x, y = frame.x1 + 54, frame.y1 + 48
        word = svg.text(x - 17, y + 18, "better", class_="note mid")
    else:
        x, y = frame.x0 + 36, frame.y1 - 12
        word = svg.text(x + 8, y, "better", class_="note")
    arrow = f"M{x} {y}L{x - 34} {y - 34}M{x - 34} {y - 20}V{y - 34}H{x - 20}"
    return svg.tag("path", d=arrow, class_="better") + word


def _point(
    run: RunResult, name: str, group: Group, colours: Colours, x: svg.Linear, y: svg.Linear
) -> str:
    tip = (
        f"{name}\n{group.where}\nhit rate {percent(run.hit_rate)}"
        f"\ntraffic {ratio(run.traffic_ratio)}"
    )
    return svg.tag(
        "circle",
        cx=x(run.traffic_ratio),
        cy=y(run.hit_rate),
        r=RADIUS[group.provenance],
        class_=f"point {group.provenance}",
        style=colour(run, colours),
        tabindex=0,
        data_tip=tip,
        aria_label=tip.replace("\n", ", "),
    )


def _lines(curve: Sequence[CurvePoint], colours: Colours, x: svg.Linear, y: svg.Linear) -> str:
    """One line per policy and provenance through its settings as they come, each with a mark."""
    pieces = []
    for (policy, provenance), shade in _shades(curve, colours).items():
        style = f"--c:{shade}"
        rows = [p for p in curve if (p.policy, p.provenance) == (policy, provenance)]
        spots = [(x(p.traffic_ratio), y(p.hit_rate)) for p in rows]
        pieces.append(svg.path(spots, class_=f"line {provenance}", style=style))
        for point, (px, py) in zip(rows, spots, strict=True):
            tip = (
                f"{policy}: {point.label}\n{provenance}\nhit rate {percent(point.hit_rate)}"
                f"\ntraffic {ratio(point.traffic_ratio)}"
            )
            pieces.append(svg.tag("circle", cx=px, cy=py, r=3.0, class_="setting", style=style,
                                 data_tip=tip))  # fmt: skip
    return "".join(pieces)


def _direct_labels(frame: svg.Frame, groups: Sequence[Group], x: svg.Linear, y: svg.Linear) -> str:
    """Names beside the points of the first group, moved apart where they would meet."""
    if not groups:
        return ""
    rows = sorted(
        (y(run.hit_rate), x(run.traffic_ratio), name)
        for run, name in zip(groups[0].runs, labels(groups[0]), strict=True)
    )
    pieces, last = [], -math.inf
    for py, px, name in rows:
        at = max(py + 4, last + LABEL_HEIGHT)
        last = at
        left = px > (frame.x0 + frame.x1) / 2
        pieces.append(svg.text(px + (-16 if left else 16), at, name,
                              class_="name end" if left else "name"))  # fmt: skip
    return "".join(pieces)
