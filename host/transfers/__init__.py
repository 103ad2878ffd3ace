"""Transfers: how fetched blocks go from landing rows to their places in a device's HBM pool.

A fetch lands in consecutive rows of pinned host memory; its blocks have arbitrary places in the
pool. The kinds below are equivalent; the fastest depends on machine, driver and block size. It is
chosen by measurement at start (`measure`), and `offstage doctor` shows it.

- memcpy: the CPU copies; the only one where the pool is host memory.
- scatter: one copy of all rows into device memory, then one scatter kernel (torch).
- batch: one call of the CUDA runtime that copies each row to its place, on a stream of its own;
  a call for each row where the runtime is older than 12.8.
- nixl: NIXL's agent writes the device's memory; gpudirect: the same, by an RDMA adapter alone.
- gather: one kernel that reads the pinned rows over the bus itself and writes their places (CuPy).

To add one: a class with the calls of `Transfer` and a line in `available`; the contract suite of
tests/contract/test_arrays.py then runs over it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["HostCopies", "Kind", "Transfer", "Wait"]

Wait = Callable[[], None]


class Transfer(Protocol):
    """Rows of one staging array to blocks of one storage, both `[n, block_bytes]`. One thread."""

    name: str

    def fence(self) -> Any:
        """What the device has been asked until now may read the blocks that are given away next;
        nothing that it is asked later does."""
        ...

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        """Begin to copy rows from `first` on to `places`, after what `fence` stands for and before
        whatever the device is asked from now on. Returns what waits until the rows are free."""
        ...


class HostCopies:
    """`Transfer` by the CPU, done when `move` returns: storage and staging are host memory."""

    name = "memcpy"

    def __init__(self, storage: Any, staging: Any) -> None:
        self._storage, self._staging = storage, staging

    def fence(self) -> None:
        return None

    def move(self, fence: Any, first: int, places: npt.NDArray[np.int64]) -> Wait:
        self._storage[places] = self._staging[first : first + len(places)]
        return lambda: None


@dataclass(frozen=True)
class Kind:
    """A kind of transfer on a device: how to open it, or why it is unavailable and the fix."""

    name: str
    open: Callable[[Any, Any], Transfer] | None
    reason: str = ""
