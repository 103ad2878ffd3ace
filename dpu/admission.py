"""Admission by wear: what is written must be read again often enough to be worth it.

Model: once an hour, what went to the drive for each useful hit of the hour is held against the
most that a hit is worth (`Thresholds.written_per_hit_max`). Above it one session more must have
come before a chunk is written, below a quarter of it one fewer: that a chunk comes again saves
more than half of the writes and about half of the hits, so the two do not alternate. An hour in
which nearly nothing was written says nothing, and one fewer must have come too. One thread owns
this, the daemon's loop; it begins anew at each start.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ByWear"]

HOUR_S = 3600.0
LEVEL_MAX = 2
RECORDS_MIN = 1024


class ByWear:
    """Of one daemon. `level`: how many sessions must have come before."""

    def __init__(self, record_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self.level = 0
        self._least_bytes, self._clock = RECORDS_MIN * record_bytes, clock
        self._begun: tuple[float, int, int] | None = None

    def look(self, wear: Mapping[str, Any], written_per_hit_max: int) -> None:
        """`wear`: the sums of `dpu/wear.py`; 0 bytes a hit: nobody knows what it is worth."""
        now = self._clock(), int(wear["drive_bytes"]), int(wear["hits"])
        if not written_per_hit_max:
            self.level, self._begun = 0, now
        elif self._begun is None:
            self._begun = now
        elif now[0] - self._begun[0] >= HOUR_S:
            written, hits = now[1] - self._begun[1], now[2] - self._begun[2]
            self._begun = now
            if written > max(written_per_hit_max * hits, self._least_bytes):
                self.level = min(self.level + 1, LEVEL_MAX)
            elif written <= max(written_per_hit_max * hits // 4, self._least_bytes):
                self.level = max(self.level - 1, 0)
