"""Shared by the hit-rate figures of a lab report: a plot per facet, a legend, interval ends."""

from collections.abc import Callable, Collection, Sequence

from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.report.lab.series import Facet, Look, Metric, View
from offstage.testbeds.report.lab.void import reasons
from offstage.testbeds.report.page.markup import key, legend
from offstage.testbeds.report.page.pictures import Picture
from offstage.testbeds.report.page.plot import Plot
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.report.page.void import void_markup

__all__ = ["FACETS_MAX", "each_facet", "ends", "hits_shown", "left_out", "looks_legend"]

FACETS_MAX = 12
"""The number of facets drawn; the rest are in the table and in summary.json."""
ROW_INCHES = 0.13


def each_facet(
    view: View,
    name: str,
    draw: Callable[[Picture, Facet], None],
    said: Callable[[Facet], str],
    height: float = 3.4,
) -> list[Plot]:
    """One plot a facet, with its title if there are several. On paper each has a legend."""
    several = len(view.facets) > 1
    rows = len(view.looks) / 2
    return [
        Plot(
            f"{name} {one.title}" if several else name,
            said(one),
            lambda drawn, facet=one: draw(drawn, facet),  # type: ignore[misc]
            height=height,
            heading=(f"<h3>{escape(one.title)}</h3>" if several else "")
            + void_markup(reasons(one.points)),
            paper_height=2.5 + ROW_INCHES * rows,
        )
        for one in view.facets[:FACETS_MAX]
    ]


def left_out(view: View) -> str:
    """How many facets are not drawn."""
    left = len(view.facets) - FACETS_MAX
    return f'<p class="empty">{left} more are in the table.</p>' if left > 0 else ""


def looks_legend(
    view: View, kind: str = "dot", more: Sequence[str] = (), only: Collection[Look] | None = None
) -> str:
    """One key per series, or per one of `only`, then `more`."""
    keys = [
        key(look.colour, look.name, kind if look.mark == "circle" else f"{kind} {look.mark}")
        for look in view.looks
        if only is None or look in only
    ]
    return legend([*keys, *more])


def ends(interval: Interval) -> tuple[float, float]:
    """Both ends, or the value twice."""
    low = interval.value if interval.low is None else interval.low
    return low, interval.value if interval.high is None else interval.high


def hits_shown(facet: Facet, metric: Metric) -> list[float]:
    """Every hit rate that a plot of the facet shows, including ends of intervals."""
    found = [metric.hit_of(point) for point in facet.points]
    found += [metric.hit_of(bound) for b in facet.buffers for bound in facet.bounds(b)]
    return [end for one in found if one is not None for end in ends(one)]
