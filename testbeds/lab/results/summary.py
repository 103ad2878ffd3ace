"""What a lab run found, as data: everything its summary, table and page are made of.

`PointInfo`, `SeedRun` and `SeedBounds` are what the runner gives; `measure` makes a `PointSummary`
of them, and `parquet` keeps the rows. `LabSummary` is what the `summary.json` of a lab run holds;
its `kind` distinguishes it from a demo's. Rates are shares, times in the unit their name ends in. A
figure whose denominator is 0 is None, never 0.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.ledger import Ledger
from offstage.bindings.notes import Note

__all__ = [
    "FIRST_STEPS",
    "LAB_KIND",
    "TURN_STEPS",
    "WEAK_REQUESTS",
    "BoundSummary",
    "Failed",
    "Interval",
    "LabSummary",
    "PointInfo",
    "PointSummary",
    "RequestsRow",
    "SeedBounds",
    "SeedRun",
    "Subset",
    "TierSummary",
]

LAB_KIND = "lab"
FIRST_STEPS = 64
"""Steps of a session that are reported apart: its buffer is cold."""
TURN_STEPS = 16
"""Steps from each turn of a conversation that are reported apart."""
WEAK_REQUESTS = 5
"""With fewer requests an interval is called weak."""


@dataclass(frozen=True)
class PointInfo:
    """One setting of a spec. k is `buffer_blocks` / `buffer_over_k` blocks per layer and step.

    `buffer_blocks` is per layer and session, `slot_count` the arena for all of them. A bandwidth of
    0 is no cap. `device`: the preset of the chip model that it ran on. `parameters` are the
    policy's that the spec set. `context_blocks`: of the longest session at its end; 0: not known.
    """

    workload: str
    policy: str
    eviction: str
    buffer_over_k: float
    buffer_blocks: int
    slot_count: int
    hbm_pool_over_k: float
    bandwidth_bytes_per_s: int
    storage: str
    block_bytes: int
    granule: bool = False
    device: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    context_blocks: int = 0


@dataclass(frozen=True)
class SeedRun:
    """One point with one seed: its ledger rows, the core's counters, and what the engine counted.

    `rows`: `testbeds.lab.ledger.ROW` `[n]` in any order. `counters`: the core's. `turns`: the
    steps at which turns begin, by session; sessions without turns may be left out. `decoded_ns`:
    from the end of the first session's warm-up to the end of the last session. `tiers`: of each
    tier below the arena, then of none of them, as `bindings.tiers.STATS`.
    """

    seed: int
    rows: npt.NDArray[np.void]
    counters: Ledger
    end_ns: int
    reads: int
    failed: int
    turns: dict[int, tuple[int, ...]] = field(default_factory=dict)
    decoded_ns: int = 0
    tiers: list[dict[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class SeedBounds:
    """Bounds of one workload and seed at one pool, buffer and cap.

    `rows`: fields session, demands, nontrivial, `hits` `[bounds]`, `nontrivial_hits` `[bounds]`,
    the bounds in the order of `names`. `reads`: blocks each bound reads; one that is not known is
    left out. `limit_hits`: hits of the whole run that no policy can exceed under the cap.
    """

    seed: int
    names: tuple[str, ...]
    rows: npt.NDArray[np.void]
    reads: dict[str, int]
    limit_hits: int | None = None


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """A figure with its 95 % interval; `low` and `high` are None where nothing can be said."""

    value: float
    low: float | None = None
    high: float | None = None


class Subset(msgspec.Struct, kw_only=True, frozen=True):
    """The hit rate of a subset of the demands, reported apart."""

    demands: int
    hit: Interval | None
    nontrivial_hit: Interval | None
    layer: int | None = None
    """Which layer, where the subset is one."""


class TierSummary(msgspec.Struct, kw_only=True, frozen=True):
    """What one tier served, over all seeds. Counts are of blocks; `served` is `on_demand` and what
    was read ahead. `promote_within`: what is read again sooner is copied here, as a spec writes it;
    empty: the tier does not decide so. `stall_ms_per_token`: waits that ended with a block from
    here, spread over all tokens. `usd`: what its capacity costs over `life_hours`. None: not of
    this tier."""

    name: str
    level: str
    capacity_bytes: int
    served: int
    on_demand: int
    read_bytes: int
    written_bytes: int
    stall_ms_per_token: float | None
    promote_within: str = ""
    read_us_mean: float | None = None
    read_us_max: float | None = None
    placed: int | None = None
    promoted: int | None = None
    demoted: int | None = None
    gone: int | None = None
    resident: int | None = None
    devices: int | None = None
    usd: Interval | None = None
    life_hours: float | None = None
    wear_usd: float | None = None


class BoundSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The best at the point's pool, buffer and cap; traffic as that of a point. One that
    is known of whole runs only has no interval."""

    name: str
    hit: Interval | None = None
    nontrivial_hit: Interval | None = None
    traffic_ratio: float | None = None
    traffic_vs_reference: float | None = None


class PointSummary(msgspec.Struct, kw_only=True):
    """One point over all its seeds. docs/reference/lab-results.md defines every figure."""

    info: PointInfo
    seeds: list[int]
    requests: int
    weak: bool
    selected: int
    demands: int
    nontrivial: int
    reads: int
    reads_failed: int
    hit: Interval | None
    nontrivial_hit: Interval | None
    hit_without_cold: Interval | None
    nontrivial_hit_without_cold: Interval | None
    selection_hit: Interval | None
    nontrivial_selection_hit: Interval | None
    hbm_share: Interval | None
    late: Interval | None
    cold: Interval | None
    capacity: Interval | None
    policy: Interval | None
    pollution: Interval | None
    coverage: Interval | None
    accuracy: Interval | None
    traffic_ratio: Interval | None
    traffic_vs_reference: Interval | None
    gap_closed: Interval | None
    nontrivial_gap_closed: Interval | None
    stall_ms_p50: Interval | None
    stall_ms_p99: Interval | None
    tokens_per_s: Interval | None = None
    hint_bytes_per_token: Interval | None = None
    kv_bytes_per_token: Interval | None = None
    worst_layer: Subset | None
    worst_requests: Subset | None
    first_steps: Subset
    turn_steps: Subset
    bounds: list[BoundSummary]
    hit_by_layer: list[float | None]
    nontrivial_hit_by_layer: list[float | None]
    ends: dict[str, int]
    nontrivial_ends: dict[str, int]
    fates: dict[str, dict[str, int]]
    issued: dict[str, int]
    lead_ns_log2: list[int]
    late_ns_log2: list[int]
    tiers: list[TierSummary] = []


class RequestsRow(msgspec.Struct, kw_only=True, frozen=True):
    """One cache on one request trace; hit rates as `lab.bounds.prefix` defines them. ideal: block
    hit rate of an endless cache. opt: that of OPT at this capacity, which no eviction, admission or
    TTL exceeds."""

    trace: str
    eviction: str
    admission: str
    ttl_s: float | None
    capacity_share: float
    capacity_blocks: int
    block_hit_rate: float
    token_hit_rate: float
    request_hit_rate: float
    ideal: float
    opt: float


class Failed(msgspec.Struct, kw_only=True, frozen=True):
    """A point that gave no result, and why."""

    point: str
    message: str


class LabSummary(msgspec.Struct, kw_only=True):
    """`summary.json` of a lab run."""

    name: str
    spec: dict[str, Any]
    manifest: dict[str, Any]
    points: list[PointSummary]
    failed: list[Failed] = []
    notes: list[Note] = []
    requests: list[RequestsRow] = []
    kind: Literal["lab"] = "lab"
