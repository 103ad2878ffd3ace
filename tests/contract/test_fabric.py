"""Does every fabric keep the one contract of `host.fabrics.Fabric`?

shm and memory, and verbs and nixl where they are there, run over a live device, sim over one in
virtual time with seeded faults of the host's end or of the port, zmq over a live device behind the
daemon's own proxy. A new fabric is one line in SIDES. What came is compared byte for byte.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice, BareSession
from offstage.bindings.core import GUESS
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest
from offstage.bindings.firmware import lib
from offstage.dpu import protocol as p
from offstage.dpu.log import Log
from offstage.dpu.zmq_fabric import ZmqFabric
from offstage.host.fabrics import FABRICS, Fabric
from offstage.host.fabrics.zmq import ZmqDriver

PAYLOAD = 4096
BLOCKS = 96
SLOTS = 32
LAYER = 1
FAULTS = {"delay_ns_max": 30_000, "torn_per_million": 100_000, "flip_per_million": 5_000}


@dataclass
class Host:
    """One attached host, the device it stands on, and a session with stored blocks."""

    device: BareDevice
    fabric: Fabric
    session: BareSession
    source: NDArray[np.uint8]
    step: int = 0

    def fetch(self, ordinals: list[int], **more: Any) -> tuple[Any, NDArray[np.uint8]]:
        wanted = np.array(ordinals, np.uint32)
        target = self.target(len(ordinals))
        self.step += 1
        keys = np.ascontiguousarray(self.session.keys[LAYER, wanted])
        done = self.fabric.fetch(
            FetchRequest(self.session.number, self.step, LAYER, wanted, keys, target, **more)
        )
        for i, ordinal in enumerate(ordinals):
            if done.rcs[i] == 0:
                assert done.lengths[i] == PAYLOAD
                assert np.array_equal(target[i], self.source[ordinal])
            else:
                assert done.ends[i] == 255
        assert done.failed_count == np.count_nonzero(done.rcs)
        self.fabric.unregister(target)
        return done, target

    def target(self, count: int, fill: int = 0xA5) -> NDArray[np.uint8]:
        """Rows for `count` blocks, registered with the fabric."""
        target = np.full((max(count, 1), PAYLOAD), fill, np.uint8)
        self.fabric.register(target)
        return target

    def begin(self, ordinals: list[int], **more: Any) -> tuple[Fetch, NDArray[np.uint8]]:
        wanted = np.array(ordinals, np.uint32)
        target = self.target(len(ordinals))
        keys = np.ascontiguousarray(self.session.keys[LAYER, wanted])
        fetch = self.fabric.fetch_begin(
            FetchRequest(self.session.number, self.step, LAYER, wanted, keys, target, **more)
        )
        return fetch, target

    def put(self, ordinals: range) -> NDArray[np.int32]:
        wanted = np.arange(ordinals.start, ordinals.stop, dtype=np.uint32)
        return self.fabric.put(PutRequest(self.session.number, LAYER, wanted, self.source[wanted]))


def open_driver(device: BareDevice) -> Iterator[Fabric]:
    with device.driver() as driver:
        yield driver


def open_sim(device: BareDevice) -> Iterator[Fabric]:
    fabric = FABRICS["sim"](device)
    yield fabric
    fabric.close()


def open_sim_with_faults(device: BareDevice) -> Iterator[Fabric]:
    with device.driver(**FAULTS) as driver:
        yield driver


def open_zmq(device: BareDevice) -> Iterator[Fabric]:
    """The daemon's proxy and our client, over TCP on the loopback."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    proxy = ZmqFabric(context, "tcp://127.0.0.1:*", 1 << 20, Log("error"))
    proxy.start()
    ticket = b"\x01" * 16
    proxy.admit(ticket, device.attachment.duplicate())
    socket = context.socket(zmq.DEALER)
    socket.connect(proxy.endpoint)
    attached = p.Attached(
        fabric="zmq",
        token=ticket.hex(),
        endpoint=proxy.endpoint,
        payload_size_bytes=PAYLOAD,
        demand_max=device.config.demand_max,
    )
    with ZmqDriver(socket, attached, device.config.put_slot_count) as fabric:
        yield fabric
    proxy.close()
    context.destroy(linger=0)


PORT_FAULTS = {
    "port_delay_ns_max": 30_000,
    "port_late_per_million": 200_000,
    "port_nonsense_per_million": 50_000,
}
# The host's end, and what its device has of its own.
SIDES: dict[str, tuple[Callable[[BareDevice], Iterator[Fabric]], dict[str, Any]]] = {
    "shm": (open_driver, {}),
    "memory": (open_driver, {"fabric": "memory"}),
    "verbs": (open_driver, {"fabric": "verbs"}),
    "sim": (open_sim, {}),
    "sim-faults": (open_sim_with_faults, {}),
    "sim-port": (open_sim_with_faults, {"fabric": "sim", **PORT_FAULTS}),
    "zmq": (open_zmq, {}),
    "nixl": (open_driver, {"fabric": "nixl"}),
}
NEEDS = {"verbs": "rdma", "nixl": "nixl_library"}  # fixtures
MARKS = {one: getattr(pytest.mark, one) for one in NEEDS}


@pytest.fixture(params=[pytest.param(one, marks=MARKS.get(one, ())) for one in SIDES])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param in NEEDS:
        request.getfixturevalue(NEEDS[request.param])
    simulated = request.param.startswith("sim")
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=SLOTS,
        block_max=BLOCKS,
        demand_max=16,
        backend="sim" if simulated else "emulated",
        **SIDES[request.param][1],
    )
    with BareDevice(config, simulated=simulated) as device:
        session = device.session(BLOCKS, select_blocks=16)
        source = np.random.default_rng(7).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
        for fabric in SIDES[request.param][0](device):
            yield Host(device, fabric, session, source)


def test_miss_then_hit(host: Host) -> None:
    """First a block comes from the store and was waited for, then it is there."""
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
    """Over a network a block that was read before is read without its directory entry; one whose
    slot holds another by now is an ordinary miss. Every byte is compared, as always."""
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
    """Reads that are under way together land beside each other, so that each agrees."""
    if not isinstance(host.fabric, Driver) or host.device.simulated:
        pytest.skip("the bench reads one-sidedly, in real time")
    assert not host.put(range(SLOTS)).any()
    for first in (0, 16):
        assert not host.fetch(list(range(first, first + 16)))[0].rcs.any()
    keys = np.ascontiguousarray(np.tile(host.session.keys[LAYER, :16], (3, 1)))
    assert host.fabric.bench_read(keys, 3, host.target(16)).all()


def test_guesses_are_read_before_their_layer_asks(host: Host) -> None:
    """What a host names ahead is there or on its way when it is demanded, by the device's own
    account; without the hint it would be cold. Nobody waits for a hint."""
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
    """96 blocks through a put window of 8, 16 demands a step and 32 slots."""
    assert not host.put(range(BLOCKS)).any()
    for _ in range(2):
        done, _ = host.fetch(list(range(BLOCKS)), timeout_ns=20_000_000_000)
        assert not done.rcs.any()


def test_several_in_flight_end_each_with_its_own(host: Host) -> None:
    """Eight fetches begun together bring what they would have brought one by one, in any order."""
    assert not host.put(range(64)).any()
    begun = [(list(range(n, 64, 8)), *host.begin(list(range(n, 64, 8)))) for n in range(8)]
    for ordinals, fetch, target in reversed(begun):
        done = host.fabric.fetch_end(fetch)
        assert not done.rcs.any() and done.failed_count == 0
        assert np.array_equal(target, host.source[ordinals])
    assert host.fabric.stats()["fetches"] == 8


def test_poll_tells_each_once(host: Host) -> None:
    """Fetches, a put and one that fails: polling alone ends all, and each is reported once."""
    assert not host.put(range(16)).any()
    wanted, source = np.arange(16, 24, dtype=np.uint32), host.source[16:24]
    calls: list[Any] = [host.begin([1, 2, 3])[0], host.begin([4, 90])[0], host.begin([])[0]]
    calls.append(host.fabric.put_begin(PutRequest(host.session.number, LAYER, wanted, source)))
    reported: list[Any] = []
    while len(reported) < 4:
        reported += host.fabric.poll(1_000_000 if len(reported) % 2 else 0)
    assert sorted(map(id, reported)) == sorted(map(id, calls))
    assert not host.fabric.fetch_end(calls[0]).rcs.any()
    assert host.fabric.fetch_end(calls[1]).rcs.tolist() == [0, -errno.ENOENT]
    assert len(host.fabric.fetch_end(calls[2]).rcs) == 0
    assert not host.fabric.put_end(calls[3]).any()
    assert host.fabric.poll() == []
    assert not host.fetch(list(range(16, 24)))[0].rcs.any()


def test_more_calls_than_there_may_be_are_told(host: Host) -> None:
    assert not host.put(range(1)).any()
    begun = [host.begin([0]) for _ in range(host.fabric.calls_max)]
    with pytest.raises(RunFailed) as caught:
        host.begin([0])
    assert caught.value.errno == errno.EAGAIN and caught.value.mend
    for fetch, target in begun:
        assert not host.fabric.fetch_end(fetch).rcs.any()
        assert np.array_equal(target[0], host.source[0])


def test_a_deadline_ends_its_own_call_only(host: Host) -> None:
    """Without any time a block of the store does not come; the one beside it does."""
    assert not host.put(range(4)).any()
    hasty, _ = host.begin([0, 1], timeout_ns=0)
    patient, target = host.begin([2, 3])
    late = host.fabric.fetch_end(hasty)
    assert set(late.rcs.tolist()) == {-errno.ETIMEDOUT} and late.failed_count == 2
    assert not host.fabric.fetch_end(patient).rcs.any()
    assert np.array_equal(target, host.source[2:4])
    assert not host.fetch([0, 1])[0].rcs.any()


def test_what_is_given_up_is_written_no_more(host: Host) -> None:
    """As many as may be in flight, given up again and again, some that have ended: their targets
    stay as they are left, none is reported, and what is begun beside and after them comes."""
    assert not host.put(range(48)).any()
    patient, target = host.begin(list(range(40, 48)), timeout_ns=60_000_000_000)
    left = []
    for first in range(4):
        calls = [host.begin([first, n]) for n in range(4, 3 + host.fabric.calls_max)]
        if first == 3:
            host.fabric.poll(10_000_000)
        for fetch, memory in calls:
            host.fabric.fetch_cancel(fetch)
            host.fabric.unregister(memory)
            memory[:] = 0x5A
            left.append(memory)
    begun = [host.begin([n], timeout_ns=60_000_000_000) for n in range(host.fabric.calls_max - 1)]
    for n, (fetch, memory) in enumerate(begun):
        assert not host.fabric.fetch_end(fetch).rcs.any()
        assert np.array_equal(memory[0], host.source[n])
    assert not host.fabric.fetch_end(patient).rcs.any()
    assert np.array_equal(target, host.source[40:48]) and host.fabric.poll() == []
    assert not host.fetch(list(range(48)), timeout_ns=60_000_000_000)[0].rcs.any()
    assert all((memory == 0x5A).all() for memory in left)


def test_a_closed_port_ends_all_in_flight(host: Host) -> None:
    assert not host.put(range(8)).any()
    host.device.detach()
    calls = [host.begin([n])[0] for n in range(3)]
    for fetch in calls:
        with pytest.raises(RunFailed):
            host.fabric.fetch_end(fetch)
    assert host.fabric.poll() == []


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
    """Does the ledger count what crossed the fabric: all scores of a host that was told nothing,
    those that the policy takes in from then on, and all again?"""
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
        after = host.device.ledger()["hint_bytes"]
        assert after - before == size, limits
        before = after


def test_a_session_of_somebody_else_is_refused(host: Host) -> None:
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
    """A side that needs it refuses a target that was never registered, or is so no longer."""
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
    assert "\n" not in str(caught.value) and caught.value.mend


def test_late_is_not_a_hit() -> None:
    """A block that a prefetch is just bringing was waited for, and its end says late."""
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


@settings(max_examples=25, deadline=None)
@given(
    calls=st.lists(
        st.lists(st.integers(0, 39), min_size=1, max_size=8, unique=True), min_size=1, max_size=6
    ),
    order=st.randoms(use_true_random=False),
    seed=st.integers(1, 1 << 30),
)
def test_together_brings_what_one_by_one_brings(
    calls: list[list[int]], order: Any, seed: int
) -> None:
    """Fetches in flight together, ended in any order, end as the same fetches in a row do.

    Blocks 32 to 39 were never put; answers are late and overtake each other.
    """
    config = BareConfig(payload_size_bytes=PAYLOAD, slot_count=64, block_max=40, demand_max=4)
    source = np.random.default_rng(7).integers(0, 256, (40, PAYLOAD), np.uint8)
    outcomes: list[list[Any]] = []
    for together in (False, True):
        with BareDevice(config, simulated=True) as device:
            with device.driver(seed=seed, delay_ns_max=50_000) as driver:
                host = Host(device, driver, device.session(40), source)
                assert not host.put(range(32)).any()
                if together:
                    begun = [(n, *host.begin(ordinals)) for n, ordinals in enumerate(calls)]
                    order.shuffle(begun)
                    ended = {n: (driver.fetch_end(one), target) for n, one, target in begun}
                    results = [ended[n] for n in range(len(calls))]
                else:
                    results = [host.fetch(ordinals) for ordinals in calls]
                for ordinals, (done, target) in zip(calls, results, strict=True):
                    came = done.rcs == 0
                    assert np.array_equal(target[came], source[np.array(ordinals)[came]])
                outcomes.append([done.rcs.tolist() for done, _ in results])
    assert outcomes[0] == outcomes[1]


def test_eviction_while_reading(live: BareDevice) -> None:
    """Blocks three times the arena go round and round while the arena is dropped under them."""
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
