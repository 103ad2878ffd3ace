"""Fetch latency on each device: the tail of the distribution, and the time spent in each unit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offstage.asic_model.result import Times
from offstage.testbeds.report.compare.columns import Column, UnitFigures
from offstage.testbeds.report.compare.style import UNITS_MAX, colours, line_style, unit_colours
from offstage.testbeds.report.page.numbers import clock_ns
from offstage.testbeds.report.page.pictures import Picture, colour, plain_logs
from offstage.testbeds.report.page.plot import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

__all__ = ["ccdf", "waterfall"]

SHOWN_FROM = 0.01
"""A unit with less than this of every shown fetch gets no separate colour."""
QUANTILES = (("ns_p50", "median"), ("ns_p99", "99th percentile"))


def ccdf(columns: Sequence[Column]) -> Plot:
    """Share of fetches that took longer than a time, both axes logarithmic, to show the tail."""

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for column, shade in zip(columns, colours(columns), strict=True):
            times, shares = _tail(column.fetch_ns)
            if not times:
                continue
            (line,) = axes.step(
                times,
                shares,
                where="post",
                color=shade,
                linestyle=line_style(column),
                label=f"{column.label} ({column.provenance})",
            )
            drawn.tip(line, _quantile_text(column))
        plain_logs(axes, x="number", y="percent")
        axes.set(xlabel="fetch latency, µs", ylabel="share of fetches that took longer")
        axes.set_ylim(top=1.15)
        for level, name in ((0.5, "p50"), (0.1, "p90"), (0.01, "p99"), (0.001, "p99.9")):
            if level < axes.get_ylim()[0]:
                continue
            axes.annotate(
                name,
                (1.0, level),
                xycoords=("axes fraction", "data"),
                fontsize=7.5,
                color=colour("muted"),
                va="center",
                xytext=(3, 0),
                textcoords="offset points",
            )
        drawn.legend(axes)

    said = "; ".join(f"{one.label}: {_quantile_text(one, ', ')}" for one in columns)
    return Plot(
        "latency",
        f"Share of fetches by latency. {said}",
        draw,
        height=3.4,
        legend_rows=len(columns),
        paper_height=3.2,
    )


def _tail(times: Times) -> tuple[list[float], list[float]]:
    """Times in µs, and the share of fetches that took longer than each; 0 is left out."""
    if not times.count:
        return [], []
    last = len(times.curve) - 1
    steps = [(ns, 1.0 - at / max(last, 1)) for at, ns in enumerate(times.curve)]
    # The curve is even in rank; the `tail` has single values, finer than the curve's end.
    first = 1.0 - len(times.tail) / times.count
    steps = [(ns, share) for ns, share in steps if 1.0 - share < first]
    steps += [(ns, (len(times.tail) - 1 - at) / times.count) for at, ns in enumerate(times.tail)]
    shown = [(max(ns, 1.0) / 1e3, share) for ns, share in steps if share > 0.0]
    # The last step falls to zero, which a logarithmic axis cannot show: it ends where it began.
    shown.append((times.max / 1e3, shown[-1][1] if shown else 1.0))
    return [ns for ns, _ in shown], [share for _, share in shown]


def _quantile_text(column: Column, between: str = "\n") -> str:
    times = column.fetch_ns
    pieces = [
        f"{name} {clock_ns(value)}"
        for name, value in (
            ("median", times.p50),
            ("p90", times.p90),
            ("p99", times.p99),
            ("p99.9", times.p999),
        )
    ]
    return between.join(pieces)


def waterfall(columns: Sequence[Column]) -> Plot | None:
    """Time in each unit, for a fetch at the median and one at the 99th percentile."""
    shown = [one for one in columns if any(unit.ns_p50 or unit.ns_p99 for unit in one.units)]
    if not shown:
        return None
    shares = _largest_shares(shown)
    named = sorted(
        (one for one in shares if shares[one] >= SHOWN_FROM), key=lambda one: -shares[one]
    )
    names = [one for one in shares if one in named[:UNITS_MAX]]
    shades = unit_colours(names)
    others = len(names) < len(shares)
    height = 1.5 + 0.42 * len(shown) + 0.2 * (len(names) // 8)

    def draw(drawn: Picture) -> None:
        pair = drawn.figure.subplots(1, 2, sharey=True)
        for axes, (figure, title) in zip(pair, QUANTILES, strict=True):
            for row, column in enumerate(shown):
                _stack(drawn, axes, row, column, figure, shades)
            axes.set(title=f"fetch of the {title}", xlabel="share of its time, %", xlim=(0, 118))
            axes.set_xticks(range(0, 101, 25))
            axes.grid(False)
        pair[0].set_yticks(range(len(shown)), [f"{one.label}\n({one.provenance})" for one in shown])
        pair[0].invert_yaxis()
        handles = [_key(shades[name]) for name in names] + [_key(colour("line"))] * others
        keys = [*names, *["others"] * others]
        drawn.keys(handles, keys, loc="outside lower center", ncols=min(6, len(keys)))

    said = "Time of a fetch by unit, at the median and at the 99th percentile"
    return Plot(
        "waterfall",
        said,
        draw,
        height=height,
        scroll=True,
    )


def _largest_shares(columns: Sequence[Column]) -> dict[str, float]:
    """Of each unit, in the order of a fetch: the largest share that it has of any bar."""
    found: dict[str, float] = {}
    for column in columns:
        for unit in column.units:
            share = max(_share(column, unit, figure) for figure, _ in QUANTILES)
            found[unit.name] = max(share, found.get(unit.name, 0.0))
    return found


def _stack(
    drawn: Picture, axes: "Axes", row: int, column: Column, figure: str, shades: dict[str, str]
) -> None:
    """One device's bar: its units in the order of a fetch, then the whole time."""
    whole = sum(getattr(unit, figure) for unit in column.units)
    left = 0.0
    for unit in column.units:
        share = 100 * _share(column, unit, figure)
        if share <= 0:
            continue
        shade = shades.get(unit.name, colour("line"))
        (bar,) = axes.barh(row, share, left=left, height=0.62, color=shade)
        spent = clock_ns(getattr(unit, figure))
        drawn.tip(bar, f"{column.label}\n{unit.name}: {spent}, {share:.1f} %")
        left += share
    axes.annotate(
        clock_ns(whole),
        (100, row),
        xytext=(5, 0),
        va="center",
        fontsize=8,
        textcoords="offset points",
        color=colour("ink"),
    )


def _share(column: Column, unit: UnitFigures, figure: str) -> float:
    """The share of a fetch's time spent in one unit."""
    whole = sum(getattr(one, figure) for one in column.units)
    return float(getattr(unit, figure)) / whole if whole else 0.0


def _key(shade: str) -> "Patch":
    from matplotlib.patches import Patch

    return Patch(facecolor=shade)
