"""The axis of hit rates in a lab's plots: by misses, on a logarithmic scale.

From 90 to 95 % and from 98 to 99 % half of the misses go, so both are the same distance; on a
linear axis one bad policy would press every good one into a stripe. No misses at all have no place
on such a scale: 100 % stands on a line of its own above a break. Nothing in here can fail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from offstage.testbeds.report.page import svg

__all__ = ["SCALE_WORDS", "Hits", "hit_axis", "hit_scale"]

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
