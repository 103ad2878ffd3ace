"""The timeline of one token: computing, waiting, copies and reads in flight, over time.

One panel for each storage's fullest run, and one for the same run a layer ahead if there is one,
on one scale, so that overlap is visible and waits can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from offstage.bindings.units import format_rate
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.markup import key, legend
from offstage.testbeds.report.page.numbers import milliseconds, show
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import PAGE_INCHES, Figure, Plot
from offstage.testbeds.report.page.tags import tag
from offstage.testbeds.report.run.plots import heading
from offstage.testbeds.report.run.runs import Group, groups, label, subject
from offstage.testbeds.report.run.void import TIMES

__all__ = ["timeline_figure"]

Span = tuple[str, int, float, float]

BAR = 0.6
"""Share of a row's height."""
# By row, from the top: its name, and the lanes drawn in it.
ROWS = (("kernel", ("compute", "pace", "stall")), ("copies", ("copy",)), ("fetches", ("fetch",)))
COLOURS = {
    "compute": "var(--set-shared)",
    "pace": "var(--line)",
    "stall": "var(--bad)",
    "copy": "var(--set-window)",
    "fetch": "var(--set-pattern)",
}
TEXTS = {
    "compute": "attention kernel",
    "pace": "GPU time that the pace adds",
    "stall": "waited for blocks",
    "copy": "host copies and checks",
    "fetch": "fetches in flight",
}


def timeline_figure(summary: Summary) -> Figure | None:
    """None if no run has a timeline."""
    plots = []
    for group in groups(summary.runs, summary.notes):
        shown = _shown(group, summary.ahead)
        longest = max((_end(run) for _, run in shown), default=0.0)
        plots += [_plot(title, group, run, longest) for title, run in shown]
    if not plots:
        return None
    keys = legend([key(COLOURS[lane], TEXTS[lane]) for lane in COLOURS])
    return Figure("timeline", "One token in time", plots, _caption(summary), keys)


def _shown(group: Group, ahead: Sequence[RunResult]) -> list[tuple[str, RunResult]]:
    fullest = subject(group)
    beside = [
        one for one in ahead if (one.storage, one.provenance) == (group.storage, group.provenance)
    ]
    named = [(f"{group.title}, {label(fullest)}", fullest)]
    named += [(f"{group.title}, {label(one)}, a layer ahead", one) for one in beside]
    return [(title, run) for title, run in named if run.timeline.spans]


def _caption(summary: Summary) -> str:
    said = (
        "For each run the token at the 90th percentile of stalls, with all sessions of its batch; "
        "layers alternate between light and dark. The kernel, copies and checks ran where the HBM "
        "pool is; the pace stands for a GPU's time. Where the kernel's row is blank, the host "
        "scores, selects and copies. Fetches wait for the drive that is named above the picture."
    )
    if not summary.ahead:
        return said
    return said + (
        " A layer ahead: each layer's fetch begins while the previous layer is computed, which "
        "needs a selection that is known early, as with predicted queries."
    )


def _end(run: RunResult) -> float:
    return max((span[3] for span in run.timeline.spans), default=0.0)


def _plot(title: str, group: Group, run: RunResult, longest_us: float) -> Plot:
    said = _said(run)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.set(xlim=(0.0, longest_us / 1e3), ylim=(len(ROWS) - 0.5, -0.5), xlabel="ms")
        axes.set_yticks(range(len(ROWS)), [name for name, _ in ROWS])
        axes.grid(visible=False)
        for row, (name, lanes) in enumerate(ROWS):
            spans = [one for one in run.timeline.spans if one[0] in lanes]
            depths = _depths(spans) if name == "fetches" else [0] * len(spans)
            high = BAR / (1 + max(depths, default=0))
            for (lane, layer, begin, end), depth in zip(spans, depths, strict=True):
                (bar,) = axes.barh(
                    row - BAR / 2 + high * depth,
                    (end - begin) / 1e3,
                    high,
                    begin / 1e3,
                    align="edge",
                    color=colour(COLOURS[lane]),
                    linewidth=0,
                    alpha=1.0 if layer % 2 else 0.6,
                )
                tip = f"layer {layer}: {TEXTS[lane]}\n{milliseconds((end - begin) / 1e3)}"
                drawn.tip(bar, tip)
        if drawn.paper:
            _legend(drawn)

    return Plot(
        f"timeline {title}",
        said,
        draw,
        height=1.75,
        heading=heading(replace(group, runs=(run,)), TIMES, title),
        below=tag("p", said, class_="caption"),
        paper_inches=PAGE_INCHES,
        paper_height=1.9,
    )


def _legend(drawn: Picture) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(color=colour(COLOURS[lane])) for lane in COLOURS]
    drawn.keys(keys, [TEXTS[lane] for lane in COLOURS], loc="outside lower center", ncols=3)


def _depths(spans: Sequence[Span]) -> list[int]:
    """The first free level for each span in order of its begin."""
    ends: list[float] = []
    found = []
    for _, _, begin, end in spans:
        depth = next((at for at, until in enumerate(ends) if until <= begin), len(ends))
        ends[depth : depth + 1] = [end]
        found.append(depth)
    return found


def _said(run: RunResult) -> str:
    """Times of this token by lane, and the figures of its run."""
    sums: Mapping[str, float] = {
        lane: _covered(run.timeline.spans, lane) for lane in ("compute", "fetch", "stall")
    }
    words = ", ".join(f"{lane} {milliseconds(value / 1e3)}" for lane, value in sums.items())
    rate = show("tokens_per_s", run.tokens_per_s)
    stall = milliseconds(run.stall_ms_p50)
    token = f"Token {run.timeline.tick}, by {run.timeline.source}: {words}."
    return f"{token} The run: stall {stall} p50, {rate} tokens/s{_kernel(run)}."


def _kernel(run: RunResult) -> str:
    """Attention's read rate, and that of a copy in the same memory."""
    if not run.kernel_bytes_per_s or not run.roof_bytes_per_s:
        return ""
    read, roof = format_rate(run.kernel_bytes_per_s), format_rate(run.roof_bytes_per_s)
    share = run.kernel_bytes_per_s / run.roof_bytes_per_s
    return f"; attention read {read}, {share:.0%} of the {roof} that a copy in that memory moves"


def _covered(spans: Sequence[Span], lane: str) -> float:
    """Time in which the lane was active."""
    total, until = 0.0, 0.0
    for name, _, begin, end in spans:
        if name == lane:
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
    return total
