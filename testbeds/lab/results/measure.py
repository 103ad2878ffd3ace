"""The figures of one point, from the ledgers of its seeds: every rate with its interval.

The definitions are those of docs/reference/lab-results.md, after docs/reference/figures.md. A late
block is not a hit. Comparisons of two points are paired: both sides are drawn with the same
requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.bindings.layouts import CAUSES, ENDS
from offstage.testbeds.lab.results.bootstrap import RESAMPLES, Bootstrap, ratio
from offstage.testbeds.lab.results.ledger import (
    BoundTotals,
    RunTotals,
    bound_totals,
    pool_bounds,
    pool_runs,
    totals,
)
from offstage.testbeds.lab.results.summary import (
    WEAK_REQUESTS,
    BlockUse,
    BoundSummary,
    ColdStart,
    Interval,
    PointInfo,
    PointSummary,
    SeedBounds,
    SeedRun,
    Subset,
    TierSummary,
    WholeModel,
)

__all__ = ["ATTAINABLE", "GAP_MIN", "LIMIT", "measure"]

ATTAINABLE = "clairvoyant"
"""The bound to which a gap is measured: it knows the future and respects the cap."""
LIMIT = "cap_limit"
"""The bound that is one number for a whole run."""
GAP_MIN = 0.001
"""Smallest gap that is used as a divisor: a tenth of a percentage point."""
WORST_SHARE = 0.1


@dataclass(frozen=True)
class _Sides:
    """A point and the runs and bounds it is compared with, all over the same requests."""

    own: RunTotals
    none: RunTotals
    reference: RunTotals | None
    bounds: BoundTotals | None
    boot: Bootstrap

    def __post_init__(self) -> None:
        beside = (self.none, self.reference, self.bounds)
        same = (one is None or one.requests == self.own.requests for one in beside)
        assert all(same), "other requests"


def measure(
    info: PointInfo,
    runs: Sequence[SeedRun | RunTotals],
    bounds: Sequence[SeedBounds | BoundTotals],
    *,
    none: Sequence[SeedRun | RunTotals],
    reference: Sequence[SeedRun | RunTotals] = (),
    tiers: Sequence[TierSummary] = (),
    weights: ColdStart | None = None,
    whole: WholeModel | None = None,
    use: BlockUse | None = None,
    recurring: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PointSummary:
    """The figures of a point.

    runs, bounds, none, reference: one per seed, with the same seeds and sessions. `none` is
    demand-only LRU at the same buffer and pool, `reference` the spec's point to which all traffic
    is compared. `bounds` and `reference` may be empty. tiers: the summary of each tier. weights:
    of a stream of them. whole: of the model. use: of what is staged together. recurring: every seed
    has the same requests, as in a captured workload: more seeds add no requests.
    """
    each = [totals(run) for run in runs]
    own = pool_runs(each, recurring)
    sides = _Sides(
        own=own,
        none=pool_runs([totals(run) for run in none], recurring),
        reference=pool_runs([totals(run) for run in reference], recurring) if reference else None,
        bounds=pool_bounds([bound_totals(one) for one in bounds], recurring) if bounds else None,
        boot=Bootstrap(len(own.requests), resamples, seed),
    )
    seeds = Bootstrap(len(each), resamples, seed)
    return _figures(info, sides, each, seeds, (tiers, weights, whole, use))


def _figures(
    info: PointInfo,
    sides: _Sides,
    each: Sequence[RunTotals],
    seeds: Bootstrap,
    beside: tuple[Sequence[TierSummary], ColdStart | None, WholeModel | None, BlockUse | None],
) -> PointSummary:
    """`each`: the point's runs, one per seed; `seeds`: draws over them. beside: figures that were
    made elsewhere."""
    own, (tiers, weights, whole, use) = sides.own, beside
    columns, size = own.columns, info.block_bytes
    return PointSummary(
        info=info,
        seeds=sorted(run.seed for run in each),
        requests=len(own.requests),
        weak=len(own.requests) < WEAK_REQUESTS,
        selected=int(columns["selected"].sum()),
        demands=int(columns["demands"].sum()),
        nontrivial=int(columns["nontrivial"].sum()),
        reads=own.reads,
        reads_failed=own.failed,
        **_rates(own, sides.boot),
        coverage=_coverage(sides),
        accuracy=_accuracy(each, seeds),
        traffic_ratio=_traffic(sides, sides.none),
        traffic_vs_reference=_traffic(sides, sides.reference),
        hint_bytes_per_token=sides.boot.ratio(columns["hint_bytes"], columns["tokens"]),
        kv_bytes_per_token=sides.boot.ratio(columns["demands"] * size, columns["tokens"]),
        gap_closed=_gap(sides, "hits", "demands"),
        nontrivial_gap_closed=_gap(sides, "nontrivial_hits", "nontrivial"),
        stall_ms_p50=_stall(sides, 0.5),
        stall_ms_p99=_stall(sides, 0.99),
        tokens_per_s=_tokens_per_s(each, seeds) if info.device else None,
        token_ms_mean=_token_ms(each, seeds) if info.device else None,
        worst_layer=_worst_layer(sides),
        worst_requests=_worst_requests(sides),
        first_steps=_subset(sides, "first_"),
        turn_steps=_subset(sides, "turn_"),
        bounds=_bounds(info, sides),
        hit_by_layer=_by_layer(own, "hits", "demands"),
        nontrivial_hit_by_layer=_by_layer(own, "nontrivial_hits", "nontrivial"),
        ends={end: int(columns[f"end_{end}"].sum()) for end in ENDS},
        nontrivial_ends={end: int(columns[f"nontrivial_end_{end}"].sum()) for end in ENDS},
        fates=own.counters.prefetched(),
        issued={cause: n for cause, n in zip(CAUSES, own.counters.issued, strict=True) if n},
        lead_ns_log2=own.counters.lead_ns_log2,
        late_ns_log2=own.counters.late_ns_log2,
        tiers=list(tiers),
        weights=weights,
        whole_model=whole,
        block_use=use,
        used=_used(each),
    )


def _used(each: Sequence[RunTotals]) -> dict[str, float]:
    """The mean over seeds; empty without a device."""
    parts = each[0].used if each else {}
    return {part: sum(run.used.get(part, 0.0) for run in each) / len(each) for part in parts}


def _rates(own: RunTotals, boot: Bootstrap) -> dict[str, Interval | None]:
    """The figures that are ratios of sums of the point's columns."""
    c = own.columns
    hits, demands = c["hits"], c["demands"]
    nontrivial_hits, nontrivial = c["nontrivial_hits"], c["nontrivial"]
    shares = {
        "hit": (hits, demands),
        "nontrivial_hit": (nontrivial_hits, nontrivial),
        "hit_without_cold": (hits, demands - c["end_cold"]),
        "nontrivial_hit_without_cold": (nontrivial_hits, nontrivial - c["nontrivial_end_cold"]),
        "selection_hit": (c["pool_hits"] + hits, c["selected"]),
        "nontrivial_selection_hit": (
            c["nontrivial_pool_hits"] + nontrivial_hits,
            c["nontrivial_selected"],
        ),
        "hbm_share": (c["pool_hits"], c["selected"]),
        "late": (c["end_late"], demands),
        "cold": (c["end_cold"], demands),
        "capacity": (c["end_capacity"], demands),
        "policy": (c["end_policy"], demands),
        "pollution": (c["pollution"], demands),
    }
    return {name: boot.ratio(*columns) for name, columns in shares.items()}


def _coverage(sides: _Sides) -> Interval | None:
    """1 - misses / misses of `none`."""
    own, none, boot = sides.own.columns, sides.none.columns, sides.boot
    mine, theirs = own["demands"] - own["hits"], none["demands"] - none["hits"]
    value = 1.0 - float(ratio(mine.sum(), theirs.sum()))
    return boot.interval(value, 1.0 - ratio(boot.sums(mine), boot.sums(theirs)))


def _accuracy(each: Sequence[RunTotals], boot: Bootstrap) -> Interval | None:
    """used / (used + late + unused + cancelled). These are counted by run, so seeds are drawn."""
    counts = np.array([run.counters.used_of_prefetched for run in each], np.float64).reshape(-1, 2)
    return boot.ratio(counts[:, 0], counts[:, 1])


def _bytes(run: RunTotals) -> npt.NDArray[np.int64]:
    return run.columns["demand_bytes"] + run.columns["prefetch_bytes"]


def _traffic(sides: _Sides, against: RunTotals | None) -> Interval | None:
    return None if against is None else sides.boot.ratio(_bytes(sides.own), _bytes(against))


def _gap(sides: _Sides, hits: str, demands: str) -> Interval | None:
    """(point - none) / (clairvoyant - none), in hit rates; None if the gap is below `GAP_MIN`."""
    if sides.bounds is None or ATTAINABLE not in sides.bounds.names:
        return None
    at, boot = sides.bounds.names.index(ATTAINABLE), sides.boot
    sums = (
        (sides.own.columns[hits], sides.own.columns[demands]),
        (sides.none.columns[hits], sides.none.columns[demands]),
        (getattr(sides.bounds, hits)[:, at], getattr(sides.bounds, demands)),
    )

    def closed(rates: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        own, none, best = rates
        gap = np.where(best - none >= GAP_MIN, best - none, 0.0)
        return ratio(own - none, gap)

    value = closed([ratio(top.sum(), bottom.sum()) for top, bottom in sums])
    drawn = closed([ratio(boot.sums(top), boot.sums(bottom)) for top, bottom in sums])
    return boot.interval(float(value), drawn)


def _tokens_per_s(each: Sequence[RunTotals], boot: Bootstrap) -> Interval | None:
    """Tokens of all sessions per second; sessions share a run's clock, so seeds are drawn."""
    return boot.ratio([len(run.stall_ns) for run in each], [run.decoded_ns / 1e9 for run in each])


def _token_ms(each: Sequence[RunTotals], boot: Bootstrap) -> Interval | None:
    """Time of all sessions over their tokens, however many decode at once."""
    return boot.ratio([run.sessions_ns / 1e6 for run in each], [len(run.stall_ns) for run in each])


def _stall(sides: _Sides, share: float) -> Interval | None:
    found = sides.boot.quantile(sides.own.stall_ns, sides.own.stall_request, share)
    if found is None:
        return None
    low, high = (None if end is None else end / 1e6 for end in (found.low, found.high))
    return Interval(value=found.value / 1e6, low=low, high=high)


def _subset(sides: _Sides, prefix: str) -> Subset:
    c = sides.own.columns
    return Subset(
        demands=int(c[f"{prefix}demands"].sum()),
        hit=sides.boot.ratio(c[f"{prefix}hits"], c[f"{prefix}demands"]),
        nontrivial_hit=sides.boot.ratio(c[f"{prefix}nontrivial_hits"], c[f"{prefix}nontrivial"]),
    )


def _worst_layer(sides: _Sides) -> Subset | None:
    """The layer with the lowest non-trivial hit rate; its interval is that of this layer."""
    by_layer = sides.own.layers
    rates = ratio(by_layer["nontrivial_hits"].sum(axis=0), by_layer["nontrivial"].sum(axis=0))
    if not np.isfinite(rates).any():
        return None
    at = int(np.nanargmin(rates))
    column = {name: values[:, at] for name, values in by_layer.items()}
    return Subset(
        layer=at,
        demands=int(column["demands"].sum()),
        hit=sides.boot.ratio(column["hits"], column["demands"]),
        nontrivial_hit=sides.boot.ratio(column["nontrivial_hits"], column["nontrivial"]),
    )


def _worst_requests(sides: _Sides) -> Subset | None:
    """The tenth of the requests with the lowest non-trivial hit rates."""
    c = {name: values.astype(np.float64) for name, values in sides.own.columns.items()}
    rank = ratio(c["nontrivial_hits"], c["nontrivial"])
    chosen, nontrivial = sides.boot.worst(c["nontrivial_hits"], c["nontrivial"], rank, WORST_SHARE)
    if not len(chosen):
        return None
    _, hit = sides.boot.worst(c["hits"], c["demands"], rank, WORST_SHARE)
    return Subset(demands=int(c["demands"][chosen].sum()), hit=hit, nontrivial_hit=nontrivial)


def _bounds(info: PointInfo, sides: _Sides) -> list[BoundSummary]:
    bounds = sides.bounds
    if bounds is None:
        return []
    found = []
    for at, name in enumerate(bounds.names):
        read = bounds.reads.get(name)
        own = None if read is None else read * info.block_bytes
        found.append(
            BoundSummary(
                name=name,
                hit=sides.boot.ratio(bounds.hits[:, at], bounds.demands),
                nontrivial_hit=sides.boot.ratio(bounds.nontrivial_hits[:, at], bounds.nontrivial),
                traffic_ratio=_over(own, sides.none),
                traffic_vs_reference=_over(own, sides.reference),
            )
        )
    demands = int(bounds.demands.sum())
    if bounds.limit_hits is not None and demands:
        limit = Interval(value=bounds.limit_hits / demands)
        found.append(BoundSummary(name=LIMIT, hit=limit))
    return found


def _over(own: int | None, against: RunTotals | None) -> float | None:
    if own is None or against is None:
        return None
    read = int(_bytes(against).sum())
    return own / read if read else None


def _by_layer(own: RunTotals, hits: str, demands: str) -> list[float | None]:
    rates = ratio(own.layers[hits].sum(axis=0), own.layers[demands].sum(axis=0))
    return [float(rate) if np.isfinite(rate) else None for rate in rates]
