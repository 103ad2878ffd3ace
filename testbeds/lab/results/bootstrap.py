"""Confidence intervals by resampling requests: percentile bootstrap of ratios of sums.

A request is the unit of resampling: its steps and layers are not independent, so they are drawn
together. All figures of a lab run with the same number of requests use the same draws, so that a
difference or a ratio of two points is paired. Owns only a cache of draws; deterministic by seed.

Percentile interval: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.results.summary import Interval

__all__ = ["RESAMPLES", "Bootstrap", "ratio"]

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
"""Draws of an interval, unless its caller says otherwise."""
TAILS_PERCENT = (2.5, 97.5)
UNKNOWN_MAX = 0.025
"""If a larger share of draws has no value of a figure, its interval is unknown."""
GRID_SIZE = 1024
"""Ranks at which quantiles of a draw are evaluated: evenly spaced, and as many in each tail."""


def ratio(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Floats:
    """Element-wise ratio; NaN where the denominator is 0."""
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    top, bottom = np.broadcast_arrays(top, bottom)
    found: Floats = np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom != 0)
    return found


@lru_cache(maxsize=16)
def _weights(units: int, resamples: int, seed: int) -> Floats:
    """Times that each unit is drawn, `[resamples, units]`; every row adds up to `units`."""
    draw = np.random.Generator(np.random.Philox(key=[seed, units]))
    counts = draw.multinomial(units, np.full(units, 1.0 / units), size=resamples)
    weights = counts.astype(np.float64)
    weights.flags.writeable = False
    return weights


class Bootstrap:
    """Draws over `units` requests; all columns are `[units]`, in one order of requests."""

    def __init__(self, units: int, resamples: int, seed: int) -> None:
        self.units = units
        self.weights = _weights(units, resamples, seed) if units else np.zeros((0, 0))

    def sums(self, column: npt.ArrayLike) -> Floats:
        """The column's sum in every draw, `[resamples]`."""
        return np.asarray(self.weights @ np.asarray(column, np.float64))

    def interval(self, value: float, drawn: Floats) -> Interval | None:
        """`value` with the percentiles of `drawn`; None if there is no value."""
        if not np.isfinite(value):
            return None
        known = drawn[np.isfinite(drawn)]
        if self.units < 2 or len(known) < (1.0 - UNKNOWN_MAX) * len(drawn):
            return Interval(value=float(value))
        low, high = np.percentile(known, TAILS_PERCENT)
        return Interval(value=float(value), low=float(low), high=float(high))

    def ratio(self, numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Interval | None:
        """The ratio of the sums of two columns, with its interval."""
        value = ratio(np.sum(numerator), np.sum(denominator))
        return self.interval(float(value), ratio(self.sums(numerator), self.sums(denominator)))

    def median_ratio(self, numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> Interval | None:
        """The ratio of the medians of two columns, with its interval."""
        top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
        value = ratio(np.median(top), np.median(bottom))
        return self.interval(float(value), ratio(self._medians(top), self._medians(bottom)))

    def _medians(self, values: Floats) -> Floats:
        """The column's median in every draw, `[resamples]`."""
        order = np.argsort(values, kind="stable")
        below = np.cumsum(self.weights[:, order], axis=1)
        middle = [(self.units - 1) // 2, self.units // 2]
        picked = [values[order[np.argmax(below > rank, axis=1)]] for rank in middle]
        return np.asarray((picked[0] + picked[1]) / 2)

    def worst(
        self, numerator: Floats, denominator: Floats, rank: Floats, share: float
    ) -> tuple[npt.NDArray[np.intp], Interval | None]:
        """The `share` of requests (at least one) with the lowest `rank` `[units]`: their indices
        and the ratio of their sums. Each draw selects its own lowest requests."""
        ranked = np.argsort(rank, kind="stable")
        ranked = ranked[np.isfinite(rank[ranked])]
        if not len(ranked):
            return ranked, None
        take = int(np.ceil(share * len(ranked)))
        chosen = ranked[:take]
        weights = self.weights[:, ranked]
        drawn = weights.sum(axis=1, keepdims=True)
        before = np.cumsum(weights, axis=1) - weights
        taken = np.clip(np.ceil(share * drawn) - before, 0.0, weights)
        rates = ratio(taken @ numerator[ranked], taken @ denominator[ranked])
        value = float(ratio(numerator[chosen].sum(), denominator[chosen].sum()))
        return chosen, self.interval(value, rates)

    def quantile(
        self, values: npt.NDArray[np.int64], unit: npt.NDArray[np.int64], share: float
    ) -> Interval | None:
        """The smallest of `values` `[n]` that `share` of them do not exceed; `unit` `[n]`: the
        request of each. Draws use a grid of ranks, which is exact up to `GRID_SIZE` values."""
        if not len(values):
            return None
        order = np.argsort(values, kind="stable")
        values, unit = values[order], unit[order]
        last = len(values) - 1
        tails = np.geomspace(1e-6, 0.5, GRID_SIZE)
        shares = np.concatenate([np.linspace(0, 1, GRID_SIZE), tails, 1 - tails, [share]])
        grid = np.unique(values[np.ceil(shares * last).astype(np.intp)])
        bin_index = np.searchsorted(grid, values, side="left")
        counts = np.bincount(unit * len(grid) + bin_index, minlength=self.units * len(grid))
        below = np.cumsum(self.weights @ counts.reshape(self.units, len(grid)), axis=1)
        # Sums of integers are exact; the tolerance absorbs the rounding of share * n.
        need = share * below[:, -1:] * (1 - 1e-12)
        drawn = grid[np.argmax(below >= need, axis=1)].astype(np.float64)
        exact = values[max(0, int(np.ceil(share * len(values) - 1e-9)) - 1)]
        return self.interval(float(exact), drawn)
