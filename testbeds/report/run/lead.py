"""When prefetched blocks arrived, before need to the right and after it to the left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import clock_ns, percent
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, colour
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tags import tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Leads", "lead_figure", "lead_plot", "lead_span"]

Span = tuple[int, int, int]
Row = tuple["Leads", list[float], list[float]]
GAP = 1.0
"""Width between the sides, in bins, with need in its middle."""
CAPTION = (
    "Right of the middle: prefetched blocks that arrived before they were needed, by how long "
    "before. Left of it: late ones, which the kernel waited for. Both times grow outwards on a "
    "logarithmic scale; heights are shares of each run's own blocks."
)


@dataclass(frozen=True)
class Leads:
    """When one run's blocks arrived: counts by power of two of ns, after and before need."""

    name: str
    shade: str
    late: Sequence[int]
    early: Sequence[int]


def lead_figure(plots: Sequence[Plot], keys: str) -> Figure | str:
    """The section; a sentence if no plot has anything to show."""
    if not plots:
        nothing = "No prefetched block was used, and no demand was late."
        return section("lead", "How early blocks arrived", tag("p", nothing, class_="empty"))
    return Figure("lead", "How early blocks arrived", plots, CAPTION, keys)


def lead_span(rows: Sequence[Leads]) -> Span | None:
    """Lowest bin shown, highest late bin, highest early bin; None if all are empty."""
    early = [i for row in rows for i, n in enumerate(row.early) if n]
    late = [i for row in rows for i, n in enumerate(row.late) if n]
    if not early and not late:
        return None
    # Bins below 8 us are merged: times that small are not distinguished here.
    return 13, max([*late, 17]), max([*early, 17])


def lead_plot(
    leads: Sequence[Leads], span: Span, title: str, heading: str = "", provenance: str = "measured"
) -> Plot:
    """The runs of one panel over each other, each as shares of its blocks."""
    low, late_high, early_high = span
    rows: list[Row] = []
    for one in leads:
        late = _folded(one.late, low, late_high)
        early = _folded(one.early, low, early_high)
        if total := sum(late) + sum(early):
            rows.append((one, [n / total for n in late], [n / total for n in early]))

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        late_edges = [-(GAP / 2 + i) for i in range(late_high - low + 1, -1, -1)]
        early_edges = [GAP / 2 + i for i in range(early_high - low + 2)]
        top = max((v for row in rows for v in (*row[1], *row[2])), default=0.01) * 1.2
        axes.set(
            xlim=(late_edges[0], early_edges[-1]),
            ylim=(0.0, top),
            xlabel="arrival, before or after need",
        )
        axes.axvspan(
            late_edges[0],
            late_edges[-1],
            color=colour("end-late"),
            alpha=0.13,
            linewidth=0,
            zorder=0,
        )
        axes.axvline(0.0, color=colour("muted"), linewidth=0.8, linestyle=(0, (2, 3)))
        for row in rows:
            _steps(axes, row, (late_edges, early_edges), provenance)
        _tips(drawn, axes, rows, low, late_edges, early_edges)
        _ticks(drawn, axes, low, late_edges, early_edges)
        for edge, words, side in ((-GAP / 2, "← late", "right"), (GAP / 2, "early →", "left")):
            axes.annotate(
                words,
                (edge, 0.955),
                xycoords=("data", "axes fraction"),
                ha=side,
                va="center",
                color=colour("muted"),
                fontsize=8,
            )
        if drawn.paper:
            drawn.legend(axes)

    said = "; ".join(f"{one.name}: {percent(sum(early))} early" for one, _, early in rows)
    return Plot(
        f"lead {title}",
        f"When prefetched blocks arrived on {title}. {said}.",
        draw,
        height=2.9,
        heading=heading,
        paper_height=2.2 + 0.09 * len(rows),
    )


def _steps(axes: "Axes", row: Row, edges: tuple[list[float], list[float]], provenance: str) -> None:
    """One run's shares on both sides of need, filled and outlined."""
    one, late, early = row
    shade, faint = colour(one.shade), 0.16 if provenance == "measured" else 0.06
    for at, values in enumerate((late[::-1], early)):
        axes.stairs(values, edges[at], fill=True, color=shade, linewidth=0, alpha=faint)
        axes.stairs(
            values,
            edges[at],
            color=shade,
            linewidth=1.3,
            baseline=None,
            linestyle=LINE_STYLES[provenance],
            label=None if at else one.name,
        )


def _folded(counts: Sequence[int], low: int, high: int) -> list[int]:
    """Bins `low` to `high`; lower ones are added to the first."""
    padded = [*counts, *([0] * (high + 1 - len(counts)))]
    return [sum(padded[: low + 1]), *padded[low + 1 : high + 1]]


def _tips(
    drawn: Picture,
    axes: "Axes",
    rows: Sequence[Row],
    low: int,
    late_edges: Sequence[float],
    early_edges: Sequence[float],
) -> None:
    for side, edges, word in ((0, late_edges, "late"), (1, early_edges, "early")):
        bins = len(edges) - 1
        for at in range(bins):
            power = low + (at if side else bins - 1 - at)
            first = "under " if power == low else f"{clock_ns(2.0**power)} to "
            lines = [
                f"{percent((late, early)[side][power - low])}  {one.name}"
                for one, late, early in rows
            ]
            tip = "\n".join([f"{first}{clock_ns(2.0 ** (power + 1))} {word}", *lines])
            drawn.band(axes, edges[at], edges[at + 1], tip)


def _ticks(
    drawn: Picture,
    axes: "Axes",
    low: int,
    late_edges: Sequence[float],
    early_edges: Sequence[float],
) -> None:
    from matplotlib.ticker import MaxNLocator

    marks = [(0.0, "need")]
    for power in range(20, 64, 10 if drawn.slim else 5):
        for edges in (early_edges, late_edges[::-1]):
            if power - low < len(edges):
                # 2^20 ns is 1.05 ms: the label says the round figure that the bin's edge is near.
                marks.append((edges[power - low], _round_clock(power)))
    axes.set_xticks([at for at, _ in marks], [name for _, name in marks])
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")


def _round_clock(power: int) -> str:
    """2^10 ns as 1 µs, 2^15 as 32 µs, 2^20 as 1 ms, ...: binary steps by their decimal name."""
    unit = ("ns", "µs", "ms", "s")[min(3, power // 10)]
    return f"{2 ** (power - 10 * min(3, power // 10))} {unit}"
