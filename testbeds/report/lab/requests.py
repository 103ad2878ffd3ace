"""Prefix caching across requests: hit rate over capacity, a panel per trace, admission and TTL.

Evictions are compared in one panel. Which is best depends on the capacity, so tables and sentence
name the best for each.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.testbeds.lab.results.summary import RequestsRow
from offstage.testbeds.report.lab.marks import mark, paper_legend
from offstage.testbeds.report.lab.series import FREE, MARKS, Look
from offstage.testbeds.report.page.labels import ABOVE_LINE, Labels
from offstage.testbeds.report.page.markup import key, legend, swatch
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import escape, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["capacity", "requests_figure", "requests_table", "setting_name"]

ROWS_MAX = 400
PANELS_MAX = 24
Setting = tuple[str, str, float | None]


def capacity(share: float) -> str:
    """A share of all distinct blocks, as a spec gives it: `1 %`, `0.5 %`."""
    return f"{share * 100:.4g}\u00a0%"


def setting_name(row: RequestsRow, rows: Sequence[RequestsRow]) -> str:
    """The eviction, and what of admission and TTL varies among the rows."""
    return ", ".join([row.eviction, *_regime(row, rows)])


def _regime(row: RequestsRow, rows: Sequence[RequestsRow]) -> list[str]:
    pieces = []
    if len({one.admission for one in rows}) > 1:
        pieces.append(f"admission {row.admission}")
    if len({one.ttl_s for one in rows}) > 1:
        pieces.append("no TTL" if row.ttl_s is None else f"TTL {_ttl(row.ttl_s)}")
    return pieces


def _ttl(ttl_s: float) -> str:
    return f"{ttl_s / 60:.4g} min" if ttl_s >= 60 else f"{ttl_s:.4g} s"


def _setting(row: RequestsRow) -> Setting:
    return row.eviction, row.admission, row.ttl_s


def _traces(rows: Sequence[RequestsRow]) -> list[list[RequestsRow]]:
    names = dict.fromkeys(row.trace for row in rows)
    return [[row for row in rows if row.trace == name] for name in names]


def _bests(rows: Sequence[RequestsRow]) -> dict[float, float]:
    """The highest rate at each capacity of one trace, ascending."""
    shares = sorted({row.capacity_share for row in rows})
    return {
        share: max(row.block_hit_rate for row in rows if row.capacity_share == share)
        for share in shares
    }


def requests_table(rows: Sequence[RequestsRow]) -> Group:
    """The rows for a terminal: a table per trace, by capacity, the best first."""
    return Group(*(_trace_table(own) for own in _traces(rows)))


def _trace_table(rows: Sequence[RequestsRow]) -> Table:
    title = f"{rows[0].trace}, no limit {percent(rows[0].ideal)}"
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("capacity", "eviction", "admission"):
        table.add_column(name, no_wrap=True)
    for name in ("TTL", "blocks", "tokens", "requests", "Belady"):
        table.add_column(name, justify="right", no_wrap=True)
    for share, best in _bests(rows).items():
        found = [row for row in rows if row.capacity_share == share]
        for at, row in enumerate(sorted(found, key=lambda one: -one.block_hit_rate)):
            shares = (row.token_hit_rate, row.request_hit_rate, row.opt)
            style = "bold green" if row.block_hit_rate == best else ""
            table.add_row(
                "" if at else capacity(share),
                row.eviction,
                row.admission,
                "–" if row.ttl_s is None else _ttl(row.ttl_s),
                Text(percent(row.block_hit_rate), style=style),
                *map(percent, shares),
            )
    return table


def requests_figure(rows: Sequence[RequestsRow]) -> Figure | None:
    """Curves and tables; None where no request trace was run."""
    if not rows:
        return None
    looks = _looks(rows)
    plots = []
    for own in _traces(rows):
        regimes = dict.fromkeys((row.admission, row.ttl_s) for row in own)
        top = max(max(row.ideal, row.opt, row.block_hit_rate) for row in own)
        for regime in regimes:
            shown = [row for row in own if (row.admission, row.ttl_s) == regime]
            regime_words = _regime(shown[0], rows)
            named = [own[0].trace] if len(_traces(rows)) > 1 or not regime_words else []
            plots.append(_plot(shown, looks, top, ", ".join([*named, *regime_words])))
    left = len(plots) - PANELS_MAX
    note = f'<p class="empty">{left} more panels are in the tables.</p>' if left > 0 else ""
    keys = [
        key(look.colour, look.name, "dot" if look.mark == "circle" else f"dot {look.mark}")
        for look in looks.values()
    ]
    keys.append(key("var(--muted)", "bound", "line emulated"))
    tables = "".join(_best_table(own, looks) for own in _traces(rows))
    return Figure(
        "requests",
        "Prefix caching across requests",
        plots[:PANELS_MAX],
        "Higher is better: the share of the blocks asked for that were found, over the "
        "blocks that may be kept, as a share of all distinct blocks. Dashed: Belady's optimum at "
        "that capacity, and what no limit at all would find; both admit every block and know no "
        "TTL. Panels of one trace have one scale.",
        legend(keys),
        note + tables + _table(rows, looks),
    )


def _looks(rows: Sequence[RequestsRow]) -> dict[str, Look]:
    """One look per eviction."""
    found = {}
    for at, name in enumerate(dict.fromkeys(row.eviction for row in rows)):
        shape = MARKS[min(at // len(FREE), len(MARKS) - 1)]
        found[name] = Look(name, FREE[at % len(FREE)], shape)
    return found


def _plot(rows: Sequence[RequestsRow], looks: dict[str, Look], top: float, title: str) -> Plot:
    names = list(dict.fromkeys(row.eviction for row in rows))

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        _axes(drawn, axes, sorted({row.capacity_share for row in rows}), top)
        for name in names:
            look = looks[name]
            own = sorted((r for r in rows if r.eviction == name), key=lambda r: r.capacity_share)
            axes.plot(
                [row.capacity_share for row in own],
                [row.block_hit_rate for row in own],
                color=colour(look.colour),
                linewidth=1.0,
            )
            for row in own:
                tip = (
                    f"{look.name}, {count(row.capacity_blocks)} blocks"
                    f"\nblocks {percent(row.block_hit_rate)}"
                    f"\ntokens {percent(row.token_hit_rate)}"
                    f"\nmean over requests {percent(row.request_hit_rate)}"
                )
                mark(drawn, axes, look, row.capacity_share, row.block_hit_rate, tip, size=5.5)
        paper_legend(drawn, [looks[name] for name in names])
        _bounds(drawn, axes, rows)

    return Plot(
        f"prefix-caching {title}",
        f"Share of blocks found over capacity, {rows[0].trace}.",
        draw,
        height=3.2,
        heading=f"<h3>{escape(title)}</h3>",
        paper_height=2.4 + 0.07 * len(names),
    )


def _axes(drawn: Picture, axes: "Axes", shares: Sequence[float], top: float) -> None:
    axes.set_xscale("log")
    axes.set(
        xlim=(shares[0] / 1.2, shares[-1] * 1.2),
        ylim=(0, min(1.0, max(top, 0.01) * 1.05)),
        xlabel="capacity, of all distinct blocks",
    )
    apart = math.log(shares[-1] / shares[0]) / (6 if drawn.slim else 14)
    ticks: list[float] = []
    for share in shares:
        if not ticks or math.log(share / ticks[-1]) > apart:
            ticks.append(share)
    axes.set_xticks(ticks, [capacity(share) for share in ticks])
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.3g} %")


def _bounds(drawn: Picture, axes: "Axes", rows: Sequence[RequestsRow]) -> None:
    """Belady's optimum at each capacity, and what no limit finds."""
    dashed: Any = {"color": colour("muted"), "linewidth": 0.9, "linestyle": (0, (4, 3))}
    best = sorted({row.capacity_share: row.opt for row in rows}.items())
    axes.plot([share for share, _ in best], [opt for _, opt in best], **dashed)
    axes.axhline(rows[0].ideal, **dashed)
    labels = Labels(drawn, axes, 7.0 if drawn.paper else 8.5)
    for row in rows:
        labels.block(row.capacity_share, row.block_hit_rate, 4.0)
    said: Any = {"color": colour("muted"), "style": "italic"}
    labels.add(*best[0], "Belady", **said)
    labels.add(axes.get_xlim()[1], rows[0].ideal, "no limit", ABOVE_LINE, **said)


def _best_table(rows: Sequence[RequestsRow], looks: dict[str, Look]) -> str:
    """One trace: blocks found by each setting at each capacity, the best of each marked."""
    bests = _bests(rows)
    middle = list(bests)[len(bests) // 2]
    rates: dict[Setting, dict[float, float]] = {}
    for row in rows:
        rates.setdefault(_setting(row), {})[row.capacity_share] = row.block_hit_rate
    first = {_setting(row): row for row in reversed(rows)}
    lines = []
    for setting in sorted(rates, key=lambda one: -rates[one].get(middle, 0.0)):
        cells = [_name_cell(setting_name(first[setting], rows), looks[setting[0]])]
        for share, best in bests.items():
            rate = rates[setting].get(share)
            rate_shown = "–" if rate is None else percent(rate)
            if rate == best and len(rates) > 1:
                rate_shown = f'<strong>{rate_shown}<span class="hidden"> (best)</span></strong>'
            cells.append(tag("td", rate_shown, class_="number"))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    opts = {row.capacity_share: row.opt for row in rows}
    for name, values in (("Belady", opts), ("no limit", dict.fromkeys(bests, rows[0].ideal))):
        cells = [tag("th", f"bound: {name}", scope="row")]
        cells += [tag("td", percent(values[share]), class_="number") for share in bests]
        lines.append(tag("tr", "".join(cells), class_="bound-row"))
    heads = [tag("th", capacity(share), scope="col", class_="number") for share in bests]
    head = tag("th", "blocks found, at a capacity of", scope="col") + "".join(heads)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    scroll = tag(
        "div",
        table,
        class_="scroll points",
        tabindex=0,
        role="region",
        aria_label=f"blocks found by capacity, {rows[0].trace}",
    )
    return f"<h3>{escape(rows[0].trace)}</h3>{scroll}"


def _name_cell(name: str, look: Look) -> str:
    kind = "dot" if look.mark == "circle" else look.mark
    return tag("th", swatch(look.colour, kind) + escape(name), scope="row")


def _table(rows: Sequence[RequestsRow], looks: dict[str, Look]) -> str:
    names = ("policy", "trace", "capacity", "blocks", "tokens", "requests", "Belady", "no limit")
    head = "".join(
        tag("th", name, scope="col", class_="number" if at > 1 else "")
        for at, name in enumerate(names)
    )
    lines = []
    for row in rows[:ROWS_MAX]:
        rates = (row.block_hit_rate, row.token_hit_rate, row.request_hit_rate, row.opt, row.ideal)
        cells = _name_cell(setting_name(row, rows), looks[row.eviction])
        cells += tag("td", escape(row.trace))
        cells += tag("td", count(row.capacity_blocks), class_="number")
        cells += "".join(tag("td", percent(rate), class_="number") for rate in rates)
        lines.append(f"<tr>{cells}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    left = len(rows) - ROWS_MAX
    note = f"<p>{count(left)} more are in summary.json.</p>" if left > 0 else ""
    scroll = tag(
        "div",
        table,
        class_="scroll points",
        tabindex=0,
        role="region",
        aria_label="table of prefix caching",
    )
    return f"<details><summary>Every row</summary>{scroll}{note}</details>"
