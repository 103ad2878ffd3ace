"""The requests of a run, from a trace or generated, in blocks of 512 tokens, numbered from 0.

A block's number identifies all tokens up to its end, so two requests with equal numbers share that
prefix. Times are integers in ns. The same spec and seed give the same requests.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.notes import Note
from offstage.testbeds.lab.pod.spec import PodSpec
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["Requests", "requests_of", "scaled", "trace_notes"]

I64 = NDArray[np.int64]
SPREAD = 0.1
"""Added tenants begin within this share of the trace's duration."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in order of arrival; request r has blocks `offsets[r]` to `offsets[r + 1]`."""

    arrival_ns: I64
    input_tokens: I64
    output_tokens: I64
    session: I64
    """Session of each request; -1: none."""
    offsets: I64
    blocks: NDArray[np.uint32]
    block_count: int
    think_ns: I64 | None = None
    """Of a turn without an arrival of its own: its delay after the end of the turn before; else -1.
    None: there is no such turn, `arrival_ns` of which would be the earliest."""

    @property
    def follows(self) -> NDArray[np.bool_]:
        """Turns without an arrival of their own."""
        return np.zeros(len(self), np.bool_) if self.think_ns is None else self.think_ns >= 0

    @cached_property
    def next_turn(self) -> I64:
        """The request that continues the session of each; -1: none does."""
        order = np.argsort(self.session, kind="stable")
        session, following = self.session[order], np.full(len(self), -1)
        goes_on = (session[1:] == session[:-1]) & (session[:-1] >= 0)
        following[order[:-1][goes_on]] = order[1:][goes_on]
        return following

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def of(self, index: int) -> NDArray[np.uint32]:
        """The blocks of one request, from the front."""
        return self.blocks[self.offsets[index] : self.offsets[index + 1]]


def requests_of(spec: PodSpec, tenants: int, seed: int) -> Requests:
    """The requests of one pod: the trace once per tenant; tenants share no blocks."""
    given = spec.trace, spec.requests, spec.time_unit
    one = _traced(*given) if spec.trace else _generated(spec, seed)
    one = scaled(one, spec.rate)
    return one if tenants == 1 else _repeated(one, tenants, seed)


def trace_notes(spec: PodSpec) -> list[Note]:
    """Notes on what the reader of the spec's trace skipped, changed or found doubtful."""
    if not spec.trace:
        return []
    return list(_opened(spec.trace, spec.requests, spec.time_unit).notes)


def _opened(path: str, count: int, time_unit: str) -> Trace:
    return open_trace([Path(path)], limit=count, time_unit=time_unit or None)


@lru_cache(maxsize=1)
def _traced(path: str, count: int, time_unit: str) -> Requests:
    """The requests of a trace. BadInput if the file is no trace, or has no blocks or requests."""
    trace = _opened(path, count, time_unit)
    trace.need_blocks("a pod")
    numbers: dict[int, int] = {}
    blocks: list[int] = []
    sizes = []
    for request in requests_in_blocks(trace):
        blocks += [numbers.setdefault(one, len(numbers)) for one in request.block_ids]
        sizes.append(len(request.block_ids))
    return Requests(
        arrival_ns=np.round((trace.arrival_s - trace.arrival_s[:1].sum()) * 1e9).astype(np.int64),
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        session=trace.session,
        offsets=np.r_[0, np.cumsum(sizes)].astype(np.int64),
        blocks=np.array(blocks, np.uint32),
        block_count=len(numbers),
        think_ns=_think_ns(trace),
    )


def _think_ns(trace: Trace) -> I64 | None:
    if not trace.follows.any():
        return None
    delay_ns = np.round(np.nan_to_num(trace.think_s) * 1e9).astype(np.int64)
    return np.where(trace.follows, delay_ns, -1)


def _generated(spec: PodSpec, seed: int) -> Requests:
    """Generate sessions that arrive as a Poisson process and begin with one of a few prompts, the
    n-th with a probability proportional to 1 / n. Each turn repeats all tokens before it and adds
    new ones, after an exponential gap. A synthetic model of sharing, fitted to no service."""
    rng = np.random.Generator(np.random.Philox(seed))
    begin_s = np.cumsum(rng.exponential(1 / spec.arrivals_per_s, spec.sessions))
    shares = 1 / np.arange(1, spec.prompts + 1)
    prompt = rng.choice(spec.prompts, spec.sessions, p=shares / shares.sum())
    gaps_s = rng.exponential(spec.gap_ns / 1e9, (spec.sessions, spec.turns))
    gaps_s[:, 0] = 0
    arrival_s = (begin_s[:, None] + np.cumsum(gaps_s, axis=1)).ravel()
    tokens = spec.prompt_tokens + spec.turn_tokens * np.arange(1, spec.turns + 1)
    shared = spec.prompt_tokens // TRACE_BLOCK_TOKENS
    own = -(-int(tokens[-1]) // TRACE_BLOCK_TOKENS) - shared
    # Block numbers: those of all prompts, then those of each session.
    chains = np.concatenate(
        [
            prompt[:, None] * shared + np.arange(shared),
            spec.prompts * shared + np.arange(spec.sessions)[:, None] * own + np.arange(own),
        ],
        axis=1,
    ).astype(np.uint32)
    order = np.argsort(arrival_s, kind="stable")
    session, turn = order // spec.turns, order % spec.turns
    counts = -(-tokens[turn] // TRACE_BLOCK_TOKENS)
    return Requests(
        arrival_ns=np.round(arrival_s[order] * 1e9).astype(np.int64),
        input_tokens=tokens[turn].astype(np.int64),
        output_tokens=np.full(len(order), 250),
        session=session,
        offsets=np.r_[0, np.cumsum(counts)],
        blocks=np.concatenate([chains[s, :c] for s, c in zip(session, counts, strict=True)]),
        block_count=spec.prompts * shared + spec.sessions * own,
    )


def scaled(one: Requests, rate: float) -> Requests:
    """The requests with their times divided by a factor."""
    think_ns = one.think_ns
    if think_ns is not None:
        think_ns = np.where(think_ns < 0, -1, np.round(think_ns / rate).astype(np.int64))
    arrival_ns = np.round(one.arrival_ns / rate).astype(np.int64)
    return replace(one, arrival_ns=arrival_ns, think_ns=think_ns)


def _repeated(one: Requests, tenants: int, seed: int) -> Requests:
    """The requests of `tenants` tenants: equal requests at other times, without common blocks."""
    rng = np.random.Generator(np.random.Philox(seed))
    span_ns = int(one.arrival_ns[-1])
    later_ns = np.r_[0, rng.integers(0, max(1, round(SPREAD * span_ns)), tenants - 1)]
    sessions = int(one.session.max(initial=-1)) + 1
    tenant = np.repeat(np.arange(tenants), len(one))
    request = np.tile(np.arange(len(one)), tenants)
    arrival_ns = one.arrival_ns[request] + later_ns[tenant]
    order = np.argsort(arrival_ns, kind="stable")
    tenant, request = tenant[order], request[order]
    session = one.session[request]
    counts = np.diff(one.offsets)[request]
    blocks = np.concatenate(
        [
            one.of(r) + np.uint32(t * one.block_count)
            for r, t in zip(request.tolist(), tenant.tolist(), strict=True)
        ]
    )
    return Requests(
        arrival_ns[order],
        one.input_tokens[request],
        one.output_tokens[request],
        np.where(session >= 0, session + tenant * sessions, -1),
        np.r_[0, np.cumsum(counts)].astype(np.int64),
        blocks,
        one.block_count * tenants,
        None if one.think_ns is None else one.think_ns[request],
    )
