"""Where the numbers of a logarithmic axis are: at powers of ten, or nearer to each other.

matplotlib writes powers of ten, of which a span of less than two decades may have one or none: such
an axis would have no numbers. Loads matplotlib, so it is imported where something is drawn.
"""

from collections.abc import Sequence

from matplotlib.ticker import LogLocator, MaxNLocator

__all__ = ["NumberedLog"]

STEPS: tuple[Sequence[float], ...] = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))
"""Multiples of each power of ten, tried until there are enough."""
ENOUGH = 2


class NumberedLog(LogLocator):
    """At least two numbers, however short the span is."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        for steps in STEPS:
            self.set_params(subs=steps)
            found = super().tick_values(vmin, vmax)
            if sum(low <= place <= high for place in found) >= ENOUGH:
                return found
        return MaxNLocator(4).tick_values(vmin, vmax)
