"""A staged value beside memcpy: 512 KiB out of the arena, checked, by one task of the driver.

The reference is numpy's copy of another value, out of pages like the arena's and into the same
memory, in turns with it. Values are read in random order; together they
are larger than the caches.
"""

import mmap
import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.keys import value_key
from offstage.bindings.layouts import HIT_ENDS, PREFETCHERS
from offstage.bindings.value_io import ValueIO, ValueTask

__all__ = ["StagedValue", "staged_value"]

KIB, MIB = 1 << 10, 1 << 20
VALUE_BYTES, PIECE_BYTES, COUNT = 512 * KIB, 64 * KIB, 192
SLOTS = COUNT * (VALUE_BYTES // PIECE_BYTES + 1) * 5 // 4
PATIENCE_S = 10.0
LEASE_S, DUE_S = 3_600.0, 0.1
ALL = sum(PREFETCHERS.values())
NEVER_NS = (1 << 64) - 1  # the reactor spins, as beside a busy engine


class StagedValue(msgspec.Struct, frozen=True):
    """A retrieve and memcpy of one value: ns, medians over the rounds, and the median ratio."""

    value_bytes: int
    piece_bytes: int
    retrieve_ns: float
    memcpy_ns: float
    ratio: float


def staged_value(rounds: int, seed: int, say: Callable[[str], None]) -> StagedValue:
    """Measured. RunFailed if a value cannot be stored, or not be read whole."""
    config = BareConfig(
        payload_size_bytes=PIECE_BYTES,
        slot_count=SLOTS,
        layer_count=1,
        block_max=SLOTS,
        backend="emulated",
        store_size_bytes=4 * COUNT * VALUE_BYTES,
        value_max=2 * COUNT,
        prefetchers=ALL,
        session_max=COUNT + 8,  # each lease is one
        spin_ns=NEVER_NS,
    )
    draw = np.random.default_rng(seed)
    # Pages, since memcpy into unaligned memory takes twice as long.
    pages = np.frombuffer(mmap.mmap(-1, (COUNT + 1) * VALUE_BYTES), np.uint8)
    memory, values = pages[:VALUE_BYTES], pages[VALUE_BYTES:].reshape(COUNT, VALUE_BYTES)
    values[:] = draw.integers(0, 256, values.shape, np.uint8)
    with BareDevice(config) as device, device.driver() as driver:
        io = driver.value_io(COUNT + 1, PATIENCE_S)
        names = [value_key(bytes(16), number.to_bytes(2, "little")) for number in range(COUNT)]
        for number, value in enumerate(values):
            _end(io, ValueTask("store", names[number], value))
        for name in names:  # and is kept, as an engine's look-up keeps it
            _end(io, ValueTask("retrieve", name, hold_s=LEASE_S, due_s=DUE_S, chance=1.0))
        for number in range(COUNT):
            _end(io, ValueTask("retrieve", names[number], memory))
            if not np.array_equal(memory, values[number]):
                raise RunFailed("a value came back with other bytes", "bench fabric", "see the log")
        taken = [_round(io, names, values, memory, draw) for _ in range(rounds)]
    ours, floor = (statistics.median(column) for column in zip(*taken, strict=True))
    ratio = statistics.median(a / b for a, b in taken)
    say(
        f"staged value of {VALUE_BYTES // KIB} KiB: {ours / 1e3:.1f} us, memcpy "
        f"{floor / 1e3:.1f} us, {ratio:.2f}"
    )
    return StagedValue(VALUE_BYTES, PIECE_BYTES, ours, floor, ratio)


def _round(
    io: ValueIO,
    names: list[bytes],
    values: NDArray[np.uint8],
    memory: NDArray[np.uint8],
    draw: np.random.Generator,
) -> tuple[float, float]:
    """Each value once, and another one by memcpy: the medians. RunFailed if one was not staged."""
    order = draw.permutation(COUNT)
    ours, floor = np.zeros(COUNT), np.zeros(COUNT)
    for number in range(COUNT):
        task = ValueTask("retrieve", names[order[number]], memory)
        start = time.perf_counter_ns()
        _end(io, task)
        between = time.perf_counter_ns()
        np.copyto(memory, values[order[number - COUNT // 2]])
        floor[number] = time.perf_counter_ns() - between
        ours[number] = between - start
        if sum(task.ends[:HIT_ENDS]) < VALUE_BYTES // PIECE_BYTES:
            raise RunFailed("a value was not staged", "bench fabric", "run it by itself")
    return float(np.median(ours)), float(np.median(floor))


def _end(io: ValueIO, task: ValueTask) -> None:
    """Submit a task, and wait for its end."""
    io.submit([task])
    while task not in io.run(PATIENCE_S):
        pass
    if task.rc:
        raise RunFailed(
            f"no {task.verb} of a value", "bench fabric", "see the errno", errno=-task.rc
        )
