"""The results of one run of an experiment, as data: the source of every summary, table and plot.

A `RunResult` is filled from the device's ledger and the host agent's record, never by hand;
`Summary` is the content of `summary.json`. Rates are in [0, 1], times in the unit their name
ends in.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import Demands
from offstage.bindings.notes import Note, gathered
from offstage.bindings.stages import StageTimes
from offstage.testbeds.live.model_results import ModelSummary, PolicyKeys
from offstage.testbeds.machine import RunMachine
from offstage.testbeds.workloads.requests.sessions import PlanAccount

__all__ = ["CurvePoint", "RunResult", "RunWorkload", "ShownTick", "Summary"]

Provenance = Literal["measured", "emulated", "modelled"]


class CurvePoint(msgspec.Struct, kw_only=True):
    """One point of the hit-versus-traffic curve: one setting of one policy."""

    label: str
    policy: str
    hit: float
    traffic_ratio: float
    provenance: Provenance
    run: str = ""
    """The run that has exactly this setting, by its name."""


class ShownTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of one tick went: its number, what measured its times, and `spans`, each
    `[lane, layer, begin_us, end_us]` from the tick's begin on."""

    tick: int = -1
    source: str = ""
    spans: tuple[tuple[str, int, float, float], ...] = ()


class RunResult(msgspec.Struct, kw_only=True):
    """One run: one set of prefetchers on one storage."""

    name: str
    storage: str
    provenance: Provenance
    prefetchers: list[str]
    selected: int
    """Blocks the kernels read, over all sessions, steps and layers."""
    demands: int
    """Selected blocks that were not in the HBM pool."""
    hit: float
    """On-time hits / demands: late is not a hit."""
    nontrivial_hit: float
    """The same over demands outside sinks, window and just-written blocks."""
    hit_without_cold: float
    hbm_share: float
    """Share of selections that the HBM pool served."""
    selection_hit: float
    """Share of selections that the HBM pool or the DPU's buffer served in time."""
    late: float
    miss: float
    """Cold, capacity and policy misses / demands; late ones are counted apart."""
    coverage: float
    """Misses removed, against no prefetch at the same buffer."""
    accuracy: float
    """Prefetched blocks used on time / prefetched; 0 where nothing was prefetched."""
    traffic_ratio: float
    """Bytes read / bytes a demand-only LRU reads at the same buffer."""
    stall_ms_p50: float
    stall_ms_p99: float
    """Per token: how long the kernels waited for absent blocks."""
    token_ms_p50: float
    token_ms_p99: float
    token_ms_mean: float = 0.0
    """0 in the summaries of earlier releases."""
    fetch_ms_p50: float = 0.0
    """Per fetch of one session's layer: from its begin until its blocks had arrived."""
    fetch_ms_p99: float = 0.0
    fabric_ms: list[float] = []
    """Of each fetch what its fabric spent, without the decode loop around it: copies, and the wait
    for blocks that were not staged. Sorted, at most 1,000 evenly spaced quantiles."""
    fetch_count: int = 0
    tokens_per_s: float = 0.0
    """Over all sessions and the whole of decoding, pacing included."""
    staging_bytes: int = 0
    """Memory between HBM and the drive: the DPU's arena, or the host memory of a baseline."""
    bytes_read: int
    read_amplification: float = 0.0
    """Bytes read on demand over the bytes that the demands named; 0 if none named a part of a
    block."""
    bytes_spared: int = 0
    """Unread bytes of blocks of which only a part was read."""
    blocks_verified: int
    blocks_corrupt: int
    blocks_recomputed: int
    attention_checked: int
    """Sampled layer outputs compared with dense attention over the same selection."""
    attention_error_max: float
    pollution: int
    evictions: int
    shared_chunks: int
    decisions_replayed: int
    """Decisions of the daemon's log that a fresh core repeated bit for bit; a run in which one
    differed has failed. -1 if the log was not kept."""
    busy_share: float
    """Share of its time the DPU's reactor was busy; -1 if the host has no access to it."""
    wall_s: float
    ends: dict[str, int]
    """Demands by end, in the order of `ENDS`."""
    nontrivial_ends: dict[str, int]
    fates: dict[str, dict[str, int]]
    """Prefetched blocks by cause, then by fate: used, late, unused, dropped, cancelled."""
    hit_rate_by_step: list[float]
    """Hits / demands of all sessions in each decode step; NaN is written as -1 (no demand)."""
    demands_by_step: list[int]
    lead_ns_log2: list[int]
    """Prefetched and used: count whose arrival-to-need time lies in [2^i, 2^(i+1)) ns."""
    late_ns_log2: list[int]
    stall_ms_by_token: list[float]
    """Sorted, at most 1,000 evenly spaced quantiles."""
    ends_differ: int = 0
    """A lower bound of the demands whose end differs between the host's counts and the ledger."""
    pace_overruns: float = -1.0
    """Share of requests that ended later than on the modelled device; -1 if none was modelled,
    or its counters are not visible to this user."""
    records_lost: int = 0
    """Lost records of the ledger, if records were kept."""
    log_bytes_lost: int = 0
    """Lost bytes of the decision log, if it was recorded."""
    log_diverged_at: int = -1
    """The byte of the decision log at which its replay first decided differently; -1: nowhere."""
    notes: list[Note] = []
    """Notes on this run; notes on all runs are in the summary's."""
    kernel_bytes_per_s: float = 0.0
    """K and V that attention read, over its run time; 0 if not measured."""
    roof_bytes_per_s: float = 0.0
    """Read and written by a copy inside the memory of the HBM pool, measured in the same run."""
    timeline: ShownTick = ShownTick()
    """The timeline of one tick; empty if none was recorded."""
    stages: dict[str, StageTimes] = {}
    """The times of a block's stages, by their name; empty if they were not timed."""
    wear: dict[str, float | None] = {}
    """What was written to the drive (`live/wear.py`); empty if this user is not its operator."""

    @property
    def called(self) -> str:
        """Its name and storage, in words."""
        return f"{'no prefetch' if self.name == 'none' else self.name} on {self.storage}"

    @property
    def ended(self) -> Demands:
        """How the demands ended."""
        return Demands.of(self.ends.get(end, 0) for end in ENDS)


class RunWorkload(PlanAccount, kw_only=True, frozen=True):
    """What was run: the plan, the geometry and the host's sizes, then what is known of the tier."""

    context_tokens: int
    decode_steps: int
    geometry: str
    geometry_note: str
    layer_count: int
    kv_heads: int
    block_bytes: int
    bytes_per_token: int
    selector: str
    kernel: str
    device: str
    select_blocks: int
    sink_blocks: int
    window_blocks: int
    pool_ratio: float
    pool_blocks: int
    time_per_token_ms: float
    time_per_token_source: str | dict[str, str | dict[str, str]]
    """`given`, or the measurement of the decode cost."""
    processes: list[str]
    fabric: str | UnsetType = UNSET
    buffer_ratio: float | UnsetType = UNSET
    slot_count: int | UnsetType = UNSET
    policy: PolicyKeys | UnsetType = UNSET
    window_tokens: int | UnsetType = UNSET
    prefill_blocks: int | UnsetType = UNSET
    prefill_blocks_written: int | UnsetType = UNSET
    nvme: str | UnsetType = UNSET
    warm_up: bool | UnsetType = UNSET


class Summary(msgspec.Struct, kw_only=True):
    """`summary.json`."""

    runs: list[RunResult]
    workload: RunWorkload
    machine: RunMachine
    seed: int
    sentence: str
    """The result in one sentence."""
    curve: list[CurvePoint]
    definitions: dict[str, str]
    """The formula of every figure, by its key in `runs`."""
    command: str
    version: str
    ahead: list[RunResult] = []
    """The fullest arm again, each layer begun while the one before it is computed."""
    baselines: list[RunResult] = []
    """The same workload by a host without a DPU; see `host.baselines`."""
    notes: list[Note] = []
    """Notes that apply to every run."""
    model: ModelSummary | None = None
    """A real model's answer with each of its arms, if one was given."""

    def noted(self) -> dict[Note, str]:
        """Every note once, with the runs that it applies to and their figures; no runs if it
        applies to all and has no figures."""
        runs = [*self.runs, *self.ahead, *self.baselines]
        return gathered(self.notes, [(run.called, run.notes) for run in runs])
