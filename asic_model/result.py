"""The result of one trace on one preset: what `asic run` prints and `compare` shows.

Model: only `asic_model/replay.py` builds a `ChipRun`. Times have their unit in the name, shares are
in [0, 1]. Figures that depend on a preset's numbers are `modelled`, and `calibrated` says whether
the preset was fitted to a recorded run. `logged` has the daemon's own figures from its log, by the
same definitions, for comparison.

A *fetch* is one command of one layer that has demands: from its submission until the last of its
blocks is with the host. A *token* is all fetches of one step of one session; its stall is the time
of the fetches that found a block neither staged nor on time. A token misses its deadline when it
takes longer than its session's pace.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.known import KnownPrefixes
from offstage.bindings.notes import Note

__all__ = [
    "ChipRun",
    "LimitRow",
    "Logged",
    "Range",
    "SessionRun",
    "Times",
    "UnitRun",
    "binding",
    "demands_of",
    "times_of",
]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
CURVE_POINTS = 1000
BINDS_FROM = 0.2
"""A unit that is used less does not bind."""


class Times(msgspec.Struct, kw_only=True, frozen=True):
    """A distribution of times in ns. `curve`: at most 1,000 quantiles, evenly spaced in rank, the
    minimum and maximum included: enough for a CCDF to 0.1 %; `tail`: the 100 largest."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    curve: list[float] = []
    tail: list[float] = []


class Range(msgspec.Struct, kw_only=True, frozen=True):
    """A figure that is known only as between two values."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    source: str = ""


class UnitRun(msgspec.Struct, kw_only=True, frozen=True):
    """One unit of the chip over the run.

    utilisation: of all its servers. wait_ns, time_ns: of a visit, before its service and in total.
    share_p50, share_p99: the share of the latency of fetches around that quantile spent here.
    occupancy, busy: by bins of `bin_ns`, requests inside and share of busy servers.
    """

    name: str
    kind: str
    servers: int
    arrivals: int
    bytes: int
    utilisation: float
    blocked_share: float
    wait_ns_mean: float
    wait_ns_p99: float
    time_ns_mean: float
    time_ns_p99: float
    waiting_max: int
    hits: int = 0
    misses: int = 0
    share_p50: float = 0.0
    share_p99: float = 0.0
    bin_ns: float = 0.0
    occupancy: list[float] = []
    busy: list[float] = []


class SessionRun(msgspec.Struct, kw_only=True, frozen=True):
    """One session over the run, by the core's number for it. None: work done for no session, and
    the arbiter's counts of sessions without an entry.

    stall_ns: of all its tokens together. granted and the following fields: from the chip's arbiter,
    over reads; all 0 for a DPU, which has no arbiter.
    """

    session: int | None
    tenant: int
    tokens: int = 0
    deadlines_missed: int = 0
    fetches: int = 0
    fetch_ns_mean: float = 0.0
    stall_ns: float = 0.0
    reads: int = 0
    bytes_read: int = 0
    granted: int = 0
    granted_bytes: int = 0
    refused: int = 0
    waiting_max: int = 0
    wait_ns_mean: float = 0.0
    wait_ns_max: float = 0.0


class Logged(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon's own figures from the replayed log. A log knows a fetch from its decision to its
    answer: compare `fetch_ns` and `stall_ns` with `device_ns`. They exclude the transfer of command
    and answer between host and device."""

    provenance: Literal["measured", "emulated", "modelled"]
    storage: str
    hits: int
    late: int
    misses: int
    fetch_ns: Times
    stall_ns: Times
    seconds: float
    bytes_read: int


class LimitRow(msgspec.Struct, kw_only=True, frozen=True):
    """A closed loop in which one table of the chip has so many entries; null: room for everything.

    hit, known: shares of demands that were staged in time, and of named chunks whose prefix was
    found. lost: against the row with room for everything; below 0, more. has_effect: whether
    anything was decided otherwise than there.
    """

    table: str
    entries: int | None
    hit: float
    hit_lost_points: float
    reads: int
    bytes_read: int
    known: float
    known_lost_points: float
    bytes_written_again: int
    tokens_per_s: float
    has_effect: bool


class ChipRun(msgspec.Struct, kw_only=True):
    """One trace through one preset."""

    mode: Literal["decision-replay", "closed-loop"]
    preset: str
    title: str
    calibrated: bool
    provenance: Literal["modelled"] = "modelled"
    trace: str
    trace_sha256: str
    preset_sha256: str
    seed: int
    storage: str
    """The drive behind the chip."""
    sessions: int
    tokens: int
    demands: int
    hits: int
    late: int
    misses: int
    """Demands by how they ended; late is not a hit. decision-replay: those of the log."""
    ends: dict[str, int]
    fetch_ns: Times
    device_ns: Times
    """Of a fetch, from the decision until its last block is staged: the part that a log has."""
    read_ns: Times
    """Reads of the medium, from the chip's decision to the block in the arena."""
    stall_ns: Times
    """By token."""
    deadlines_missed: int
    tokens_per_s: float
    seconds: float
    """From the first command to the last block, in the model's time."""
    bytes_read: int
    bytes_written: int
    bytes_to_hosts: int
    bandwidth_bytes_per_s: float
    """Bytes read from the medium over the seconds of the run."""
    reads: int
    starts: int
    """Reads that found none in flight: they wake the drive."""
    wakes: int
    """Of these, those after 1 ms without a read."""
    rests: int
    """Commands after 1 ms without one, or the end of a read."""
    cold_scores: int
    """Their scores."""
    reads_by_cause: dict[str, int]
    units: list[UnitRun]
    by_session: list[SessionRun] = []
    binds_first: str
    """The unit with the highest utilisation; "nothing" where each is used less than a fifth."""
    diverged: dict[str, int] = {}
    """closed-loop: decisions that differ from the log's, by kind; decision-replay: none."""
    prefixes: KnownPrefixes | None = None
    """closed-loop: what the chip's index of prefixes found; decision-replay: null."""
    limits: list[LimitRow] = []
    """closed-loop: what tables of other sizes cost, where they were asked for."""
    energy: list[Range] = []
    area: list[Range] = []
    power: list[Range] = []
    logged: Logged | None = None
    parameters: dict[str, float] = {}
    """The changed parameters of the preset, by `block.key`, in its unit."""
    notes: list[Note] = []
    hash: str = ""
    """Digest of the engine's event log: equal on every run."""

    @property
    def label(self) -> str:
        """The preset's name as a column title."""
        return self.preset if self.calibrated else f"{self.preset} (uncalibrated)"


def binding(used: Mapping[str, float]) -> str:
    """The unit that is used most, or "nothing" where that is so little that nothing binds."""
    name = max(used, key=lambda one: used[one], default="")
    return name if name and used[name] >= BINDS_FROM else "nothing"


def demands_of(run: ChipRun | Logged) -> int:
    """The number of all demands, of every outcome."""
    return run.hits + run.late + run.misses


def times_of(values_ns: "Sequence[float] | npt.NDArray[Any]") -> Times:
    """The distribution of times; all zero if there are none."""
    sorted_ns = np.sort(np.asarray(values_ns, np.float64))
    if not len(sorted_ns):
        return Times(count=0, mean=0, p50=0, p90=0, p99=0, p999=0, max=0)
    quantiles = {
        name: float(np.quantile(sorted_ns, share, method="inverted_cdf"))
        for name, share in QUANTILES.items()
    }
    count = min(CURVE_POINTS, len(sorted_ns))
    ranks = np.linspace(0, len(sorted_ns) - 1, count).round().astype(np.int64)
    return Times(
        count=len(sorted_ns),
        mean=float(sorted_ns.mean()),
        max=float(sorted_ns[-1]),
        curve=sorted_ns[ranks].tolist(),
        tail=sorted_ns[-100:].tolist(),
        **quantiles,
    )
