"""Values on a drive beside fio: stored and loaded past the page cache, in one run with it.

A device with O_DIRECT has its store in a file beside the one that the bench reads. Values move
piece by piece, each piece one record on the drive, whose queue is as deep as fio's; fio reads
records of that size out of the same file, and writes as many, in order, into another one that is
preallocated as a store's is. The sides take turns. Bytes are those that the drive moves. Every
value that is loaded was read from the drive, and has the bytes that were stored.
"""

import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.keys import value_key
from offstage.bindings.layouts import HIT_ENDS
from offstage.bindings.storage import Buffer
from offstage.bindings.value_io import ValueIO, ValueTask
from offstage.testbeds.bench.fio import FIO_SPARE_BYTES, fio_reads, fio_writes
from offstage.testbeds.bench.storage_result import Case, Moved, ValueFigures

__all__ = ["drive_values"]

KIB, MIB = 1 << 10, 1 << 20
VALUE_BYTES, PIECE_BYTES, TRAILER_BYTES = 512 * KIB, 128 * KIB, 4 * KIB
RECORD_BYTES = PIECE_BYTES + TRAILER_BYTES
PIECES = VALUE_BYTES // PIECE_BYTES
DEPTH = 32
IN_FLIGHT = 2 * DEPTH // PIECES  # one that begins or ends finds others on the drive
COUNT = 256
SLOTS = 4 * IN_FLIGHT * PIECES
SEGMENT_BYTES = 4 * MIB  # as a daemon has by default
PATIENCE_S = 30.0

Say = Callable[[str], None]


def drive_values(file: Path, rounds: int, seed: int, scale: float, say: Say) -> ValueFigures:
    """Measured, beside `file`, with a file of about 140 MB for each round, which is removed.
    RunFailed: a value could not be moved, or was not read from the drive."""
    count = max(2 * IN_FLIGHT, int(COUNT * scale))
    case = Case(RECORD_BYTES, DEPTH, count * PIECES)
    size_bytes = case.count * RECORD_BYTES
    buffer = Buffer(case.block_bytes * case.queue_depth + FIO_SPARE_BYTES, name="offstage-bench")
    store, other = (file.with_name(f"{file.name}.{name}") for name in ("values", "fio"))
    loads: list[tuple[float, float]] = []
    stores: list[tuple[float, float]] = []
    with _values(store, (rounds + 1) * count, seed) as ours:
        ours.moved("store", 0, count)
        ours.moved("retrieve", 0, count)
        for number in range(1, rounds + 1):
            taken: dict[bool, tuple[float, float]] = {}
            for is_ours in (True, False) if number % 2 else (False, True):
                taken[is_ours] = (
                    (
                        ours.moved("store", number * count, count),
                        ours.moved("retrieve", number * count, count),
                    )
                    if is_ours
                    else (
                        fio_writes(other, case, buffer, size_bytes),
                        fio_reads(
                            store, case, buffer, case.count, seed + number, size_bytes=size_bytes
                        ).bytes_per_s,
                    )
                )
            stores.append((taken[True][0], taken[False][0]))
            loads.append((taken[True][1], taken[False][1]))
    found = ValueFigures(
        value_bytes=VALUE_BYTES,
        record_bytes=RECORD_BYTES,
        queue_depth=case.queue_depth,
        count=count,
        load=_moved(loads),
        store=_moved(stores),
    )
    say(
        f"values of {VALUE_BYTES // KIB} KiB: loads {found.load.ours / 1e9:.2f} GB/s, "
        f"{found.load.ratio:.2f} of fio; stores {found.store.ours / 1e9:.2f} GB/s, "
        f"{found.store.ratio:.2f} of fio"
    )
    return found


def _moved(pairs: list[tuple[float, float]]) -> Moved:
    ratios = [ours / fio for ours, fio in pairs]
    return Moved(
        ours=statistics.median(ours for ours, _ in pairs),
        fio=statistics.median(fio for _, fio in pairs),
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
    )


class _Values:
    """Values of one device, several of which move at once."""

    def __init__(self, io: ValueIO, seed: int) -> None:
        self._io = io
        pages = np.frombuffer(mmap.mmap(-1, IN_FLIGHT * VALUE_BYTES), np.uint8)
        self._memory = pages.reshape(IN_FLIGHT, VALUE_BYTES)
        self._noise = np.random.default_rng(seed).integers(0, 256, VALUE_BYTES, np.uint8)
        self._memory[:] = self._noise

    def moved(self, verb: str, first: int, count: int) -> float:
        """The drive's bytes/s of `count` values, numbered from `first` on. Of what is loaded, the
        first and last words are compared as it comes, the bytes of the last ones afterwards."""
        free = list(range(IN_FLIGHT))
        flying: dict[ValueTask, tuple[int, int]] = {}
        begun = 0
        start = time.perf_counter()
        while begun < count or flying:
            batch = []
            while free and begun < count:
                place, number = free.pop(), first + begun
                if verb == "store":
                    self._mark(place, number)
                key = value_key(bytes(16), number.to_bytes(4, "little"))
                task = ValueTask(verb, key, self._memory[place])
                flying[task] = (place, number)
                batch.append(task)
                begun += 1
            self._io.submit(batch)
            for task in self._io.run(PATIENCE_S):
                place, number = flying.pop(task)
                self._check(task, place, number)
                free.append(place)
        taken_s = time.perf_counter() - start
        if any(not np.array_equal(one[8:-8], self._noise[8:-8]) for one in self._memory):
            raise RunFailed("a value came back with other bytes", "bench storage", "see the log")
        return count * PIECES * RECORD_BYTES / taken_s

    def _ends(self, place: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        words = self._memory[place].view(np.uint64)
        return words[:1], words[-1:]

    def _mark(self, place: int, number: int) -> None:
        for word in self._ends(place):
            word[:] = number

    def _check(self, task: ValueTask, place: int, number: int) -> None:
        if task.rc:
            raise RunFailed(
                f"no {task.verb} of a value", "bench storage", "see the errno", errno=-task.rc
            )
        if task.verb == "store":
            return
        if any(word[0] != number for word in self._ends(place)):
            raise RunFailed("a value came back with other bytes", "bench storage", "see the log")
        if sum(task.ends[:HIT_ENDS]) > 0:
            raise RunFailed("a value was staged before its load", "bench storage", "see the log")


@contextmanager
def _values(path: Path, count: int, seed: int) -> Iterator[_Values]:
    """A device whose store is a new file, removed at the end, and has room for `count` values."""
    config = BareConfig(
        payload_size_bytes=PIECE_BYTES,
        slot_count=SLOTS,
        layer_count=1,
        block_max=2 * count * PIECES,
        session_max=4 * IN_FLIGHT,
        backend="io_uring",
        path=str(path),
        direct=True,
        queue_depth=DEPTH,
        store_size_bytes=count * PIECES * RECORD_BYTES * 5 // 4 + 64 * MIB,
        segment_size_bytes=SEGMENT_BYTES,
        value_max=2 * count,
        entry_count=2 * IN_FLIGHT * PIECES,
        put_slot_count=IN_FLIGHT * PIECES,
    )
    try:
        with (
            BareDevice(config) as device,
            device.driver() as driver,
            closing(driver.value_io(2 * IN_FLIGHT, PATIENCE_S)) as io,
        ):
            yield _Values(io, seed)
    finally:
        path.unlink(missing_ok=True)
