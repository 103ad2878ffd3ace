"""Where the time of a block goes: the stage timers of the leading run, as a plot and a table."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.markup import figure, panel, panels
from offstage.testbeds.report.page.numbers import clock_ns, count
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.runs import Group, subject

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
ROW = 22.0
LOW_NS, HIGH_NS = 10.0, 1e9


def stages_figure(groups: Sequence[Group]) -> str:
    """One panel for each storage whose leading run was timed; empty where none was."""
    timed = [(group, subject(group).stages) for group in groups if subject(group).stages]
    if not timed:
        return ""
    return figure(
        "stages",
        "Where time goes",
        panels([
            panel(group.title, group.provenance, _plot(stages) + _table(stages))
            for group, stages in timed
        ]),
        "Of the run with the most prefetchers: from the median to the 99th percentile of each "
        "stage on a block's way, on a logarithmic scale. One in 31 is timed; a quantile is at "
        "most an eighth too large.",
    )


def _rows(stages: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(STAGE_TEXTS[name], stages[name]) for name in STAGE_TEXTS if name in stages]


def _plot(stages: Mapping[str, Mapping[str, Any]]) -> str:
    rows = _rows(stages)
    frame = svg.Frame(height=ROW * len(rows) + 48, left=148, top=4)
    x = svg.Log(LOW_NS, HIGH_NS, frame.x0, frame.x1)
    pieces = [svg.x_axis(frame, [(x(tick), clock_ns(tick)) for tick in x.ticks()[::2]], "time")]
    for number, (name, stage) in enumerate(rows):
        y = frame.y1 + ROW * (number + 0.5)
        begin, end = x(stage["ns_p50"]), x(stage["ns_p99"])
        tip = f"{name}\n" + ", ".join(f"{key[3:]} {clock_ns(stage[key])}" for key in FIGURES)
        pieces.append(svg.text(frame.x0 - 6, y + 4, name, class_="tick end"))
        pieces.append(tag("rect", x=begin, y=y - 4, width=max(end - begin, 3.0), height=8,
                         fill="var(--muted)", data_tip=tip))  # fmt: skip
    said = "; ".join(f"{name} {clock_ns(stage['ns_p50'])} median" for name, stage in rows)
    return svg.chart(frame, "".join(pieces), said)


def _table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    head = "".join(
        tag("th", text, scope="col", class_="number" if text != "stage" else "")
        for text in ("stage", "timed", "median", "p90", "p99", "largest")
    )
    body = []
    for name, stage in _rows(stages):
        cells = [count(stage["count"]), *(clock_ns(stage[key]) for key in FIGURES)]
        shown = "".join(tag("td", escape(cell), class_="number") for cell in cells)
        body.append(f'<tr><th scope="row">{escape(name)}</th>{shown}</tr>')
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    inner = tag("div", table, class_="scroll", tabindex=0, role="region",
                aria_label="stages of a block's way")  # fmt: skip
    return f"<details><summary>As a table</summary>{inner}</details>"
