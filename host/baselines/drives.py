"""Drives: read and write a baseline's blocks between its file and host memory.

A drive owns `rows`, the memory that it reads into and writes from; the caller assigns the rows. One
thread, no order between I/Os. To add one: the calls of `Drive`, and the suite of
tests/unit/host/test_baselines.py over it.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.storage import READ, WRITE, Buffer, Done, Storage, StorageConfig

__all__ = ["Drive", "FirmwareDrive"]


class Drive(Protocol):
    """One open file.

    name: what reads it, for reports; warning: what the reader of figures must know, or "".
    depth: I/Os that can be on their way. rows: uint8 `[row_count, stride]`, where I/Os begin and
    end."""

    name: str
    warning: str
    depth: int
    rows: NDArray[np.uint8]

    def read(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        """Begin to read a stride of the file into each row; how many, in order, were taken."""
        ...

    def write(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        """Begin to write each row; how many, in order, were taken."""
        ...

    def poll(self, timeout_ns: int = 0) -> list[Done]:
        """What has ended, `user` its row; waits up to `timeout_ns` for the first."""
        ...

    def stats(self) -> dict[str, int]:
        """The storage's counters; of a drive that keeps none, nothing."""
        ...

    def close(self) -> None:
        """Only when nothing is in flight. Twice does nothing."""
        ...


class FirmwareDrive:
    """The firmware's storage: io_uring on a real drive, or a model of one. It bypasses the page
    cache where `config.direct` says so, or `warning` says that it cannot."""

    def __init__(self, config: StorageConfig, row_count: int, stride_bytes: int) -> None:
        self._storage = Storage(config)
        self._buffer = Buffer(row_count * stride_bytes)
        self._storage.register(self._buffer)
        self.rows = np.frombuffer(self._buffer.view, np.uint8).reshape(row_count, stride_bytes)
        self.name, self.warning = self._storage.name, self._storage.warning
        self.depth = self._storage.queue_depth_max

    def read(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._submit(READ, rows, offsets)

    def write(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._submit(WRITE, rows, offsets)

    def poll(self, timeout_ns: int = 0) -> list[Done]:
        return self._storage.poll(timeout_ns)

    def stats(self) -> dict[str, int]:
        return self._storage.stats()

    def close(self) -> None:
        self._storage.close()

    def _submit(self, op: int, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        stride = self.rows.shape[1]
        return self._storage.submit_rows(op, rows, offsets, self._buffer, stride)
