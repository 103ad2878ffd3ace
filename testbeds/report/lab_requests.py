"""Prefix caching across requests: hit rate over capacity, one panel per trace."""

from collections.abc import Sequence
from html import escape

from rich.table import Table

from offstage.testbeds.lab.results import RequestsRow
from offstage.testbeds.report import svg
from offstage.testbeds.report.lab_marks import ABOVE_LINE, Labels, mark
from offstage.testbeds.report.lab_series import FREE, MARKS, Look
from offstage.testbeds.report.markup import figure, key, legend, panels, swatch
from offstage.testbeds.report.numbers import count, percent, seconds
from offstage.testbeds.report.svg import tag

__all__ = ["requests_section", "requests_table"]

FRAME = svg.Frame(width=440, height=320, left=48, right=12, top=14, bottom=44)
ROWS_MAX = 400


def requests_table(rows: Sequence[RequestsRow]) -> Table:
    """The rows for a terminal."""
    table = Table(pad_edge=False, header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("eviction", no_wrap=True)
    table.add_column("admission", no_wrap=True)
    for name in ("TTL", "capacity", "blocks", "tokens", "requests", "OPT", "ideal"):
        table.add_column(name, justify="right")
    for row in rows:
        shares = (row.block_hit_rate, row.token_hit_rate, row.request_hit_rate, row.opt, row.ideal)
        table.add_row(
            row.eviction, row.admission, "–" if row.ttl_s is None else seconds(row.ttl_s),
            percent(row.capacity_share), *(percent(share) for share in shares),
        )  # fmt: skip
    return table


def requests_section(rows: Sequence[RequestsRow]) -> str:
    """Curves and table; empty where no request trace was run."""
    if not rows:
        return ""
    named = [(_look(row, rows), row) for row in rows]
    parts = []
    for trace in dict.fromkeys(row.trace for row in rows):
        own = [(look, row) for look, row in named if row.trace == trace]
        parts.append(tag("div", f"<h3>{escape(trace)}</h3>{_plot(own)}", class_="panel"))
    keys = [
        key(look.colour, look.name, "line" if look.mark == "circle" else f"dot {look.mark}")
        for look in dict.fromkeys(look for look, _ in named)
    ]
    keys.append(key("var(--muted)", "bound", "line emulated"))
    return figure(
        "requests",
        "Prefix caching across requests",
        panels(parts) + _table(named),
        "Higher is better: the share of the blocks of all requests that were found, over the "
        "blocks that may be kept, as a share of all distinct blocks. Dashed: Belady's optimum at "
        "that capacity, and what no limit at all would find.",
        legend(keys),
    )


def _look(row: RequestsRow, rows: Sequence[RequestsRow]) -> Look:
    """One look per setting; its name says what varies among the rows."""
    settings = list(dict.fromkeys((one.eviction, one.admission, one.ttl_s) for one in rows))
    parts = [row.eviction]
    if len({admission for _, admission, _ in settings}) > 1:
        parts.append(row.admission)
    if len({ttl_s for _, _, ttl_s in settings}) > 1:
        parts.append("no TTL" if row.ttl_s is None else f"TTL {seconds(row.ttl_s)}")
    at = settings.index((row.eviction, row.admission, row.ttl_s))
    mark = MARKS[min(at // len(FREE), len(MARKS) - 1)]
    return Look(", ".join(parts), FREE[at % len(FREE)], mark)


def _plot(named: Sequence[tuple[Look, RequestsRow]]) -> str:
    rows = [row for _, row in named]
    shares = sorted({row.capacity_share for row in rows})
    x = svg.Log(shares[0] / 1.2, shares[-1] * 1.2, FRAME.x0, FRAME.x1)
    top = max([*(max(row.ideal, row.opt, row.block_hit_rate) for row in rows), 0.01]) * 1.05
    y = svg.Linear(0, min(1.0, top), FRAME.y0, FRAME.y1)
    ticks: list[tuple[float, str]] = []
    for share in shares:
        if not ticks or x(share) - ticks[-1][0] > 44:
            ticks.append((x(share), percent(share).replace(".0", "")))
    marks = [(y(value), f"{value * 100:g} %") for value in y.ticks(5)]
    axes = svg.y_axis(FRAME, marks) + svg.x_axis(FRAME, ticks, "capacity, of all distinct blocks")
    labels, parts = Labels(FRAME), []
    for look in dict.fromkeys(look for look, _ in named):
        own = sorted((r for one, r in named if one == look), key=lambda r: r.capacity_share)
        places = [(x(row.capacity_share), y(row.block_hit_rate)) for row in own]
        parts.append(svg.path(places, class_="line thin", style=f"--c:{look.colour}"))
        for (px, py), row in zip(places, own, strict=True):
            tip = (
                f"{look.name}, {count(row.capacity_blocks)} blocks"
                f"\nblocks {percent(row.block_hit_rate)}"
                f"\ntokens {percent(row.token_hit_rate)}"
                f"\nmean over requests {percent(row.request_hit_rate)}"
            )
            parts.append(mark(look, px, py, 4.0, "spot", tip))
            labels.block(px, py)
    best = {row.capacity_share: row.opt for row in rows}
    opt = [(x(share), y(best[share])) for share in shares]
    ideal = y(rows[0].ideal)
    parts.append(svg.path(opt, class_="bound"))
    parts.append(svg.path([(FRAME.x0, ideal), (FRAME.x1, ideal)], class_="bound"))
    parts.append(labels.place(*opt[0], "Belady", "name bound-name"))
    parts.append(labels.place(FRAME.x1, ideal, "no limit", "name bound-name", ABOVE_LINE))
    said = f"Share of blocks found over capacity, {rows[0].trace}."
    return svg.chart(FRAME, axes + "".join(parts), said)


def _table(named: Sequence[tuple[Look, RequestsRow]]) -> str:
    names = ("trace", "policy", "capacity", "blocks", "tokens", "requests", "Belady", "no limit")
    head = "".join(
        tag("th", name, scope="col", class_="number" if at > 1 else "")
        for at, name in enumerate(names)
    )
    lines = []
    for look, row in named[:ROWS_MAX]:
        rates = (row.block_hit_rate, row.token_hit_rate, row.request_hit_rate, row.opt, row.ideal)
        policy = swatch(look.colour) + escape(look.name)
        cells = tag("th", escape(row.trace), scope="row") + tag("td", policy)
        cells += tag("td", count(row.capacity_blocks), class_="number")
        cells += "".join(tag("td", percent(rate), class_="number") for rate in rates)
        lines.append(f"<tr>{cells}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    left = len(named) - ROWS_MAX
    note = f"<p>{count(left)} more are in summary.json.</p>" if left > 0 else ""
    scroll = tag("div", table, class_="scroll points", tabindex=0, role="region",
                 aria_label="table of prefix caching")  # fmt: skip
    return f"<details><summary>As a table</summary>{scroll}{note}</details>"
