"""What commands print with `--format json` where no struct of another room says it: their keys and
types. docs/reference/schemas is made from these; a command names its own for the type checker.
"""

from typing import NotRequired, TypedDict

import msgspec

from offstage.asic_model.parameters import Row as PresetNumber
from offstage.bindings.notes import Note
from offstage.dpu.config.derive import Derived
from offstage.testbeds.lab.pod.summary import Beside
from offstage.testbeds.lab.pod.summary import Row as PodRow
from offstage.testbeds.lab.policies.registry import Listed
from offstage.testbeds.lab.results.paired import Difference
from offstage.testbeds.lab.results.summary import (
    BlockUse,
    BoundSummary,
    ColdStart,
    Failed,
    Interval,
    PointSummary,
    RequestsRow,
    Subset,
    TierSummary,
    WholeModel,
)
from offstage.testbeds.lab.run.bounds_rows import BoundRow
from offstage.testbeds.workloads.requests.served import ServedFigures

SETTING = ("workload", "policy", "eviction", "buffer_over_k", "hbm_pool_over_k", "block_bytes")


class Headline(msgspec.Struct, kw_only=True):
    """The figures that a program needs first from a point."""

    workload: str
    policy: str
    eviction: str
    buffer_over_k: float
    hbm_pool_over_k: float
    block_bytes: int
    tiers: list[TierSummary]
    weights: ColdStart | None
    whole_model: WholeModel | None
    used: dict[str, float]
    block_use: BlockUse | None
    nontrivial_hit: Interval | None
    hit: Interval | None
    nontrivial_hit_without_cold: Interval | None
    nontrivial_selection_hit: Interval | None
    hbm_share: Interval | None
    tokens_per_s: Interval | None
    late: Interval | None
    traffic_ratio: Interval | None
    traffic_vs_reference: Interval | None
    coverage: Interval | None
    accuracy: Interval | None
    pollution: Interval | None
    nontrivial_gap_closed: Interval | None
    stall_ms_p99: Interval | None
    worst_layer: Subset | None
    worst_requests: Subset | None
    first_steps: Subset
    turn_steps: Subset
    bounds: list[BoundSummary]
    requests: int

    @classmethod
    def of(cls, point: PointSummary) -> "Headline":
        """Its setting, and figures that the summary calls the same."""
        return cls(
            **{
                name: getattr(point.info if name in SETTING else point, name)
                for name in cls.__struct_fields__
            }
        )


class LabRan(TypedDict):
    """What `lab run` found, and the paths of the rest; `recorded`: of --record, else null."""

    sentence: str
    notes: list[Note]
    points: list[Headline]
    requests: list[RequestsRow]
    failed: list[Failed]
    summary: str
    report: str
    manifest: str
    ledger: str
    recorded: str | None


class LabBounds(TypedDict):
    """The bounds of a spec."""

    bounds: list[BoundRow]
    failed: list[Failed]


class LabPolicies(TypedDict):
    """Every policy that a spec can name."""

    policies: list[Listed]


class RequestsServed(TypedDict):
    """The figures of the requests of each run in a folder."""

    runs: list[ServedFigures]


class LabPods(TypedDict):
    """What `lab pod` found, and the paths of the rest; `requests`: of --requests, else null."""

    sentence: str
    notes: list[Note]
    rows: list[PodRow]
    beside: list[Beside]
    summary: str
    report: str
    points: str
    requests: str | None


class PageMade(TypedDict):
    """A page that was made again."""

    sentence: str
    report: str


class FiguresMade(TypedDict):
    """The pictures of a run's pages, by name and kind."""

    files: dict[str, str]


class Differences(TypedDict):
    """Two runs, or two policies of one, over the same requests."""

    sentence: str
    differences: list[Difference]
    files: dict[str, str]


class ComparedRun(TypedDict):
    """A recorded run beside modelled devices: where the page and its figures are."""

    run: str
    sentence: str
    notes: list[Note]
    report: str
    figures: str


class Compared(TypedDict):
    """One row for each run."""

    runs: list[ComparedRun]


class TraceImported(TypedDict):
    """A trace in our format; 0 sessions, or null tokens of a block: it has none."""

    trace: str
    name: str
    format: str
    licence: str
    sha256: list[str]
    notes: list[Note]
    requests: int
    sessions: int
    block_tokens: int | None


class TraceExported(TypedDict):
    """A trace in the form of a load generator; 0 sessions, or null tokens of a block: it has none.
    `command`: the words that send its requests, with MODEL and URL to be filled in."""

    file: str
    form: str
    name: str
    requests: int
    sessions: int
    block_tokens: int | None
    command: list[str]
    notes: list[Note]


class CapturedSession(TypedDict):
    """One session of a capture."""

    name: str
    context_tokens: int
    steps: int


class TraceCaptured(TypedDict):
    """What a capture holds. None: it was not measured."""

    file: str
    model: str
    dtype: str
    sessions: list[CapturedSession]
    layers: int
    groups: int
    block_tokens: int
    drafts_accepted: float | None
    some_draft_accepted: float | None
    lookups_accepted: float | None
    model_drafts_accepted: float | None
    perplexity: float | None
    rows: int
    size_bytes: int
    wall_s: float
    overlap: dict[str, object]


class Option(TypedDict):
    """A value as it would be typed, and where it came from."""

    value: str
    source: str


class ConfigShown(TypedDict):
    """The daemon's configuration; `derived` null: it contradicts itself."""

    options: dict[str, Option]
    derived: Derived | None
    notes: list[Note]


class ModelListed(TypedDict):
    """A model by name; `get`: the command that brings it into the cache."""

    name: str
    parameters: int
    context_tokens: int
    licence: str
    source: str
    size_bytes: int
    cached: str
    folder: str
    get: str


class ModelsListed(TypedDict):
    """Every model by name."""

    models: list[ModelListed]


class ModelKept(TypedDict):
    """A model in the cache; `made`: it was not there before."""

    name: str
    folder: str
    made: bool
    parameters: int
    size_bytes: int
    content: str


class KeysMade(TypedDict):
    """The two files of a pair of keys."""

    public: str
    secret: str


class KeyAdded(TypedDict):
    """The file that lets a client in."""

    added: str


class Token(TypedDict):
    """The bearer token of the metrics."""

    token: str


class BedUp(TypedDict):
    """A daemon that was started; `real` says of each part whether it is real."""

    bed: str
    pid: NotRequired[int]
    endpoint: str
    real: dict[str, str]
    namespaces: NotRequired[dict[str, str] | str]
    out: str


class PodUp(TypedDict):
    """A pod that was started: its map, and the processes by name."""

    bed: str
    map: str
    runtime_dir: str
    pids: dict[str, int]
    out: str
    real: dict[str, str]


class Guest(TypedDict):
    """An emulated machine: its process, and the file of its console."""

    pid: int
    console: str


class GuestsUp(TypedDict):
    """Two guests, and the folder that they share."""

    node: Guest
    dpu: Guest
    share: str


class BedEnded(TypedDict):
    """Whether anything was running; `log`: of a daemon elsewhere."""

    ended: bool
    log: NotRequired[str]


class PodPurged(TypedDict):
    """A tenant's objects dropped: of each member its counts, the epoch that it has carried out, or
    why something is left."""

    epoch: int
    members: dict[str, dict[str, int] | dict[str, str]]


class DriveListed(TypedDict):
    """A drive of the NVMe model; `tags`: how many of its parameters are known in each way.
    `published`: what was said of it, in bytes per second, I/Os per second and ps; `kept_bytes`:
    what its blocks hold behind its over-provisioning, null where nobody says how many they are."""

    name: str
    about: str
    scheduled: bool
    tags: dict[str, int]
    published: dict[str, int]
    kept_bytes: int | None


class DrivesListed(TypedDict):
    """Every drive, and what tags and figures mean."""

    presets: list[DriveListed]
    tags: dict[str, str]
    figures: dict[str, str]


class PresetListed(TypedDict):
    """A chip's preset; `tags`: how many of its numbers are known in each way."""

    name: str
    title: str
    kind: str
    calibrated: bool
    tags: dict[str, int]


class PresetsListed(TypedDict):
    """Every preset, and what the tags mean."""

    presets: list[PresetListed]
    tags: dict[str, str]


class PresetShown(TypedDict):
    """One preset with all of its numbers."""

    name: str
    title: str
    kind: str
    about: str
    staging: str
    spill: str
    calibrated: bool
    drive: str
    numbers: list[PresetNumber]


class ChipCommands(TypedDict):
    """The chip's commands, a row each, and what their fields mean."""

    commands: list[dict[str, str]]
    fields: dict[str, str]


class ChipsSwept(TypedDict):
    """The points of a sweep, a row each as in `table`, a Parquet file."""

    points: int
    rows: list[dict[str, str | int | float]]
    table: str


class DpuReset(TypedDict):
    """The daemon starts cold."""

    reset: bool


class DpuDrained(TypedDict):
    """`dirty_blocks` are still only in memory."""

    drained: bool
    dirty_blocks: int


class DpuUndrained(TypedDict):
    """The daemon accepts new work."""

    draining: bool


class DpuDismissed(TypedDict):
    """How many logins ended."""

    hosts: int


class DpuPurged(TypedDict):
    """What was dropped; `more` or `marking`: the same command goes on."""

    chunks: int
    blocks: int
    bytes: int
    more: int
    marking: int


class DpuReplayed(TypedDict):
    """Decisions that agree; null: none differs."""

    agreed: int
    diverged_at_byte: int | None


class DrivesErased(TypedDict):
    """What the drives carried before."""

    path: str
    carried: str
    erased_bytes: int


class StoreRead(TypedDict):
    """A store's contents as `dpu.storage.storefile.inspect` counts them; `wrong`: a line for each
    part that is damaged."""

    path: str
    moved_to: str
    version: int
    uuid: str
    superblocks_whole: int
    openings: int
    created_s: int
    size_bytes: int
    lba_size_bytes: int
    payload_size_bytes: int
    segment_size_bytes: int
    segment_count: int
    records_per_segment: int
    layer_count: int
    tenant_max: int
    segments_used: int
    segments_free: int
    blocks: int
    superseded: int
    torn: int
    coded: int
    payload_bytes: int
    blocks_by_layer: dict[str, int]
    wrong: list[str]


class ResultsListed(TypedDict):
    """Runs below a folder, a row each with the columns asked for, and what could not be read."""

    rows: list[dict[str, bool | str | int | float | None]]
    skipped: list[str]
