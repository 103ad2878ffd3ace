"""The service of a disk's reads, drawn as it was measured: by cause, and by the reads beside it.

Model: a row of `disk.service`'s `spread` is a cause (or OTHER), the most reads in flight that the
row is of, and then STEPS times over the mean, in order, each as probable as the next: the whole
distribution, without a shape put on it. Reads that begin within `disk.together` of each other draw
the same place in their rows, since a slow moment of a disk is slow for all. A draw is a function of
(seed, moment): the same on every machine. Nothing here can fail.
"""

import numpy as np
import numpy.typing as npt

from offstage.asic_model.blocks import Disk

__all__ = ["OTHER", "Services", "rows_of"]

STEPS = 200
OTHER = 0.0
LEAST = 100
"""Reads of a band; and of a cause in it, below which it is drawn from all causes of the band."""
MASK = (1 << 64) - 1


def rows_of(
    cause: npt.NDArray[np.int64], beside: npt.NDArray[np.int64], took: npt.NDArray[np.int64]
) -> tuple[tuple[float, ...], ...]:
    """The rows of measured reads, `took` each; all over the mean of all."""
    times, bands = took / took.mean(), _bands(beside)
    rows = [_row(OTHER, most, times[band]) for most, band in bands]
    for one in np.unique(cause):
        own = [band & (cause == one) for _, band in bands]
        enough = [mine.sum() >= LEAST for mine in own]
        if any(enough):
            rows += [
                _row(one, most, times[mine if has else band])
                for (most, band), mine, has in zip(bands, own, enough, strict=True)
            ]
    return tuple(rows)


def _bands(beside: npt.NDArray[np.int64]) -> list[tuple[float, npt.NDArray[np.bool_]]]:
    """Reads by how many were beside them: none, 1, 2, to 4, to 8 and so on. A band of few joins the
    next one; the last, the one before it."""
    steps = np.where(beside > 0, np.ceil(np.log2(np.maximum(beside, 1))) + 1, 0)
    counts = np.bincount(steps.astype(np.int64))
    ends, waiting = [], 0
    for step, count in enumerate(counts):
        waiting += count
        if waiting >= LEAST:
            ends.append(step)
            waiting = 0
    ends = [*ends[:-1], len(counts) - 1]
    starts = [-1, *ends[:-1]]
    most = [*(float(1 << step >> 1) for step in ends[:-1]), np.inf]
    return [
        (limit, (steps > start) & (steps <= end))
        for limit, start, end in zip(most, starts, ends, strict=True)
    ]


def _row(cause: float, most: float, took: npt.NDArray[np.float64]) -> tuple[float, ...]:
    shares = (np.arange(STEPS) + 0.5) / STEPS
    times = np.quantile(took, shares)
    times *= took.mean() / times.mean()
    return (float(cause), min(most, 1e9), *(float(one) for one in times))


class Services:
    """Draws for one run."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self._mean_ns = disk.service.base / 1000
        self._span_ps = max(1, disk.together.whole)
        self._seed = seed
        self._rows: dict[int, list[tuple[float, ...]]] = {}
        for row in disk.service.spread:
            self._rows.setdefault(int(row[0]), []).append(row[1:])

    def draw_ns(self, cause: int, beside: int, at_ps: int) -> int:
        """The service of a read of that cause, with so many reads beside it, that begins now."""
        rows = self._rows.get(cause) or self._rows[int(OTHER)]
        _, *times = next((row for row in rows if beside <= row[0]), rows[-1])
        share = _mixed(self._seed * 0x9E3779B97F4A7C15 + at_ps // self._span_ps) / (MASK + 1)
        return max(1, round(times[int(share * len(times))] * self._mean_ns))


def _mixed(value: int) -> int:
    """SplitMix64 (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31
