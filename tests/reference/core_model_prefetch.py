"""The guessing half of the plain model: averages, candidates, the queue, feedback."""

from collections.abc import Iterator, Sequence

from core_model_calibrate import (
    HIGHEST,
    TRIVIAL,
    UNKNOWN,
    Calibration,
    bucket_of,
    level_of,
)
from core_model_parts import (
    DROPPED,
    FATE_LATE,
    UNUSED,
    USED,
    WINDOW,
    Candidate,
    Chunk,
    Session,
    Slot,
    State,
)

Guess = tuple[int, int, int, int, int]
PATTERN, SHARED, BASELINE = 4, 6, 7
BEGIN_STEPS = 16
BURST_BLOCKS = 16
SAMPLE = 64


def rank_cut(values: Sequence[int], rank: int) -> int:
    """The rank-th largest value, at least 1."""
    if rank > len(values):
        return 1
    return max(sorted(values, reverse=True)[rank - 1], 1)


class Guesses(State):
    """The guesses of `Model`; its tables are the model's."""

    def guesses_begin(self) -> None:
        self.sequence = self.turn = self.bucket_ns = self.proposed = 0

    def _on(self, name: str) -> bool:
        return name in self.policy.prefetchers.split("+")

    def _in_window(self, session: Session, ordinal: int) -> bool:
        first = len(session.chunks) - self.policy.window_blocks
        return ordinal < session.config.sink_blocks or ordinal >= first

    def _score(self, number: int, layer: int, ordinal: int) -> int:
        session = self.sessions[number]
        if session.nontrivial(ordinal) and ordinal >= session.known[layer]:
            return UNKNOWN
        return bucket_of(self._chance(session, layer, ordinal))

    def _class(self, session: Session, layer: int, ordinal: int) -> int:
        if not session.nontrivial(ordinal):
            return TRIVIAL
        return level_of(session.averages[layer][ordinal])

    def _chance(self, session: Session, layer: int, ordinal: int) -> int:
        return session.calibrations[layer].chance(self._class(session, layer, ordinal))

    def calibration_of_siblings(self, session: Session, layer: int) -> Calibration:
        siblings = [
            other.calibrations[layer]
            for _, other in sorted(self.sessions.items())
            if other.config.tenant == session.config.tenant
        ]
        best = max(siblings, key=lambda c: sum(c.exposure), default=Calibration())
        return best.copy()

    def best_score(self, slot: Slot) -> int:
        assert slot.chunk
        sharers = slot.chunk.sessions.items()
        return max((self._score(n, slot.layer, ordinal) for n, ordinal in sharers), default=0)

    def rescore(self, chunk: Chunk) -> None:
        for layer in range(self.config.layer_count):
            slot = self.slot_of.get((chunk.number, layer))
            if slot and slot.state == "resident":
                self.settle(slot)

    def settled(self, slot: Slot) -> int:
        """The measured probability, or the guessed one if that is higher."""
        best = self.best_score(slot)
        if slot.lift and best >= slot.lift[1]:
            slot.lift = None
        return slot.lift[1] if slot.lift else best

    def settle(self, slot: Slot) -> None:
        """Reorder a block; one that has not arrived yet has no place in the order."""
        if slot.state == "resident":
            self.order(slot).rescore(slot, self.settled(slot))
        else:
            slot.score = slot.lift[1] if slot.lift else 0

    def lift(self, slot: Slot, number: int, probability: int) -> None:
        """A guess scores the block until its layer runs."""
        if bucket_of(probability) <= slot.score:
            return
        slot.lift = number, bucket_of(probability)
        if slot.state == "resident":
            self.order(slot).rescore(slot, slot.lift[1])
        slot.score = slot.lift[1]

    def observe(
        self, number: int, layer: int, demands: Sequence[int], scores: Sequence[int]
    ) -> None:
        session = self.sessions[number]
        session.calibrations[layer].demands(list(demands))
        if scores:
            shift = self.policy.ema_shift
            if self._query_turned(session, layer, scores):
                shift //= 2
            averages, known = session.averages[layer], session.known[layer]
            for ordinal, score in enumerate(scores):
                old = averages[ordinal]
                new = old - (old >> shift) + (score >> shift)
                averages[ordinal] = new if ordinal < known else score
            session.known[layer] = max(known, len(scores))
        known = range(session.known[layer])
        session.calibrations[layer].note([self._class(session, layer, i) for i in known])
        if self.policy.eviction == "score":
            slots = [self.slot_of.get((chunk.number, layer)) for chunk in session.chunks]
            for slot in slots:
                if slot and slot.lift and slot.lift[0] == number:
                    slot.lift = None
                    self.settle(slot)
            for slot in slots:
                if slot:
                    self.settle(slot)
        session.last_demands[layer] = list(demands)

    def _query_turned(self, session: Session, layer: int, scores: Sequence[int]) -> bool:
        if session.config.select_blocks == 0:
            return False
        cut = rank_cut(scores, session.config.select_blocks)
        chosen = {ordinal for ordinal, score in enumerate(scores) if score >= cut}
        before, session.chosen[layer] = session.chosen[layer], chosen
        if not before:
            return False
        overlap = len(chosen & before) * 1000 // len(before)
        average = session.overlap[layer]
        if average == 0:
            session.overlap[layer] = overlap
            return False
        session.overlap[layer] = average - (average >> 3) + (overlap >> 3)
        return 2 * overlap < average

    def guess(self, number: int, layer: int, demands: Sequence[int] | None) -> None:
        self.proposed = 0
        session = self.sessions[number]
        need_ns = self.now + session.step_ns
        if self._on("window") and self._degree(session) > 0:
            self._window(session, number, layer, demands is None)
        for ordinal, cause, probability in self._structure(session, number, layer):
            self._propose(number, layer, ordinal, cause, probability, need_ns)
        if demands is None:
            return
        following = (layer + 1) % self.config.layer_count
        near_ns = self.now + session.layer_ns
        if self._on("prev_step"):
            for ordinal in session.last_demands[following]:
                self._propose(number, following, ordinal, BASELINE, 32768, near_ns)
        if self._on("prev_layer"):
            for ordinal in demands:
                self._propose(number, following, ordinal, BASELINE, 32768, near_ns)
        if self._on("next_n"):
            for ordinal in demands:
                for other in range(ordinal + 1, ordinal + 1 + self.policy.next_n):
                    if other < len(session.chunks):
                        self._propose(number, layer, other, BASELINE, 32768, need_ns)

    def guess_at_begin(self, number: int) -> None:
        for layer in range(self.config.layer_count):
            self.guess(number, layer, None)

    def _structure(
        self, session: Session, number: int, layer: int
    ) -> Iterator[tuple[int, int, int]]:
        """Own pattern, siblings' pattern: (ordinal, cause, chance) in order."""
        known = session.known[layer]
        own = session.averages[layer][:known]
        if self._on("ema"):
            chances = [self._chance(session, layer, ordinal) for ordinal in range(known)]
            yield from self._best(session, layer, own, chances, PATTERN)
        if self._on("shared") and session.shared and known < len(session.chunks):
            predicted = [0] * known
            for chunk in session.chunks[known:]:
                others = [
                    self._chance(self.sessions[n], layer, ordinal)
                    for n, ordinal in chunk.sessions.items()
                    if n != number and ordinal < self.sessions[n].known[layer]
                ]
                predicted.append(max(others, default=0))
            yield from self._best(session, layer, predicted, predicted, SHARED)

    def _best(
        self,
        session: Session,
        layer: int,
        values: Sequence[int],
        chances: Sequence[int],
        cause: int,
    ) -> Iterator[tuple[int, int, int]]:
        least = self.policy.probability_permille_min * HIGHEST / 1000
        rank = session.config.select_blocks * self.policy.residency_percent // 100
        room = self._degree(session) - self.proposed
        if rank == 0 or room <= 0:
            return
        cut, own = rank_cut(values, rank), cause == PATTERN
        absent = [
            ordinal
            for ordinal in range(len(values))
            if (values[ordinal] >= cut or (own and not session.nontrivial(ordinal)))
            and chances[ordinal] >= least
            and self._readable(session.chunks[ordinal], layer)
        ]
        for ordinal in sorted(absent, key=lambda o: (-chances[o], -values[o], o))[:room]:
            yield ordinal, cause, chances[ordinal]

    def _window(self, session: Session, number: int, layer: int, begin: bool) -> None:
        """The whole window when the session begins, then each appended block."""
        need_ns = self.now + BEGIN_STEPS * session.step_ns
        for ordinal in range(0 if begin else session.windowed[layer], len(session.chunks)):
            if self._in_window(session, ordinal):
                self._propose(number, layer, ordinal, WINDOW, HIGHEST, need_ns)
        session.windowed[layer] = len(session.chunks)

    def _degree(self, session: Session) -> int:
        return self.tenants[session.config.tenant].degree

    def _readable(self, chunk: Chunk, layer: int) -> bool:
        return (chunk.number, layer) not in self.slot_of and layer in chunk.store.stored

    def _propose(
        self, number: int, layer: int, ordinal: int, cause: int, probability: int, need_ns: int
    ) -> None:
        session = self.sessions[number]
        chunk = session.chunks[ordinal]
        counted = cause != WINDOW
        full = counted and self.proposed >= self._degree(session)
        if self._readable(chunk, layer) and not full:
            stamp = session.stamps[layer]
            candidate = Candidate(need_ns, probability, 0, chunk, layer, number, stamp, cause)
            self.proposed += self._candidate(candidate) and counted

    def _candidate(self, candidate: Candidate) -> bool:
        """Queue it; False: dropped because the queue is full."""
        session = self.sessions[candidate.session]
        tenant = self.tenants[session.config.tenant]
        old = self._queued(candidate.chunk, candidate.layer)
        if old:
            good = session.stamps[candidate.layer] <= old.stamp <= candidate.stamp
            if old.session == candidate.session and good:
                return False
            tenant.queue.remove(old)
        elif len(tenant.queue) == self.config.queue_max:
            self.fate(session.config.tenant, candidate.cause, DROPPED)
            return True
        elif not tenant.queue:
            tenant.turn = max(tenant.turn, self.turn)
        margin = min(tenant.margin_ns, (candidate.deadline_ns - self.now) // 2)
        candidate.deadline_ns -= margin
        candidate.sequence = self.sequence
        self.sequence += 1
        tenant.queue.append(candidate)
        return True

    def hint(self, now: int, number: int, guesses: Sequence[Guess]) -> None:
        """Guesses of the host, each (layer, ordinal, steps, probability, cause)."""
        self._enter(now)
        self.tenants[self.sessions[number].config.tenant].ledger["hint_bytes"] += 16 * len(guesses)
        for guess in guesses:
            self._hint_one(number, *guess)
        self.pump()

    def _hint_one(
        self, number: int, layer: int, ordinal: int, steps: int, probability: int, cause: int
    ) -> None:
        session = self.sessions[number]
        chunk = session.chunks[ordinal]
        slot = self.slot_of.get((chunk.number, layer))
        ran = session.step is not None and session.last_steps[layer] == session.step
        over = ran and steps == 0
        if slot and not over:
            if self.policy.eviction == "score":
                self.lift(slot, number, probability)
            elif slot.state == "resident":
                self.order(slot).use(slot)
        if not self._readable(chunk, layer):
            return
        if over:
            self.fate(session.config.tenant, cause, DROPPED)
            return
        begin_ns = self.now + BEGIN_STEPS * session.step_ns
        if session.step is not None:
            begin_ns = session.step_begin_ns
        need_ns = begin_ns + steps * session.step_ns + layer * session.layer_ns
        good_to = session.stamps[layer] + steps - ran
        candidate = Candidate(
            max(need_ns, self.now), probability, 0, chunk, layer, number, good_to, cause, True
        )
        self._candidate(candidate)

    def _queued(self, chunk: Chunk, layer: int) -> Candidate | None:
        queue = self.tenants[chunk.tenant].queue
        return next((c for c in queue if c.chunk is chunk and c.layer == layer), None)

    def queue_cancel(self, chunk: Chunk, layer: int) -> None:
        candidate = self._queued(chunk, layer)
        if candidate:
            self._drop(chunk.tenant, candidate)

    def queue_cancel_session(self, number: int) -> None:
        tenant = self.sessions[number].config.tenant
        for candidate in [c for c in self.tenants[tenant].queue if c.session == number]:
            self._drop(tenant, candidate)

    def _drop(self, tenant: int, candidate: Candidate) -> None:
        self.tenants[tenant].queue.remove(candidate)
        self.fate(tenant, candidate.cause, DROPPED)

    def _first(self, tenant: int) -> Candidate | None:
        """The tenant's first candidate that is still valid; stale ones before it are removed."""
        queue = self.tenants[tenant].queue
        while queue:
            first = min(queue, key=lambda c: c.order)
            stamp = self.sessions[first.session].stamps[first.layer]
            lasting = first.cause == WINDOW and not first.hinted
            if first.deadline_ns >= self.now and (first.stamp >= stamp or lasting):
                return first
            self._drop(tenant, first)
        return None

    def _cost_ns(self) -> int:
        rate = self.policy.prefetch_bytes_per_s_max
        return -(-self.config.block_size_bytes * 10**9 // rate) if rate else 0

    def _bandwidth_allows(self) -> bool:
        return self.bucket_ns <= self.now + BURST_BLOCKS * self._cost_ns() or not self._cost_ns()

    def pump(self) -> None:
        for tenant in range(len(self.tenants)):
            self._first(tenant)
        while (
            self.free_ios
            and not self.pending
            and sum(slot.prefetch for slot in self.ios.values())
            < self.policy.prefetch_in_flight_max
            and self._bandwidth_allows()
        ):
            waiting = [n for n in range(len(self.tenants)) if self.tenants[n].queue]
            if not waiting:
                return
            number = min(waiting, key=lambda n: (self.tenants[n].turn, n))
            self._issue(number)
            self._first(number)

    def _issue(self, number: int) -> None:
        tenant = self.tenants[number]
        candidate = min(tenant.queue, key=lambda c: c.order)
        chunk, layer = candidate.chunk, candidate.layer
        block = chunk.number, layer
        stored = layer in chunk.store.stored
        slot = self.take(number, block, candidate) if stored else None
        if slot is None:
            self._drop(number, candidate)
            return
        tenant.queue.remove(candidate)
        self.turn = tenant.turn
        tenant.turn += tenant.stride
        if self._cost_ns():
            self.bucket_ns = max(self.bucket_ns, self.now) + self._cost_ns()
        serial = self.sessions[candidate.session].serial
        self.assign(slot, chunk, layer, candidate.cause, serial)
        slot.hinted = candidate.hinted
        if candidate.hinted and self.policy.eviction == "score":
            self.lift(slot, candidate.session, candidate.probability)
        self.read(slot, candidate.session, candidate.deadline_ns)

    def queue_next_ns(self) -> int | None:
        if self._bandwidth_allows() or not any(tenant.queue for tenant in self.tenants):
            return None
        return self.bucket_ns - BURST_BLOCKS * self._cost_ns()

    def fate(self, number: int, cause: int, fate: int) -> None:
        self.tenants[number].ledger["fates"][cause][fate] += 1

    def slot_fate(self, slot: Slot, fate: int) -> None:
        """Record the end of a prefetch; only the core's own guesses are fed back."""
        tenant = self.tenants[slot.tenant]
        self.fate(slot.tenant, slot.cause, fate)
        if fate in (USED, FATE_LATE, UNUSED) and slot.cause != WINDOW and not slot.hinted:
            tenant.ended[fate] += 1
        if sum(tenant.ended) < SAMPLE:
            return
        used, late, unused = tenant.ended
        tenant.ended = [0, 0, 0]
        low, high = self.policy.accuracy_permille_min, self.policy.lateness_permille_max
        accuracy = (used + late) * 1000 // (used + late + unused)
        if low and accuracy < low:
            tenant.degree = max(tenant.degree // 2, min(tenant.degree, 1))
        elif low and accuracy >= min(2 * low, 1000):
            tenant.degree += tenant.degree < self.policy.degree_max
        if high and used + late:
            lateness = late * 1000 // (used + late)
            if lateness > high:
                tenant.margin_ns = min(2 * tenant.margin_ns or 50_000, 10_000_000)
            elif lateness <= high // 2:
                tenant.margin_ns //= 2
