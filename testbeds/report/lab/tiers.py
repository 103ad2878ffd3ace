"""The share of each tier, as two pictures, for points that have tiers below the arena.

Model: the middle buffer of each facet, a bar for each policy and a colour for each tier. Reads
and waits are two pictures, because the tier that serves the least often causes the most waiting.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from offstage.testbeds.lab.results.summary import TierSummary
from offstage.testbeds.report.lab.facets import FACETS_MAX, left_out
from offstage.testbeds.report.lab.series import Facet, View, over_k
from offstage.testbeds.report.lab.tier_table import brief_time, tier_points
from offstage.testbeds.report.page.bars import Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import Segment, bar, bar_row, key, legend, swatch
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape

__all__ = ["tiers_figures"]

COLOURS = (
    "hbm",
    "retained",
    "shared",
    "pattern",
    "window",
    "capacity",
    "policy",
    "lookahead",
    "late",
    "cold",
)
"""Shades of the page for the pool, the arena and the tiers below it, from the GPU down."""
ABOVE = ("HBM pool", "arena")


class _Shown(NamedTuple):
    """One picture: a figure for each tier, and its format."""

    name: str
    title: str
    caption: str
    xlabel: str
    of: Callable[[TierSummary], float]
    form: Callable[[float], str]


READS = _Shown(
    "tiers",
    "Reads by tier",
    "Reads at the middle buffer by the tier that had the block, on demand and ahead of it. "
    "Blocks served by the HBM pool and the arena needed no read.",
    "of the reads, %",
    lambda one: float(one.served) if one.name not in ABOVE else 0.0,
    lambda value: f"{count(value)} blocks",
)
WAITS = _Shown(
    "tier-waits",
    "Waits by tier",
    "Shorter is better: the wait of a token by the tier whose read ended it, at the middle buffer. "
    "Arena: no read ended it; no slot was free. The longest bar fills its panel.",
    "of the longest wait, %",
    lambda one: one.stall_ms_per_token or 0.0,
    brief_time,
)


def tiers_figures(view: View) -> list[Figure]:
    """Both pictures; nothing if no point has tiers."""
    facets = [facet for facet in view.facets if tier_points(facet)][:FACETS_MAX]
    if not facets:
        return []
    names = _names(facets)
    keys = legend([key(_colour(names, one), one) for one in names])
    return [
        Figure(
            shown.name,
            shown.title,
            [_plot(view, facet, shown, names) for facet in facets],
            shown.caption,
            keys,
            left_out(view),
        )
        for shown in (READS, WAITS)
    ]


def _names(facets: Sequence[Facet]) -> list[str]:
    """Every tier, from the GPU down."""
    found = (one.name for facet in facets for _, point in tier_points(facet) for one in point.tiers)
    return list(dict.fromkeys(found))


def _colour(names: Sequence[str], name: str) -> str:
    return f"var(--end-{COLOURS[names.index(name) % len(COLOURS)]})"


def _plot(view: View, facet: Facet, shown: _Shown, names: Sequence[str]) -> Plot:
    """Markup on the page, since names are above their bars and wrap; drawn for paper."""
    found = tier_points(facet)
    sums = [sum(shown.of(one) for one in point.tiers) for _, point in found]
    most = max(sums, default=0.0)
    if shown is READS:  # a share of its own reads, not of another's
        most = 0.0
    rows: list[Row] = []
    markup = []
    for (look, point), whole in zip(found, sums, strict=True):
        segments = [
            Segment(
                shown.of(one) / (most or whole or 1.0),
                _colour(names, one.name),
                f"{one.name}: {shown.form(shown.of(one))}, "
                f"{percent(shown.of(one) / (whole or 1.0))}",
            )
            for one in point.tiers
        ]
        note = shown.form(whole)
        rows.append((look.name, (segments,), note))
        listed = ", ".join(one.tip for one in segments if one.share)
        rest = Segment(max(0.0, 1.0 - sum(one.share for one in segments)), "transparent", "")
        drawn = bar([*segments, rest], "plain", f"{look.name}: {listed}")
        markup.append(bar_row(swatch(*look.swatch) + escape(look.name), note, drawn))
    title = facet.title if len(view.facets) > 1 else f"buffer {over_k(facet.middle)}"
    shades = [(_colour(names, one)[6:-1], one) for one in names]
    return Plot(
        f"{shown.name} {facet.title}" if len(view.facets) > 1 else shown.name,
        f"{shown.title}, {facet.title}",
        lambda drawn: draw_bars(drawn, rows, shades, shown.xlabel),
        heading=f"<h3>{escape(title)}</h3>",
        by_hand="".join(markup),
        paper_height=bars_height(rows, shades),
    )
