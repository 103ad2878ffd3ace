"""Tables of prefix caching: request traces against evictions, admissions, TTLs and capacities.

The requests half of the laboratory; decode sessions that follow such a trace are made by
`testbeds/workloads/requests/trace_sessions.py`. Every option is checked before the first run, so a
mistake costs no time.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.bounds.prefix import PrefixOptions, PrefixTrace, simulate
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.optimum import Optimum

__all__ = ["RequestsOptions", "RequestsResult", "RequestsRow", "run_requests"]


@dataclass(frozen=True)
class RequestsOptions:
    """What to compare: every trace with every combination of the other lists.

    capacity_shares: of the trace's unique blocks, above 0 to 1, rounded down to at least one block.
    ttls_s: None is no TTL. window_s: of admission `second-touch`; None: asked at any time before.
    touch: "front" or "tail". seed: of eviction `random`, and of traces that are generators.
    """

    traces: tuple[str | Path, ...]
    trace_format: str | None = None
    limit: int | None = None
    evictions: tuple[str, ...] = ("lru", "s3fifo")
    admissions: tuple[str, ...] = ("all",)
    ttls_s: tuple[float | None, ...] = (None,)
    capacity_shares: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5)
    window_s: float | None = None
    touch: str = "front"
    seed: int = 1

    def caches(self) -> Iterator[tuple[float, str, str, float | None]]:
        """(capacity share, eviction, admission, TTL) of every row of a trace, in order."""
        return product(self.capacity_shares, self.evictions, self.admissions, self.ttls_s)

    def check(self) -> None:
        """BadInput for an empty list or a value out of its list or range."""
        for name in ("traces", "evictions", "admissions", "ttls_s", "capacity_shares"):
            if not getattr(self, name):
                raise BadInput(f"{name} is empty", "requests", "give one or more")
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
    told = progress or Silent()
    options.check()
    prepared = []
    told.start("read traces", len(options.traces))
    for path in options.traces:
        trace = open_trace(path, options.trace_format, limit=options.limit, seed=options.seed)
        prepared.append(PrefixTrace(trace))
        if "turns" in options.admissions:
            trace.need_sessions("admission 'turns'")
        told.advance(1)
    rows: list[RequestsRow] = []
    for one in prepared:
        told.start(one.trace.origin.name, len(list(options.caches())))
        for row in _rows(one, options):
            rows.append(row)
            told.advance(1)
    return RequestsResult(options, tuple(rows), tuple(_about(one) for one in prepared))


def _rows(prepared: PrefixTrace, options: RequestsOptions) -> Iterator[RequestsRow]:
    ideal, optimum = prepared.ideal, Optimum(prepared.trace)
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
