"""The figures of one device on one run: a column of the comparison's table, as data.

A column is made from a recorded run (`measured.py`) or from a model's run on the same decisions
(`modelled.py`). Times are in the unit of their name; a figure that a device does not have is None,
shown as a dash. `compare.json` is a `Comparison`.
"""

from typing import Any

import msgspec

from offstage.asic_model.result import Times
from offstage.bindings.notes import Note

__all__ = [
    "Carried",
    "Column",
    "Comparison",
    "Crossover",
    "Effect",
    "LoadFigures",
    "LoadPoint",
    "ModelLoad",
    "NeighbourPoint",
    "Range",
    "Tornado",
    "UnitFigures",
]


class Range(msgspec.Struct, frozen=True):
    """A figure with its range, from `low` to `high`."""

    value: float
    low: float
    high: float


class UnitFigures(msgspec.Struct, kw_only=True):
    """One unit of a device: a hardware block of a chip, or a stage of a DPU's software."""

    name: str
    busy_share: float | None = None
    busy_by_bin: list[float] = []
    """Busy share in each stretch of `bin_ms` of the run."""
    bin_ms: float = 0.0
    ns_p50: float = 0.0
    """Time that a fetch of median latency spent here, waiting included."""
    ns_p99: float = 0.0


class LoadFigures(msgspec.Struct, kw_only=True):
    """One device shared by `gpus` GPUs: the effect on what they serve. Dollars and joules are of a
    million tokens, of GPUs and device together, and of the device with its drives."""

    gpus: int
    tokens_per_s: Range
    """Of all GPUs; its range contains the parameters' ranges and the model's own error."""
    token_ms: Range
    """Of one session."""
    dollars: Range | None
    device_dollars: Range | None
    joule: Range
    device_joule: Range
    binds: str
    """The busiest unit at this load; "nothing" where each is used less than a fifth."""
    busiest_share: float
    knee_gpus: float | None
    """GPUs that one device stands for: beyond, `knee_unit` binds. None: no work reaches it."""
    knee_unit: str
    tokens_per_s_max: float | None
    curve: list[tuple[float, float]]
    """GPUs, and the tokens/s of all of them."""


class Carried(msgspec.Struct, kw_only=True):
    """The sessions that one device carries, by what each of its means alone allows: `rate`, those
    whose tokens its busiest unit lets through at the GPUs' pace; `memory`, whose buffers its
    staging memory holds; `capacity`, whose caches its drives hold. None: not known."""

    device: str
    by_need: dict[str, float | None]
    binds: str
    """The need that allows the fewest."""
    load: LoadFigures


class ModelLoad(msgspec.Struct, kw_only=True):
    """One model's sessions on every device. Bytes are of one session, in the log's type."""

    load: str
    """In words."""
    model: str
    context_tokens: int
    session_bytes: int
    resident_bytes: int
    """What every step reads whole, so that no tier can hold it while the session decodes."""
    buffer_bytes: int
    """In the device's staging memory."""
    read_bytes_per_token: float
    reads_per_token: float
    """Of the device's drives, all layers."""
    devices: list[Carried]


class Column(msgspec.Struct, kw_only=True):
    """One device on one run. A fetch is one command of one layer that has demands, until the last
    of its blocks is with the host; a token is all fetches of one step of one session."""

    device: str
    provenance: str
    """measured, emulated or modelled."""
    calibrated: bool | None = None
    """Whether the model's errors on measured runs were within bounds; None: a measured device."""
    storage: str = ""
    demands: int
    hits: int
    late: int
    misses: int
    diverged: dict[str, int] = {}
    """Decisions that differ from the recorded run's, by kind; empty where it repeats them."""
    fetch_ns: Times
    stall_ns: Times
    seconds: float
    bytes_read: int
    """Bytes read from the drives."""
    bytes_per_s: float
    deadlines_missed: int | None = None
    """Tokens that took longer than their session's pace."""
    tokens: int | None = None
    tokens_per_s: float | None = None
    joule_per_gb: Range | None = None
    joule_per_token: Range | None = None
    area_mm2: Range | None = None
    watt: Range | None = None
    arm_cores: Range | None = None
    """Cores of a BlueField-3 needed for the same command rate."""
    binds_first: str = ""
    units: list[UnitFigures] = []
    speed_up_mean: Range | None = None
    """Mean fetch latency of the measured run over this device's, with the range over the
    parameters."""
    speed_up_p99: Range | None = None
    speed_up_same_drives: Range | None = None
    """Mean fetch latency of today's daemon, modelled on this device's drives, over this device's:
    the gain that does not come from the drives."""
    off: str = ""
    """The model of the measured device: its stage that is furthest off, in words; empty where its
    mean and p99 are within `sentence.CLOSE` of the run's."""
    load: LoadFigures | None = None
    """At the comparison's load; a measured device has none."""
    notes: list[Note] = []

    @property
    def label(self) -> str:
        """The device's name in text."""
        return f"{self.device}, uncalibrated" if self.calibrated is False else self.device


class LoadPoint(msgspec.Struct, kw_only=True):
    """Figures of `copies` of the same trace side by side: so many GPUs, replayed."""

    copies: int
    bytes_per_s: float
    ns_p50: float
    ns_p99: float


class NeighbourPoint(msgspec.Struct, kw_only=True):
    """A victim's latency while another tenant, or another session of the victim's tenant, offers
    `aggressor_share` of the capacity."""

    qos: bool
    same_tenant: bool = False
    aggressor_share: float
    victim_ns_p99: float


class Effect(msgspec.Struct, kw_only=True):
    """The speed-up with one parameter at each end of its range, all others as in the preset."""

    parameter: str
    unit: str
    low: float
    high: float
    at_low: float
    at_high: float


class Crossover(msgspec.Struct, kw_only=True):
    """A speed-up over a plane of two parameters; the preset is at `x`, `y`."""

    device: str
    what: str
    x_name: str
    x_unit: str
    y_name: str
    y_unit: str
    xs: list[float]
    ys: list[float]
    speed_up: list[list[float]]
    """Rows by y, columns by x."""
    x: float
    y: float
    y_logarithmic: bool = False


class Tornado(msgspec.Struct, kw_only=True):
    """The effects of one device's parameters; `base`: the unchanged preset's speed-up."""

    device: str
    base: float
    effects: list[Effect]


class Comparison(msgspec.Struct, kw_only=True):
    """`compare.json`: the columns of one recorded run, and the results of varying the models."""

    run: str
    sentence: str
    setup: str
    columns: list[Column]
    load: str = ""
    """The load of every column's `load`, in words."""
    load_error: float = 1.0
    """The model's own error in it: a factor on every time of a device, both ways."""
    models: list[ModelLoad] = []
    """Where the load is of several runs, each of them, by bytes a token."""
    loads: list[list[LoadPoint]] = []
    """Load points by column; empty for a device without a load test."""
    tornados: list[Tornado] = []
    crossovers: list[Crossover] = []
    neighbours: list[NeighbourPoint] = []
    neighbours_device: str = ""
    workload: dict[str, Any]
    samples: int
    """Draws of all parameters together, behind each range of a speed-up."""
    command: str
    version: str
