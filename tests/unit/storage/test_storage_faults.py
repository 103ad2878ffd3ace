"""Do the simulated side's faults have exactly the documented effects? Virtual time, seeded."""

import errno
from typing import Any

import pytest

from offstage.bindings.storage import (
    READ,
    SYNC,
    WRITE,
    Buffer,
    Clock,
    Done,
    Faults,
    Io,
    Storage,
    StorageConfig,
    preset,
)

ALWAYS = 1_000_000
LBA = 512
NEVER_NS = 2**64 - 1


def sim(faults: Faults | None = None, seed: int = 1, **more: Any) -> Storage:
    config = StorageConfig(
        "sim",
        size_bytes=1 << 20,
        queue_depth_max=64,
        nvme=preset("gen5-tlc").params,
        seed=seed,
        faults=faults or Faults(),
        **more,
    )
    return Storage(config, Clock(simulated=True))


def filled(byte: int, size: int = 8192) -> Buffer:
    buffer = Buffer(size)
    buffer.view[:] = bytes([byte]) * size
    return buffer


def end_of(storage: Storage, io: Io) -> int:
    done = storage.run([io])
    assert len(done) == 1
    return done[0].result


def blocks(buffer: Buffer) -> list[set[int]]:
    return [set(buffer.view[at : at + LBA]) for at in range(0, buffer.size_bytes, LBA)]


def test_nothing_moves_before_its_time() -> None:
    """A read is invisible one nanosecond before it is due, and complete when it is due."""
    with sim() as storage:
        assert end_of(storage, Io(WRITE, 1, 0, 8192, filled(7))) == 8192
        buffer = filled(0)
        assert storage.submit([Io(READ, 2, 0, 8192, buffer)]) == 1
        due_ns = storage.due_ns
        assert due_ns >= storage.clock.now_ns() + 58_000  # firmware and tR of the drive
        storage.clock.advance_to(due_ns - 1)
        assert storage.poll() == [] and set(buffer.view) == {0}
        storage.clock.advance_to(due_ns)
        assert storage.poll() == [Done(2, 8192)] and set(buffer.view) == {7}
        assert storage.due_ns == NEVER_NS


def test_completions_come_in_the_order_of_time() -> None:
    """A write overtakes the read before it, and poll keeps time order over one long jump."""
    with sim() as storage:
        storage.submit([Io(READ, 1, 0, 8192, filled(0)), Io(WRITE, 2, 8192, LBA, filled(0))])
        storage.clock.advance_to(10**9)
        assert [done.user for done in storage.poll()] == [2, 1]


def test_eio_moves_nothing() -> None:
    """A failed write leaves the medium unchanged, and a failed read the buffer."""
    with sim(Faults(eio=ALWAYS)) as storage:
        buffer = filled(9)
        assert end_of(storage, Io(WRITE, 1, 0, 8192, buffer)) == -errno.EIO
        assert end_of(storage, Io(READ, 2, 0, 8192, buffer)) == -errno.EIO
        assert end_of(storage, Io(SYNC, 3)) == -errno.EIO
        assert set(buffer.view) == {9}
        assert storage.stats()["errors"] == 3 and storage.stats()["reads"] == 0


def test_short_moves_a_prefix_and_says_eio() -> None:
    """A short read is never reported as a complete one."""
    with sim(Faults(short=ALWAYS)) as storage:
        buffer = filled(9)
        assert end_of(storage, Io(READ, 1, 0, 8192, buffer)) == -errno.EIO
        assert blocks(buffer) == [{0}] * 8 + [{9}] * 8


def test_corrupt_flips_one_byte_of_the_read_only() -> None:
    """A corrupt read succeeds with exactly one wrong byte, at a random offset."""
    offsets = set()
    with sim(Faults(corrupt=ALWAYS)) as storage:
        assert end_of(storage, Io(WRITE, 1, 0, 8192, filled(7))) == 8192
        buffer = filled(0, LBA)
        for user in range(2000):
            assert end_of(storage, Io(READ, user, 0, LBA, buffer)) == LBA
            wrong = [at for at, byte in enumerate(buffer.view) if byte != 7]
            assert len(wrong) == 1
            offsets.add(wrong[0])
    assert len(offsets) > LBA * 0.9


def test_a_torn_write_leaves_whole_blocks_old_or_new() -> None:
    """A torn write mixes whole old and new blocks, and never stores all new data."""
    patterns = set()
    for seed in range(30):
        with sim(Faults(torn=ALWAYS), seed) as storage:
            assert end_of(storage, Io(WRITE, 1, 0, 8192, filled(7))) == -errno.EIO
            buffer = filled(1)
            assert end_of(storage, Io(READ, 2, 0, 8192, buffer)) == 8192
            found = blocks(buffer)
            assert all(block in ({0}, {7}) for block in found) and {0} in found
            patterns.add(tuple(block == {7} for block in found))
            assert end_of(storage, Io(WRITE, 3, 0, LBA, filled(9))) == -errno.EIO
            assert end_of(storage, Io(READ, 4, 0, LBA, buffer)) == LBA
            assert blocks(buffer)[0] == found[0]  # a single block is never torn: it stays old
    assert len(patterns) > 20


def test_a_hung_io_ends_only_when_unhung() -> None:
    """A hung I/O keeps its queue entry until it is released, and then ends with -ETIMEDOUT."""
    with sim(Faults(hang=ALWAYS)) as storage:
        buffer = filled(9)
        storage.submit([Io(READ, 1, 0, 8192, buffer), Io(WRITE, 2, 0, 8192, buffer)])
        storage.clock.advance_to(10**15)
        assert storage.poll() == [] and storage.due_ns == NEVER_NS
        assert storage.stats()["in_flight"] == 2
        storage.unhang()
        done = storage.poll()
        assert {end.user: end.result for end in done} == dict.fromkeys((1, 2), -errno.ETIMEDOUT)
        assert set(buffer.view) == {9} and storage.stats()["in_flight"] == 0


def test_a_device_that_stops_answering() -> None:
    """I/Os that fell due during a hang time out; later ones complete."""
    with sim() as storage:
        storage.submit([Io(READ, 1, 0, LBA, filled(0))])
        storage.hang()
        storage.clock.advance_to(10**9)
        assert storage.poll() == [] and storage.due_ns == NEVER_NS
        storage.submit([Io(READ, 2, 0, LBA, filled(0))])
        storage.unhang()
        assert storage.poll() == [Done(1, -errno.ETIMEDOUT)]
        assert storage.drain() == [Done(2, LBA)]


def outcomes(seed: int) -> list[tuple[int, int]]:
    faults = Faults(eio=50_000, short=50_000, torn=50_000, corrupt=50_000)
    with sim(faults, seed) as storage:
        buffer = filled(7)
        ios = [Io((READ, WRITE, SYNC)[i % 3], i, 0, 8192 * (i % 3 < 2), buffer) for i in range(900)]
        return [(end.user, end.result) for end in storage.run(ios)]


def test_a_seed_repeats_a_run_and_rates_are_kept() -> None:
    """A run depends on its seed alone, and each fault is about as frequent as configured."""
    first = outcomes(5)
    assert first == outcomes(5) and first != outcomes(6)
    failed = [user for user, result in first if result == -errno.EIO]
    reads = sum(user % 3 == 0 for user in failed)
    syncs = sum(user % 3 == 2 for user in failed)
    # Reads fail by eio and short (10 %), syncs by eio only (5 %), of 300 each; 5 sigma wide.
    assert reads == pytest.approx(30, abs=26)
    assert syncs == pytest.approx(15, abs=14)
