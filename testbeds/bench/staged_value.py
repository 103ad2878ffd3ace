"""A staged value beside memcpy: 512 KiB out of the arena, checked, by one task of the driver.

The reference is numpy's copy of another value, out of an array of all values and into the same
memory, in turns with it. Values are read in random order; together they are larger than the caches.
"""

import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.keys import value_key
from offstage.bindings.value_io import ValueIO, ValueTask

__all__ = ["StagedValue", "staged_value"]

KIB, MIB = 1 << 10, 1 << 20
VALUE_BYTES, PIECE_BYTES, COUNT = 512 * KIB, 64 * KIB, 192
SLOTS = COUNT * (VALUE_BYTES // PIECE_BYTES + 1) * 5 // 4
PATIENCE_S = 10.0
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
        spin_ns=NEVER_NS,
    )
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 256, (COUNT, VALUE_BYTES), np.uint8)
    memory = np.zeros(VALUE_BYTES, np.uint8)
    with BareDevice(config) as device, device.driver() as driver:
        io = driver.value_io(1, PATIENCE_S)
        names = [value_key(bytes(16), number.to_bytes(2, "little")) for number in range(COUNT)]
        for number, value in enumerate(values):
            _move(io, "store", names[number], value)
        for number in range(COUNT):  # stages it
            _move(io, "retrieve", names[number], memory)
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
    """Each value once, and another one by memcpy: the medians."""
    order = draw.permutation(COUNT)
    ours, floor = np.zeros(COUNT), np.zeros(COUNT)
    for number in range(COUNT):
        start = time.perf_counter_ns()
        _move(io, "retrieve", names[order[number]], memory)
        between = time.perf_counter_ns()
        np.copyto(memory, values[order[number - COUNT // 2]])
        ours[number] = between - start
        floor[number] = time.perf_counter_ns() - between
    return float(np.median(ours)), float(np.median(floor))


def _move(io: ValueIO, verb: str, name: bytes, memory: NDArray[np.uint8]) -> None:
    task = ValueTask(verb, name, memory)
    io.submit([task])
    while io.count:
        io.run(PATIENCE_S)
    if task.rc:
        raise RunFailed(f"no {verb} of a value", "bench fabric", "see the errno", errno=-task.rc)
