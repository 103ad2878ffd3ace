"""Landing rows apart from the blocks: a ring of runs, released in the order taken.

A fetch gets one run of consecutive rows, so that its blocks go to the device in one copy. Pure
bookkeeping, one thread: the caller makes the copies and says when a copy has left its rows.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["StagingRing"]

Wait = Callable[[], None]


@dataclass
class _Run:
    first: int
    count: int
    wait: Wait | None = None  # returns when the copy has left the rows; None: not committed


class StagingRing:
    """Runs of `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._runs: deque[_Run] = deque()  # oldest first
        self._next = 0

    def take(self, count: int) -> int | None:
        """The first of `count` consecutive rows, or None where the ring, or what runs that are not
        committed leave of it, is too small. Waits for copies where they are in the way."""
        assert count > 0, "an empty run"
        while (first := self._room(count)) is None:
            wait = self._runs[0].wait if self._runs else None
            if wait is None:
                return None
            wait()
            self._runs.popleft()
        self._runs.append(_Run(first, count))
        self._next = first + count
        return first

    def land(self, count: int) -> npt.NDArray[np.uint32] | None:
        """The rows of `take`, none for a count of 0."""
        if count == 0:
            return np.empty(0, np.uint32)
        first = self.take(count)
        return None if first is None else np.arange(first, first + count, dtype=np.uint32)

    def commit(self, first: int, wait: Wait) -> None:
        """The run that begins at `first` is being copied; `wait` returns when it no longer is."""
        for run in self._runs:
            if run.first == first and run.wait is None:
                run.wait = wait
                return
        raise AssertionError(f"no run of rows begins at row {first}")

    def _room(self, count: int) -> int | None:
        """Where a run of `count` fits now: behind the newest, or at the front of the ring."""
        if not self._runs:
            return 0 if count <= self.rows else None
        oldest = self._runs[0].first
        if self._next <= oldest:  # the newest run stands in front of the oldest
            return self._next if self._next + count <= oldest else None
        if self._next + count <= self.rows:
            return self._next
        return 0 if count <= oldest else None
