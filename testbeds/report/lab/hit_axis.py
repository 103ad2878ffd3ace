"""The axis of hit rates in a lab's plots: by misses, on a logarithmic scale.

From 90 to 95 % and from 98 to 99 % half of the misses vanish, so both are the same distance; on
a linear axis one bad policy would press every good one into a stripe. Zero misses would be at
infinity: 100 % has a separate line above a break. Nothing in here can fail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offstage.testbeds.report.page.pictures import Picture, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SCALE_WORDS", "Hits", "hit_axis", "hit_scale"]

SCALE_WORDS = "Equal distances halve the misses; 100 % is above the break."
WANTED = (0.9, 0.99, 0.5, 0.999, 0.95, 0.8, 0.0, 0.98, 0.995, 0.97, 0.9999, 0.7)
"""Ticks in order of priority if there is no room for all."""
TICKS = tuple(sorted(WANTED))
FEWEST_MISSES = 5e-5
"""The scale ends here: fewer misses, but not none, are drawn below the break."""
BREAK = 0.09
"""From the end of the scale to the line of 100 %, as a share of the axis's height."""
TICK_INCHES = 0.16
AROUND_INCHES = 0.7
"""The height that the axis of the other figure and the margins take of a picture."""


@dataclass(frozen=True)
class Hits:
    """Maps hit rates to the height of the axis: `low` to 0, `high` to the break, 100 % to 1."""

    low: float
    high: float
    gap: float = 0.06
    """The least distance of two ticks."""

    def __call__(self, hit: float) -> float:
        if hit >= 1.0:
            return 1.0
        most, fewest = 1.0 - self.low, 1.0 - self.high
        misses = min(max(1.0 - hit, fewest), most)
        return math.log(most / misses) / math.log(most / fewest) * (1.0 - BREAK)

    def ticks(self) -> list[float]:
        """The fixed ones inside the scale that are far enough apart, and 100 %."""
        chosen = [1.0]
        for value in WANTED:
            inside = self.low - 1e-9 <= value <= self.high + 1e-9
            if inside and all(abs(self(value) - self(one)) >= self.gap for one in chosen):
                chosen.append(value)
        return sorted(chosen)


def hit_scale(values: Sequence[float], gap: float = 0.06) -> Hits:
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
    return Hits(low, high, gap)


def hit_axis(drawn: Picture, axes: "Axes", values: Sequence[float]) -> Hits:
    """The scale of the values, drawn: ticks, grid lines and break."""
    height = drawn.figure.get_figheight() - AROUND_INCHES
    y = hit_scale(values, TICK_INCHES / max(height, 1.0))
    axes.set_ylim(-0.02, 1.0)
    axes.set_yticks([y(v) for v in y.ticks()], [f"{round(v * 100, 2):g} %" for v in y.ticks()])
    middle = 1.0 - BREAK / 2
    for at in (middle - 0.01, middle + 0.01):
        axes.plot(
            [-0.012, 0.012],
            [at - 0.012, at + 0.012],
            color=colour("muted"),
            linewidth=1.0,
            transform=axes.transAxes,
            clip_on=False,
        )
    return y
