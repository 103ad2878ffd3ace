"""Do slots that hold a part of their block keep their invariants, in any order of events?

A plain model tracks the granules in each slot: those that reads brought, no others. Every demand
that ends well must find its granules there, and end once; every table agrees after each event.
"""

import errno
from dataclasses import replace

import numpy as np
import pytest

from offstage.bindings.core import (
    COMPLETE,
    EVICTIONS,
    KEY,
    PUBLISH,
    READ,
    RETRACT,
    Core,
    CoreConfig,
    Policy,
    SessionConfig,
    replay,
)
from offstage.bindings.errors import BadInput

COUNT, GRANULE, CHUNKS, LAYERS, SLOTS = 4, 512, 12, 2, 6
ALL = (1 << COUNT) - 1
CONFIG = CoreConfig(
    slot_count=SLOTS,
    chunk_max=16 * CHUNKS,
    session_chunk_max=CHUNKS,
    layer_count=LAYERS,
    session_max=3,
    block_size_bytes=COUNT * GRANULE + 128,
    io_max=4,
    demand_max=6,
    log_size_bytes=1 << 22,
    granule_count=COUNT,
    granule_size_bytes=GRANULE,
)


class Machine:
    """A core, and the contents of its slots after its actions. `waiting`: the granules of each
    unfinished demand, by (waiter, index)."""

    def __init__(self, policy: Policy) -> None:
        self.core, self.now = Core(CONFIG, policy), 0
        tenant = self.core.tenant_add(0, b"\1" * 16, SLOTS)
        self.config = SessionConfig(tenant, 2)
        self.there: dict[int, int] = {}
        self.reads: dict[int, tuple[int, int]] = {}
        self.waiting: dict[tuple[int, int], int] = {}
        self.served = self.bytes_read = 0
        self.rcs: list[int] = []

    def open(self) -> int:
        """Open a session over all chunks, which the store has."""
        session = self.core.session_open(self.now, self.config)
        contents = np.zeros(CHUNKS, KEY)
        contents["lo"] = np.arange(CHUNKS)
        for info in self.core.session_append(self.now, session, contents):
            for layer in range(LAYERS):
                self.core.block_stored(self.now, int(info["chunk"]), layer)
        self.take()
        return session

    def take(self) -> None:
        for action in self.core.actions():
            kind, slot = int(action["type"]), int(action["slot"])
            granules, held = int(action["granules"]), int(action["held"])
            if kind == READ:
                assert granules and granules & ~ALL == 0
                assert held == self.there.get(slot, 0) and granules & held == 0
                assert slot not in [one for one, _ in self.reads.values()], "one read of a slot"
                self.reads[int(action["io"])] = slot, granules
                self.bytes_read += bin(granules).count("1") * GRANULE + (0 if held else 128)
            elif kind == PUBLISH:
                assert held == self.there.get(slot, 0)
                self.there[slot] = granules
            elif kind == RETRACT:
                self.there.pop(slot, None)
            elif kind == COMPLETE:
                asked = self.waiting.pop((int(action["waiter"]), int(action["index"])))
                self.rcs.append(int(action["rc"]))
                if action["rc"] == 0:
                    assert asked & ~self.there[slot] == 0, "it was told of what is not there"
                    self.served += 1
        assert self.core.verify()

    def end(self, io: int, rc: int) -> None:
        slot, granules = self.reads.pop(io)
        self.now += 100
        expected = self.there.get(slot, 0) | granules
        self.core.io_done(self.now, io, rc)
        self.take()
        if rc == 0 and slot in self.there and slot not in [one for one, _ in self.reads.values()]:
            assert self.there[slot] == expected
        if rc == -errno.ESTALE:
            assert slot not in self.there, "its bytes are not those of the block any more"
        if rc == -errno.ETIMEDOUT:
            assert slot not in self.there, "a device may still write there"
            self.core.slot_free(self.now, 0, slot)
            self.take()


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("prefetchers", ["none", "window+ema", "shared+window+ema"])
def test_any_order_of_parts(eviction: str, prefetchers: str) -> None:
    """The invariants hold under steps, ends in any order, failures, and sessions that come and go;
    the log replays bit for bit."""
    draw = np.random.default_rng(len(eviction) + len(prefetchers))
    policy = Policy(
        prefetchers=prefetchers, eviction=eviction, window_blocks=2, prefetch_in_flight_max=2
    )
    machine, log = Machine(policy), bytearray()
    sessions = [machine.open(), machine.open()]
    for turn in range(400):
        machine.now += int(draw.integers(1, 10_000))
        if machine.reads and draw.random() < 0.6:
            io = int(draw.choice(list(machine.reads)))
            rcs = [-errno.EBADMSG, -errno.EIO, -errno.ETIMEDOUT]
            if machine.reads[io][0] in machine.there:
                rcs.append(-errno.ESTALE)
            machine.end(io, int(draw.choice([0] * 8 + rcs)))
        elif draw.random() < 0.05 and len(sessions) < 3:
            sessions.append(machine.open())  # which stores lost blocks again
        elif draw.random() < 0.03 and len(sessions) > 1:
            machine.core.session_close(machine.now, sessions.pop())
            machine.take()
        else:
            demands = draw.choice(CHUNKS, int(draw.integers(1, 7)), replace=False)
            masks = draw.integers(0, ALL + 1, len(demands))
            for index, mask in enumerate(masks):
                machine.waiting[turn, index] = int(mask) or ALL
            scores = draw.integers(1, 65_535, CHUNKS)
            ends = machine.core.step(
                machine.now,
                int(draw.choice(sessions)),
                turn,
                int(draw.integers(LAYERS)),
                demands,
                waiter=turn,
                granules=masks,
                scores=scores,
                seen=np.zeros(len(demands)),
            )
            assert len(ends) == len(demands)
            machine.take()
        log += machine.core.log()
    while machine.reads:
        machine.end(min(machine.reads), 0)
    assert not machine.waiting and machine.served > 100
    ledger = machine.core.ledger()
    assert ledger.demand_bytes_read + ledger.prefetch_bytes_read == machine.bytes_read
    assert ledger.demand_bytes_wanted <= ledger.demand_bytes_read
    assert ledger.demand_bytes_spared > 0
    log += machine.core.log()
    assert replay(bytes(log)).diverged_at is None


def test_a_part_is_filled_in_its_slot() -> None:
    """Missing granules are read into the slot, while present ones stay hits."""
    machine = Machine(Policy())
    session = machine.open()
    machine.waiting[0, 0] = 0b0001
    machine.core.step(1, session, 0, 0, [0], granules=[0b0001], waiter=0)
    machine.take()
    machine.end(0, 0)
    ((slot, granules),) = machine.there.items()
    assert granules == 0b0001
    machine.waiting[1, 0] = 0b0110
    machine.core.step(200, session, 1, 0, [0], granules=[0b0110], waiter=1)
    machine.take()
    assert list(machine.reads.values()) == [(slot, 0b0110)] and machine.there == {slot: 0b0001}
    ends = machine.core.step(300, session, 2, 0, [0], granules=[0b0001], waiter=2)
    assert machine.core.ledger().busy == 0 and int(ends[0]) != 5
    machine.take()
    machine.end(0, 0)
    assert machine.there == {slot: 0b0111} and not machine.waiting


def _demand(machine: Machine, session: int, turn: int, mask: int) -> int:
    """Demand granules of the first block; return the end that `step` reports."""
    machine.now += 100
    machine.waiting[turn, 0] = mask
    ends = machine.core.step(machine.now, session, turn, 0, [0], granules=[mask], waiter=turn)
    machine.take()
    return int(ends[0])


@pytest.mark.parametrize("rc", [-errno.EIO, -errno.EBADMSG, -errno.ENOENT, -errno.ETIMEDOUT])
def test_a_fill_that_fails_ends_all_that_wait(rc: int) -> None:
    """Demands for the failed read and the next one end. Present granules stay hits unless a device
    may still write there; lost ones are not read again."""
    machine = Machine(Policy(prefetchers="shared"))
    session, other = machine.open(), machine.open()
    _demand(machine, session, 0, 0b0001)
    machine.end(0, 0)
    ((slot, _),) = machine.there.items()
    _demand(machine, session, 1, 0b0010)
    _demand(machine, other, 2, 0b0100)  # waits for the read after that
    assert len(machine.reads) == 1
    machine.rcs.clear()
    machine.end(next(iter(machine.reads)), rc)
    assert machine.rcs == [rc, rc] and not machine.waiting and not machine.reads
    if rc == -errno.ETIMEDOUT:
        assert machine.there == {}
        return
    assert machine.there == {slot: 0b0001}
    _demand(machine, session, 3, 0b0001)
    _demand(machine, session, 4, 0b0010)
    assert machine.rcs == [rc, rc, -errno.ENOENT] and not machine.reads
    assert list(machine.waiting) == [(3, 0)], "a hit is read by the host: no action for it"


def test_a_part_of_other_bytes_goes() -> None:
    """If the store has a newer version than the staged part, waiting demands must retry, the part
    leaves the directory, and the block is read again."""
    machine = Machine(Policy())
    session = machine.open()
    _demand(machine, session, 0, 0b0001)
    machine.end(0, 0)
    _demand(machine, session, 1, 0b0010)
    machine.rcs.clear()
    machine.end(next(iter(machine.reads)), -errno.ESTALE)
    assert machine.rcs == [-errno.EAGAIN] and machine.there == {}
    _demand(machine, session, 2, 0b0011)
    ((_, granules),) = machine.reads.values()
    assert granules == 0b0011
    machine.end(next(iter(machine.reads)), 0)
    assert machine.rcs == [-errno.EAGAIN, 0] and machine.core.ledger().io_errors == 0


def test_blocks_that_no_demand_waits_for_are_not_read() -> None:
    """If a demand leaves while it waits for a slot's next read, its granules are not read with
    those of a later one."""
    machine = Machine(Policy(prefetchers="shared"))
    session, leaves = machine.open(), machine.open()
    _demand(machine, session, 0, 0b0001)
    machine.end(0, 0)
    _demand(machine, session, 1, 0b0010)
    _demand(machine, leaves, 2, 0b1000)
    machine.core.session_close(machine.now, leaves)
    machine.take()
    machine.end(next(iter(machine.reads)), 0)
    _demand(machine, session, 3, 0b0100)
    assert [granules for _, granules in machine.reads.values()] == [0b0100]


def test_without_granules_none_are_taken() -> None:
    """A core without granules refuses masks; one with granules refuses bits past the last."""
    for count, mask in ((0, 1), (COUNT, 1 << COUNT)):
        core = Core(replace(CONFIG, granule_count=count), Policy())
        tenant = core.tenant_add(0, b"\1" * 16, SLOTS)
        session = core.session_open(0, SessionConfig(tenant, 1))
        core.session_append(0, session, np.zeros(1, KEY))
        with pytest.raises(BadInput):
            core.step(1, session, 0, 0, [0], granules=[mask])
    with pytest.raises(BadInput):
        Core(replace(CONFIG, granule_count=33), Policy())
