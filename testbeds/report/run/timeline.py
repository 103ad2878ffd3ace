"""The timeline of one token: what computed, waited, was copied and was in flight, and when.

One panel for each storage's fullest run, and one for the same run a layer ahead where there is one,
on one scale, so that what overlaps can be seen and what was waited for can be compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from offstage.bindings.units import format_rate
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.markup import figure, key, legend, panel, panels
from offstage.testbeds.report.page.numbers import milliseconds, show
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.runs import Group, groups, label, subject

__all__ = ["timeline_figure"]

ROW, BAR = 30.0, 18.0
# By row, from the top: its name, and the lanes drawn in it.
ROWS = (("kernel", ("compute", "pace", "stall")), ("copies", ("copy",)), ("fetches", ("fetch",)))
COLOURS = {
    "compute": "var(--set-shared)", "pace": "var(--line)", "stall": "var(--bad)",
    "copy": "var(--set-window)", "fetch": "var(--set-pattern)",
}  # fmt: skip
TEXTS = {
    "compute": "attention, really run",
    "pace": "given time of a GPU, nothing runs",
    "stall": "waited for blocks",
    "copy": "host copies and checks",
    "fetch": "fetches in flight",
}


def timeline_figure(summary: Summary) -> str:
    """Empty where no run has a timeline."""
    pieces = []
    for group in groups(summary.runs):
        shown = _shown(group, summary.ahead)
        longest = max((_end(run) for _, run in shown), default=0.0)
        pieces += [panel(title, group.provenance, _plot(run, longest)) for title, run in shown]
    if not pieces:
        return ""
    keys = [key(COLOURS[lane], TEXTS[lane]) for lane in COLOURS]
    return figure("timeline", "One token in time", panels(pieces), _caption(summary), legend(keys))


def _shown(group: Group, ahead: Sequence[RunResult]) -> list[tuple[str, RunResult]]:
    fullest = subject(group)
    beside = [one for one in ahead
              if (one.storage, one.provenance) == (group.storage, group.provenance)]  # fmt: skip
    named = [(f"{group.title}, {label(fullest)}", fullest)]
    named += [(f"{group.title}, {label(one)}, a layer ahead", one) for one in beside]
    return [(title, run) for title, run in named if run.timeline]


def _caption(summary: Summary) -> str:
    said = (
        "Of each run the token whose stall is the 90th percentile, all sessions of the batch "
        "together, layers in turn light and dark. The kernel really ran where the HBM pool lies, "
        "and so did copies and checks; the pace is the time given for a GPU. Where the kernel's "
        "row is blank, the host scores, selects and copies. Fetches wait for the drive that stands "
        "above the picture."
    )
    if not summary.ahead:
        return said
    return said + (
        " A layer ahead, each layer's fetch begins while the one before it is computed; the "
        "selection is then known early, as it is where queries are foretold."
    )


def _end(run: RunResult) -> float:
    return max((float(span[3]) for span in run.timeline["spans"]), default=0.0)


def _plot(run: RunResult, longest_us: float) -> str:
    frame = svg.Frame(height=ROW * len(ROWS) + 48, left=56, top=4)
    x = svg.Linear(0.0, longest_us / 1e3, frame.x0, frame.x1)
    pieces = [svg.x_axis(frame, [(x(tick), f"{tick:g}") for tick in x.ticks(6)], "ms")]
    for number, (name, lanes) in enumerate(ROWS):
        y = frame.y1 + ROW * number + (ROW - BAR) / 2
        pieces.append(svg.text(frame.x0 - 6, y + BAR / 2 + 4, name, class_="tick end"))
        spans = [one for one in run.timeline["spans"] if one[0] in lanes]
        depths = _depths(spans) if name == "fetches" else [0] * len(spans)
        high = BAR / (1 + max(depths, default=0))
        for (lane, layer, begin, end), depth in zip(spans, depths, strict=True):
            left, right = x(begin / 1e3), x(end / 1e3)
            pieces.append(tag(
                "rect", x=left, y=y + high * depth, width=max(right - left, 0.4), height=high,
                fill=COLOURS[lane], opacity=1.0 if layer % 2 else 0.6,
                data_tip=f"layer {layer}: {TEXTS[lane]}\n{milliseconds((end - begin) / 1e3)}",
            ))  # fmt: skip
    return svg.chart(frame, "".join(pieces), _said(run)) + tag("p", _said(run), class_="caption")


def _depths(spans: Sequence[Sequence[Any]]) -> list[int]:
    """The first level at which nothing else stands, for each span in order of its begin."""
    ends: list[float] = []
    found = []
    for _, _, begin, end in spans:
        depth = next((at for at, until in enumerate(ends) if until <= begin), len(ends))
        ends[depth : depth + 1] = [end]
        found.append(depth)
    return found


def _said(run: RunResult) -> str:
    """Times of this token by lane, and the run's own figures."""
    sums: Mapping[str, float] = {
        lane: _covered(run.timeline["spans"], lane) for lane in ("compute", "fetch", "stall")
    }
    words = ", ".join(f"{lane} {milliseconds(value / 1e3)}" for lane, value in sums.items())
    rate = show("tokens_per_s", run.tokens_per_s)
    stall = milliseconds(run.stall_ms_p50)
    token = f"Token {run.timeline['tick']}, by {run.timeline['source']}: {words}."
    return f"{token} The run: stall {stall} p50, {rate} tokens/s{_kernel(run)}."


def _kernel(run: RunResult) -> str:
    """What attention read in a second, beside what a copy in the same memory moved."""
    if not run.kernel_bytes_per_s or not run.roof_bytes_per_s:
        return ""
    read, roof = format_rate(run.kernel_bytes_per_s), format_rate(run.roof_bytes_per_s)
    share = run.kernel_bytes_per_s / run.roof_bytes_per_s
    return f"; attention read {read}, {share:.0%} of the {roof} that a copy in that memory moves"


def _covered(spans: Sequence[Sequence[Any]], lane: str) -> float:
    """Time in which the lane did anything."""
    total, until = 0.0, 0.0
    for name, _, begin, end in spans:
        if name == lane:
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
    return total
