"""Prefix caching across requests: how much of a prompt is still staged when its request arrives.

Model: requests look up their blocks in order of arrival. A cached block is used; an absent one is
prefilled, and written into the buffer if admission accepts it. The decision core chooses the
victims, in virtual time and without latency: the study is about what to keep, not about transfer
speed. A block without a request during the TTL is dropped, and its slot is free. The same trace
and options give the same result. What can fail: a trace without blocks, or without sessions where
the admission needs them (BadInput).

Four hit rates, because the definition moves the number by several points:
- block: blocks that were cached when they were looked up, over all blocks looked up;
- prefix: blocks of the unbroken run from the front that were cached on arrival, over the same;
- token: tokens of that run over all input tokens: the share of prefill that the cache saves;
- request: the mean over requests of that share of the request's input tokens.

Admission: `all`; `second-touch`, a block enters when it is requested again within a window (the
doorkeeper of TinyLFU, Einziger, Friedman, Manes, ACM TOS 13(4), 2017, with an exact set instead of
a Bloom filter); `turns`, a block enters unless its request is the first of its session and no other
session has requested the block: single-turn content that is not shared stays out.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import EVICTIONS
from offstage.bindings.ledger import share
from offstage.bindings.prefix import ADMISSIONS, Ideal, ideal, run
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = [
    "ADMISSIONS",
    "PREFIX_EVICTIONS",
    "TOUCHES",
    "HitRates",
    "PrefixOptions",
    "PrefixResult",
    "PrefixTrace",
    "simulate",
]

PREFIX_EVICTIONS = tuple(name for name in EVICTIONS if name != "score")
"""All but `score`: a request trace has no scores."""

TOUCHES = ("front", "tail")
"""Order in which a request's blocks are used: `tail` leaves the front most recent, as in vLLM."""

DEMANDS_MAX = 256
"""Most hits passed to the core in one step; a larger value only enlarges its tables."""


@dataclass(frozen=True)
class HitRates:
    """Hits by block, prefix, token and request, as the module defines them; 0 to 1."""

    block: float
    prefix: float
    token: float
    request: float


@dataclass(frozen=True)
class PrefixOptions:
    """One cache. `ttl_s` None: nothing expires; `window_s` None: second touch at any time."""

    capacity_blocks: int
    eviction: str = "lru"
    admission: str = "all"
    ttl_s: float | None = None
    window_s: float | None = None
    touch: str = "front"
    seed: int = 0

    def check(self) -> None:
        """BadInput for a value that is not in its list or range."""
        for name, value, known in (
            ("eviction", self.eviction, PREFIX_EVICTIONS),
            ("admission", self.admission, ADMISSIONS),
            ("touch", self.touch, TOUCHES),
        ):
            if value not in known:
                raise BadInput(f"{name} = {value!r}", "prefix", f"choose one of {', '.join(known)}")
        if self.capacity_blocks < 1:
            raise BadInput(f"capacity of {self.capacity_blocks} blocks", "prefix", "give 1 or more")
        for name, seconds in (("ttl_s", self.ttl_s), ("window_s", self.window_s)):
            if seconds is not None and not 1e-9 <= seconds <= 1e9:
                raise BadInput(
                    f"{name} = {seconds}", "prefix", "give 1e-9 to 1e9 s, or leave it out"
                )


@dataclass(frozen=True)
class PrefixResult:
    """The result of one cache on one trace; counts are in blocks."""

    options: PrefixOptions
    hit_rates: HitRates
    admitted: int
    refused: int
    evicted: int
    expired: int


class PrefixTrace:
    """A trace prepared for many caches. BadInput if it has no blocks.

    warm_up_share: share of the requests, from the start and rounded down, that every cache
    processes and no rate counts. BadInput if nothing is left to count.
    """

    def __init__(self, trace: Trace, warm_up_share: float = 0.0) -> None:
        trace.need_blocks("prefix caching")
        self.trace = trace
        self.runs = trace.runs
        if not self.runs.access_count:
            raise BadInput("no request has a block", trace.origin.name, "give longer requests")
        self.warm_up = int(warm_up_share * len(trace))
        self.counted = int(trace.block_counts[self.warm_up :].sum())
        if not self.counted:
            raise BadInput(
                f"after a warm-up of {self.warm_up} requests, no request has a block",
                trace.origin.name,
                "give a smaller share",
            )
        self.arrival_ns = np.rint(trace.arrival_s * 1e9).astype(np.uint64)

    @cached_property
    def endless(self) -> Ideal:
        """The hits of an infinite cache."""
        return ideal(self.runs)

    @cached_property
    def ideal(self) -> HitRates:
        """Hit rates of an infinite cache: the upper bound."""
        return self.hit_rates(self.endless.rows)

    def hit_rates(self, rows: Any) -> HitRates:
        """The rates of `ROW` `[requests]`, over the requests after the warm-up."""
        trace = self.trace
        whole = (rows["prefix"] == trace.block_counts) & (trace.block_counts > 0)
        # A trace that gives lengths in bytes / 4 may have one block more than its tokens fill.
        tokens = np.minimum(trace.tokens_of(rows["prefix"], whole), trace.input_tokens)
        rest = slice(self.warm_up, None)
        rows, tokens, inputs = rows[rest], tokens[rest], trace.input_tokens[rest]
        asked = inputs > 0
        return HitRates(
            block=int(rows["hits"].sum(dtype=np.int64)) / self.counted,
            prefix=int(rows["prefix"].sum(dtype=np.int64)) / self.counted,
            token=share(int(tokens.sum()), int(inputs.sum())),
            request=float(np.mean(tokens[asked] / inputs[asked])) if asked.any() else 0,
        )


def simulate(prepared: PrefixTrace, options: PrefixOptions) -> PrefixResult:
    """One pass of the trace through a decision core of `capacity_blocks` slots.

    Raises BadInput for an option out of range, or admission `turns` on a trace without sessions.
    """
    options.check()
    trace, runs = prepared.trace, prepared.runs
    by_turn = options.admission == "turns"
    if by_turn:
        trace.need_sessions("admission 'turns'")
    slots = min(options.capacity_blocks, runs.block_count)
    config = CoreConfig(
        slots, runs.block_count, runs.block_count, demand_max=DEMANDS_MAX, seed=options.seed
    )
    core = Core(config, Policy("shared"))
    tenant = core.tenant_add(0, b"\0" * 16, slots)
    session = core.session_open(0, SessionConfig(tenant, 1))
    core.set_policy(0, Policy(eviction=options.eviction))
    counts = run(
        core,
        session,
        runs,
        prepared.arrival_ns,
        admission=options.admission,
        ttl_ns=0 if options.ttl_s is None else round(options.ttl_s * 1e9),
        window_ns=None if options.window_s is None else round(options.window_s * 1e9),
        tail_first=options.touch == "tail",
        sessions=trace.session.astype(np.uint32) if by_turn else None,
        turns=trace.turn.astype(np.uint32) if by_turn else None,
    )
    return PrefixResult(
        options=options,
        hit_rates=prepared.hit_rates(counts.rows),
        admitted=counts.admitted,
        refused=counts.refused,
        evicted=counts.evicted,
        expired=counts.expired,
    )
