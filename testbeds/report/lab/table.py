"""The table of a lab run's points, with intervals and bounds: as HTML and for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.testbeds.lab.results.summary import BoundSummary, Interval, LabSummary, PointSummary
from offstage.testbeds.report.lab.definitions import lab_definition
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.series import (
    BOUND_TIPS,
    Facet,
    Look,
    View,
    bound_label,
    over_k,
    view_of,
)
from offstage.testbeds.report.lab.tiers import tiers_table
from offstage.testbeds.report.page.markup import swatch
from offstage.testbeds.report.page.numbers import milliseconds, percent, ratio
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["glossary", "lab_table", "points_section"]

COLUMNS = (
    "nontrivial_hit",
    "nontrivial_selection_hit",
    "traffic_vs_reference",
    "nontrivial_gap_closed",
    "tokens_per_s",
    "stall_ms_p99",
    "stall_ms_p50",
    "hit",
    "traffic_ratio",
    "coverage",
    "late",
    "accuracy",
    "pollution",
    "nontrivial_hit_without_cold",
    "hint_bytes_per_token",
)
"""In the order in which they are wanted: a narrow page shows the first of them."""
FOLDED = 10
"""Columns from here on are in a table of their own below, folded: the others fit 1280 pixels."""
CONSOLE_COLUMNS = (
    "tokens_per_s",
    "hint_bytes_per_token",
    "nontrivial_gap_closed",
    "stall_ms_p99",
    "coverage",
)
"""Behind hits and traffic."""
NOTHING = "–"
PLAIN = {
    "nontrivial_hit": "hit",
    "nontrivial_hit_without_cold": "hit_without_cold",
    "nontrivial_selection_hit": "selection_hit",
    "nontrivial_gap_closed": "gap_closed",
}
"""What stands for a non-trivial figure in a run that counted no demand as non-trivial."""
HITS = ("nontrivial_hit", "hit")
OF_BOUNDS = ("nontrivial_hit", "hit", "traffic_ratio", "traffic_vs_reference")


def _form(column: str) -> Any:
    if column.startswith("traffic"):
        return ratio
    if column == "tokens_per_s":
        return "{:,.1f}".format
    if column == "hint_bytes_per_token":
        return lambda count: f"{count / 1024:,.1f} KiB"
    return milliseconds if column.startswith("stall_ms") else percent


def _columns(view: View, columns: Sequence[str]) -> list[str]:
    """Those that hold anything."""
    if view.metric.hit != "nontrivial_hit":
        columns = list(dict.fromkeys(PLAIN.get(column, column) for column in columns))
    points = [point for facet in view.facets for point in facet.points]
    return [c for c in columns if c in HITS or any(getattr(p, c) is not None for p in points)]


def points_section(view: View) -> str:
    """One table per facet, all but the first folded; the best policy at each buffer is marked."""
    columns = _columns(view, COLUMNS)
    pieces: list[str] = []
    for facet in view.facets:
        scroll = _facet_table(facet, columns[:FOLDED], "points", bounds=True)
        if more := columns[FOLDED:]:
            rest = _facet_table(facet, more, "more of the points", bounds=False)
            scroll += tag("details", f"<summary>{escape(_labels(more))}</summary>{rest}")
        if len(view.facets) > 1:
            title = f"<summary>{escape(facet.title)}</summary>"
            scroll = tag("details", title + scroll, open=None if pieces else "open")
        pieces.append(scroll)
    caption = (
        "Under each figure its 95 % interval, drawn over requests; coverage, traffic and gap "
        "closed are paired with no prefetch on the same requests. Infinite buffer and Belady read "
        "on demand: a policy that prefetches can pass them. Predictors are no bounds. Clairvoyant "
        "is what was attainable under the cap. Read hits, traffic and stall together."
    )
    return tag(
        "section",
        f'<h2 id="points-title">The points</h2>{"".join(pieces)}'
        f'<p class="caption">{escape(caption)}</p>' + glossary("What the columns mean", columns),
        id="points",
        aria_labelledby="points-title",
    )


def _facet_table(facet: Facet, columns: Sequence[str], what: str, *, bounds: bool) -> str:
    """Scrolls where a page is narrow."""
    head = tag("th", "policy", scope="col") + "".join(_head(column) for column in columns)
    body = "".join(_buffer_rows(facet, buffer, columns, bounds) for buffer in facet.buffers)
    table = f"<table><thead><tr>{head}</tr></thead>{body}</table>"
    return tag(
        "div",
        table,
        class_="scroll points",
        tabindex=0,
        role="region",
        aria_label=f"table of {what}, {facet.title}",
    )


def _labels(columns: Sequence[str]) -> str:
    labels = ", ".join(lab_definition(column).label for column in columns)
    return f"More columns: {labels}"


def _head(column: str) -> str:
    entry = lab_definition(column)
    tip = entry.sentence + (f"\n{entry.better} is better" if entry.better else "")
    # A hyphen that does not break: a narrow column would part the word.
    shown = escape(entry.label).replace("non-", "non\u2011")
    label = tag("abbr", shown, tabindex=0, data_tip=tip)
    return tag("th", label, scope="col", class_="number")


def _buffer_rows(facet: Facet, buffer: float, columns: Sequence[str], bounds: bool) -> str:
    rows = facet.at(buffer)
    blocks = rows[0][1].info.buffer_blocks
    title = f"<span>buffer {over_k(buffer)} <small>{blocks:,} blocks a layer</small></span>"
    head = tag("th", title, colspan=len(columns) + 1, scope="rowgroup")
    lines = [tag("tr", head, class_="group")]
    best = {column: _best(rows, column) for column in columns}
    for look, point in rows:
        name = swatch(look.colour, look.mark if look.mark != "circle" else "dot")
        cells = [tag("th", name + escape(look.name), scope="row")]
        for column in columns:
            shown = _cell(getattr(point, column), column, point is best[column])
            cells.append(tag("td", shown, class_="number"))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if bounds:
        lines += [_bound_row(bound, columns) for bound in facet.bounds(buffer)]
    return f"<tbody>{''.join(lines)}</tbody>"


def _best(rows: Sequence[tuple[Look, PointSummary]], column: str) -> PointSummary | None:
    """The point that is best in a column where there is a way to be; None among one."""
    better = lab_definition(column).better
    live = [point for _, point in rows if getattr(point, column) is not None]
    if not better or len(live) < 2:
        return None
    return (max if better == "higher" else min)(live, key=lambda p: getattr(p, column).value)


def _cell(interval: Interval | None, column: str, best: bool) -> str:
    if interval is None:
        return NOTHING
    form = _form(column)
    text = escape(form(interval.value))
    if best:
        text = f'<strong>{text}<span class="hidden"> (best)</span></strong>'
    if interval.low is None or interval.high is None:
        return text
    return f"{text}<small>{escape(_range(form(interval.low), form(interval.high)))}</small>"


def _range(low: str, high: str) -> str:
    """`75.7–80.1`, `4.61–4.94 ms`: a unit is said once, and not where the column says it."""
    left, _, unit = low.rpartition(" ")
    right, _, other = high.rpartition(" ")
    if left and unit == other:
        low, high = left, right if unit == "%" else high
    low, high = low.removesuffix("×"), high.removesuffix("×")
    return f"{low} to {high}" if {"−", "<"} & set(low + high) else f"{low}–{high}"


def _bound_row(bound: BoundSummary, columns: Sequence[str]) -> str:
    name = escape(bound_label(bound.name))
    if bound.name in BOUND_TIPS:
        name = tag("abbr", name, tabindex=0, data_tip=BOUND_TIPS[bound.name])
    cells = [tag("th", name, scope="row")]
    for column in columns:
        value = getattr(bound, column) if column in OF_BOUNDS else None
        if isinstance(value, float):
            value = Interval(value=value)
        cells.append(tag("td", _cell(value, column, False), class_="number"))
    return tag("tr", "".join(cells), class_="bound-row")


def glossary(title: str, keys: Sequence[str]) -> str:
    """Definitions with formulas, folded."""
    entries = []
    for key in keys:
        entry = lab_definition(key)
        formula = f"<code>{escape(entry.formula)}</code>" if entry.formula else ""
        entries.append(f"<dt>{escape(entry.label)}</dt><dd>{escape(entry.text)} {formula}</dd>")
    note = (
        "<p>D is the number of demands: selected blocks that were not in the HBM pool; N those of "
        "them that are non-trivial. No prefetch is demand-only LRU at the same buffer.</p>"
    )
    return (
        f"<details><summary>{escape(title)}</summary>{note}"
        f'<dl class="glossary">{"".join(entries)}</dl></details>'
    )


def lab_table(summary: LabSummary) -> RenderableType:
    """The points for a terminal: hits with their interval, and what they cost."""
    view = view_of(summary.points)
    columns = _columns(view, ("nontrivial_hit", view.metric.traffic, *CONSOLE_COLUMNS))
    pieces: list[RenderableType] = []
    for at, facet in enumerate(view.facets):
        pieces.append(Text(f"\n{facet.title}" if at else facet.title, style="bold"))
        pieces.append(_console_table(facet, columns))
    if (tiers := tiers_table(view)) is not None:
        pieces.append(tiers)
    return Group(*pieces)


def _console_table(facet: Facet, columns: Sequence[str]) -> Table:
    table = Table(pad_edge=False, header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for column in columns:
        # Figures are narrower than their names.
        label = lab_definition(column).label.replace(" ", "\n")
        table.add_column(label, justify="right", no_wrap=True, vertical="bottom")
    for buffer in facet.buffers:
        table.add_row(Text(f"buffer {over_k(buffer)}", style="dim"))
        rows = facet.at(buffer)
        best = {column: _best(rows, column) for column in columns}
        for look, point in rows:
            cells = [
                Text(
                    _plain(getattr(point, column), column),
                    style="bold green" if point is best[column] else "",
                )
                for column in columns
            ]
            table.add_row(Text(f"  {look.name}"), *cells)
        for bound in facet.bounds(buffer):
            cells_shown = [
                _plain(getattr(bound, column, None) if column in OF_BOUNDS else None, column)
                for column in columns
            ]
            if any(cell != NOTHING for cell in cells_shown):
                row = [f"  {bound_label(bound.name)}", *cells_shown]
                table.add_row(*(Text(cell, style="dim") for cell in row))
    return table


def _plain(value: Interval | float | None, column: str) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return str(_form(column)(value))
    if column in HITS and not value.low == value.value == value.high:
        return interval_text(value)
    return str(_form(column)(value.value))
