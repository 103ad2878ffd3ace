"""Where a session is cut into shards: the first is short, each next one ends twice as far out.

Sessions share their beginnings. With shards of equal length, a shared beginning and the private
part after it in the same shard have one home; with doubling shards the beginning is a separate
shard, and the rest is placed elsewhere. A prefix of n shards' length costs about
log2(most / first) shards more; docs/decisions/pod.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ShardGrid"]


@dataclass(frozen=True)
class ShardGrid:
    """The same for all sessions of a pod. In whatever unit it is made of: chunks, or blocks."""

    most: int
    """The longest shard."""
    first: int = 0
    """The first one; 0, or no shorter than `most`: all are equal."""

    def start(self, number: int) -> int:
        """Where this shard begins."""
        ramp, end = self._ramp
        return ramp[number] if number < len(ramp) else end + (number - len(ramp)) * self.most

    def size(self, number: int) -> int:
        """How long it is."""
        return self.start(number + 1) - self.start(number)

    def numbers(self, ordinals: NDArray[np.integer]) -> NDArray[np.int64]:
        """The shard of each."""
        ramp, end = self._ramp
        ordinals = ordinals.astype(np.int64)
        doubling = np.searchsorted(ramp, ordinals, side="right") - 1
        equal = len(ramp) + (ordinals - end) // self.most
        return np.where(ordinals < end, doubling, equal)

    def starts(self, length: int) -> NDArray[np.int64]:
        """Where shards begin in a prefix of that length, at least one."""
        return np.array([self.start(n) for n in range(self.count(length))], np.int64)

    def count(self, length: int) -> int:
        """How many there are in it."""
        return int(self.numbers(np.array([max(length, 1) - 1]))[0]) + 1

    @property
    def _ramp(self) -> tuple[list[int], int]:
        """The starts of those before the length is `most`, and where that begins."""
        starts, end = [0], min(self.first, self.most) or self.most
        while end < self.most:
            starts.append(end)
            end += end
        return starts, end
