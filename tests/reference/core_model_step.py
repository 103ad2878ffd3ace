"""One layer of one decode step in the plain model."""

from collections.abc import Sequence

from core_model_arena import Arena
from core_model_parts import (
    CAPACITY,
    COLD,
    DEMAND,
    EAGAIN,
    END_OF_CAUSE,
    ENOENT,
    FATE_LATE,
    LATE,
    POLICY,
    RETAINED,
    SHARED,
    USED,
    Session,
    Slot,
    Waiter,
)


class Steps(Arena):
    """Classifies demands, pins resident blocks, then reads misses."""

    def step(
        self,
        now: int,
        number: int,
        step: int,
        layer: int,
        demands: Sequence[int],
        *,
        seen: Sequence[int] | None = None,
        scores: Sequence[int] | None = None,
        waiter: int = 0,
        retry: bool = False,
    ) -> list[int]:
        self._enter(now)
        session = self.sessions[number]
        ledger = self.tenants[session.config.tenant].ledger
        for slot, generation in session.pins:
            if slot.generation == generation and slot.pins:
                slot.pins -= 1
        session.pins = []
        if not retry:
            self._pace(session, step)
            session.stamps[layer] += 1
            session.last_steps[layer] = step
            ledger["steps"] += 1
            ledger["selected"] += len(demands)
            ledger["demands"] += len(demands)
        ends, missed = [], []
        for i, ordinal in enumerate(demands):
            view = seen[i] if seen is not None else 255
            end, miss = self._demand(number, layer, ordinal, view, waiter, i, retry)
            ends.append(end)
            if miss:
                missed.append(i)
        if not retry:
            ledger["hint_bytes"] += 2 * len(scores or [])
            self.observe(number, layer, demands, self._taken_in(step, scores or []))
        for i in missed:
            self._miss(number, layer, demands[i], waiter, i, retry)
        if not retry:
            self.guess(number, layer, demands)
        session.lease_ns = self.now
        self.leases = [n for n in self.leases if n != number] + [number]
        self.pump()
        return ends

    def _taken_in(self, step: int, scores: Sequence[int]) -> list[int]:
        """The part of a hint that the policy accepts; of equal scores at the limit, the first."""
        policy = self.policy
        if step % max(1, policy.hint_every_steps):
            return []
        kept = list(scores)
        if policy.hint_scores_max:
            order = sorted(range(len(kept)), key=lambda i: (-kept[i], i))
            for i in order[policy.hint_scores_max :]:
                kept[i] = 0
        if policy.hint_score_bits == 8:
            kept = [score | 0xFF if score else 0 for score in kept]
        return kept

    def _pace(self, session: Session, step: int) -> None:
        if session.step == step:
            return
        if session.step is not None:
            taken = min(self.now - session.step_begin_ns, 8 * session.step_ns)
            session.step_ns += (taken >> 3) - (session.step_ns >> 3)
            session.layer_ns = session.step_ns // self.config.layer_count
        session.step, session.step_begin_ns = step, self.now

    def _demand(
        self, number: int, layer: int, ordinal: int, seen: int, waiter: int, index: int, retry: bool
    ) -> tuple[int, bool]:
        """Return (end, whether a read must be started)."""
        session = self.sessions[number]
        tenant = self.tenants[session.config.tenant]
        ledger = tenant.ledger
        block = session.chunks[ordinal].number, layer
        nontrivial = session.nontrivial(ordinal)
        shadow_miss = False
        if not retry:
            shadow_miss = block not in tenant.shadow
            tenant.shadow[block] = None
            tenant.shadow.move_to_end(block)
            if len(tenant.shadow) > tenant.slot_count:
                tenant.shadow.popitem(last=False)
        end, miss = self._end(number, block, seen, waiter, index, retry)
        if miss and not retry:
            ledger["pollution"] += block in self.polluted
        if miss:
            end = CAPACITY if shadow_miss else POLICY
            if self.gone.get(block, 0) < session.opened:
                end = COLD
        if not retry:
            ledger["ends"][end] += 1
            ledger["nontrivial_ends"][end] += nontrivial
            ledger["nontrivial"] += nontrivial
            ledger["shadow_misses"] += shadow_miss
            ledger["shadow_nontrivial_misses"] += shadow_miss and nontrivial
        return end, miss

    def _end(
        self, number: int, block: tuple[int, int], seen: int, waiter: int, index: int, retry: bool
    ) -> tuple[int, bool]:
        slot = self.slot_of.get(block)
        session = self.sessions[number]
        ledger = self.tenants[session.config.tenant].ledger
        if slot and slot.state == "resident":
            if seen == 0:
                end = LATE
                self._first_use(slot, FATE_LATE)
                ledger["late_ns_log2"][0] += not retry
                self._complete(slot, waiter, index, 0)
            else:
                end = self._hit(slot, number, session.serial)
            self._used(slot, number)
            self._pin(number, slot)
            self.order(slot).use(slot)
            return end, False
        if seen not in (0, 255):
            return END_OF_CAUSE[seen], False
        if slot:
            self._join(slot, number, waiter, index, retry)
            return LATE, False
        return COLD, True

    def _first_use(self, slot: Slot, fate: int) -> None:
        if not slot.fresh:
            return
        slot.fresh = False
        self.slot_fate(slot, fate)
        if fate == USED:
            lead = self.now - slot.arrived_ns
            histogram = self.tenants[slot.tenant].ledger["lead_ns_log2"]
            histogram[max(lead.bit_length() - 1, 0)] += 1

    def _hit(self, slot: Slot, number: int, serial: int) -> int:
        if slot.fresh:
            self._first_use(slot, USED)
            return END_OF_CAUSE[slot.cause]
        others = {slot.staged_by, slot.used_by} - {0, serial}
        return SHARED if others and number not in slot.users else RETAINED

    def _used(self, slot: Slot, number: int) -> None:
        slot.users.add(number)
        slot.used_by = self.sessions[number].serial

    def _pin(self, number: int, slot: Slot) -> None:
        slot.pins += 1
        self.sessions[number].pins.append((slot, slot.generation))

    def _join(self, slot: Slot, number: int, waiter: int, index: int, retry: bool) -> None:
        if self._waiters_full():
            self._busy(slot.tenant, waiter, index)
            return
        slot.waiters.append(Waiter(number, waiter, index, self.now, not retry))
        self._first_use(slot, FATE_LATE)
        slot.prefetch = False
        self._pin(number, slot)

    def _waiters_full(self) -> bool:
        waiting = sum(len(slot.waiters) for slot in self.slot_of.values())
        return waiting >= self.config.session_max * self.config.demand_max

    def _busy(self, tenant: int, waiter: int, index: int) -> None:
        self.tenants[tenant].ledger["busy"] += 1
        self._complete(None, waiter, index, -EAGAIN, tenant)

    def _miss(
        self, number: int, layer: int, ordinal: int, waiter: int, index: int, retry: bool
    ) -> None:
        session = self.sessions[number]
        chunk = session.chunks[ordinal]
        tenant = session.config.tenant
        slot = self.slot_of.get((chunk.number, layer))
        if slot:
            self._join(slot, number, waiter, index, retry)
            return
        if layer not in chunk.store.stored:
            self._complete(None, waiter, index, -ENOENT, tenant)
            return
        slot = None if self._waiters_full() else self.take(tenant, (chunk.number, layer), None)
        if slot is None:
            self._busy(tenant, waiter, index)
            return
        self.queue_cancel(chunk, layer)
        self.assign(slot, chunk, layer, DEMAND, session.serial)
        self._pin(number, slot)
        slot.waiters.append(Waiter(number, waiter, index, self.now, False))
        self.read(slot, number, self.now)
