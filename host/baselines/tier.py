"""A local tier: sessions, and a fabric to them, over host memory and a drive of this machine.

It takes the place of a daemon's control connection and fabric, so that the same decode loop runs
over it with the same checks of every byte. It owns the drive's rows as slots: a block is read into
one, copied to the fetches that wait for it, and then kept (`keep`: g2, LRU eviction) or not (g3).
One thread, the host's: the host itself does the work of the DPU. Its ledger has the names and
meanings of the device's.

A read that fails ends its demand with -errno; a deadline that passes, with -ETIMEDOUT.
"""

import errno
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import checksum
from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import Ledger
from offstage.dpu.protocol import Appended
from offstage.host.baselines.drives import Drive
from offstage.host.baselines.store import LocalStore
from offstage.host.link.tier_sessions import ALL_SCORES

__all__ = ["READ_ROWS", "WRITE_ROWS", "LocalTier"]

READ_ROWS = 256
"""Rows of a tier that keeps nothing: the limit of reads in flight."""
WRITE_ROWS = 64
"""Rows that puts are written from, behind the slots."""
RETAINED, SHARED, LATE, COLD, CAPACITY = (
    ENDS.index(name) for name in ("retained", "shared", "late", "cold", "capacity")
)
FAILED = 255


@dataclass
class _Session:
    sink_blocks: int
    window_blocks: int
    rows: list[int] = field(default_factory=list)
    parent: bytes = b""
    seen: set[int] = field(default_factory=set)  # blocks that it has demanded before


@dataclass
class _Call:
    """A fetch that waits for blocks."""

    fetch: Fetch
    deadline_ns: int
    rows: NDArray[np.uint32]
    left: int = 0
    waits_from_ns: int = 0
    ended_ns: int = 0
    copy_ns: int = 0


@dataclass
class _Read:
    number: int
    waiting: list[tuple[_Call, int]] = field(default_factory=list)


class LocalTier(Fabric):
    """`slots` of the drive's rows hold blocks; the `WRITE_ROWS` behind them are for puts."""

    hints = ALL_SCORES
    where = "baseline"

    def __init__(self, store: LocalStore, drive: Drive, *, keep: bool) -> None:
        super().__init__()
        self.store, self.drive, self.keep = store, drive, keep
        self.payload_size_bytes = store.payload_bytes
        self.slots = len(drive.rows) - WRITE_ROWS
        self.counts = Ledger()
        self._sessions: dict[int, _Session] = {}
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # kept blocks, latest use last
        self._user: dict[int, int] = {}  # who demanded a kept block last
        self._free = list(range(self.slots))
        self._reads: dict[int, _Read] = {}  # by block: asked for, and not there yet
        self._by_slot: dict[int, _Read] = {}  # those that the drive has
        self._backlog: deque[_Read] = deque()
        self._writing: dict[int, int] = {}  # row: result, 1 while it is written

    # ---- sessions, in the place of a control connection ----

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; its numbers begin at 1."""
        handle = 1 + max(self._sessions, default=0)
        self._sessions[handle] = _Session(sink_blocks, window_blocks)
        return handle

    def append(self, session: int, contents: list[bytes]) -> Appended:
        """Append chunks: what the local store has of them."""
        one, before = self._sessions[session], self.store.shared_chunks
        keys, rows = self.store.append(one.parent, contents)
        self.counts.shared_chunks += self.store.shared_chunks - before
        one.rows += rows
        one.parent = keys[-1] if keys else one.parent
        stored = self.store.stored_layers(rows)
        return Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        """No effect: nothing here depends on it."""

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session; the blocks stay, and those in memory leave as others come."""
        del self._sessions[session]

    def ledger(self) -> Ledger:
        """Counters since open; what only a device does stays 0."""
        return msgspec.structs.replace(self.counts, resident_slots=len(self._slot_of))

    # ---- blocks, in the place of a fabric ----

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """What host memory holds is there on return."""
        begun_ns = time.monotonic_ns()
        fetch: Fetch = self._admit(Fetch(request))
        fetch.work = call = _Call(fetch, begun_ns + request.timeout_ns, request.rows)
        ordinals, session, layer = request.ordinals, request.session, request.layer
        self.counts.selected += len(ordinals) + request.resident
        one = self._sessions[session]
        rows = np.asarray(one.rows, np.int64)[ordinals]
        for i, number in enumerate((rows * self.store.layer_count + layer).tolist()):
            end = self._end_of(session, one, number)
            self._count(one, int(ordinals[i]), end)
            fetch.ends[i] = end
            if end in (RETAINED, SHARED):
                self._slot_of.move_to_end(number)
                self._copy(call, i, self._slot_of[number])
            else:
                self._want(number, call, i)
            one.seen.add(number)
            self._user[number] = session
        call.waits_from_ns = time.monotonic_ns()
        self._end_if_done(call)
        self._submit()
        return fetch

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch, until its deadline at most."""
        call: _Call = fetch.work
        while not fetch.ended:
            self._advance(max(0, call.deadline_ns - time.monotonic_ns()))
        self._finish(fetch)
        stall_ns = max(0, call.ended_ns - call.waits_from_ns)
        return fetch.result(stall_ns=stall_ns, copy_ns=call.copy_ns)

    def put_begin(self, request: PutRequest) -> Put:
        """Write blocks, and wait for the drive."""
        put: Put = self._admit(Put(request))
        put.ended = True  # for who looks for late fetches meanwhile
        rows = np.asarray(self._sessions[request.session or 0].rows, np.int64)[request.ordinals]
        numbers = rows * self.store.layer_count + request.layer
        until_ns = time.monotonic_ns() + request.timeout_ns
        for first in range(0, len(numbers), WRITE_ROWS):
            some = slice(first, first + WRITE_ROWS)
            put.rcs[some] = self._write(numbers[some], request.source[some], until_ns)
        self.store.written(numbers[put.rcs == 0])
        return put

    def close(self) -> None:
        """Close the drive, after what it still has."""
        while self._by_slot:
            self._advance(100_000_000)
        self.drive.close()

    # ---- one demand ----

    def _end_of(self, session: int, one: _Session, number: int) -> int:
        """What becomes of a demand, as the device would count it."""
        if number in self._slot_of:
            own = number in one.seen or self._user.get(number, session) == session
            return RETAINED if own else SHARED
        if number in self._reads:
            return LATE
        return CAPACITY if number in one.seen else COLD

    def _count(self, one: _Session, ordinal: int, end: int) -> None:
        counts = self.counts
        nontrivial = one.sink_blocks <= ordinal < len(one.rows) - one.window_blocks
        counts.demands += 1
        counts.ends[end] += 1
        counts.nontrivial += nontrivial
        counts.nontrivial_ends[end] += nontrivial

    def _want(self, number: int, call: _Call, i: int) -> None:
        read = self._reads.get(number)
        if read is None:
            read = self._reads[number] = _Read(number)
            self._backlog.append(read)
        read.waiting.append((call, i))
        call.left += 1

    def _copy(self, call: _Call, i: int, slot: int) -> None:
        """Hand a block over, and take the checksum of what was handed over."""
        begun_ns = time.monotonic_ns()
        into = call.fetch.request.target[call.rows[i], : self.payload_size_bytes]
        into[:] = self.drive.rows[slot, : self.payload_size_bytes]
        call.fetch.checksums[i] = checksum(into)
        call.fetch.lengths[i] = self.payload_size_bytes
        call.copy_ns += time.monotonic_ns() - begun_ns

    # ---- the drive ----

    def _submit(self) -> None:
        """Give the drive what it and the slots have room for."""
        slots: list[int] = []
        room = min(len(self._backlog), self.drive.depth - len(self._by_slot))
        while len(slots) < room and (slot := self._slot()) is not None:
            slots.append(slot)
        if not slots:
            return
        numbers = np.array([self._backlog[i].number for i in range(len(slots))], np.int64)
        taken = self.drive.read(np.array(slots, np.int64), numbers * self.store.stride_bytes)
        for slot in slots[: max(taken, 0)]:
            self._by_slot[slot] = self._backlog.popleft()
        self._free += slots[max(taken, 0) :]
        self.counts.demand_bytes_read += max(taken, 0) * self.store.stride_bytes

    def _slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if not self._slot_of:
            return None
        number, slot = self._slot_of.popitem(last=False)
        self._user.pop(number, None)
        self.counts.evictions += 1
        return slot

    def _advance(self, timeout_ns: int) -> None:
        """Take in what the drive has done, and what has waited for too long."""
        for done in self.drive.poll(timeout_ns if self._by_slot or self._writing else 0):
            if done.user >= self.slots:
                good = done.result == self.store.stride_bytes
                self._writing[done.user] = 0 if good else min(done.result, -errno.EIO)
            else:
                self._arrived(done.user, done.result)
        self._submit()
        now_ns = time.monotonic_ns()
        for one in self._in_flight:
            if not one.ended and now_ns >= one.work.deadline_ns:
                self._give_up(one.work, now_ns)

    def _arrived(self, slot: int, result: int) -> None:
        read = self._by_slot.pop(slot)
        del self._reads[read.number]
        good = result == self.store.stride_bytes
        for call, i in read.waiting:
            if good:
                self._copy(call, i, slot)
            else:
                self._fail(call, i, result if result < 0 else -errno.EIO)
            call.left -= 1
            self._end_if_done(call)
        if good and self.keep:
            self._slot_of[read.number] = slot
        else:
            self._free.append(slot)

    def _give_up(self, call: _Call, now_ns: int) -> None:
        for read in self._reads.values():
            mine: Iterable[int] = [i for one, i in read.waiting if one is call]
            for i in mine:
                self._fail(call, i, -errno.ETIMEDOUT)
            read.waiting = [pair for pair in read.waiting if pair[0] is not call]
        call.left, call.ended_ns, call.fetch.ended = 0, now_ns, True

    @staticmethod
    def _fail(call: _Call, i: int, rc: int) -> None:
        call.fetch.ends[i], call.fetch.rcs[i] = FAILED, rc

    @staticmethod
    def _end_if_done(call: _Call) -> None:
        if call.left == 0:
            call.ended_ns, call.fetch.ended = time.monotonic_ns(), True

    def _write(
        self, numbers: NDArray[np.int64], source: NDArray[np.uint8], until_ns: int
    ) -> NDArray[np.int32]:
        """Write up to WRITE_ROWS blocks and wait; 0 or -errno of each."""
        rows = self.slots + np.arange(len(numbers), dtype=np.int64)
        self.drive.rows[rows, : source.shape[1]] = source
        self._writing = {int(row): 1 for row in rows}
        begun = 0
        while 1 in self._writing.values() and time.monotonic_ns() < until_ns:
            if begun < len(rows):
                offsets = numbers[begun:] * self.store.stride_bytes
                begun += max(0, self.drive.write(rows[begun:], offsets))
            self._advance(10_000_000)
        ended, self._writing = self._writing, {}
        return np.array([-errno.ETIMEDOUT if rc == 1 else rc for rc in ended.values()], np.int32)
