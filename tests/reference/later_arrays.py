"""A device that does its work as late as it may: blocks in numpy behind staging rows.

Commits wait in a queue until the blocks are read or the rows are needed again, and copy the content
that the rows have then. Code that reads the blocks without a commit, writes rows that it does not
own, or confuses `landing` with `storage` gets wrong bytes here every time; on a GPU only now and
then.
"""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays.numpy_arrays import NumpyArrays
from offstage.host.arrays.staging import StagingRing

UNWRITTEN = 0xEE


class LaterMemory:
    """The `BlockMemory` of this device."""

    def __init__(self, blocks: int, block_bytes: int, rows: int) -> None:
        self._blocks = np.zeros((blocks, block_bytes), np.uint8)
        self._ring = StagingRing(rows)
        self._waiting: deque[tuple[Any, Any]] = deque()
        self.landing = np.full((rows, block_bytes), UNWRITTEN, np.uint8)

    @property
    def storage(self) -> npt.NDArray[np.uint8]:
        self._catch_up()
        return self._blocks

    def _catch_up(self) -> None:
        while self._waiting:
            indices, rows = self._waiting.popleft()
            self._blocks[indices] = self.landing[rows]

    def land(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32] | None:
        if indices.size == 0:
            return np.empty(0, np.uint32)
        first = self._ring.take(indices.size)
        if first is None:
            return None
        self.landing[first : first + indices.size] = UNWRITTEN
        return np.arange(first, first + indices.size, dtype=np.uint32)

    def commit(self, indices: npt.NDArray[np.int32], rows: npt.NDArray[np.uint32]) -> None:
        if indices.size:
            self._waiting.append((indices.copy(), rows.copy()))
            self._ring.commit(int(rows[0]), self._catch_up)

    def write(self, indices: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        self.storage[indices, : content.shape[1]] = content

    def read(self, indices: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        return self.storage[indices]


class LaterArrays(NumpyArrays):
    """The `Arrays` of this device."""

    device = "later"

    def memory(self, blocks: int, block_bytes: int, rows: int) -> Any:
        return LaterMemory(blocks, block_bytes, rows)
