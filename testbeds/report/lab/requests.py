"""Prefix caching across requests: hit rate over capacity, a panel per trace, admission and TTL.

Evictions are compared in one panel. The best one depends on the capacity, so tables and sentence
name it for each.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group

from offstage.testbeds.lab.results.summary import RequestsRow
from offstage.testbeds.report.lab.marks import mark, paper_legend
from offstage.testbeds.report.lab.series import FREE, MARKS, Look
from offstage.testbeds.report.page.labels import ABOVE_LINE, Labels
from offstage.testbeds.report.page.markup import folded, key, legend
from offstage.testbeds.report.page.numbers import count, percent
from offstage.testbeds.report.page.pictures import Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.page.tags import escape
from offstage.testbeds.table import NOTHING, Cell, Column, Part, Table

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
    """The eviction, and the parts of admission and TTL that vary among the rows."""
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
    columns = [Column(name, left=True) for name in ("capacity", "eviction", "admission")]
    columns += [Column("TTL", _ttl)]
    columns += [Column(name, percent) for name in ("blocks", "tokens", "requests", "Belady")]
    lines: list[list[object]] = []
    for share, best in _bests(rows).items():
        found = [row for row in rows if row.capacity_share == share]
        for at, row in enumerate(sorted(found, key=lambda one: -one.block_hit_rate)):
            blocks = Cell(percent(row.block_hit_rate), "best" if row.block_hit_rate == best else "")
            rates = (blocks, row.token_hit_rate, row.request_hit_rate, row.opt)
            named = ("" if at else capacity(share), row.eviction, row.admission, row.ttl_s)
            lines.append([*named, *rates])
    return Table.of(columns, lines, f"{rows[0].trace}, no limit {percent(rows[0].ideal)}")


def requests_figure(rows: Sequence[RequestsRow]) -> Figure | None:
    """Curves and tables; None if no request trace was run."""
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
        "Higher is better: the share of the requested blocks that were found, over the capacity "
        "as a share of all distinct blocks. Dashed: Belady's optimum at that capacity, and an "
        "infinite cache; both admit every block and have no TTL. Panels of one trace have one "
        "scale.",
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
    """Belady's optimum at each capacity, and the hits of an infinite cache."""
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
        shown = [
            NOTHING if (rate := rates[setting].get(share)) is None else percent(rate)
            for share in bests
        ]
        marks = [
            "best" if rates[setting].get(share) == best and len(rates) > 1 else ""
            for share, best in bests.items()
        ]
        name = looks[setting[0]].cell(setting_name(first[setting], rows))
        lines.append([name, *map(Cell, shown, marks)])
    opts = {row.capacity_share: row.opt for row in rows}
    bounds = [
        [f"bound: {name}", *(values[share] for share in bests)]
        for name, values in (("Belady", opts), ("no limit", dict.fromkeys(bests, rows[0].ideal)))
    ]
    columns = [Column("blocks found, at a capacity of", left=True)]
    columns += [Column(capacity(share), percent) for share in bests]
    table = Table(columns, [Part(lines, bounds=bounds)])
    drawn = as_html(table, f"blocks found by capacity, {rows[0].trace}", "points")
    return f"<h3>{escape(rows[0].trace)}</h3>{drawn}"


def _table(rows: Sequence[RequestsRow], looks: dict[str, Look]) -> str:
    columns = [Column("policy", left=True), Column("trace", left=True), Column("capacity", count)]
    names = ("blocks", "tokens", "requests", "Belady", "no limit")
    columns += [Column(name, percent) for name in names]
    lines = [
        [
            looks[row.eviction].cell(setting_name(row, rows)),
            row.trace,
            row.capacity_blocks,
            *(row.block_hit_rate, row.token_hit_rate, row.request_hit_rate, row.opt, row.ideal),
        ]
        for row in rows[:ROWS_MAX]
    ]
    left = len(rows) - ROWS_MAX
    note = f"<p>{count(left)} more are in summary.json.</p>" if left > 0 else ""
    table = as_html(Table.of(columns, lines), "table of prefix caching", "points")
    return folded("Every row", table + note)
