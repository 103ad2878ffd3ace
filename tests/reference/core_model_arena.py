"""The plain model's slots, and the reads that fill them."""

from core_model_calibrate import bucket_of, odds_bucket
from core_model_parts import (
    CANCELLED,
    COMPLETE,
    ETIMEDOUT,
    LOST,
    NONE,
    PUBLISH,
    READ,
    RETRACT,
    UNUSED,
    WINDOW,
    Candidate,
    Chunk,
    Slot,
)
from core_model_prefetch import Guesses

WORTH = 16  # buckets: four times as likely


def worth(candidate: Candidate) -> int:
    """The highest score that the guess may displace."""
    bucket = odds_bucket if candidate.hinted else bucket_of
    return bucket(candidate.probability) - WORTH


class Arena(Guesses):
    """Takes, fills, pins and gives up slots."""

    def take(self, tenant: int, block: tuple[int, int], candidate: Candidate | None) -> Slot | None:
        self.orders[tenant, False].expect(block, candidate is None)
        free = self.tenants[tenant].free
        if not free:
            victim = self.orders[tenant, False].victim()
            if victim is None:
                victim = self.orders[tenant, True].victim()
                if (
                    victim
                    and candidate
                    and self.policy.eviction == "score"
                    and victim.score > worth(candidate)
                ):
                    victim = None
            if victim is None:
                return None
            self.evict(victim, candidate is not None)
        return self.tenants[tenant].slots[free.pop()]

    def assign(self, slot: Slot, chunk: Chunk, layer: int, cause: int, serial: int) -> None:
        fresh = Slot(slot.tenant, slot.number, "pending", slot.generation + 1, chunk, layer, cause)
        fresh.staged_by, fresh.fresh = serial, cause >= WINDOW
        slot.__dict__.update(fresh.__dict__)
        self.slot_of[slot.block] = slot
        self.polluted.discard(slot.block)

    def _arrive(self, slot: Slot) -> None:
        assert slot.chunk
        slot.state, slot.arrived_ns = "resident", self.now
        slot.generating = self._is_generating(slot.chunk)
        if self.policy.eviction == "score":
            slot.score = self.settled(slot)
        self.order(slot).add(slot)

    def _release(self, slot: Slot, quarantine: bool = False) -> None:
        assert slot.chunk and not slot.waiters
        del self.slot_of[slot.block]
        slot.pins, slot.fresh, slot.dirty, slot.prefetch = 0, False, False, False
        slot.state = "quarantined" if quarantine else "free"
        if not quarantine:
            self.tenants[slot.tenant].free.append(slot.number)
        self._chunk_maybe_free(slot.chunk)

    def evict(self, slot: Slot, by_prefetch: bool) -> None:
        ledger = self.tenants[slot.tenant].ledger
        assert slot.state == "resident" and not slot.held
        self._act(RETRACT, slot)
        self.order(slot).remove(slot, True)
        ledger["evictions"] += 1
        ledger["evictions_generating"] += slot.generating
        if slot.fresh:
            self.slot_fate(slot, UNUSED)
        self.gone[slot.block] = self.event
        if by_prefetch:
            self.polluted.add(slot.block)
        self._release(slot)

    def slot_free(self, now: int, tenant: int, number: int) -> None:
        self._enter(now)
        self.tenants[tenant].slots[number].state = "free"
        self.tenants[tenant].free.append(number)
        self.pump()

    def _act(
        self,
        kind: int,
        slot: Slot,
        io: int = 0,
        deadline: int = 0,
        waiter: int = 0,
        index: int = 0,
        session: int = NONE,
    ) -> None:
        chunk = slot.chunk
        assert chunk
        self.done.append(
            (
                *(kind, io, slot.tenant, chunk.number, slot.layer, slot.number, slot.generation),
                *(slot.cause, waiter, index, 0, session, deadline),
                *(*chunk.key, *chunk.store.key),
            )
        )

    def _complete(
        self, slot: Slot | None, waiter: int, index: int, rc: int, tenant: int = 0
    ) -> None:
        if rc == 0:
            assert slot
            self._act(COMPLETE, slot, waiter=waiter, index=index)
        else:
            tenant = slot.tenant if slot else tenant
            self.done.append((COMPLETE, 0, tenant, *[0] * 5, waiter, index, rc, NONE, *[0] * 5))

    def read(self, slot: Slot, session: int, deadline_ns: int) -> None:
        if not self.free_ios:
            self.pending.append(slot)
            return
        io = self.free_ios.pop()
        self.ios[io] = slot
        slot.state = "reading"
        slot.prefetch = slot.cause >= WINDOW
        ledger = self.tenants[slot.tenant].ledger
        ledger["issued"][slot.cause] += 1
        name = "prefetch_bytes_read" if slot.prefetch else "demand_bytes_read"
        ledger[name] += self.config.block_size_bytes
        self._act(READ, slot, io=io, deadline=deadline_ns, session=session)

    def io_done(self, now: int, io: int, rc: int = 0) -> None:
        self._enter(now)
        slot = self.ios.pop(io)
        self.free_ios.append(io)
        slot.prefetch = False
        chunk = slot.chunk
        assert chunk
        if rc == 0 and chunk.home and not chunk.sessions:
            self._release(slot)
        elif rc == 0:
            self._arrive(slot)
            self._act(PUBLISH, slot)
            self._end_waiters(slot, 0)
        else:
            self.tenants[slot.tenant].ledger["io_errors"] += 1
            if slot.fresh:
                self.slot_fate(slot, CANCELLED)
            self._end_waiters(slot, rc)
            self._release(slot, rc == -ETIMEDOUT)
            if rc in LOST:
                self._unstore(chunk.store, slot.layer)
        while self.free_ios and self.pending:
            slot = self.pending.pop(0)
            asker = slot.waiters[0].session if slot.waiters else NONE
            self.read(slot, asker, self.now)
        self.pump()

    def _end_waiters(self, slot: Slot, rc: int) -> None:
        waiters, slot.waiters = slot.waiters, []
        for waiter in waiters:
            if rc == 0:
                self._used(slot, waiter.session)
                if waiter.late:
                    waited = self.now - waiter.need_ns
                    histogram = self.tenants[slot.tenant].ledger["late_ns_log2"]
                    histogram[max(waited.bit_length() - 1, 0)] += 1
            self._complete(slot, waiter.waiter, waiter.index, rc)
