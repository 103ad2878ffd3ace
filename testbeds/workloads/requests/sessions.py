"""The workload of one run as data: which sessions, when, over which chunks, for how many steps.

A plan is made once, before the run (`plan.py`); it owns no clock and no bytes. It records what was
taken, capped and left out, for the report.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request
from offstage.testbeds.workloads.requests.window import LeftOut

__all__ = [
    "ChunkShape",
    "PlanAccount",
    "SessionPlan",
    "WorkloadPlan",
    "admit",
    "chain",
    "compress",
    "compression_for",
    "generated_chunks",
    "grown_chunk",
    "lockstep",
    "root",
    "share",
    "trace_chunks",
]


@dataclass(frozen=True)
class ChunkShape:
    """Tokens of one chunk, and its bytes over all layers of the model."""

    block_tokens: int
    chunk_bytes: int


@dataclass(frozen=True)
class SessionPlan:
    """One decode session.

    `shared_chunks` then `own_chunks` are the identities of its context, front to back; the last
    one is partial if `context_tokens` ends within it. Shared means that another session of the same
    tenant has the chunk too. The first `retained_chunk_count` chunks are already in the store when
    it arrives, written by an earlier session of the plan: prefill writes only the rest.
    """

    name: str
    tenant: str
    arrival_s: float
    shared_chunks: tuple[int, ...]
    own_chunks: tuple[int, ...]
    retained_chunk_count: int
    context_tokens: int
    decode_steps: int
    block_tokens: int
    request_index: int | None = None
    """Index of its request in the trace, from 0; None if generated."""
    asked_context_tokens: int = 0
    asked_decode_steps: int = 0
    """The trace's request, before caps."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """All identities of the context, front to back."""
        return self.shared_chunks + self.own_chunks

    @property
    def new_chunks(self) -> tuple[int, ...]:
        """What prefill must write: the chunks that no earlier session left in the store."""
        return self.chunks[self.retained_chunk_count :]

    @property
    def grown_chunk_count(self) -> int:
        """Chunks that decoding writes; a partial tail counts, since it becomes another chunk."""
        end = -(-(self.context_tokens + self.decode_steps) // self.block_tokens)
        return end - self.context_tokens // self.block_tokens

    def grown_chunk(self, ordinal: int) -> int:
        """Identity of the chunk at `ordinal` once decoding has written into it."""
        first = self.context_tokens // self.block_tokens
        assert first <= ordinal < first + self.grown_chunk_count
        parent = self.chunks[first - 1] if first else 0
        return grown_chunk(parent, f"{self.tenant}/{self.name}", ordinal)


class SessionAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a plan, for a report."""

    name: str
    tenant: str
    arrival_s: float
    context_tokens: int
    decode_steps: int
    chunk_count: int
    shared_chunk_count: int
    retained_chunk_count: int
    request_index: int | None
    asked_context_tokens: int
    asked_decode_steps: int


class PlanAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, for a report."""

    sentence: str
    source: str
    trace: str
    seed: int
    session_count: int
    sessions_max: int
    sharing_session_count: int
    block_tokens: int
    chunk_bytes: int
    stored_bytes: int
    budget_bytes: int | None
    time_compression: float
    trace_span_s: float
    context_tokens_min: int
    context_tokens_max: int
    requests_taken: list[int | None]
    requests_capped: list[int | None]
    requests_left_out: dict[str, int]
    requests_before_count: int
    requests_after_count: int
    sessions: list[SessionAccount]


@dataclass(frozen=True)
class WorkloadPlan:
    """Sessions in order of arrival, and how they were chosen."""

    source: str
    """"generated" or "trace"."""
    trace: str
    """File name of the trace; empty where generated."""
    sessions: tuple[SessionPlan, ...]
    sessions_max: int
    """Concurrent sessions; later ones wait, first come, first served."""
    shape: ChunkShape
    seed: int
    budget_bytes: int | None
    time_compression: float = 1.0
    trace_span_s: float = 0.0
    """Time from the first to the last request taken, on the trace's clock."""
    context_tokens_min: int = 0
    context_tokens_max: int = 0
    left_out: tuple[LeftOut, ...] = ()
    before_count: int = 0
    after_count: int = 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks in the store at the end: each tenant's context once, and growth."""
        return self.shape.chunk_bytes * (
            sum(len(session.new_chunks) for session in self.sessions)
            + sum(session.grown_chunk_count for session in self.sessions)
        )

    @property
    def capped(self) -> tuple[SessionPlan, ...]:
        """Sessions whose request has more context than the cap."""
        return tuple(s for s in self.sessions if s.context_tokens < s.asked_context_tokens)

    @property
    def sharing_session_count(self) -> int:
        """The largest number of sessions of one tenant with the same first chunk."""
        firsts = Counter((s.tenant, s.shared_chunks[0]) for s in self.sessions if s.shared_chunks)
        return max(firsts.values(), default=0)

    def starts_s(self, step_time_s: float) -> list[float]:
        """When each session may start, if a step takes `step_time_s` and `sessions_max` run."""
        return admit(
            [session.arrival_s for session in self.sessions],
            [session.decode_steps * step_time_s for session in self.sessions],
            self.sessions_max,
        )

    def sentence(self) -> str:
        """What was taken and changed, in one sentence for a report."""
        longest = max(session.context_tokens for session in self.sessions)
        number = len(self.sessions)
        size = f"{number} sessions, the longest of {longest:,} tokens"
        if number == 1:
            size = f"1 session of {longest:,} tokens"
        if self.source != "trace":
            return f"{size}, generated, starting together"
        left = Counter(row.reason for row in self.left_out)
        total = len(self.sessions) + len(self.left_out) + self.before_count + self.after_count
        return (
            f"{size}, of the {total:,} requests of {self.trace}: {self._arrivals()}; "
            "inside that window "
            f"{left['short']} shorter than {self.context_tokens_min:,} tokens and "
            f"{left['budget']} beyond the byte budget were left out; "
            f"{len(self.capped)} capped at {self.context_tokens_max:,} tokens; "
            "which blocks they select is drawn, for a trace of requests does not say it"
        )

    def _arrivals(self) -> str:
        if self.trace_span_s == 0:
            return "arriving together"
        span = f"{self.trace_span_s:,.3g} s of arrivals"
        if self.trace_span_s >= 100:
            span = f"{self.trace_span_s:,.0f} s of arrivals"
        if self.time_compression == 1:
            return f"{span} as they came"
        return f"{span} compressed {self.time_compression:g} times"

    def account(self) -> PlanAccount:
        """The plan for a report; chunk identities are counted, not listed."""
        reasons = Counter(row.reason for row in self.left_out)
        return PlanAccount(
            sentence=self.sentence(),
            source=self.source,
            trace=self.trace,
            seed=self.seed,
            session_count=len(self.sessions),
            sessions_max=self.sessions_max,
            sharing_session_count=self.sharing_session_count,
            block_tokens=self.shape.block_tokens,
            chunk_bytes=self.shape.chunk_bytes,
            stored_bytes=self.stored_bytes,
            budget_bytes=self.budget_bytes,
            time_compression=self.time_compression,
            trace_span_s=self.trace_span_s,
            context_tokens_min=self.context_tokens_min,
            context_tokens_max=self.context_tokens_max,
            requests_taken=[s.request_index for s in self.sessions if self.source == "trace"],
            requests_capped=[s.request_index for s in self.capped],
            requests_left_out={name: reasons[name] for name in ("short", "budget")},
            requests_before_count=self.before_count,
            requests_after_count=self.after_count,
            sessions=[_session_account(session) for session in self.sessions],
        )


def share(rows: Sequence[SessionPlan]) -> tuple[SessionPlan, ...]:
    """Split each context into shared and own chunks, and mark those already in the store."""
    holders = Counter((row.tenant, chunk) for row in rows for chunk in set(row.own_chunks))
    stored: set[tuple[str, int]] = set()
    result = []
    for row in rows:
        keys = [(row.tenant, chunk) for chunk in row.own_chunks]
        # Identities are chained, so both runs start at the front and end once.
        shared_count = sum(holders[key] > 1 for key in keys)
        retained_count = sum(key in stored for key in keys)
        assert retained_count <= shared_count
        stored.update(keys)
        result.append(
            replace(
                row,
                shared_chunks=row.own_chunks[:shared_count],
                own_chunks=row.own_chunks[shared_count:],
                retained_chunk_count=retained_count,
            )
        )
    return tuple(result)


def _session_account(session: SessionPlan) -> SessionAccount:
    return SessionAccount(
        name=session.name,
        tenant=session.tenant,
        arrival_s=session.arrival_s,
        context_tokens=session.context_tokens,
        decode_steps=session.decode_steps,
        chunk_count=len(session.chunks),
        shared_chunk_count=len(session.shared_chunks),
        retained_chunk_count=session.retained_chunk_count,
        request_index=session.request_index,
        asked_context_tokens=session.asked_context_tokens,
        asked_decode_steps=session.asked_decode_steps,
    )


# When sessions arrive and when they may start: pure functions over lists of seconds.
#
# Traces have coarse clocks (Mooncake's ticks are about 3 s apart), so requests of one tick arrive
# together in file order; nothing finer than a tick may be concluded.


def lockstep(session_count: int) -> list[float]:
    """All sessions arrive together and decode in lockstep."""
    return [0.0] * session_count


def compress(timestamps_ms: Sequence[float], factor: float) -> list[float]:
    """Arrivals in seconds after the first one, every gap divided by `factor`."""
    assert factor > 0
    return [(stamp - timestamps_ms[0]) / 1e3 / factor for stamp in timestamps_ms]


def compression_for(span_s: float, target_s: float) -> float:
    """The factor that brings a span down to `target_s` or a little less; at least 1.

    Rounded up to two significant digits, so that a report can say it exactly.
    """
    assert target_s > 0
    factor = span_s / target_s
    if factor <= 1:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(factor)) - 1)
    return round(math.ceil(factor / unit - 1e-9) * unit, 9)


def admit(
    arrivals_s: Sequence[float], durations_s: Sequence[float], sessions_max: int
) -> list[float]:
    """Start times when at most `sessions_max` sessions run at once, first come, first served.

    `arrivals_s` must not decrease. A session that arrives while that many run waits for one to
    end.
    """
    assert sessions_max >= 1
    ends: list[float] = []
    starts = []
    for arrival_s, duration_s in zip(arrivals_s, durations_s, strict=True):
        start_s = arrival_s
        if len(ends) == sessions_max:
            start_s = max(arrival_s, heapq.heappop(ends))
        heapq.heappush(ends, start_s + duration_s)
        starts.append(start_s)
    return starts


# Content identities of chunks: 128-bit numbers that are equal exactly when prefixes are equal.
#
# An identity is a hash over the identity of the chunk before it and a label of this chunk's
# content, so that it identifies the whole prefix (blake2b, 16-byte digest). It says what the tokens
# are, not who may see them: the decision core hashes it again with the tenant's key, which keeps
# tenants apart. The seed is part of the root because key and value bytes are drawn from
# (seed, identity, layer): two runs with different seeds must not find each other's bytes in one
# store.

_IDENTITY_BYTES = 16


def root(seed: int, source: str) -> int:
    """The parent of every first chunk of one workload source under one seed."""
    return chain(0, "root", source, seed)


def chain(parent: int, *label: str | int) -> int:
    """The identity of the chunk after `parent` with the content that `label` names."""
    # Length-prefixed parts: ("a", 12) and ("a1", 2) must differ.
    parts = [f"{len(text)}:{text}" for text in map(str, label)]
    digest = blake2b(digest_size=_IDENTITY_BYTES)
    digest.update(parent.to_bytes(_IDENTITY_BYTES, "little"))
    digest.update("".join(parts).encode())
    return int.from_bytes(digest.digest(), "little")


def generated_chunks(parent: int, name: str, token_count: int, block_tokens: int) -> list[int]:
    """Identities of `token_count` generated tokens called `name` after `parent`; tail included."""
    identities = []
    for ordinal in range(-(-token_count // block_tokens)):
        tokens = min(block_tokens, token_count - ordinal * block_tokens)
        parent = chain(parent, "text", name, ordinal, tokens)
        identities.append(parent)
    return identities


def trace_chunks(
    parent: int, request: Request, context_tokens: int, block_tokens: int
) -> list[int]:
    """Identities of the first `context_tokens` tokens of a traced request.

    A 512-token trace block becomes 512 / block_tokens chunks, each named by the trace id and its
    token count; the chain distinguishes the positions inside the block. The count is included
    because a tail cut by a cap differs from the full chunk at the same position.
    """
    assert TRACE_BLOCK_TOKENS % block_tokens == 0
    assert context_tokens <= request.input_tokens
    identities = []
    for start in range(0, context_tokens, block_tokens):
        trace_id = request.block_ids[start // TRACE_BLOCK_TOKENS]
        tokens = min(block_tokens, context_tokens - start)
        parent = chain(parent, "trace", trace_id, tokens)
        identities.append(parent)
    return identities


def grown_chunk(parent: int, session: str, ordinal: int) -> int:
    """Identity of the chunk `ordinal` that decoding of `session` appends after `parent`."""
    return chain(parent, "decoded", session, ordinal)
