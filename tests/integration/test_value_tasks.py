"""Do tasks on values behave alike over the driver and over messages: filled bit by bit, landing in
parts, held, late, and after the daemon is gone?"""

import contextlib
import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon, frozen, until
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError
from offstage.bindings.value_io import ValueIO, ValueTask
from offstage.host.endpoint import Endpoint

SIZE = 150 * LAYERS * PAYLOAD + 9  # more pieces of a layer than a message takes
SESSIONS = 4


@pytest.fixture(params=["shm", "zmq"])
def tier(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Daemon, ValueIO]]:
    more = {"limits__values": "64", "limits__context_tokens": "16384"}
    with daemon(tmp_path, storage__size="64MiB", **more) as running:
        control, fabric = Endpoint(
            running.endpoint, TENANT, request.param, runtime_dir=running.runtime_dir
        ).connect()
        io = fabric.value_io(SESSIONS, 1.0)
        yield running, io
        io.close()
        with contextlib.suppress(OffstageError):
            fabric.close()
            control.close()


def name(number: int) -> bytes:
    return bytes([number]) * 16


def data(seed: int, size: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def done(io: ValueIO, *tasks: ValueTask) -> list[int]:
    io.submit(tasks)
    left = set(tasks)
    while left:
        left -= set(io.run(5.0))
    return [one.rc for one in tasks]


def test_a_store_is_sent_as_it_is_filled(tier: tuple[Daemon, ValueIO]) -> None:
    """There is nothing to do while it waits for bytes, and no value before the commit; then it is
    whole. One that is dropped is none."""
    _, io = tier
    for number, kept in ((1, True), (2, False)):
        memory, source = np.zeros(SIZE, np.uint8), data(number)
        store = ValueTask("store", name(number), memory, filled=0)
        io.submit([store])
        for at in range(0, SIZE, SIZE // 3):
            memory[at : at + SIZE // 3] = source[at : at + SIZE // 3]
            io.fill(store, at + SIZE // 3)
            while io.busy:
                assert io.run(1.0) == []
            assert done(io, ValueTask("exist", name(number))) == [-errno.ENOENT]
        io.fill(store, SIZE, commit=True) if kept else io.drop(store)
        assert io.run(5.0) == [store] and io.count == 0
        assert store.rc == (0 if kept else -errno.ECANCELED)
        found = np.zeros(SIZE, np.uint8)
        rc = done(io, ValueTask("retrieve", name(number), found))[0]
        assert (rc == 0 and np.array_equal(found, source)) if kept else rc == -errno.ENOENT


def test_parts_land_in_order(tier: tuple[Daemon, ValueIO]) -> None:
    """What `landed` says is there before the end, and it grows; a length that is not the value's is
    refused, and told."""
    _, io = tier
    source, found = data(3), np.zeros(SIZE, np.uint8)
    assert done(io, ValueTask("store", name(3), source)) == [0]
    read = ValueTask("retrieve", name(3), found, parts=True)
    io.submit([read])
    seen = [0]
    while read not in io.run(5.0):
        assert io.busy and read.landed >= seen[-1]
        assert np.array_equal(found[: read.landed], source[: read.landed])
        seen.append(read.landed)
    assert len(set(seen)) > 2 and read.landed == SIZE and sum(read.ends) == 2 * 150 + 1
    short = np.zeros(SIZE - 1, np.uint8)
    wrong = ValueTask("retrieve", name(3), short), ValueTask("exist", name(3), length=1)
    assert done(io, *wrong) == [-errno.EMSGSIZE] * 2
    assert [one.value_length for one in wrong] == [SIZE] * 2
    part = ValueTask("retrieve", name(3), short, whole=False)
    assert done(io, part) == [0] and np.array_equal(short, source[:-1])


def test_holds_give_way_and_end(tier: tuple[Daemon, ValueIO]) -> None:
    """Half of the sessions stay held where tasks need some; a release, and time, end the rest."""
    _, io = tier
    small = [data(number, 700) for number in range(8)]
    stores = [ValueTask("store", name(number), one) for number, one in enumerate(small)]
    assert done(io, *stores) == [0] * 8
    holds = [ValueTask("retrieve", name(i), hold_s=600.0, chance=0.5) for i in range(SESSIONS)]
    assert done(io, *holds) == [0] * SESSIONS and io.held == SESSIONS
    assert done(io, *[ValueTask("store", name(i), one) for i, one in enumerate(small)]) == [0] * 8
    assert io.held >= SESSIONS // 2
    for number in range(SESSIONS):
        io.release(name(number))
    assert io.held == 0
    assert done(io, ValueTask("retrieve", name(1), hold_s=0.05)) == [0] and io.held == 1
    until(lambda: io.run(0.0) == [] and io.held == 0)


def test_a_hold_for_one_read_ends_with_it(tier: tuple[Daemon, ValueIO]) -> None:
    """A read or a store of its key ends it, and not one of another key; any other hold stays."""
    _, io = tier
    assert done(io, *[ValueTask("store", name(n), data(n, 700)) for n in (1, 2)]) == [0, 0]
    for once in (True, False):
        for verb in ("retrieve", "store"):
            for number in (1, 2):
                hold = ValueTask("retrieve", name(number), hold_s=600.0, once=once)
                assert done(io, hold) == [0]
            assert io.held == 2 and done(io, ValueTask(verb, name(1), data(1, 700))) == [0]
            assert io.held == (1 if once else 2), verb
            for number in (1, 2):
                io.release(name(number))
            assert io.held == 0


def test_any_thread_submits_while_one_serves(tier: tuple[Daemon, ValueIO]) -> None:
    """Tasks of several threads end once each; a serve with nothing to do ends where it is woken."""
    _, io = tier
    found = [np.zeros(700 + number, np.uint8) for number in range(24)]
    stored = [data(number, 700 + number) for number in range(24)]
    for verb, memory in (("store", stored), ("retrieve", found)):
        tasks = [ValueTask(verb, name(number), one) for number, one in enumerate(memory)]
        with ThreadPoolExecutor(3) as pool:
            for task in tasks:
                pool.submit(io.submit, [task])
            left = set(tasks)
            while left:
                ended = io.serve(60.0)
                assert left.issuperset(ended)
                left.difference_update(ended)
        assert [one.rc for one in tasks] == [0] * 24 and io.count == 0
    assert all(map(np.array_equal, found, stored))
    timer = threading.Timer(0.05, io.wake)
    timer.start()
    while timer.is_alive():
        assert io.serve(60.0) == []


def test_what_is_late_ends_and_a_lost_daemon_ends_all(tier: tuple[Daemon, ValueIO]) -> None:
    """A frozen daemon: reads and looks end at their deadline, and later everything does, with the
    loss as an error."""
    running, io = tier
    assert done(io, ValueTask("store", name(1), data(1))) == [0]
    found = np.zeros(SIZE, np.uint8)
    late = [
        ValueTask("retrieve", name(1), found, timeout_s=0.1),
        ValueTask("exist", name(1), timeout_s=0.1),
    ]
    with frozen(running):
        assert done(io, *late) == [-errno.ETIMEDOUT] * 2
        assert done(io, ValueTask("store", name(1), data(2))) == [-errno.EPIPE]
        with pytest.raises(OffstageError):
            io.run()
        assert not io.busy and done(io) == []
