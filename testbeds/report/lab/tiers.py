"""Which tier served what: two pictures and a table, for points that have tiers below the arena.

Model: the middle buffer of each facet, a bar for each policy and a colour for each tier. What is
read and what is waited for are two pictures, because the tier that serves the least is often the
one that is waited for.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.testbeds.lab.results.summary import PointSummary, TierSummary
from offstage.testbeds.report.lab.facets import FACETS_MAX, left_out
from offstage.testbeds.report.lab.series import Facet, Look, View, over_k
from offstage.testbeds.report.page.bars import Row, bars_height, draw_bars
from offstage.testbeds.report.page.markup import Segment, bar, key, legend, swatch
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, size
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["tiers_figures", "tiers_section", "tiers_table"]

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
"""Of the pool, the arena and the tiers below it, from the GPU down: the page's own shades."""
ABOVE = ("HBM pool", "arena")
NOTHING = "–"


class _Shown(NamedTuple):
    """One picture: of each tier a figure, and how it is written."""

    name: str
    title: str
    caption: str
    xlabel: str
    of: Callable[[TierSummary], float]
    form: Callable[[float], str]


READS = _Shown(
    "tiers",
    "Which tier served what",
    "The reads of the middle buffer by the tier that had the block, on demand and ahead of it. "
    "What the HBM pool and the arena served needed no read.",
    "of the reads, %",
    lambda one: float(one.served) if one.name not in ABOVE else 0.0,
    lambda value: f"{count(value)} blocks",
)
WAITS = _Shown(
    "tier-waits",
    "Which tier was waited for",
    "Shorter is better: the wait of a token by the tier whose read ended it, at the middle buffer. "
    "Arena: no read ended it, for a slot was not free. The longest bar of a panel fills it.",
    "of the longest wait, %",
    lambda one: one.stall_ms_per_token or 0.0,
    lambda value: _time(value),
)


def tiers_figures(view: View) -> list[Figure]:
    """Both pictures; nothing where no point has tiers."""
    facets = [facet for facet in view.facets if _points(facet)][:FACETS_MAX]
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


def _points(facet: Facet) -> list[tuple[Look, PointSummary]]:
    return [(look, point) for look, point in facet.at(facet.middle) if point.tiers]


def _names(facets: Sequence[Facet]) -> list[str]:
    """Every tier, from the GPU down."""
    found = (one.name for facet in facets for _, point in _points(facet) for one in point.tiers)
    return list(dict.fromkeys(found))


def _colour(names: Sequence[str], name: str) -> str:
    return f"var(--end-{COLOURS[names.index(name) % len(COLOURS)]})"


def _plot(view: View, facet: Facet, shown: _Shown, names: Sequence[str]) -> Plot:
    """Markup on the page, as names stand above their bars and wrap; drawn for paper."""
    found = _points(facet)
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
        head = tag(
            "p",
            _swatch(look) + escape(look.name) + f'<span class="note">{escape(note)}</span>',
            class_="bar-label",
        )
        listed = ", ".join(one.tip for one in segments if one.share)
        rest = Segment(max(0.0, 1.0 - sum(one.share for one in segments)), "transparent", "")
        drawn = bar([*segments, rest], "plain", f"{look.name}: {listed}")
        markup.append(tag("div", head + drawn, class_="bar-row"))
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


def _swatch(look: Look) -> str:
    return swatch(look.colour, "dot" if look.mark == "circle" else look.mark)


# The table, on the page and in a terminal.

COLUMNS = (
    "tier",
    "capacity",
    "served",
    "on demand",
    "read",
    "written",
    "mean read",
    "waited/token",
    "promote within",
    "cost",
)


def _cells(one: TierSummary) -> list[str]:
    name = f"{one.name} ({one.level})" if one.level else one.name
    read, waited = one.read_us_mean, one.stall_ms_per_token
    return [
        name,
        size(one.capacity_bytes),
        count(one.served),
        count(one.on_demand),
        size(one.read_bytes),
        size(one.written_bytes),
        NOTHING if read is None else _time(read / 1e3),
        NOTHING if waited is None else _time(waited),
        _threshold(one.promote_within),
        _cost(one),
    ]


def _time(ms: float) -> str:
    """Below a millisecond in microseconds, since memories are."""
    return f"{ms * 1e3:.3g} µs" if 0 < ms < 0.9995 else milliseconds(ms)


def _threshold(text: str) -> str:
    """`9.24 s` for `9244444444ns`; what is a word stays one."""
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
    """A table for each facet, of all policies at the middle buffer; empty where there are none."""
    pieces = []
    for facet in view.facets[:FACETS_MAX]:
        found = _points(facet)
        if not found:
            continue
        head = "".join(
            tag("th", escape(name), scope="col", class_="number" if at else "")
            for at, name in enumerate(COLUMNS)
        )
        body = ""
        for look, point in found:
            title = tag(
                "th",
                f"<span>{_swatch(look)}{escape(look.name)}</span>",
                colspan=len(COLUMNS),
                scope="rowgroup",
            )
            lines = [tag("tr", title, class_="group")]
            for one in point.tiers:
                name, *cells = _cells(one)
                row = tag("th", escape(name), scope="row")
                row += "".join(tag("td", escape(cell), class_="number") for cell in cells)
                lines.append(f"<tr>{row}</tr>")
            body += f"<tbody>{''.join(lines)}</tbody>"
        title = f"{facet.title}, buffer {over_k(facet.middle)}"
        table = f"<table><thead><tr>{head}</tr></thead>{body}</table>"
        scroll = tag(
            "div",
            table,
            class_="scroll points",
            tabindex=0,
            role="region",
            aria_label=f"tiers, {title}",
        )
        pieces.append(f"<h3>{escape(title)}</h3>{scroll}")
    if not pieces:
        return ""
    caption = (
        "Blocks and bytes over all seeds. Cost: of the capacity over its life, whoever uses it, "
        "as a range of its price. Promote within: what is read again sooner is copied there."
    )
    title = '<h2 id="tier-table-title">The tiers</h2>'
    body = f'{"".join(pieces)}<p class="caption">{escape(caption)}</p>'
    return tag("section", title + body, id="tier-table", aria_labelledby="tier-table-title")


def tiers_table(view: View) -> RenderableType | None:
    """The same for a terminal; None where there are none."""
    pieces: list[RenderableType] = []
    for facet in view.facets:
        for look, point in _points(facet):
            title = f"\n{look.name}, buffer {over_k(facet.middle)}"
            pieces.append(Text(f"{title}, {facet.title}" if len(view.facets) > 1 else title))
            pieces.append(_console(point))
    return Group(*pieces) if pieces else None


def _console(point: PointSummary) -> Table:
    table = Table(pad_edge=False, header_style="bold", box=None, padding=(0, 1, 0, 0))
    for at, name in enumerate(COLUMNS):
        table.add_column(
            name.replace(" ", "\n"),
            justify="right" if at else "left",
            no_wrap=True,
            vertical="bottom",
        )
    for one in point.tiers:
        table.add_row(*_cells(one))
    return table
