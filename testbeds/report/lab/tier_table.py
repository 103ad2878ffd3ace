"""What each tier of a point stored, served and cost, as a table: on the page and in a terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from offstage.testbeds.lab.results.summary import PointSummary, TierSummary
from offstage.testbeds.report.lab.facets import FACETS_MAX
from offstage.testbeds.report.lab.series import Facet, Look, View, over_k
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import count, milliseconds, size
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.table import NOTHING, Column, Part, Table

__all__ = ["brief_time", "tier_points", "tiers_section", "tiers_table"]

COLUMNS = [
    Column("tier", left=True),
    Column("capacity", size),
    Column("served", count),
    Column("on demand", count),
    Column("read", size),
    Column("written", size),
    Column("mean read", lambda us: brief_time(us / 1e3)),
    Column("waited/token", lambda ms: brief_time(ms)),
    Column("promote within"),
    Column("cost"),
]


def tier_points(facet: Facet) -> list[tuple[Look, PointSummary]]:
    """The points of the middle buffer that have tiers."""
    return [(look, point) for look, point in facet.at(facet.middle) if point.tiers]


def _cells(one: TierSummary) -> list[object]:
    return [
        f"{one.name} ({one.level})" if one.level else one.name,
        one.capacity_bytes,
        one.served,
        one.on_demand,
        one.read_bytes,
        one.written_bytes,
        one.read_us_mean,
        one.stall_ms_per_token,
        _threshold(one.promote_within),
        _cost(one),
    ]


def brief_time(ms: float) -> str:
    """A time; below a millisecond it is in microseconds."""
    return f"{ms * 1e3:.3g} µs" if 0 < ms < 0.9995 else milliseconds(ms)


def _threshold(text: str) -> str:
    """`9.24 s` for `9244444444ns`; a word is unchanged."""
    if not text.endswith("ns"):
        return text or NOTHING
    return f"{int(text[:-2]) / 1e9:.3g} s"


def _cost(one: TierSummary) -> str:
    if one.usd is None or one.usd.low is None or one.usd.high is None:
        return NOTHING
    value, low, high = (
        f"{usd:,.0f}" if usd >= 100 else f"{usd:.3g}"
        for usd in (one.usd.value, one.usd.low, one.usd.high)
    )
    return f"${value} ({low} to {high})"


def tiers_section(view: View) -> str:
    """A table for each facet, of all policies at the middle buffer; empty if there are none."""
    pieces = []
    for facet in view.facets[:FACETS_MAX]:
        parts = [
            Part([_cells(one) for one in point.tiers], look.name, swatch=look.swatch)
            for look, point in tier_points(facet)
        ]
        if parts:
            title = f"{facet.title}, buffer {over_k(facet.middle)}"
            table = as_html(Table(COLUMNS, parts), f"tiers, {title}", "points")
            pieces.append(f"<h3>{escape(title)}</h3>{table}")
    if not pieces:
        return ""
    return section(
        "tier-table",
        "The tiers",
        "".join(pieces),
        "Blocks and bytes over all seeds. Cost: the capacity over its life, independent of use, as "
        "a range of its price. Promote within: a block read again sooner is copied there.",
    )


def tiers_table(view: View) -> RenderableType | None:
    """The same for a terminal; None if there are none."""
    pieces: list[RenderableType] = []
    for facet in view.facets:
        for look, point in tier_points(facet):
            title = f"\n{look.name}, buffer {over_k(facet.middle)}"
            pieces.append(Text(f"{title}, {facet.title}" if len(view.facets) > 1 else title))
            pieces.append(Table.of(COLUMNS, map(_cells, point.tiers)))
    return Group(*pieces) if pieces else None
