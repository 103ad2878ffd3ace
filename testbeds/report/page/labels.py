"""Labels in a plot that do not overlap.

A label is placed if it fits and left out otherwise: hovering still shows it. Labels are placed
when the layout is settled; widths are those of the font that matplotlib measures with, which is
wider than most that a browser uses.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from offstage.testbeds.report.page.pictures import Picture, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ABOVE_LINE", "AROUND", "BEFORE", "BESIDE", "Labels"]

AROUND = (
    ("left", 7.0, 0.0),
    ("right", -7.0, 0.0),
    ("center", 0.0, 10.0),
    ("center", 0.0, -10.0),
    ("left", 6.0, 9.0),
    ("left", 6.0, -9.0),
    ("right", -6.0, 9.0),
    ("right", -6.0, -9.0),
    ("left", 9.0, 19.0),
    ("left", 9.0, -19.0),
    ("right", -9.0, 19.0),
    ("right", -9.0, -19.0),
)
"""Possible places of a label: its anchor, and its distance from its point, in points."""
BEFORE = (AROUND[1], AROUND[0], *AROUND[2:])
"""The same, to the left first."""
BESIDE = AROUND[:8]
"""The same for many points: close enough to belong to no other."""
ABOVE_LINE = tuple(
    ("right", dx, dy) for dx in (-3.0, -80.0, -160.0, -240.0, -360.0) for dy in (6.5, -6.5)
)
"""The same for a line that ends at the point."""
LINE_HEIGHT = 1.3
LARGER_ON_PHONES = 1.2
LINE_STEP = 4.0
"""In points: the distance of the boxes that keep a line free."""
Box = tuple[float, float, float, float]


class Labels:
    """The boxes taken so far in one plot, in points of the figure; its layout is settled."""

    def __init__(self, drawn: Picture, axes: "Axes", size: float = 8.0) -> None:
        drawn.settle()
        self.drawn, self.axes, self.size = drawn, axes, size
        self.points = 72.0 / drawn.figure.dpi
        box = axes.get_window_extent()
        width, height = (72.0 * inches for inches in drawn.figure.get_size_inches())
        self.room = (box.x0 * self.points, box.y0 * self.points, width - 2.0, height)
        self.boxes: list[Box] = []
        self.lines: list[Box] = []
        """Lines that a label covers only if it has no other place."""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The position of a point of data."""
        px, py = self.axes.transData.transform((x, y))
        return float(px) * self.points, float(py) * self.points

    def block(self, x: float, y: float, half: float = 5.0) -> None:
        """Keeps labels off a mark."""
        px, py = self.at(x, y)
        self.boxes.append((px - half, py - half, px + half, py + half))

    def keep_off(self, x: tuple[float, float], y: tuple[float, float], half: float = 2.0) -> None:
        """Keeps labels off a line between two points of data."""
        (left, low), (right, high) = self.at(x[0], y[0]), self.at(x[1], y[1])
        left, right, low, high = *sorted((left, right)), *sorted((low, high))
        self.boxes.append((left - half, low - half, right + half, high + half))

    def along(self, points: Sequence[tuple[float, float]]) -> None:
        """Keeps labels off the line through the points, if there is another place for them."""
        spots = [self.at(*point) for point in points]
        for (x0, y0), (x1, y1) in itertools.pairwise(spots):
            count = max(1, int(math.dist((x0, y0), (x1, y1)) / LINE_STEP))
            for at in range(count + 1):
                px, py = x0 + (x1 - x0) * at / count, y0 + (y1 - y0) * at / count
                self.lines.append((px - 1.0, py - 1.0, px + 1.0, py + 1.0))

    def add(
        self,
        x: float,
        y: float,
        text: str,
        around: Sequence[tuple[str, float, float]] = AROUND,
        reach: float = 0.0,
        **style: Any,
    ) -> None:
        """Places the text next to the point if there is room. `reach`: extra distance to the
        left and right, for a large mark."""
        px, py = self.at(x, y)
        width, height = _width(text, self.size), self.size * LINE_HEIGHT
        if self.drawn.slim and not self.drawn.paper:
            width, height = width * LARGER_ON_PHONES, height * LARGER_ON_PHONES
        for lines, (anchor, dx, dy) in itertools.product((self.lines, []), around):
            dx += {"left": reach, "right": -reach, "center": 0.0}[anchor]
            left = px + dx - {"left": 0.0, "right": width, "center": width / 2}[anchor]
            bottom = py + dy - height / 2
            box = (left, bottom, left + width, bottom + height)
            if self._free(box, lines):
                self.boxes.append(box)
                label = self.axes.annotate(
                    text,
                    (x, y),
                    (dx, dy),
                    textcoords="offset points",
                    ha=anchor,
                    va="center",
                    annotation_clip=False,
                    fontsize=self.size,
                    zorder=5,
                    **{"color": colour("soft"), **style},
                )
                self.drawn.halo(label)
                return

    def _free(self, box: Box, lines: Sequence[Box]) -> bool:
        left, bottom, right, top = box
        low_x, low_y, high_x, high_y = self.room
        if left < low_x or right > high_x or bottom < low_y or top > high_y:
            return False
        return not any(
            left < right_ and left_ < right and bottom < top_ and bottom_ < top
            for left_, bottom_, right_, top_ in itertools.chain(self.boxes, lines)
        )


@functools.lru_cache(maxsize=4096)
def _width(text: str, size: float) -> float:
    """The width of the text in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0.0, 0.0), text, size=size).get_extents().width)
