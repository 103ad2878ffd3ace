"""Stacked bars of shares for paper. On a page they are markup, which wraps with its text."""

from collections.abc import Sequence

from offstage.testbeds.report.page.markup import Segment
from offstage.testbeds.report.page.pictures import Picture, colour

__all__ = ["Key", "Row", "bars_height", "draw_bars"]

Row = tuple[str, Sequence[Sequence[Segment]], str]
"""A name, its bars from the top, and the text after them."""
Key = tuple[str, str]
"""A colour and its name."""
ROW_INCHES = 0.26
BAR, THIN = 0.62, 0.16
"""Of a row: the last bar, and each above it."""


def bars_height(rows: Sequence[Row], keys: Sequence[Key]) -> float:
    """The height in inches, at the width of a column."""
    return 0.8 + ROW_INCHES * len(rows) + 0.17 * -(-len(keys) // 2)


def draw_bars(
    drawn: Picture, rows: Sequence[Row], keys: Sequence[Key], xlabel: str, most: float = 1.0
) -> None:
    """One row each; shares are of `most`, which fills the width."""
    from matplotlib.patches import Patch

    axes = drawn.axes()
    for at, (_, bars, note) in enumerate(rows):
        top = at - BAR / 2
        for number, segments in enumerate(bars):
            high = BAR - THIN * (len(bars) - 1) if number == len(bars) - 1 else THIN
            left = 0.0
            for one in segments:
                if one.share > 0 and one.colour != "transparent":
                    axes.barh(
                        top,
                        100 * most * one.share,
                        high * 0.94,
                        100 * most * left,
                        align="edge",
                        color=colour(one.colour),
                        linewidth=0,
                    )
                left += one.share
            top += high
        if note:
            axes.annotate(
                note,
                (1.0, at),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 100 * most)
    axes.set_xlabel(xlabel)
    axes.grid(visible=False)
    handles = [Patch(color=colour(shade)) for shade, _ in keys]
    drawn.keys(handles, [name for _, name in keys], ncols=2, fontsize=6.5)
