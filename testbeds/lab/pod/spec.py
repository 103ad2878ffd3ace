"""The spec of a run of `offstage lab pod`: pods, load, hosts, faults, rates and times.

Pure data. An unknown key, a number out of bounds, or two keys that contradict each other are a
`BadInput`. Every key has a default, so that the command runs without a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import (
    Rate,
    Settings,
    Size,
    Time,
    about,
    convert,
    declared,
    read_toml,
    within,
)
from offstage.bindings.storage import preset
from offstage.dpu.pod.heat import CopyRule
from offstage.dpu.pod.map import MEMBERS_MAX
from offstage.host.decode.schedule import Schedule
from offstage.host.model.models import geometry
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["FAULTS", "Fault", "PodSpec", "Point", "load_spec", "points"]

Fault = Literal["none", "death", "return", "join", "drain", "slow"]
FAULTS: tuple[Fault, ...] = ("none", "death", "return", "join", "drain", "slow")
POINTS_MAX = 4096
PS_PER_NS = 1000


class PodSpec(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key of a spec; sizes, rates and times are written with their unit."""

    # The pods and their faults.
    daemons: Annotated[tuple[int, ...], about("how many daemons each pod has")] = (
        4,
        8,
        16,
        32,
        64,
        128,
        256,
    )
    faults: Annotated[tuple[Fault, ...], about("what happens to one daemon")] = ("none", "death")
    fault_at: Annotated[float, within(0, 1, "when, as a share of the arrivals' time")] = 0.5
    gone_ns: Annotated[Time, about("until a dead daemon returns")] = 30_000_000_000
    slow: Annotated[int, within(1, 1000, "times less bandwidth of a slow daemon")] = 8
    lease_ns: Annotated[Time, about("until the map knows of a death")] = 5_500_000_000
    deadline_ns: Annotated[Time, about("what a fetch waits for one daemon")] = 1_000_000_000
    fill: Annotated[bool, about("what a former home has is copied to the new one on hit")] = True
    shard_tokens: Annotated[int, within(512, 65_536, "tokens of a shard")] = 4096
    first_shard_tokens: Annotated[
        int, within(0, 65_536, "of the first, from which they double; 0: all are equal")
    ] = 512
    copies: Annotated[CopyRule, about("of hot shards, as `[copies]` of a pod's map")] = CopyRule()

    # A daemon.
    store_bytes: Annotated[Size, about("KV on its drives")] = 8 << 40
    arena_bytes: Annotated[Size, about("of it in its memory")] = 64 << 30
    store_of: Annotated[
        Literal["daemon", "pod"], about("whose size that is: each daemon's, or all of the pod's")
    ] = "daemon"
    drive: Annotated[str, about("a preset of the NVMe model")] = "gen5-tlc"
    drives: Annotated[int, within(1, 1024, "of each daemon")] = 4
    link_bytes_per_s: Annotated[Rate, about("of a daemon, and of a host")] = 50_000_000_000

    # The requests.
    trace: Annotated[str, about("a trace of requests; none: generated")] = ""
    time_unit: Annotated[str, about("of the trace; none: as its format has them")] = ""
    requests: Annotated[int, within(1, 1 << 24, "at most so many of it")] = 4000
    rate: Annotated[float, within(0, 1_000_000, "arrivals, times as fast as recorded")] = 1.0
    grow: Annotated[
        Literal["tier", "all"], about("tier: the same load on all pods; all: tenants and hosts too")
    ] = "tier"
    sessions: Annotated[int, within(1, 1 << 20, "generated")] = 1000
    turns: Annotated[int, within(1, 1000, "of a generated session")] = 4
    turn_tokens: Annotated[int, within(1, 1 << 20, "that each turn adds")] = 3000
    prompts: Annotated[int, within(1, 1 << 20, "that generated sessions begin with")] = 16
    prompt_tokens: Annotated[int, within(0, 1 << 20, "of each of them")] = 6144
    arrivals_per_s: Annotated[float, within(0, 1_000_000, "of generated sessions")] = 2.0
    gap_ns: Annotated[Time, about("mean time between turns of a generated session")] = (
        60_000_000_000
    )

    # The hosts.
    hosts: Annotated[int, within(1, 1024, "that take requests")] = 8
    model: Annotated[str, about("whose KV it is")] = "llama-3-70b"
    prefill_tokens_per_s: Annotated[int, within(1, 1 << 40, "of one host")] = 20_000
    time_per_token_ns: Annotated[Time, about("of decoding")] = 40_000_000
    pool_bytes: Annotated[Size, about("KV that a host keeps in HBM")] = 128 << 30
    active: Annotated[int, within(1, 1 << 16, "requests at once on a host")] = 32
    waiting: Annotated[int, within(1, 1 << 20, "requests that may wait; more are refused")] = 1024
    schedules: Annotated[tuple[Schedule, ...], about("which host takes a request")] = (
        "least-loaded",
    )
    weight: Annotated[float, within(0, 1000, "of a matched prefix against load")] = 1.0
    patience: Annotated[int, within(0, 1 << 20, "how often a request may be passed over")] = 16

    seeds: Annotated[tuple[int, ...], about("of names, arrivals and who fails")] = (1,)
    window_ns: Annotated[Time, about("over which hits are compared after a fault")] = 10_000_000_000

    @property
    def block_bytes(self) -> int:
        """KV of 512 tokens over all layers."""
        return _token_bytes(self.model) * TRACE_BLOCK_TOKENS

    @property
    def chunk_demands(self) -> int:
        """Number of blocks of one layer, as a daemon counts them, in 512 tokens of KV."""
        shape = geometry(self.model)
        return max(1, shape.layer_count * TRACE_BLOCK_TOKENS // shape.block_tokens)

    @property
    def drive_bytes_per_s(self) -> int:
        """Rate of large reads over all drives of a daemon, as published for the preset."""
        return self.drives * _cited(self.drive)["read_bytes_per_s"]

    @property
    def read_latency_ns(self) -> int:
        """Latency of a first read, as published for the preset."""
        return _cited(self.drive)["read_latency_ps"] // PS_PER_NS

    def blocks(self, size_bytes: int, parts: int = 1) -> int:
        """Whole blocks of 512 tokens that fit into each of `parts` equal parts of `size_bytes`."""
        return size_bytes // parts // self.block_bytes

    def check(self, where: str) -> None:
        """BadInput for keys that contradict each other."""
        geometry(self.model), preset(self.drive)
        if self.time_unit and not self.trace:
            raise BadInput("a time unit, and no trace", where, "give trace, or leave it out")
        for name in ("daemons", "faults", "schedules", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise BadInput(f"{name} is empty or names one twice", where, "name each once")
        least = 2 if set(self.faults) - {"none", "slow"} else 1
        if not least <= min(self.daemons) <= max(self.daemons) <= MEMBERS_MAX:
            raise BadInput(
                f"daemons = {list(self.daemons)}",
                where,
                f"give {least} to {MEMBERS_MAX}; 2 at least where one goes or comes",
            )
        if min(self.seeds) < 0 or max(self.seeds) >= 1 << 62:
            raise BadInput(f"seeds = {list(self.seeds)}", where, "give 0 to 2^62")
        for name in ("shard_tokens", "first_shard_tokens"):
            if getattr(self, name) % TRACE_BLOCK_TOKENS:
                raise BadInput(
                    f"{name} = {getattr(self, name)}",
                    where,
                    f"give a multiple of {TRACE_BLOCK_TOKENS}",
                )
        if self.first_shard_tokens > self.shard_tokens:
            raise BadInput(
                "the first shard is longer than shards are",
                where,
                "lower first_shard_tokens, or give 0",
            )
        for name in ("rate", "arrivals_per_s"):
            if not 0 < getattr(self, name):
                raise BadInput(f"{name} = {getattr(self, name):g}", where, "give more than 0")
        for name in ("link", "window"):
            field = "link_bytes_per_s" if name == "link" else "window_ns"
            if getattr(self, field) < 1:
                raise BadInput(f"{name} = 0", where, "give more than 0")
        if self.faults[0] != "none" and "none" not in self.faults:
            raise BadInput(
                "a fault is compared with a run without", where, 'put "none" among the faults'
            )
        if len(points(self)) > POINTS_MAX:
            raise BadInput(f"{len(points(self))} points", where, f"ask for {POINTS_MAX} at most")


@lru_cache
def _token_bytes(model: str) -> int:
    return geometry(model).bytes_per_token()


@lru_cache
def _cited(drive: str) -> dict[str, int]:
    return preset(drive).cited


def load_spec(path: Path | None, changes: Mapping[str, Any]) -> PodSpec:
    """The spec of a file, or the default spec, with `changes` applied."""
    where = "lab pod" if path is None else str(path)
    raw = read_toml(path, "give a spec's TOML file") if path is not None else {}
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        inner = raw.setdefault(table, {}) if table else raw
        if not isinstance(inner, dict):
            raise BadInput(f"{table} is no table", where, f"leave {key} out")
        inner[name] = value
    for key, option in declared(PodSpec).items():
        if option.unit is not None and key in raw:
            raw[key] = int(option.unit.parse(raw[key], f"{where} {key}"))
    spec = convert(raw, PodSpec, where)
    spec.check(where)
    for keys, idle, why in _idle(spec):
        for key in keys:
            if idle and key in raw:
                raise BadInput(f"{key} has no effect {why}", where, "leave it out")
    return spec


def _idle(spec: PodSpec) -> list[tuple[tuple[str, ...], bool, str]]:
    """(keys, whether they have no effect in this spec, the reason)."""
    generated = (
        "sessions",
        "turns",
        "turn_tokens",
        "prompts",
        "prompt_tokens",
        "arrivals_per_s",
        "gap",
    )
    return [
        (generated, bool(spec.trace), "beside a trace: requests are its own"),
        (("requests",), not spec.trace, "without a trace: sessions and turns decide"),
        (("fault_at",), set(spec.faults) == {"none"}, "where nothing fails"),
        (("gone",), "return" not in spec.faults, "without the fault return"),
        (("slow",), "slow" not in spec.faults, "without the fault slow"),
    ]


@dataclass(frozen=True, order=True)
class Point:
    """One run in virtual time."""

    daemons: int
    schedule: Schedule
    fault: Fault
    seed: int

    @property
    def label(self) -> str:
        """The point's name in errors."""
        return f"{self.daemons} daemons, {self.schedule}, {self.fault}, seed {self.seed}"


def points(spec: PodSpec) -> list[Point]:
    """All points of the spec, in the order of the results."""
    return [
        Point(daemons, schedule, fault, seed)
        for daemons in spec.daemons
        for schedule in spec.schedules
        for fault in spec.faults
        for seed in spec.seeds
    ]
