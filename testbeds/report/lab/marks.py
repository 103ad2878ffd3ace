"""Marks of a lab plot: points of six shapes, error bars, and labels that do not meet.

A label stands where it fits and is left out where it does not: hovering still says it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.report.lab.series import Look
from offstage.testbeds.report.page import svg
from offstage.testbeds.report.page.numbers import percent, ratio

__all__ = [
    "ABOVE_LINE",
    "AROUND",
    "BEFORE",
    "BESIDE",
    "SCALE_WORDS",
    "Hits",
    "Labels",
    "error_bar",
    "hit_axis",
    "hit_scale",
    "interval_text",
    "mark",
    "powers_of_two",
]

CHARACTER_WIDTH = 6.6
LABEL_HEIGHT = 14.0
AROUND = (
    ("", 11.0, 4.0), ("end", -11.0, 4.0), ("mid", 0.0, -12.0), ("mid", 0.0, 21.0),
    ("", 9.0, -10.0), ("", 9.0, 19.0), ("end", -9.0, -10.0), ("end", -9.0, 19.0),
    ("", 14.0, -24.0), ("", 14.0, 34.0), ("end", -14.0, -24.0), ("end", -14.0, 34.0),
)  # fmt: skip
"""Where a label may stand: how it is anchored, and how far from its point."""
BEFORE = (AROUND[1], AROUND[0], *AROUND[2:])
"""The same, to the left first."""
BESIDE = AROUND[:8]
"""The same where there are many points: near enough to be nobody else's."""
ABOVE_LINE = tuple(
    ("end", dx, dy) for dx in (-4.0, -110.0, -220.0, -330.0, -500.0) for dy in (-5.0, 14.0)
)
"""The same for a line that ends at the point."""


class Labels:
    """The boxes taken so far in one plot."""

    def __init__(self, frame: svg.Frame) -> None:
        self.frame = frame
        self.boxes: list[tuple[float, float, float, float]] = []

    def block(self, x: float, y: float, half: float = 7.0) -> None:
        """Keeps labels off a mark."""
        self.keep_off((x - half, x + half), (y - half, y + half))

    def keep_off(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        """Keeps labels off what lies between the ends."""
        self.boxes.append((min(x), min(y), max(x), max(y)))

    def add(
        self,
        x: float,
        y: float,
        text: str,
        class_: str = "name",
        around: tuple[tuple[str, float, float], ...] = AROUND,
    ) -> str:
        """The text beside the point, where it is free; empty where it is not."""
        width = len(text) * CHARACTER_WIDTH
        for anchor, dx, dy in around:
            left = x + dx - {"": 0.0, "end": width, "mid": width / 2}[anchor]
            box = (left, y + dy - LABEL_HEIGHT + 3, left + width, y + dy + 3)
            if self._free(box):
                self.boxes.append(box)
                words = f"{class_} {anchor}".strip()
                return svg.text(x + dx, y + dy, text, class_=words)
        return ""

    def _free(self, box: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = box
        frame = self.frame
        if left < frame.x0 or right > frame.width - 2 or top < 0 or bottom > frame.y0:
            return False
        return not any(
            left < right_ and left_ < right and top < bottom_ and top_ < bottom
            for left_, top_, right_, bottom_ in self.boxes
        )


def mark(look: Look, x: float, y: float, radius: float, class_: str, tip: str) -> str:
    """The series' shape at a point; `tip` is shown on hover and read out."""
    shared = {
        "class_": class_, "style": f"--c:{look.colour}", "data_tip": tip, "tabindex": 0,
        "aria_label": tip.replace("\n", ", "),
    }  # fmt: skip
    if look.mark == "circle":
        return svg.tag("circle", cx=x, cy=y, r=radius, **shared)
    corners = {"square": 4, "triangle": 3, "star": 10, "diamond": 4, "wedge": 3}[look.mark]
    turn = {"square": math.pi / 4, "wedge": math.pi / 2}.get(look.mark, -math.pi / 2)
    points = []
    for corner in range(corners):
        reach = radius * (0.5 if look.mark == "star" and corner % 2 else 1.2)
        angle = turn + 2 * math.pi * corner / corners
        points.append(f"{x + reach * math.cos(angle):.1f} {y + reach * math.sin(angle):.1f}")
    return svg.tag("path", d=f"M{'L'.join(points)}Z", **shared)


def error_bar(
    x: tuple[float, float], y: tuple[float, float], colour: str, faint: bool = False
) -> str:
    """A line from one end of an interval to the other; nothing where both are one."""
    if abs(x[1] - x[0]) + abs(y[1] - y[0]) < 1.0:
        return ""
    class_ = "error faint" if faint else "error"
    return svg.tag("line", x1=x[0], x2=x[1], y1=y[0], y2=y[1], class_=class_, style=f"--c:{colour}")


def interval_text(interval: Interval | None, kind: str = "share") -> str:
    """`91.2 % (90.8 to 91.6)`; a dash where there is no value."""
    if interval is None:
        return "–"
    form = {"share": percent, "ratio": ratio}[kind]
    if interval.low is None or interval.high is None:
        return form(interval.value)
    low, high = (form(end).removesuffix(" %").removesuffix("×") for end in
                 (interval.low, interval.high))  # fmt: skip
    return f"{form(interval.value)} ({low} to {high})"


def powers_of_two(low: float, high: float) -> list[float]:
    """Those from `low` to `high`."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1)]


# The axis of hit rates in a lab's plots: by misses, on a logarithmic scale.
#
# From 90 to 95 % and from 98 to 99 % half of the misses go, so both are the same distance; on a
# linear axis one bad policy would press every good one into a stripe. No misses at all
# would lie at infinity: 100 % stands on a line of its own above a break. Nothing in here can fail.

SCALE_WORDS = "Equal distances halve the misses; 100 % stands above the break."
WANTED = (0.9, 0.99, 0.5, 0.999, 0.95, 0.8, 0.0, 0.98, 0.995, 0.97, 0.9999, 0.7)
"""Ticks in the order in which they are wanted where there is no room for all."""
TICKS = tuple(sorted(WANTED))
FEWEST_MISSES = 5e-5
"""The scale ends here: fewer misses, but not none, stand below the break."""
BREAK = 26.0
"""From the end of the scale to the line of 100 %."""
TICK_GAP = 15.0


@dataclass(frozen=True)
class Hits:
    """From hit rates to the view box: `low` at `start`, `high` below the break, 1 at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, hit: float) -> float:
        if hit >= 1.0:
            return self.end
        top = self.end + math.copysign(BREAK, self.start - self.end)
        most, fewest = 1.0 - self.low, 1.0 - self.high
        misses = min(max(1.0 - hit, fewest), most)
        return self.start + math.log(most / misses) / math.log(most / fewest) * (top - self.start)

    def ticks(self) -> list[float]:
        """Those of the fixed ones inside the scale that stand apart, and 100 %."""
        chosen = [1.0]
        for value in WANTED:
            inside = self.low - 1e-9 <= value <= self.high + 1e-9
            if inside and all(abs(self(value) - self(one)) >= TICK_GAP for one in chosen):
                chosen.append(value)
        return sorted(chosen)


def hit_scale(values: Sequence[float], start: float, end: float) -> Hits:
    """A scale that shows all values below 100 %, and two ticks at least."""
    misses = [max(1.0 - value, FEWEST_MISSES) for value in values if value < 1.0] or [0.1]
    low, high = max(0.0, 1.0 - max(misses) * 1.12), 1.0 - min(misses) / 1.12
    while sum(low <= tick <= high for tick in TICKS) < 2:
        below = [tick for tick in TICKS if tick < low]
        above = [tick for tick in TICKS if tick > high]
        if below:
            low = below[-1]
        if above and sum(low <= tick <= high for tick in TICKS) < 2:
            high = above[0]
    return Hits(low, high, start, end)


def hit_axis(frame: svg.Frame, values: Sequence[float]) -> tuple[Hits, str]:
    """The scale of the values, and its grid lines, labels and break."""
    y = hit_scale(values, frame.y0, frame.y1)
    marks = [(y(value), f"{round(value * 100, 2):g} %") for value in y.ticks()]
    return y, svg.y_axis(frame, marks) + _break(frame)


def _break(frame: svg.Frame) -> str:
    """Two strokes across the left edge, between the scale and 100 %."""
    middle = frame.y1 + BREAK / 2
    return "".join(
        svg.path(
            [(frame.x0 - 5, middle + at + 3), (frame.x0 + 5, middle + at - 3)], class_="axis break"
        )
        for at in (-2.5, 2.5)
    )
