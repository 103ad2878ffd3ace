"""Where a block's time is spent: the stage timers of the leading run, as a plot and a table."""

from collections.abc import Sequence
from dataclasses import replace

from offstage.bindings.stages import Stages, StageTimes
from offstage.testbeds.report.page.markup import folded
from offstage.testbeds.report.page.numbers import clock_ns, count
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.run.plots import heading
from offstage.testbeds.report.run.runs import Group, subject
from offstage.testbeds.report.run.void import TIMES
from offstage.testbeds.table import Column, Table

__all__ = ["stages_figure"]

# By the names of `enum ofs_stage`, in the order in which a block passes them.
STAGE_TEXTS = {
    "ring_wait": "command in the ring",
    "model_command": "model takes command",
    "decide": "core decides",
    "read_queue": "read waits for storage",
    "read_service": "storage reads",
    "publish": "publish and answer",
    "model_hit": "model hands over",
    "answer": "answer in the ring",
    "copy": "host copies",
    "check": "host checks",
    "write_queue": "write waits for storage",
    "write_service": "storage writes",
}
FIGURES = ("ns_p50", "ns_p90", "ns_p99", "ns_max")
ROW_INCHES = 0.22
LOW_NS, HIGH_NS = 10.0, 1e9


def stages_figure(groups: Sequence[Group]) -> Figure | None:
    """One panel for each storage whose leading run was timed; None if none was."""
    timed = [(group, subject(group).stages) for group in groups if subject(group).stages]
    if not timed:
        return None
    return Figure(
        "stages",
        "Where time goes",
        [_plot(group, stages) for group, stages in timed],
        "For the run with the most prefetchers: from the median to the 99th percentile of each "
        "stage that a block passes, on a logarithmic scale. One in 31 is timed; of a recorded run "
        "every command, read and write, and of copies and checks one in 31. A quantile is at most "
        "an eighth too large.",
    )


def _rows(stages: Stages) -> list[tuple[str, StageTimes]]:
    return [(STAGE_TEXTS[name], stages[name]) for name in STAGE_TEXTS if name in stages]


def _plot(group: Group, stages: Stages) -> Plot:
    rows = _rows(stages)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        axes.set_xscale("log")
        axes.set(xlim=(LOW_NS, HIGH_NS), ylim=(len(rows) - 0.5, -0.5), xlabel="time")
        for at, (name, stage) in enumerate(rows):
            begin, end = max(stage.ns_p50, LOW_NS), max(stage.ns_p99, LOW_NS)
            (bar,) = axes.barh(
                at, max(end - begin, 0.15 * begin), 0.36, begin, color=colour("muted")
            )
            tip = ", ".join(f"{key[3:]} {clock_ns(getattr(stage, key))}" for key in FIGURES)
            drawn.tip(bar, f"{name}\n{tip}", spot="spot")
        ticks = [10.0**power for power in range(1, 10, 2)]
        axes.set_xticks(ticks, [clock_ns(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.grid(visible=False, axis="y")

    said = "; ".join(f"{name} {clock_ns(stage.ns_p50)} median" for name, stage in rows)
    height = 0.7 + ROW_INCHES * len(rows)
    return Plot(
        f"stages {group.title}",
        said,
        draw,
        height=height,
        heading=heading(replace(group, runs=(subject(group),)), TIMES),
        below=_table(stages),
        paper_height=height,
    )


def _table(stages: Stages) -> str:
    columns = [Column("stage", left=True), Column("timed", count)]
    columns += [Column(name, clock_ns) for name in ("median", "p90", "p99", "largest")]
    rows = [
        [name, stage.count, *(getattr(stage, key) for key in FIGURES)]
        for name, stage in _rows(stages)
    ]
    return folded("As a table", as_html(Table.of(columns, rows), "stages of a block's way"))
