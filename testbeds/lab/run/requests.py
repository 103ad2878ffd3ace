"""Tables of prefix caching: request traces against evictions, admissions, TTLs and capacities.

The requests half of the laboratory; `testbeds/workloads/requests/trace_sessions.py` makes decode
sessions from such a trace. Policies are evictions here and nothing is prefetched: hits depend only
on what was kept. Every option is checked before the first run, so a mistake costs no time. Parts
are not stored on disk, because a row takes a fraction of a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.bounds.prefix import PrefixOptions, PrefixTrace, simulate
from offstage.testbeds.lab.results.summary import RequestsRow
from offstage.testbeds.lab.run.source import trace_path
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import Optimum

__all__ = ["RequestsOptions", "requests_of", "run_requests"]


@dataclass(frozen=True)
class RequestsOptions:
    """The comparison: every trace with every combination of the other lists.

    capacity_shares: of the trace's unique blocks, above 0 to 1, rounded down to at least one block.
    ttls_s: None: no TTL. window_s: of admission `second-touch`; None: any earlier request counts.
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
        """BadInput for an empty list, or a value that is not in its list or range."""
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


def requests_of(spec: Spec, progress: Progress) -> list[RequestsRow]:
    """Every eviction at every capacity, admission and TTL of the spec."""
    work = spec.workload
    options = RequestsOptions(
        traces=(trace_path(work.file),),
        time_unit=work.time_unit or None,
        evictions=tuple(dict.fromkeys(one.eviction or one.use for one in spec.policy)),
        admissions=work.admission,
        ttls_s=tuple(one or None for one in work.ttl_s),
        capacity_shares=work.capacity_share,
        seed=spec.seeds[0],
        warm_up_share=work.warm_up_share,
    )
    return run_requests(options, progress)


def run_requests(options: RequestsOptions, progress: Progress | None = None) -> list[RequestsRow]:
    """Run every cache on every trace, one at a time.

    Raises BadInput for an option, a defect of a trace, a trace without blocks, or admission `turns`
    on one without sessions.
    """
    meter = progress or Silent()
    options.check()
    prepared = []
    meter.start("read traces", len(options.traces), "traces")
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
        meter.start(one.trace.origin.name, len(list(options.caches())), "caches")
        for row in _rows(one, options):
            rows.append(row)
            meter.advance(1)
    return rows


def _rows(prepared: PrefixTrace, options: RequestsOptions) -> Iterator[RequestsRow]:
    optimum = Optimum(prepared.trace, prepared.warm_up)
    opt: dict[int, float] = {}
    for share, eviction, admission, ttl_s in options.caches():
        capacity = max(1, int(share * prepared.runs.block_count))
        if capacity not in opt:
            opt[capacity] = optimum.block_hit_rate(capacity)
        rates = simulate(prepared, options.cache(capacity, eviction, admission, ttl_s)).hit_rates
        yield RequestsRow(
            trace=prepared.trace.origin.name,
            eviction=eviction,
            admission=admission,
            ttl_s=ttl_s,
            capacity_share=share,
            capacity_blocks=capacity,
            block_hit_rate=rates.block,
            token_hit_rate=rates.token,
            request_hit_rate=rates.request,
            ideal=prepared.ideal.block,
            opt=opt[capacity],
        )
