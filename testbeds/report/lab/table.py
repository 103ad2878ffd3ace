"""The table of a lab run's points, with intervals and bounds: as HTML and for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from offstage.testbeds.lab.bounds.names import bound_label
from offstage.testbeds.lab.results.summary import BoundSummary, Interval, LabSummary, PointSummary
from offstage.testbeds.report.lab.definitions import lab_definition
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.series import (
    BOUND_TIPS,
    Facet,
    Look,
    View,
    over_k,
    view_of,
)
from offstage.testbeds.report.lab.tier_table import tiers_table
from offstage.testbeds.report.lab.void import reasons, why_void
from offstage.testbeds.report.lab.weights_table import weights_table
from offstage.testbeds.report.page.markup import folded, section
from offstage.testbeds.report.page.numbers import milliseconds, percent, ratio
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.page.void import void_cell, void_lines, void_markup
from offstage.testbeds.table import Cell, Column, Part, Table

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
"""In order of priority: a narrow page shows the first of them."""
FOLDED = 10
"""Columns from here on are in a separate, folded table: the others fit 1280 pixels."""
CONSOLE_COLUMNS = (
    "tokens_per_s",
    "hint_bytes_per_token",
    "nontrivial_gap_closed",
    "stall_ms_p99",
    "coverage",
)
"""After hits and traffic."""
NOTHING = "–"
PLAIN = {
    "nontrivial_hit": "hit",
    "nontrivial_hit_without_cold": "hit_without_cold",
    "nontrivial_selection_hit": "selection_hit",
    "nontrivial_gap_closed": "gap_closed",
}
"""Replaces a non-trivial figure in a run that counted no demand as non-trivial."""
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
    """The columns that have a value in any row."""
    if view.metric.hit != "nontrivial_hit":
        columns = list(dict.fromkeys(PLAIN.get(column, column) for column in columns))
    points = [point for facet in view.facets for point in facet.points]
    return [c for c in columns if c in HITS or any(getattr(p, c) is not None for p in points)]


def points_section(view: View) -> str:
    """One table per facet, all but the first folded; the best policy at each buffer is marked."""
    columns = _columns(view, COLUMNS)
    pieces: list[str] = []
    for facet in view.facets:
        scroll = _html(facet, columns[:FOLDED], "points", bounds=True)
        scroll += void_markup(reasons(facet.points))
        if more := columns[FOLDED:]:
            labels = ", ".join(lab_definition(column).label for column in more)
            rest = _html(facet, more, "more of the points", bounds=False)
            scroll += folded(f"More columns: {labels}", rest)
        if len(view.facets) > 1:
            title = f"<summary>{escape(facet.title)}</summary>"
            scroll = tag("details", title + scroll, open=None if pieces else "open")
        pieces.append(scroll)
    return section(
        "points",
        "The points",
        "".join(pieces),
        "Under each figure its 95 % interval, drawn over requests; coverage, traffic and gap "
        "closed are paired with no prefetch on the same requests. Infinite buffer and Belady read "
        "on demand: a policy that prefetches can exceed them. Predictors are not bounds. "
        "Clairvoyant is what was attainable under the cap. Read hits, traffic and stall together.",
        glossary("What the columns mean", columns),
    )


def _html(facet: Facet, columns: Sequence[str], what: str, *, bounds: bool) -> str:
    table = _facet_table(facet, columns, bounds=bounds)
    return as_html(table, f"table of {what}, {facet.title}", "points")


def _facet_table(facet: Facet, columns: Sequence[str], *, bounds: bool = True) -> Table:
    """The points of a facet by buffer, and their bounds: for page and terminal."""
    return Table(
        [Column("policy", left=True), *map(_column, columns)],
        [_part(facet, buffer, columns, bounds) for buffer in facet.buffers],
        note="\n".join(void_lines(reasons(facet.points))),
    )


def _column(key: str) -> Column:
    entry = lab_definition(key)
    tip = entry.sentence + (f"\n{entry.better} is better" if entry.better else "")
    return Column(entry.label, tip=tip)


def _part(facet: Facet, buffer: float, columns: Sequence[str], bounds: bool) -> Part:
    found = facet.at(buffer)
    best = {column: _best(found, column) for column in columns}
    rows = [
        [
            look.cell(terse=f"  {look.name}"),
            *(_figure(point, column, point is best[column]) for column in columns),
        ]
        for look, point in found
    ]
    blocks = found[0][1].info.buffer_blocks
    return Part(
        rows,
        f"buffer {over_k(buffer)}",
        small=f"{blocks:,} blocks a layer",
        bounds=[_bound(one, columns) for one in facet.bounds(buffer)] if bounds else [],
    )


def _figure(point: PointSummary, column: str, best: bool) -> Cell:
    """A point's figure, with what is said against it."""
    value = getattr(point, column)
    cell = _cell(value, column, "best" if best else "")
    return cell if value is None else void_cell(cell, why_void(point, column))


def _best(rows: Sequence[tuple[Look, PointSummary]], column: str) -> PointSummary | None:
    """The best point of a column that has a direction; None if there is one point."""
    better = lab_definition(column).better
    live = [point for _, point in rows if getattr(point, column) is not None]
    if not better or len(live) < 2:
        return None
    return (max if better == "higher" else min)(live, key=lambda p: getattr(p, column).value)


def _cell(value: Interval | float | None, column: str, mark: str = "") -> Cell:
    """Its interval is below it; in a terminal that of hits follows it."""
    if value is None:
        return Cell(NOTHING)
    form = _form(column)
    if isinstance(value, float):
        return Cell(form(value), mark)
    known = value.low is not None and value.high is not None
    wide = column in HITS and not value.low == value.value == value.high
    return Cell(
        form(value.value),
        mark,
        small=_range(form(value.low), form(value.high)) if known else "",
        terse=interval_text(value) if wide else "",
    )


def _range(low: str, high: str) -> str:
    """`75.7–80.1`, `4.61–4.94 ms`: the unit once, and not if the column has it."""
    left, _, unit = low.rpartition(" ")
    right, _, other = high.rpartition(" ")
    if left and unit == other:
        low, high = left, right if unit == "%" else high
    low, high = low.removesuffix("×"), high.removesuffix("×")
    return f"{low} to {high}" if {"−", "<"} & set(low + high) else f"{low}–{high}"


def _bound(bound: BoundSummary, columns: Sequence[str]) -> list[Cell]:
    name = bound_label(bound.name)
    values = (getattr(bound, column) if column in OF_BOUNDS else None for column in columns)
    return [
        Cell(name, tip=BOUND_TIPS.get(bound.name, ""), terse=f"  {name}"),
        *(_cell(value, column) for value, column in zip(values, columns, strict=True)),
    ]


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
    return folded(title, note + tag("dl", "".join(entries), class_="glossary"))


def lab_table(summary: LabSummary) -> RenderableType:
    """The points for a terminal: hits with their interval, and their cost."""
    view = view_of(summary.points)
    columns = _columns(view, ("nontrivial_hit", view.metric.traffic, *CONSOLE_COLUMNS))
    pieces: list[RenderableType] = []
    for at, facet in enumerate(view.facets):
        pieces.append(Text(f"\n{facet.title}" if at else facet.title, style="bold"))
        pieces.append(_facet_table(facet, columns))
    pieces += [one for one in (tiers_table(view), weights_table(view)) if one is not None]
    return Group(*pieces)
