"""The host agent: opens sessions at the tier and decodes them together, paced like a GPU would.

One thread. A tick is one token of every active session: layer by layer, all sessions of a layer
together, as a batched decode does. The GPU's own time is a given number (`time_per_token_s`),
spread evenly over the layers; the stall that the tier adds is measured. If the machine cannot keep
the pace, the tick takes longer, and the record has its actual time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.host.decode.layer import Coming, Decoder
from offstage.host.decode.queue import WAITING_MAX, Admission
from offstage.host.decode.record import AgentRecord, Token
from offstage.host.decode.schedule import Rule
from offstage.host.decode.session import Context, HostSession, Queries
from offstage.host.decode.tail_block import TailBlock, write_tokens
from offstage.host.decode.timeline import Clock
from offstage.host.link.tier_sessions import Sessions, append_chunks
from offstage.host.request_record import Found, RequestRecord
from offstage.host.selection import ScoreQuantizer

__all__ = ["Agent", "DecodeJob"]

ROOM_NS = 100_000
"""Interval between two checks whether the fabric has room for more guesses."""

Watcher = Callable[[AgentRecord], None]


@dataclass(frozen=True)
class DecodeJob:
    """One session to decode: `start_s` after the start of the run, over a stored context."""

    number: int
    name: str
    start_s: float
    context: Context
    step_count: int
    grown_identity: Callable[[int], int]
    """Content identity of the chunk that decoding fills at an ordinal."""
    queries: Callable[[int], Queries]
    """The queries of a layer, from step 0 on."""
    guesses: NDArray[np.void] | None = None
    """`bindings.core.GUESS` `[n]`: what its first step will demand; see `Agent.lead_s`."""


@dataclass
class Agent:
    """Decodes jobs over one control connection and one decode path."""

    control: Sessions
    decoder: Decoder
    time_per_token_s: float = 0.02
    active_max: int = 64
    ahead: bool = False
    """Begin each layer while the previous one is computed; needs queries that are known by then."""
    lead_s: float = 0.0
    """Time from a session's open, when its guesses are sent, to its first step."""
    rule: Rule = field(default_factory=Rule)
    """Which job starts next when more wait than there is room for."""
    waiting_max: int = WAITING_MAX
    """Length of the waiting queue; jobs beyond it are refused and counted."""
    upkeep: Callable[[], None] = lambda: None
    """Called at every layer of a tick; for a pod, `Upkeep.turn`."""

    def run(self, jobs: Sequence[DecodeJob], watch: Watcher = lambda record: None) -> AgentRecord:
        """Decode every job to its end. `watch` gets the record after every tick.

        Raises RunFailed if the tier is gone or refuses a write."""
        record = AgentRecord(requests={one.number: _asked(one) for one in jobs})
        queue = Admission(jobs, self.rule, self.waiting_max)
        active: list[tuple[HostSession, TailBlock]] = []
        told: deque[tuple[int, tuple[HostSession, TailBlock]]] = deque()
        record.begun_ns = begun_ns = self.clock.now_ns()
        while queue or told or active:
            self._admit(queue, told, active, record)
            while told and told[0][0] <= self.clock.now_ns():
                active.append(told.popleft()[1])
            if not active:
                due_ns = [one for one, _ in told]
                if queue.next_s is not None and len(told) < self.active_max:
                    due_ns.append(begun_ns + int(queue.next_s * 1e9))
                if due_ns:
                    self.clock.sleep_until_ns(min(due_ns))
                continue
            self._tick(active, record)
            watch(record)
            for session, _ in [pair for pair in active if pair[0].done]:
                self._close(session)
            active = [pair for pair in active if not pair[0].done]
        record.wall_s = (self.clock.now_ns() - begun_ns) / 1e9
        record.refused, record.passed_over = queue.refused, queue.passed_over
        return record

    def _admit(
        self,
        queue: Admission[DecodeJob],
        told: deque[tuple[int, tuple[HostSession, TailBlock]]],
        active: list[tuple[HostSession, TailBlock]],
        record: AgentRecord,
    ) -> None:
        """Open the sessions that may start."""
        while True:
            running = [*(one for _, one in told), *active]
            room = self.active_max - len(running)
            queue.arrive((self.clock.now_ns() - record.begun_ns) / 1e9, room)
            job = queue.take([one.context for one, _ in running]) if room > 0 else None
            if job is None:
                return
            told.append(self._open(job, record))

    @property
    def clock(self) -> Clock:
        """The tier's clock."""
        return self.decoder.clock

    def _open(
        self, job: DecodeJob, record: AgentRecord
    ) -> tuple[int, tuple[HostSession, TailBlock]]:
        """Open the job's session; also returns when its first step is due."""
        scheduled_ns = self.clock.now_ns() - record.begun_ns
        rule, geometry = self.decoder.rule, self.decoder.kv.geometry
        layers = range(geometry.layer_count)
        handle = self.control.session_open(
            sink_blocks=rule.sink_blocks,
            window_blocks=rule.window_blocks,
            select_blocks=rule.select_blocks,
            step_ns=int(self.time_per_token_s * 1e9),
        )
        self.decoder.driver.limit_scores(*self.control.hints)
        context = job.context.fork()
        asked_ns = self.clock.now_ns() - record.begun_ns
        appended = append_chunks(self.control, handle, context.identities, len(layers))
        session = HostSession(
            number=job.number,
            name=job.name,
            handle=handle,
            context=context,
            keys=appended.keys,
            length_tokens=len(context.identities) * geometry.block_tokens,
            step_count=job.step_count,
            queries=[job.queries(layer) for layer in layers],
            quantizers=[ScoreQuantizer() for _ in layers],
        )
        request = record.requests[job.number]
        request.scheduled_ns, request.asked_ns = scheduled_ns, asked_ns
        request.host, request.refused = 0, False
        request.input_tokens = session.length_tokens
        known = int(np.logical_and.accumulate(appended.stored_layers >= len(layers)).sum())
        request.found = [Found("tier", known * geometry.block_tokens)]
        request.absent_blocks = (len(context.identities) - known) * len(layers)
        self.control.set_generating(handle, True)
        due_ns = self._tell(handle, job)
        return due_ns, (session, TailBlock(self.control, self.decoder, job.grown_identity))

    def _tell(self, handle: int, job: DecodeJob) -> int:
        """Send the job's guesses while there is room, until its first step is due; returns when
        that is."""
        due_ns = self.clock.now_ns() + int(self.lead_s * 1e9)
        left = np.zeros(0, GUESS) if job.guesses is None else job.guesses
        while len(left):
            left = left[self.decoder.driver.hint(handle, left) :]
            if (now_ns := self.clock.now_ns()) >= due_ns:
                break
            if len(left):
                self.clock.sleep_until_ns(min(due_ns, now_ns + ROOM_NS))
        return due_ns

    def _close(self, session: HostSession) -> None:
        self.control.set_generating(session.handle, False)
        self.control.session_close(session.handle, keep=True)
        self.decoder.pool.close(session.number)

    def _tick(self, active: list[tuple[HostSession, TailBlock]], record: AgentRecord) -> None:
        layers = self.decoder.kv.geometry.layer_count
        begun_ns = self.clock.now_ns()
        tokens = [Token(session.number, session.step, begun_ns=begun_ns) for session, _ in active]
        for session, tail_block in active:
            tail_block.begin_token(session)
        batch = [(session, token) for (session, _), token in zip(active, tokens, strict=True)]
        record.timeline.begin_tick()
        coming: Coming | None = None
        for layer in range(layers):
            self.upkeep()
            now = coming or self._begin(active, batch, layer, record)
            coming = None
            if self.ahead and layer + 1 < layers:
                self.decoder.settle(now, record)
                coming = self._begin(active, batch, layer + 1, record, early=True)
            self.decoder.attend(now, record)
            share = (layer + 1) / layers
            until_ns = begun_ns + int(self.time_per_token_s * share * 1e9)
            self._pace(layer, until_ns, coming, record)
        self.decoder.end_tick(record)
        for (session, tail_block), token in zip(active, tokens, strict=True):
            token.put_ns = tail_block.end_token(session, record)
            session.step += 1
            token.ended_ns = self.clock.now_ns()
        record.add(tokens)

    def _begin(
        self,
        active: list[tuple[HostSession, TailBlock]],
        batch: list[tuple[HostSession, Token]],
        layer: int,
        record: AgentRecord,
        *,
        early: bool = False,
    ) -> Coming:
        write_tokens(self.decoder.pool, active, layer)
        return self.decoder.begin(batch, layer, record, early=early)

    def _pace(self, layer: int, until_ns: int, coming: Coming | None, record: AgentRecord) -> None:
        """Wait until the GPU would be done with the layer; process the next one's fetches."""
        paced_ns = self.clock.now_ns()
        if coming is not None:
            self.decoder.tend(coming, until_ns, record)
        self.clock.sleep_until_ns(until_ns)
        record.timeline.add("pace", layer, paced_ns, self.clock.now_ns())


def _asked(job: DecodeJob) -> RequestRecord:
    """A job that no host has taken: it counts as refused until one does."""
    return RequestRecord(
        request=job.number,
        session=job.number,
        output_tokens=job.step_count,
        arrival_ns=int(job.start_s * 1e9),
        refused=True,
    )
