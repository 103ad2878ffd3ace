"""A plain model of the decision core: the same actions for the same events, without optimization.

The class is spread over four files by subject: this one changes the tables; the files next to it
have slots and reads, steps, and guesses. Methods have the names of `offstage.bindings.core.Core`,
so that one test drives both.
"""

from collections.abc import Sequence
from typing import Any

from core_model_evict import ORDERS, Memory, Order
from core_model_parts import (
    CANCELLED,
    ECANCELED,
    WRITE,
    Action,
    Chunk,
    Key,
    Session,
    Slot,
    Tenant,
    empty_ledger,
    pack,
    siphash128,
)
from core_model_step import Steps

from offstage.bindings.core import CoreConfig, Policy, SessionConfig


class Model(Steps):
    def __init__(self, config: CoreConfig, policy: Policy) -> None:
        self.config, self.policy = config, policy
        self.now = self.event = self.serials = self.random_count = 0
        self.tenants: list[Tenant] = []
        self.sessions: dict[int, Session] = {}
        self.free_sessions = list(range(config.session_max))[::-1]
        self.free_chunks = list(range(config.chunk_max))[::-1]
        self.free_ios = list(range(config.io_max))[::-1]
        self.ios: dict[int, Slot] = {}
        self.chunks: dict[int, Chunk] = {}
        self.index: dict[tuple[int, Key], Chunk] = {}
        self.slot_of: dict[tuple[int, int], Slot] = {}
        self.gone: dict[tuple[int, int], int] = {}
        self.polluted: set[tuple[int, int]] = set()
        self.pending: list[Slot] = []
        self.leases: list[int] = []
        self.orders: dict[tuple[int, bool], Order] = {}
        self.memories: dict[int, Memory] = {}
        self.done: list[Action] = []
        self.guesses_begin()

    def _enter(self, now: int) -> None:
        self.now = max(self.now, now)
        self.event += 1

    def actions(self) -> list[Action]:
        done, self.done = self.done, []
        return done

    def set_policy(self, now: int, policy: Policy) -> None:
        self._enter(now)
        self.policy = policy
        for tenant in self.tenants:
            tenant.degree, tenant.margin_ns, tenant.ended = policy.degree_max, 0, [0, 0, 0]
        for number in range(len(self.tenants)):
            self._orders_new(number)
            for slot in self.tenants[number].slots:
                slot.score, slot.lift = 0, None
                if slot.state == "resident":
                    slot.frequency, slot.queue = 0, ""
                    if policy.eviction == "score":
                        slot.score = self.best_score(slot)
                    self.order(slot).add(slot)

    def reset(self, now: int) -> None:
        self._enter(now)
        for number, tenant in enumerate(self.tenants):
            tenant.queue = []
            for slot in tenant.slots:
                if slot.state == "resident" and not slot.held:
                    self.evict(slot, False)
            self.memories[number].forget()
            tenant.shadow.clear()
            tenant.ledger = empty_ledger()
            for slot in tenant.slots:
                if slot.state in ("resident", "reading") and slot.fresh:
                    tenant.ledger["issued"][slot.cause] += 1
                    tenant.ledger["prefetch_bytes_read"] += self.config.block_size_bytes
            tenant.degree, tenant.margin_ns = self.policy.degree_max, 0
            tenant.ended = [0, 0, 0]

    def _orders_new(self, tenant: int) -> None:
        memory = self.memories[tenant] = Memory(self.tenants[tenant].slot_count)
        for generating in (False, True):
            order = ORDERS[self.policy.eviction](memory, self._draw)
            self.orders[tenant, generating] = order
            memory.orders.append(order)

    def _draw(self, limit: int) -> int:
        """SplitMix64 of a counter."""
        mask = (1 << 64) - 1
        self.random_count += 1
        x = (self.config.seed + self.random_count * 0x9E3779B97F4A7C15) & mask
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        x ^= x >> 31
        return (x >> 32) * limit >> 32

    def order(self, slot: Slot) -> Order:
        return self.orders[slot.tenant, slot.generating]

    def tenant_add(self, now: int, secret: bytes, slot_count: int, weight: int = 1) -> int:
        self._enter(now)
        number = len(self.tenants)
        words = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
        slots = [Slot(number, i) for i in range(slot_count)]
        free = list(range(slot_count))[::-1]
        tenant = Tenant(words, slot_count, (1 << 20) // weight, slots, free)
        tenant.degree, tenant.ledger = self.policy.degree_max, empty_ledger()
        self.tenants.append(tenant)
        self._orders_new(number)
        return number

    def session_open(self, now: int, config: SessionConfig) -> int:
        self._enter(now)
        number = self.free_sessions.pop()
        self.serials += 1
        layers = self.config.layer_count
        shared = "shared" in self.policy.prefetchers.split("+")
        session = Session(config, self.serials, shared, self.event, layers)
        session.step_ns, session.layer_ns = config.step_ns, config.step_ns // layers
        session.averages = [[] for _ in range(layers)]
        session.known, session.stamps = [0] * layers, [0] * layers
        session.last_steps = [None] * layers
        session.chosen = [set() for _ in range(layers)]
        session.overlap = [0] * layers
        session.last_demands = [[] for _ in range(layers)]
        session.windowed = [0] * layers
        session.calibrations = [self.calibration_of_siblings(session, i) for i in range(layers)]
        self.sessions[number] = session
        return number

    def session_append(
        self, now: int, number: int, contents: Sequence[Key]
    ) -> list[tuple[Any, ...]]:
        self._enter(now)
        session = self.sessions[number]
        tenant = self.tenants[session.config.tenant]
        parent = session.chunks[-1].store.key if session.chunks else (0, 0)
        infos = []
        for content in contents:
            store_key = siphash128(tenant.secret, pack(*parent, *content))
            key = store_key
            if not session.shared:
                key = siphash128(tenant.secret, pack(*store_key, session.serial))
            chunk = self.index.get((session.config.tenant, key))
            tenant.ledger["shared_chunks"] += chunk is not None
            if chunk is None:
                home = None
                if key != store_key:
                    home = self.index.get((session.config.tenant, store_key))
                    home = home or self._chunk_new(session.config.tenant, store_key, None)
                chunk = self._chunk_new(session.config.tenant, key, home)
            ordinal = len(session.chunks)
            session.chunks.append(chunk)
            chunk.sessions[number] = ordinal
            for averages in session.averages:
                averages.append(0)
            self._sets_change(chunk)
            store = chunk.store
            known = chunk.number, len(store.stored), len(chunk.sessions)
            infos.append((chunk.key, store.key, *known))
            parent = store_key
        tenant.ledger["appended_chunks"] += len(contents)
        if self.policy.eviction == "score":
            for chunk in session.chunks:
                self.rescore(chunk)
        return infos

    def _chunk_new(self, tenant: int, key: Key, home: Chunk | None) -> Chunk:
        chunk = Chunk(self.free_chunks.pop(), key, tenant, home)
        if home:
            home.privates += 1
        self.chunks[chunk.number] = self.index[tenant, key] = chunk
        return chunk

    def _chunk_maybe_free(self, chunk: Chunk) -> None:
        layers = range(self.config.layer_count)
        held = any((chunk.number, layer) in self.slot_of for layer in layers)
        known = chunk.number in self.chunks and self.chunks[chunk.number] is chunk
        if not known or chunk.sessions or chunk.privates or chunk.stored or held:
            return
        for layer in range(self.config.layer_count):
            block = chunk.number, layer
            self.queue_cancel(chunk, layer)
            self.tenants[chunk.tenant].shadow.pop(block, None)
            self.gone.pop(block, None)
            self.polluted.discard(block)
            self.memories[chunk.tenant].remove(block)
        del self.chunks[chunk.number], self.index[chunk.tenant, chunk.key]
        self.free_chunks.append(chunk.number)
        if chunk.home:
            chunk.home.privates -= 1
            self._chunk_maybe_free(chunk.home)

    def _is_generating(self, chunk: Chunk) -> bool:
        return any(self.sessions[number].generating for number in chunk.sessions)

    def _sets_change(self, chunk: Chunk) -> None:
        """Blocks whose chunk started or stopped being generated from are moved to the end of their
        new set."""
        for layer in range(self.config.layer_count):
            slot = self.slot_of.get((chunk.number, layer))
            if slot is None or slot.state != "resident":
                continue
            if slot.generating != self._is_generating(chunk):
                self.order(slot).remove(slot, False)
                slot.generating = not slot.generating
                self.order(slot).add(slot)

    def session_set_generating(self, now: int, number: int, generating: bool) -> None:
        self._enter(now)
        session = self.sessions[number]
        if session.generating != generating:
            session.generating = generating
            for chunk in session.chunks:
                self._sets_change(chunk)
            if generating:
                self.guess_at_begin(number)
        self.pump()

    def session_close(self, now: int, number: int) -> None:
        self._enter(now)
        session = self.sessions[number]
        self._unpin(number)
        self.queue_cancel_session(number)
        session.generating = False
        for chunk in session.chunks:
            self._sets_change(chunk)
        for chunk in session.chunks:
            del chunk.sessions[number]
            for layer in range(self.config.layer_count):
                self._session_leaves(chunk, layer, number, session)
            self._chunk_maybe_free(chunk)
        del self.sessions[number]
        self.free_sessions.append(number)

    def _session_leaves(self, chunk: Chunk, layer: int, number: int, session: Session) -> None:
        slot = self.slot_of.get((chunk.number, layer))
        if slot is None:
            return
        slot.users.discard(number)
        if slot.lift and slot.lift[0] == number:
            slot.lift = None
        if self.policy.eviction == "score":
            self.settle(slot)
        if slot.state != "resident":
            for waiter in [w for w in slot.waiters if w.session == number]:
                slot.waiters.remove(waiter)
                self._complete(slot, waiter.waiter, waiter.index, -ECANCELED)
            if slot.fresh and slot.staged_by == session.serial:
                slot.fresh = False
                self.slot_fate(slot, CANCELLED)
        elif chunk.home and not chunk.sessions and not slot.held:
            self.evict(slot, False)

    def session_release(self, now: int, number: int) -> None:
        self._enter(now)
        self._unpin(number)

    def _unpin(self, number: int) -> None:
        for slot, generation in self.sessions[number].pins:
            if slot.generation == generation and slot.pins:
                slot.pins -= 1
        self.sessions[number].pins = []
        if number in self.leases:
            self.leases.remove(number)

    def block_stored(self, now: int, chunk: int, layer: int) -> None:
        self._enter(now)
        self.chunks[chunk].store.stored.add(layer)

    def block_lost(self, now: int, chunk: int, layer: int) -> None:
        self._enter(now)
        self._unstore(self.chunks[chunk].store, layer)

    def _unstore(self, home: Chunk, layer: int) -> None:
        if layer in home.stored:
            home.stored.remove(layer)
            self._chunk_maybe_free(home)

    def block_restore(self, now: int, tenant: int, store_key: Key, layer: int) -> int:
        self._enter(now)
        chunk = self.index.get((tenant, store_key)) or self._chunk_new(tenant, store_key, None)
        chunk.stored.add(layer)
        return chunk.number

    def block_forget(self, now: int, tenant: int, store_key: Key, layer: int) -> bool:
        self._enter(now)
        chunk = self.index.get((tenant, store_key))
        if chunk:
            self._unstore(chunk.store, layer)
        return chunk is not None

    def block_stage(self, now: int, number: int, layer: int) -> tuple[int, int] | None:
        self._enter(now)
        chunk = self.chunks[number]
        slot = self.slot_of.get((number, layer))
        if slot and slot.state != "resident":
            return None
        if slot is None:
            slot = self.take(chunk.tenant, (number, layer), None)
            if slot is None:
                return None
            self.queue_cancel(chunk, layer)
            self.assign(slot, chunk, layer, WRITE, 0)
            self._arrive(slot)
        slot.dirty = True
        return slot.number, slot.generation

    def block_clean(self, now: int, number: int, layer: int) -> None:
        self._enter(now)
        slot = self.slot_of[number, layer]
        slot.dirty = False
        if slot.chunk and slot.chunk.home and not slot.chunk.sessions:
            self.evict(slot, False)

    # -- time and counters

    def tick(self, now: int) -> int | None:
        self._enter(now)
        lease_ns = self.policy.lease_ns
        ends = {number: self.sessions[number].lease_ns + lease_ns for number in self.leases}
        for number in list(self.leases) if lease_ns else []:
            if ends[number] > self.now:
                break
            tenant = self.tenants[self.sessions[number].config.tenant]
            tenant.ledger["leases_expired"] += len(self.sessions[number].pins)
            self._unpin(number)
        self.pump()
        times = [self.queue_next_ns()]
        if lease_ns and self.leases:
            times.append(self.sessions[self.leases[0]].lease_ns + lease_ns)
        return min((time for time in times if time is not None), default=None)

    def ledger(self, tenant: int) -> dict[str, Any]:
        t = self.tenants[tenant]
        resident = sum(slot.state == "resident" for slot in t.slots)
        return t.ledger | {"degree_now": t.degree, "resident_slots": resident}
