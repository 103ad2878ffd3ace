"""The batch transfer: each row is copied to its place by the copy engine, without a kernel.

It uses a separate stream, so that copies overlap with attention. Nothing is staged on the device:
the copy waits for the fence, which is older than the running kernel, and the compute stream waits
for the copy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.transfers import Wait
from offstage.host.transfers.runtime import Runtime

__all__ = ["BatchCopies"]


class BatchCopies:
    """`Transfer` over a `Runtime`. `compute` names the stream that kernels are asked on, now."""

    name = "batch"

    def __init__(
        self,
        runtime: Runtime,
        compute: Callable[[], int],
        storage_address: int,
        staging_address: int,
        block_bytes: int,
    ) -> None:
        self._runtime, self._compute = runtime, compute
        self._storage, self._staging = storage_address, staging_address
        self._block_bytes = block_bytes
        self._stream = runtime.stream()

    def fence(self) -> Any:
        return self._runtime.record(self._compute())

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        rows = first + np.arange(len(places))
        targets = (self._storage + places * self._block_bytes).astype(np.uint64)
        sources = (self._staging + rows * self._block_bytes).astype(np.uint64)
        self._runtime.wait(self._stream, fence)
        self._runtime.copy(targets, sources, self._block_bytes, self._stream)
        done = self._runtime.record(self._stream)
        self._runtime.wait(self._compute(), done)
        return lambda: self._runtime.synchronize(done)
