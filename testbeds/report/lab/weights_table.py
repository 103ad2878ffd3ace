"""What a stream of weights costs the sessions and they it, as a table: on the page and in a
terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from offstage.bindings.units import format_seconds, format_size
from offstage.testbeds.lab.results.summary import ColdStart, PointSummary
from offstage.testbeds.report.lab.series import Facet, Look, View, over_k
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import milliseconds, percent
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.table import Column, Part, Table

__all__ = ["weights_section", "weights_table"]

RATE = "{:,.1f}".format
COLUMNS = [
    Column("policy", left=True),
    Column("tokens/s without", RATE, tip="Of all sessions, without the stream"),
    Column("with", RATE, tip="The same while the weights are read, and until the last token"),
    Column("stall p99 without", milliseconds),
    Column("with", milliseconds),
    Column("cold start alone", format_seconds, tip="The stream with the drive to itself"),
    Column("beside KV", format_seconds),
    Column("read beside", percent, tip="Of the weights, while sessions decoded"),
    Column("by its floor", percent, tip="Of the weights, before KV's turns"),
]


def _streams(facet: Facet) -> list[tuple[Look, PointSummary, ColdStart]]:
    found = [one for buffer in facet.buffers for one in facet.at(buffer)]
    return [
        (look, point, one)
        for look, point in found
        if (one := point.weights) is not None and one.seconds is not None
    ]


def _cells(point: PointSummary, one: ColdStart) -> list[object]:
    without = one.without
    return [
        None if without is None else without.tokens_per_s,
        one.tokens_per_s,
        None if without is None else without.stall_ms_p99,
        None if point.stall_ms_p99 is None else point.stall_ms_p99.value,
        one.alone_seconds,
        one.seconds,
        one.beside_share,
        one.floor_share,
    ]


def _parts(facet: Facet) -> list[Part]:
    streams = _streams(facet)
    return [
        Part(
            [
                [look.name, *_cells(point, one)]
                for look, point, one in streams
                if point.info.buffer_over_k == buffer
            ],
            f"buffer {over_k(buffer)}",
        )
        for buffer in facet.buffers
        if streams
    ]


def _title(facet: Facet) -> str:
    return f"{facet.title}: {format_size(_streams(facet)[0][2].bytes)} of weights"


def weights_section(view: View) -> str:
    """A table for each facet with a stream; empty if there are none."""
    pieces = [
        f"<h3>{escape(_title(facet))}</h3>"
        + as_html(Table(COLUMNS, parts), f"cold start, {facet.title}", "points")
        for facet in view.facets
        if (parts := _parts(facet))
    ]
    if not pieces:
        return ""
    return section(
        "weights",
        "The cold start",
        "".join(pieces),
        "What a model's weights on the same drive cost the sessions, and they the weights. "
        "Without: the same point on the same arbiter, with no stream. Means over seeds.",
    )


def weights_table(view: View) -> RenderableType | None:
    """The same for a terminal; None if there are none."""
    pieces: list[RenderableType] = []
    for facet in view.facets:
        if parts := _parts(facet):
            pieces += [Text(f"\n{_title(facet)}"), Table(COLUMNS, parts)]
    return Group(*pieces) if pieces else None
