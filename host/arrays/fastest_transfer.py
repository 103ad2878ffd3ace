"""Measures which transfer is fastest on a device, compared with one large copy of the same bytes.

Runs once for a device and a block size, before the first pool is made: some tens of milliseconds.
`python -m offstage.host.arrays.fastest_transfer DEVICE` prints the result as JSON, for `offstage
doctor`, in a separate process, since opening a CUDA device loads its libraries.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from offstage.bindings.errors import OffstageError
from offstage.host.arrays import Arrays
from offstage.host.transfers import HostCopies, Kind, Transfer
from offstage.host.transfers.available import kinds
from offstage.host.transfers.nixl import absent

__all__ = ["Measured", "chosen", "measure", "measure_numpy"]

BLOCKS, POOL_BLOCKS, REPEATS = 128, 512, 9
SHOWN_BLOCK_BYTES = 64 << 10
ROOF_BLOCKS, ROOF_BLOCKS_DEVICE = 512, 4096
"""Copied to measure a roof: several times what caches hold."""


@dataclass(frozen=True)
class Measured:
    """One kind: bytes a second, its share of one large copy; or why it was not measured."""

    name: str
    bytes_per_s: float = 0.0
    share: float = 0.0
    reason: str = ""


def measure(device: Any, block_bytes: int = SHOWN_BLOCK_BYTES) -> list[Measured]:
    """Every kind on a torch device. Places are drawn; rows are read in their order."""
    import torch

    cuda = device.type == "cuda"
    storage = torch.zeros((POOL_BLOCKS, block_bytes), dtype=torch.uint8, device=device)
    staging = torch.ones((BLOCKS, block_bytes), dtype=torch.uint8, pin_memory=cuda)

    def finish() -> None:
        if cuda:
            torch.cuda.synchronize(device)

    roof = _median(lambda: storage[:BLOCKS].copy_(staging, non_blocking=True), finish)
    return [_of_kind(kind, storage, staging, roof, finish) for kind in kinds(device)]


def measure_numpy(block_bytes: int = SHOWN_BLOCK_BYTES) -> list[Measured]:
    """The CPU's own, where torch is not needed."""
    storage = np.zeros((POOL_BLOCKS, block_bytes), np.uint8)
    staging = np.ones((BLOCKS, block_bytes), np.uint8)
    roof = _median(lambda: np.copyto(storage[:BLOCKS], staging), _nothing)
    there = Kind("memcpy", HostCopies), *absent()
    return [_of_kind(kind, storage, staging, roof, _nothing) for kind in there]


def copy_rate(arrays: Arrays) -> float:
    """Bytes read and written in a second by a copy inside the memory that the arrays lie in: the
    roof of whatever reads them there."""
    half = ROOF_BLOCKS if arrays.device == "cpu" else ROOF_BLOCKS_DEVICE
    storage = arrays.memory(2 * half, SHOWN_BLOCK_BYTES, 1).storage
    stamps, times = arrays.stamps(), []
    for _ in range(REPEATS + 2):
        begun = time.perf_counter_ns() if stamps is None else stamps.mark()
        storage[half:] = storage[:half]
        ended = time.perf_counter_ns() if stamps is None else stamps.mark()
        times.append(ended - begun if stamps is None else stamps.ns(ended) - stamps.ns(begun))
    return 2e9 * half * SHOWN_BLOCK_BYTES / statistics.median(times[2:])


@functools.cache
def chosen(device: Any, block_bytes: int) -> Kind:
    """The fastest kind for blocks of this size; the first where none could be measured."""
    found = max(measure(device, block_bytes), key=lambda one: one.bytes_per_s)
    there = kinds(device)
    return next((kind for kind in there if kind.name == found.name and kind.open), there[0])


def _nothing() -> None:
    """Copies of the CPU are over when they return."""


def _of_kind(
    kind: Kind, storage: Any, staging: Any, roof_s: float, finish: Callable[[], None]
) -> Measured:
    """A kind that cannot be opened or fails is not chosen, and says why."""
    if kind.open is None:
        return Measured(kind.name, reason=kind.reason)
    places = np.random.default_rng(1).permutation(POOL_BLOCKS)[:BLOCKS].astype(np.int64)
    try:
        transfer: Transfer = kind.open(storage, staging)
        seconds = _median(lambda: transfer.move(transfer.fence(), 0, places), finish)
    except (OffstageError, RuntimeError, AssertionError, ImportError, OSError) as error:
        return Measured(kind.name, reason=(str(error).splitlines() or ["failed"])[0])
    size_bytes = BLOCKS * int(staging.shape[1])
    return Measured(kind.name, size_bytes / seconds, roof_s / seconds)


def _median(call: Callable[[], object], finish: Callable[[], None]) -> float:
    """Seconds of one call until it is over; the first two are for compilers and page tables."""
    times = []
    for _ in range(REPEATS + 2):
        finish()
        begun = time.perf_counter()
        call()
        finish()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def _main(device: str) -> None:
    if device == "cpu":
        measured = measure_numpy()
    else:
        import torch

        measured = measure(torch.device(device))
    print(json.dumps([asdict(one) for one in measured]))


if __name__ == "__main__":
    _main(sys.argv[1])
