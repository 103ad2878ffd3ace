"""Does a store behave like a dict that loses only entries that were deleted, expired or never
acknowledged?

Hypothesis draws sequences of operations, restarts included, over a small simulated store and
compares every answer with a plain dict; the store's own counts are recounted after every rule.
"""

import errno
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offstage.bindings.codec import DTYPES
from offstage.bindings.storage import Clock, Storage, StorageConfig, preset
from offstage.bindings.store import Store, StoreConfig

LAYERS = 2
SEGMENTS = 12
PLACES = 3
TTL_S = 50
CONFIG = StoreConfig(
    payload_size_bytes=1024,
    layer_count=LAYERS,
    tenant_max=2,
    io_max=8,
    ttl_s=TTL_S,
    segment_size_bytes=512 + PLACES * 1536,
)
KEYS = st.integers(1, 30)
LAYER = st.integers(0, LAYERS - 1)


def payload(key: int, layer: int) -> bytes:
    """Bytes determined by the name, as with a content hash."""
    length = 1 + (key * 131 + layer * 17) % 1024
    if key % 2:
        return bytes((key * 7 + layer * 3 + at) % 251 for at in range(length))
    return bytes([key * 7 + layer * 3]) * length  # the codec reduces it to almost nothing


class StoreMachine(RuleBasedStateMachine):
    codec = 0
    erase = False
    room_percent = 0

    def __init__(self) -> None:
        super().__init__()
        self.config = replace(
            CONFIG, codec=self.codec, erase=self.erase, room_percent=self.room_percent
        )
        self.now_s = 1_000
        self.going: set[tuple[int, int]] = set()  # deleted without waiting for the wipe
        self.gone: set[tuple[int, int]] = set()
        self.expiry: dict[tuple[int, int], int] = {}  # when each stored block expires
        self.durable_expiry: dict[tuple[int, int], int] = {}  # the expiry that is on the device
        self.storage = Storage(
            StorageConfig(
                backend="sim",
                size_bytes=131_072 + SEGMENTS * CONFIG.segment_size_bytes,
                lba_size_bytes=512,
                nvme=preset("gen5-tlc").params,
            ),
            Clock(simulated=True),
        )
        self.store = Store(self.storage, self.config, now_s=self.now_s)

    def alive(self, name: tuple[int, int]) -> bool:
        return self.expiry.get(name, 0) > self.now_s

    @rule(key=KEYS, layer=LAYER)
    def put(self, key: int, layer: int) -> None:
        was_alive = self.alive((key, layer))
        rc = self.store.put_wait(key, layer, payload(key, layer), key % 2, self.now_s)
        assert rc in (0, -errno.ENOSPC)
        self.going.discard((key, layer))
        self.gone.discard((key, layer))
        if rc == 0:
            self.expiry[key, layer] = self.now_s + TTL_S
            if not was_alive:
                self.durable_expiry[key, layer] = self.now_s + TTL_S
        else:
            # Full only once the places are used: four lanes may each hold a segment that is
            # almost empty, and one segment is the reserve; all others are full or reclaimable.
            live = sum(self.alive(name) for name in self.expiry)
            assert live >= (SEGMENTS - 1 - 4) * PLACES - 4 * (PLACES - 1)

    @rule(key=KEYS, layer=LAYER)
    def get(self, key: int, layer: int) -> None:
        done = self.store.get_wait(key, layer, self.now_s)
        if self.alive((key, layer)):
            assert (done.rc, done.payload) == (0, payload(key, layer))
        else:
            assert done.rc == -errno.ENOENT

    @rule(key=KEYS, layer=LAYER)
    def delete(self, key: int, layer: int) -> None:
        rc = self.store.delete(key, layer)
        assert rc == 0 or not self.alive((key, layer))
        self.expiry.pop((key, layer), None)
        self.going.add((key, layer))

    @rule(tenant=st.integers(0, 1))
    def await_deletes(self, tenant: int) -> None:
        done, ticket = self.store.wiped(tenant)
        while not done:
            self.store.poll()
            done, ticket = self.store.wiped(tenant, ticket)
        ended = {name for name in self.going if name[0] % 2 == tenant}
        self.going -= ended
        self.gone |= ended

    @rule(seconds=st.integers(1, 20))
    def tick(self, seconds: int) -> None:
        self.now_s += seconds
        dropped = {(one.key, one.layer) for one in self.store.tick(self.now_s)}
        assert not any(self.alive(name) for name in dropped)
        for name in dropped:
            self.expiry.pop(name, None)

    @precondition(lambda self: self.now_s > 1_000)
    @rule()
    def restart(self) -> None:
        """Blocks that were not deleted must come back; deleted ones may, unless their wipe was
        waited for."""
        before = {name for name in self.expiry if self.alive(name)}
        self.store.close()
        self.store = Store(self.storage, self.config, now_s=self.now_s)
        found = {(one.key, one.layer): one.expire_s for one in self.store.scan()}
        assert not self.gone & set(found)
        self.going.clear()
        for name in before:
            assert name in found or self.durable_expiry[name] <= self.now_s
        self.expiry = dict(found)
        self.durable_expiry = dict(found)

    @invariant()
    def counts_agree(self) -> None:
        stats = self.store.stats()
        assert self.store.verify() == 0
        assert stats["blocks"] == len(list(self.store.scan()))
        assert stats["bytes_live"] == stats["blocks"] * 1536
        assert stats["checks_failed"] == 0 and stats["io_errors"] == 0
        places = (stats["segments_total"] - stats["segments_free"]) * PLACES
        assert stats["blocks"] <= places

    @invariant()
    def lacks_what_exceeds_the_room(self) -> None:
        """Four lanes may each have places left in an open segment, which are no room; none is open
        where the last one was just filled."""
        room = SEGMENTS * PLACES * self.room_percent // 100
        reserve = CONFIG.reserve_segments * PLACES
        above = self.store.stats()["blocks"] + room + reserve - SEGMENTS * PLACES
        lacks = self.store.lacks()
        assert lacks > 0 or room == 0 or above <= 0
        assert lacks == 0 or above <= lacks <= above + 4 * (2 * PLACES - 1)

    def teardown(self) -> None:
        self.store.close()
        self.storage.close()


class CodedMachine(StoreMachine):
    """The same for a store that compresses blocks and overwrites deleted ones."""

    codec = DTYPES.index("fp8_e4m3") + 1
    erase = True


class RoomyMachine(StoreMachine):
    """The same for a store that keeps room, where someone deletes what it says it lacks."""

    room_percent = 45

    @rule()
    def make_room(self) -> None:
        lacks = self.store.lacks()
        names = [name for name in self.expiry if self.alive(name)][:lacks]
        for key, layer in names:
            self.delete(key, layer)
        assert len(names) < lacks or self.store.lacks() == 0


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(stateful_step_count=80)
TestCodedMachine = CodedMachine.TestCase
TestCodedMachine.settings = settings(stateful_step_count=80, max_examples=40)
TestRoomyMachine = RoomyMachine.TestCase
TestRoomyMachine.settings = settings(stateful_step_count=80, max_examples=40)


def test_deleting_everything_frees_everything() -> None:
    """The space of deleted blocks is returned, down to the last segment."""
    machine = StoreMachine()
    names = [(key, layer) for key in range(1, 13) for layer in range(LAYERS)]
    for key, layer in names:
        assert machine.store.put_wait(key, layer, payload(key, layer), key % 2) == 0
    assert machine.store.stats()["segments_free"] == SEGMENTS - 8
    for key, layer in names:
        assert machine.store.delete(key, layer) == 0
    while machine.store.in_flight:
        machine.store.poll()
    stats = machine.store.stats()
    assert (stats["segments_free"], stats["blocks"], stats["bytes_live"]) == (SEGMENTS, 0, 0)
    machine.teardown()
