"""Does every fabric keep the one contract of `Fabric`? Every fetched byte is compared."""

import errno
import threading

import numpy as np
import pytest
from fabric_sides import BLOCKS, LAYER, PAYLOAD, SLOTS, Host

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.core import GUESS
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.firmware import lib


def test_miss_then_hit(host: Host) -> None:
    """A block first comes from the store after a wait; then it is staged."""
    assert not host.put(range(8)).any()
    first, _ = host.fetch([3, 1, 2])
    assert not first.rcs.any() and first.hit_count == 0 and first.stall_ns > 0
    assert set(first.ends) == {lib.OFS_END_COLD}
    second, _ = host.fetch([1, 2, 3])
    assert not second.rcs.any()
    if second.torn_count == 0:
        assert second.hit_count == 3 and second.stall_ns == 0
        assert set(second.ends) == {lib.OFS_END_RETAINED}
    assert host.fabric.stats()["puts"] == 8


def test_a_slot_is_remembered_and_forgotten(host: Host) -> None:
    """Over a network, a block that was read before is read without its directory entry; if its slot
    was reused, that is an ordinary miss."""
    if not isinstance(host.fabric, Driver):
        pytest.skip("messages have no slots: the driver beside the daemon remembers them")
    far = host.device.simulated or host.device.config.fabric != "shm"
    assert not host.put(range(BLOCKS)).any()
    for _ in range(3):
        assert not host.fetch([0, 1, 2, 3], timeout_ns=20_000_000_000)[0].rcs.any()
    stats = host.fabric.stats()
    assert (stats["remembered"] > 0) == far and stats["moved_on"] == 0
    for _ in range(2):  # three times what the arena holds: no slot keeps its block
        done, _ = host.fetch(list(range(BLOCKS)), timeout_ns=20_000_000_000)
        assert not done.rcs.any()
    assert (host.fabric.stats()["moved_on"] > 0) == far


def test_a_bench_of_reads_finds_every_block(host: Host) -> None:
    """Concurrent reads land in separate rows, so that each compares equal."""
    if not isinstance(host.fabric, Driver) or host.device.simulated:
        pytest.skip("the bench reads one-sidedly, in real time")
    assert not host.put(range(SLOTS)).any()
    for first in (0, 16):
        assert not host.fetch(list(range(first, first + 16)))[0].rcs.any()
    keys = np.ascontiguousarray(np.tile(host.session.keys[LAYER, :16], (3, 1)))
    assert host.fabric.bench_read(keys, 3, host.target(16)).all()


def test_guesses_are_read_before_their_layer_asks(host: Host) -> None:
    """Hinted blocks are present or in flight when demanded, by the device's own ledger; without the
    hint they would be cold. No call waits for a hint."""
    assert not host.put(range(8)).any()
    guesses = np.zeros(4, GUESS)
    guesses["layer"], guesses["ordinal"] = LAYER, range(4)
    guesses["probability"], guesses["cause"] = 65535, lib.OFS_CAUSE_LOOKAHEAD
    assert host.fabric.hint(host.session.number, guesses) == 4
    done, _ = host.fetch([0, 1, 2, 3, 4])
    assert not done.rcs.any()
    assert set(done.ends[:4]) <= {lib.OFS_END_LOOKAHEAD, lib.OFS_END_LATE}
    assert done.ends[4] == lib.OFS_END_COLD and host.fabric.stats()["guesses"] == 4


def test_a_block_nobody_wrote(host: Host) -> None:
    assert not host.put(range(2)).any()
    done, _ = host.fetch([0, 50, 1])
    assert done.rcs.tolist() == [0, -errno.ENOENT, 0]
    assert done.failed_count == 1


def test_rows_are_chosen_by_index_and_others_left_alone(host: Host) -> None:
    assert not host.put(range(4)).any()
    ordinals = np.array([2, 0], np.uint32)
    keys = np.ascontiguousarray(host.session.keys[LAYER, ordinals])
    target = host.target(6, 0x5A)
    done = host.fabric.fetch(
        FetchRequest(
            host.session.number,
            1,
            LAYER,
            ordinals,
            keys,
            target,
            target_index=np.array([5, 1], np.uint32),
        )
    )
    assert not done.rcs.any()
    assert np.array_equal(target[5], host.source[2]) and np.array_equal(target[1], host.source[0])
    assert (target[[0, 2, 3, 4]] == 0x5A).all()


def test_more_than_fits_a_command_or_the_arena(host: Host) -> None:
    """96 blocks pass a put window of 8, 16 demands a step and 32 slots."""
    assert not host.put(range(BLOCKS)).any()
    for _ in range(2):
        done, _ = host.fetch(list(range(BLOCKS)), timeout_ns=20_000_000_000)
        assert not done.rcs.any()


def test_short_blocks(host: Host) -> None:
    wanted = np.array([9], np.uint32)
    rcs = host.fabric.put(
        PutRequest(host.session.number, LAYER, wanted, host.source[9:10], length_bytes=100)
    )
    assert not rcs.any()
    target = host.target(1)
    keys = np.ascontiguousarray(host.session.keys[LAYER, wanted])
    done = host.fabric.fetch(FetchRequest(host.session.number, 1, LAYER, wanted, keys, target))
    assert done.rcs[0] == 0 and done.lengths[0] == 100
    assert np.array_equal(target[0, :100], host.source[9, :100])


def test_scores_alone_are_a_hint(host: Host) -> None:
    done, _ = host.fetch([], selected_count=5, scores=np.arange(BLOCKS, dtype=np.uint16))
    assert len(done.rcs) == 0


def test_limited_scores_are_fewer_bytes_on_every_fabric(host: Host) -> None:
    """The ledger counts the bytes that crossed the fabric: all scores without a limit, then those
    that the policy accepts, then all again."""
    scores = np.arange(300, 300 + BLOCKS, dtype=np.uint16)
    before = 0
    for limits, size in (
        ((0, 1, 16), 2 * BLOCKS),
        ((6, 1, 8), 6 * 3),
        ((0, 1, 8), BLOCKS),
        ((6, 1 << 20, 16), 0),
        ((0, 1, 16), 2 * BLOCKS),
    ):
        host.fabric.limit_scores(*limits)
        assert host.fetch([], selected_count=5, scores=scores)[0].failed_count == 0
        after = host.device.ledger().hint_bytes
        assert after - before == size, limits
        before = after


def test_a_session_of_another_host_is_refused(host: Host) -> None:
    ordinals = np.zeros(1, np.uint32)
    with pytest.raises(OffstageError):
        host.fabric.fetch(
            FetchRequest(
                7,
                1,
                LAYER,
                ordinals,
                np.ascontiguousarray(host.session.keys[LAYER, :1]),
                np.zeros((1, PAYLOAD), np.uint8),
            )
        )
    rcs = host.fabric.put(PutRequest(7, LAYER, ordinals, host.source[:1]))
    assert (rcs < 0).all()
    assert not host.put(range(1)).any()


def test_registered_memory_is_what_a_fetch_goes_into(host: Host) -> None:
    """A side that needs it refuses a target that was never registered, or no longer is."""
    assert not host.put(range(2)).any()
    ordinals = np.arange(2, dtype=np.uint32)
    keys = np.ascontiguousarray(host.session.keys[LAYER, :2])
    target = np.zeros((2, PAYLOAD), np.uint8)

    def fetch() -> None:
        done = host.fabric.fetch(
            FetchRequest(host.session.number, 1, LAYER, ordinals, keys, target)
        )
        assert not done.rcs.any() and np.array_equal(target, host.source[:2])

    host.fabric.register(target)
    fetch()
    host.fabric.unregister(target)
    if isinstance(host.fabric, Driver):
        with pytest.raises(OffstageError):
            host.fabric.unregister(target)
        with pytest.raises(OffstageError):
            host.fabric.register(target[:0])
    if host.device.simulated or host.device.config.fabric == "verbs":
        host.fabric.register(target[:1])  # the second row is not
        with pytest.raises(BadInput, match="not registered"):
            fetch()
    host.fabric.register(target)
    fetch()


def test_release_lets_go(host: Host) -> None:
    assert not host.put(range(4)).any()
    assert not host.fetch([0, 1])[0].rcs.any()
    host.fabric.release(host.session.number)
    assert not host.fetch([0, 1])[0].rcs.any()


def test_a_closed_port_is_said_so(host: Host) -> None:
    assert not host.put(range(2)).any()
    host.device.detach()
    with pytest.raises(RunFailed) as caught:
        host.fetch([0])
    assert "\n" not in str(caught.value) and caught.value.fix


def test_late_is_not_a_hit() -> None:
    """A demand for a block that a prefetch is reading waits, and ends as late."""
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=SLOTS,
        block_max=BLOCKS,
        demand_max=16,
        prefetchers=lib.OFS_PREFETCH_WINDOW,
    )
    with BareDevice(config, simulated=True) as device, device.driver() as driver:
        source = np.random.default_rng(1).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
        host = Host(device, driver, device.session(BLOCKS), source)
        assert not host.put(range(BLOCKS)).any()
        host.fetch([])  # a step of the layer: the window is prefetched from here on
        done, _ = host.fetch([BLOCKS - 2, BLOCKS - 3])
        assert set(done.ends) == {lib.OFS_END_LATE} and done.hit_count == 0 and done.stall_ns > 0
        assert not done.rcs.any()


def test_eviction_while_reading(live: BareDevice) -> None:
    """Three arenas full of blocks are read in rotation while the arena is dropped under them."""
    session = live.session(BLOCKS, select_blocks=16)
    source = np.random.default_rng(3).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
    stop = threading.Event()

    def drop() -> None:
        while not stop.wait(0.0002):
            live.reset()

    with live.driver() as driver:
        host = Host(live, driver, session, source)
        assert not host.put(range(BLOCKS)).any()
        thread = threading.Thread(target=drop)
        thread.start()
        try:
            came = 0
            for turn in range(60):
                first = turn * 16 % BLOCKS
                done, _ = host.fetch(list(range(first, first + 16)))
                came += np.count_nonzero(done.rcs == 0)
        finally:
            stop.set()
            thread.join()
        assert came == 60 * 16
