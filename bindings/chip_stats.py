"""Figures of a chip's units and routes, and the error of a run that deadlocks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import RunFailed
from offstage.bindings.firmware import ffi, lib

__all__ = ["Deadlock", "Histogram", "RouteStats", "UnitStats", "counts_of"]


class Deadlock(RunFailed):
    """Requests are inside and nothing is scheduled. `units`: each waits for the next and the last
    for the first; or, where `cycle` is false, those in which requests wait for nothing."""

    def __init__(self, units: tuple[str, ...], cycle: bool, now_ps: int) -> None:
        self.units, self.cycle = units, cycle
        what = (
            f"deadlock: {' -> '.join((*units, units[0]))}"
            if cycle
            else f"nothing drains {', '.join(units)}"
        )
        super().__init__(what, f"at {now_ps} ps", "break the cycle, or give a queue more room")


@dataclass(frozen=True, eq=False)
class Histogram:
    """Times in ps, log-linear: a quantile is at most an eighth too large."""

    count: int
    sum_ps: int
    max_ps: int
    overflow: int
    counts: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, struct: Any) -> "Histogram":
        """Made from a `struct ofs_histogram` of any extension."""
        sums = int(struct.count), int(struct.sum), int(struct.max), int(struct.overflow)
        return cls(*sums, counts_of(struct.buckets))

    @property
    def mean_ps(self) -> float:
        """Exact; 0 of nothing."""
        return self.sum_ps / self.count if self.count else 0.0

    def quantile_ps(self, permille: int) -> int:
        """500 is the median."""
        struct: Any = ffi.new("struct ofs_histogram *")
        struct.count, struct.sum, struct.max = self.count, self.sum_ps, self.max_ps
        struct.overflow = self.overflow
        struct.buckets = self.counts.tolist()
        return int(lib.ofs_histogram_quantile(struct, permille))

    def buckets(self) -> list[tuple[int, int]]:
        """The buckets that are not empty: largest value in ps, count."""
        return [
            (int(lib.ofs_histogram_bucket_max(index)), int(count))
            for index, count in enumerate(self.counts)
            if count
        ]


@dataclass(frozen=True, eq=False)
class UnitStats:
    """What one unit did so far. `busy_ps` is of all its servers together, of a delay or a drive
    while anyone was inside; `area_ps` the integral of `present` over time. `wait` is from enter to
    begin, `time` from enter to leave. `blocked` found the next unit full and held this one for
    `blocked_ps`. `area_bins` and `busy_bins` are both integrals bin by bin of `Chip.bin_ps`."""

    name: str
    kind: str
    servers: int
    arrivals: int
    departures: int
    dropped: int
    busy_ps: int
    blocked: int
    blocked_ps: int
    bytes: int
    items: int
    hits: int
    misses: int
    evictions: int
    present: int
    waiting: int
    waiting_max: int
    area_ps: int
    wait: Histogram
    time: Histogram
    area_bins: npt.NDArray[np.uint64]
    busy_bins: npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class RouteStats:
    """Requests of one route that ended; `latency` is that of those that were not dropped."""

    ended: int
    dropped: int
    latency: Histogram


def counts_of(values: Any) -> npt.NDArray[np.uint64]:
    """An array of a C struct as one of numpy."""
    return np.array(list(values), np.uint64)
