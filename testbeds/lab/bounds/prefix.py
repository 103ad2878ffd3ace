"""Prefix caching across requests: what of a prompt is still staged when a request comes.

Model: every request asks for its blocks in order of arrival; a block that is there is used, one
that is not is prefilled, and written into the buffer if the admission lets it in. The victims are
chosen by the decision core, in virtual time and without latency: what is studied is what to keep,
not how fast it moves. A block that nobody asked for during the TTL is dropped, and its room is
free. Same trace and options, same result. What can fail: a trace without blocks, or without
sessions where the admission needs them (BadInput).

Four hit rates, because the definition moves the number by several points:
- block: blocks that were there when their turn came, over all blocks asked for;
- prefix: blocks of the unbroken run, from the front, that were there on arrival, over the same;
- token: tokens of that run over all input tokens: what a prefix cache saves of the prefill;
- request: the mean over requests of that share of its own input tokens.

Admission: `all`; `second-touch`, a block enters when it is asked for again within a window (the
doorkeeper of TinyLFU, Einziger, Friedman, Manes, ACM TOS 13(4), 2017, kept exactly here instead of
in a Bloom filter); `turns`, a block enters unless its request is the first of its session and no
other session has asked for the block: what is single-turn and not shared stays out.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import EVICTIONS
from offstage.bindings.prefix import ADMISSIONS, Ideal, distances, ideal, run
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import Optimum

__all__ = [
    "ADMISSIONS",
    "PREFIX_EVICTIONS",
    "TOUCHES",
    "HitRates",
    "PrefixOptions",
    "PrefixResult",
    "PrefixTrace",
    "RequestsOptions",
    "RequestsResult",
    "RequestsRow",
    "run_requests",
    "simulate",
]

PREFIX_EVICTIONS = tuple(name for name in EVICTIONS if name != "score")
"""All but `score`: a request trace says nothing of how much a block is wanted."""

TOUCHES = ("front", "tail")
"""The order in which a request's blocks are used: `tail` leaves the front most recent, as vLLM."""

DEMANDS_MAX = 256
"""Hits passed to the core in one step; more would only make its tables larger."""


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
        """BadInput for a value that is not of its list or range."""
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
    """What one cache did on one trace; counts are blocks."""

    options: PrefixOptions
    hit_rates: HitRates
    admitted: int
    refused: int
    evicted: int
    expired: int

    def describe(self) -> dict[str, Any]:
        """JSON-ready: options, hit rates and counts."""
        return asdict(self)


class PrefixTrace:
    """A trace made ready for many caches. BadInput where it has no blocks.

    warm_up_share: of the requests, those that come first and count in no rate, rounded down; every
    cache meets them. BadInput where nothing is left to count.
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
                f"a warm-up of {self.warm_up} requests leaves none with a block",
                trace.origin.name,
                "give a smaller share",
            )
        self.arrival_ns = np.rint(trace.arrival_s * 1e9).astype(np.uint64)

    @cached_property
    def endless(self) -> Ideal:
        """What an endless cache hits."""
        return ideal(self.runs)

    @cached_property
    def ideal(self) -> HitRates:
        """Hit rates of an endless cache: nobody can do better."""
        return self.hit_rates(self.endless.rows)

    @cached_property
    def _lru_hits(self) -> Any:
        return np.cumsum(distances(self.runs))

    def lru_block_hit_rate(self, capacity_blocks: int) -> float:
        """LRU by block, front first, from stack distances: no simulation, for any capacity."""
        hits = self._lru_hits[min(capacity_blocks, len(self._lru_hits)) - 1]
        return float(hits) / self.runs.access_count

    def hit_rates(self, rows: Any) -> HitRates:
        """The rates of `ROW` `[requests]`, of the requests behind the warm-up."""
        trace = self.trace
        whole = (rows["prefix"] == trace.block_counts) & (trace.block_counts > 0)
        # A trace of lengths in bytes / 4 can have a block more than its tokens.
        tokens = np.minimum(trace.tokens_of(rows["prefix"], whole), trace.input_tokens)
        rest = slice(self.warm_up, None)
        rows, tokens, inputs = rows[rest], tokens[rest], trace.input_tokens[rest]
        asked = inputs > 0
        return HitRates(
            block=int(rows["hits"].sum(dtype=np.int64)) / self.counted,
            prefix=int(rows["prefix"].sum(dtype=np.int64)) / self.counted,
            token=int(tokens.sum()) / max(1, int(inputs.sum())),
            request=float(np.mean(tokens[asked] / inputs[asked])) if asked.any() else 0,
        )


def simulate(prepared: PrefixTrace, options: PrefixOptions) -> PrefixResult:
    """One pass of the trace through a decision core of `capacity_blocks` slots.

    Raises BadInput for an option out of range, or admission `turns` on a trace without sessions.
    """
    options.check()
    trace, runs = prepared.trace, prepared.runs
    by_session: dict[str, Any] = {}
    if options.admission == "turns":
        trace.need_sessions("admission 'turns'")
        by_session = {
            "sessions": trace.session.astype(np.uint32),
            "turns": trace.turn.astype(np.uint32),
        }
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
        **by_session,
    )
    return PrefixResult(
        options=options,
        hit_rates=prepared.hit_rates(counts.rows),
        admitted=counts.admitted,
        refused=counts.refused,
        evicted=counts.evicted,
        expired=counts.expired,
    )


# Tables of prefix caching: request traces against evictions, admissions, TTLs and capacities.
#
# The requests half of the laboratory; decode sessions that follow such a trace are made by
# `testbeds/workloads/requests/trace_sessions.py`. Every option is checked before the first run, so
# a mistake costs no time.


@dataclass(frozen=True)
class RequestsOptions:
    """What to compare: every trace with every combination of the other lists.

    capacity_shares: of the trace's unique blocks, above 0 to 1, rounded down to at least one block.
    ttls_s: None is no TTL. window_s: of admission `second-touch`; None: asked at any time before.
    touch: "front" or "tail". warm_up_share: of each trace's requests, as `PrefixTrace` has it, 0 to
    below 1. seed: of eviction `random`, and of traces that are generators.
    """

    traces: tuple[str | Path, ...]
    trace_format: str | None = None
    time_unit: str | None = None
    limit: int | None = None
    evictions: tuple[str, ...] = ("lru", "s3fifo")
    admissions: tuple[str, ...] = ("all",)
    ttls_s: tuple[float | None, ...] = (None,)
    capacity_shares: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5)
    window_s: float | None = None
    touch: str = "front"
    seed: int = 1
    warm_up_share: float = 0.0

    def caches(self) -> Iterator[tuple[float, str, str, float | None]]:
        """(capacity share, eviction, admission, TTL) of every row of a trace, in order."""
        return product(self.capacity_shares, self.evictions, self.admissions, self.ttls_s)

    def check(self) -> None:
        """BadInput for an empty list or a value out of its list or range."""
        for name in ("traces", "evictions", "admissions", "ttls_s", "capacity_shares"):
            if not getattr(self, name):
                raise BadInput(f"{name} is empty", "requests", "give one or more")
        if not 0 <= self.warm_up_share < 1:
            raise BadInput(
                f"a warm-up of {self.warm_up_share:g}", "requests", "give a share of 0 to below 1"
            )
        for share, eviction, admission, ttl_s in self.caches():
            if not 0 < share <= 1:
                raise BadInput(f"capacity share {share}", "requests", "give above 0, up to 1")
            self.cache(1, eviction, admission, ttl_s).check()

    def cache(
        self, capacity_blocks: int, eviction: str, admission: str, ttl_s: float | None
    ) -> PrefixOptions:
        """The options of one cache."""
        return PrefixOptions(
            capacity_blocks, eviction, admission, ttl_s, self.window_s, self.touch, self.seed
        )


@dataclass(frozen=True)
class RequestsRow:
    """One cache on one trace; hit rates as `lab.prefix` defines them.

    ideal: block hit rate of an endless cache; ideal_token, ideal_request: its other two. opt: block
    hit rate of OPT at this capacity, which no eviction, admission or TTL exceeds.
    """

    trace: str
    eviction: str
    admission: str
    ttl_s: float | None
    capacity_share: float
    capacity_blocks: int
    block_hit_rate: float
    prefix_hit_rate: float
    token_hit_rate: float
    request_hit_rate: float
    ideal: float
    ideal_token: float
    ideal_request: float
    opt: float
    admitted: int
    refused: int
    evicted: int
    expired: int


@dataclass(frozen=True)
class RequestsResult:
    """All rows, traces in the order given; `traces` says where each is from and what it holds."""

    options: RequestsOptions
    rows: tuple[RequestsRow, ...]
    traces: tuple[dict[str, Any], ...]

    def describe(self) -> dict[str, Any]:
        """JSON-ready: provenance, options, traces and rows."""
        options = {**asdict(self.options), "traces": [str(one) for one in self.options.traces]}
        return {
            "kind": "requests",
            "provenance": "modelled",
            "options": options,
            "traces": list(self.traces),
            "rows": [asdict(row) for row in self.rows],
        }


def run_requests(options: RequestsOptions, progress: Progress | None = None) -> RequestsResult:
    """Runs every cache on every trace, one after the other.

    Raises BadInput for an option, a defect of a trace, a trace without blocks, or admission `turns`
    on one without sessions.
    """
    meter = progress or Silent()
    options.check()
    prepared = []
    meter.start("read traces", len(options.traces))
    for path in options.traces:
        trace = open_trace(
            path,
            options.trace_format,
            limit=options.limit,
            seed=options.seed,
            time_unit=options.time_unit,
        )
        prepared.append(PrefixTrace(trace, options.warm_up_share))
        if "turns" in options.admissions:
            trace.need_sessions("admission 'turns'")
        meter.advance(1)
    rows: list[RequestsRow] = []
    for one in prepared:
        meter.start(one.trace.origin.name, len(list(options.caches())))
        for row in _rows(one, options):
            rows.append(row)
            meter.advance(1)
    return RequestsResult(options, tuple(rows), tuple(_about(one) for one in prepared))


def _rows(prepared: PrefixTrace, options: RequestsOptions) -> Iterator[RequestsRow]:
    ideal, optimum = prepared.ideal, Optimum(prepared.trace, prepared.warm_up)
    opt: dict[int, float] = {}
    for share, eviction, admission, ttl_s in options.caches():
        capacity = max(1, int(share * prepared.runs.block_count))
        if capacity not in opt:
            opt[capacity] = optimum.block_hit_rate(capacity)
        result = simulate(prepared, options.cache(capacity, eviction, admission, ttl_s))
        rates = result.hit_rates
        yield RequestsRow(
            trace=prepared.trace.origin.name,
            eviction=eviction,
            admission=admission,
            ttl_s=ttl_s,
            capacity_share=share,
            capacity_blocks=capacity,
            block_hit_rate=rates.block,
            prefix_hit_rate=rates.prefix,
            token_hit_rate=rates.token,
            request_hit_rate=rates.request,
            ideal=ideal.block,
            ideal_token=ideal.token,
            ideal_request=ideal.request,
            opt=opt[capacity],
            admitted=result.admitted,
            refused=result.refused,
            evicted=result.evicted,
            expired=result.expired,
        )


def _about(prepared: PrefixTrace) -> dict[str, Any]:
    trace = prepared.trace
    return {
        **asdict(trace.origin),
        "request_count": len(trace),
        "session_count": len(trace.session_names) if trace.has_sessions else None,
        "block_tokens": trace.block_tokens,
        "block_access_count": prepared.runs.access_count,
        "unique_block_count": prepared.runs.block_count,
    }
