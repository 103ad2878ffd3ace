"""The results of a lab run as data, from which its summary, table and page are made.

The runner returns `PointInfo`, `SeedRun` and `SeedBounds`; `measure` computes a `PointSummary` from
them, and `ledger_file` stores the rows. `LabSummary` is the content of a lab run's `summary.json`;
its `kind` distinguishes it from a demo's. Rates are shares; the name of a time ends in its unit. A
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
    "BlockUse",
    "BoundSummary",
    "ColdStart",
    "Failed",
    "Interval",
    "LabSummary",
    "Manifest",
    "PointInfo",
    "PointSummary",
    "RequestsRow",
    "SeedBounds",
    "SeedRun",
    "Subset",
    "TierSummary",
    "Undisturbed",
    "WholeModel",
]

LAB_KIND = "lab"
FIRST_STEPS = 64
"""First steps of a session, which are reported separately: its buffer is cold."""
TURN_STEPS = 16
"""Steps from the start of each turn that are reported separately."""
WEAK_REQUESTS = 5
"""With fewer requests an interval is reported as weak."""


@dataclass(frozen=True)
class PointInfo:
    """One setting of a spec. k is `buffer_blocks` / `buffer_over_k` blocks per layer and step.

    `buffer_blocks` is per layer and session, `slot_count` the arena for all of them. A bandwidth of
    0 is no cap. `device`: the preset of the chip model that it ran on. `parameters`: those of the
    policy that the spec sets. `context_blocks`: of the longest session at its end; 0: unknown.
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
    """One point with one seed: its ledger rows, and the counters of the core and the engine.

    `rows`: `testbeds.lab.ledger.ROW` `[n]` in any order. `counters`: the core's. `turns`: the
    steps at which turns begin, by session; sessions without turns may be left out. `decoded_ns`:
    from the end of the first session's warm-up to the end of the last session. `sessions_ns`:
    the time that each session decoded, from the end of its own warm-up on, over all. `tiers`:
    `bindings.tiers.STATS` of each tier below the arena, then of blocks in none of them. `weights`:
    `bindings.stream.STREAM_STATS` of a stream of weights, and `read_beside_bytes`, those read while
    sessions decoded. `used`: the
    utilisation of each part of the device while sessions decoded; empty: it ran on none. `units`:
    `bindings.engine.Engine.uses`; empty: what is staged is what is selected.
    """

    seed: int
    rows: npt.NDArray[np.void]
    counters: Ledger
    end_ns: int
    reads: int
    failed: int
    turns: dict[int, tuple[int, ...]] = field(default_factory=dict)
    decoded_ns: int = 0
    sessions_ns: int = 0
    tiers: list[dict[str, int]] = field(default_factory=list)
    weights: dict[str, int] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    units: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class SeedBounds:
    """Bounds of one workload and seed at one pool, buffer and cap.

    `rows`: fields session, demands, nontrivial, `hits` `[bounds]`, `nontrivial_hits` `[bounds]`,
    the bounds in the order of `names`. `reads`: blocks that each bound reads; unknown ones are
    left out. `limit_hits`: hits of the whole run that no policy can exceed under the cap.
    """

    seed: int
    names: tuple[str, ...]
    rows: npt.NDArray[np.void]
    reads: dict[str, int]
    limit_hits: int | None = None


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """A figure with its 95 % interval; `low` and `high` are None if the interval is unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends, where they are known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Subset(msgspec.Struct, kw_only=True, frozen=True):
    """The hit rate of a subset of the demands, reported separately."""

    demands: int
    hit: Interval | None
    nontrivial_hit: Interval | None
    layer: int | None = None
    """The layer, if the subset is one layer."""


class TierSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one tier over all seeds. Counts are in blocks; `served` is `on_demand` plus
    prefetch reads. `promote_within`: a block that is read again within this time is copied here, as
    in a spec; empty: the tier has no such threshold. `stall_ms_per_token`: waits that ended with a
    block from this tier, over all tokens. `usd`: cost of its capacity over `life_hours`. None: does
    not apply to this tier."""

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


class ColdStart(msgspec.Struct, kw_only=True, frozen=True):
    """A stream of weights beside KV; means over seeds. `seconds`: from its start to its end,
    `alone_seconds`: the same with the drive to itself. `beside_share`: of its bytes, those read
    while sessions decoded; `floor_share`: those read because its floor was owed them. `without`:
    the same point without the stream, and None there. Tokens are of all sessions together."""

    bytes: int
    seconds: float | None
    alone_seconds: float | None
    beside_share: float | None
    floor_share: float | None
    tokens_per_s: float
    without: "Undisturbed | None" = None


class Undisturbed(msgspec.Struct, kw_only=True, frozen=True):
    """What KV's sessions had of the drive to themselves."""

    tokens_per_s: float
    stall_ms_p50: float | None
    stall_ms_p99: float | None


class BoundSummary(msgspec.Struct, kw_only=True, frozen=True):
    """A bound at the point's pool, buffer and cap; traffic is defined as for a point. A bound that
    is known only for whole runs has no interval."""

    name: str
    hit: Interval | None = None
    nontrivial_hit: Interval | None = None
    traffic_ratio: float | None = None
    traffic_vs_reference: float | None = None


class WholeModel(msgspec.Struct, kw_only=True, frozen=True):
    """Of a run over the layers of a model that select: what it says of all, for one session.

    `cache_bytes`: all that the model keeps of it, in 16 bits; `resident_bytes`: of that, what every
    step reads whole. `buffer_bytes`: its share of the arena. `reads_per_token`: of the drive, on
    demand or ahead; `demanded_bytes_per_token`: what the GPU asks for. `stall_share`: of the
    time of a token, what waiting takes. `sessions_per_drive` at the pace of the spec:
    before the drive's `drive_bound` has no idle time; `sessions_per_link`: before a BlueField-3's
    link has none. Null where nothing is read, or demanded."""

    layers: int
    drawn_layers: int
    cache_bytes: int
    resident_bytes: int
    buffer_bytes: int
    reads_per_token: float
    read_bytes_per_token: float
    demanded_bytes_per_token: float
    stall_share: float
    sessions_per_drive: float | None
    drive_bound: str
    sessions_per_link: float | None


class BlockUse(msgspec.Struct, kw_only=True, frozen=True):
    """How many of a staged block's units were demanded before it left the arena: blocks by their
    number of units, from 0 to all, and the mean with its interval over seeds. `staged`: of those
    still there at the end, which may be used for more. `pays_from`: so many units take the drive at
    least as long as the block, when it is never idle."""

    units: int
    gone: list[int]
    staged: list[int]
    mean: Interval | None
    pays_from: int


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
    token_ms_mean: Interval | None = None
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
    weights: ColdStart | None = None
    whole_model: WholeModel | None = None
    used: dict[str, float] = {}
    block_use: BlockUse | None = None


class RequestsRow(msgspec.Struct, kw_only=True, frozen=True):
    """One cache on one request trace; hit rates as `lab.bounds.prefix` defines them. ideal: block
    hit rate of an infinite cache. opt: that of OPT at this capacity, which no eviction, admission
    or TTL exceeds."""

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
    """A point without a result, and the reason."""

    point: str
    message: str


class Manifest(msgspec.Struct, kw_only=True, frozen=True):
    """The data needed to repeat a run, and to verify that it was the same."""

    command: str = ""
    version: str = ""
    commit: str = ""
    code_sha256: str = ""
    spec_sha256: str = ""
    seeds: list[int] = []
    workloads: dict[str, dict[str, Any]] = {}
    """By label, what each kind of workload says of itself."""
    preset_sha256: dict[str, str] = {}
    decode_cost: dict[str, dict[str, str | dict[str, str]]] = {}
    machine: dict[str, str | int] = {}
    provenance: Literal["modelled"] = "modelled"


class LabSummary(msgspec.Struct, kw_only=True):
    """`summary.json` of a lab run."""

    name: str
    spec: dict[str, Any]
    manifest: Manifest
    points: list[PointSummary]
    failed: list[Failed] = []
    notes: list[Note] = []
    requests: list[RequestsRow] = []
    kind: Literal["lab"] = "lab"
