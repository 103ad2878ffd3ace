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
Hints = Literal["none", "arrival", "router", "deadline", "pause", "resume", "perfect"]
POINTS_MAX = 4096
PS_PER_NS = 1000


class PodSpec(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key of a spec; sizes, rates and times are written with their unit."""

    # The pods and their faults.
    daemons: Annotated[tuple[int, ...], about("daemons in each pod")] = (
        4,
        8,
        16,
        32,
        64,
        128,
        256,
    )
    faults: Annotated[tuple[Fault, ...], about("what happens to one daemon")] = ("none", "death")
    fault_at: Annotated[
        float, within(0, 1, "time of the fault, as a share of the arrivals' time")
    ] = 0.5
    gone_ns: Annotated[Time, about("time until a dead daemon returns")] = 30_000_000_000
    slow: Annotated[int, within(1, 1000, "a slow daemon's bandwidth is divided by this")] = 8
    lease_ns: Annotated[Time, about("time until the map drops a dead daemon")] = 5_500_000_000
    deadline_ns: Annotated[Time, about("the longest that a fetch waits for one daemon")] = (
        1_000_000_000
    )
    fill: Annotated[bool, about("copy a shard from its former home to the new one on hit")] = True
    shard_tokens: Annotated[int, within(512, 65_536, "tokens in a shard")] = 4096
    first_shard_tokens: Annotated[
        int, within(0, 65_536, "size of the first shard; later ones double; 0: equal sizes")
    ] = 512
    copies: Annotated[CopyRule, about("copies of hot shards, as in `[copies]` of a pod's map")] = (
        CopyRule()
    )

    # A daemon.
    store_bytes: Annotated[Size, about("KV on a daemon's drives")] = 8 << 40
    arena_bytes: Annotated[Size, about("the part of that KV in its memory")] = 64 << 30
    store_of: Annotated[
        Literal["daemon", "pod"], about("these are the sizes of each daemon, or of the whole pod")
    ] = "daemon"
    drive: Annotated[str, about("a preset of the NVMe model")] = "gen5-tlc"
    drives: Annotated[int, within(1, 1024, "drives of each daemon")] = 4
    link_bytes_per_s: Annotated[Rate, about("link rate of a daemon and of a host")] = 50_000_000_000

    # How hosts ask a daemon.
    value_bytes: Annotated[
        Size, about("size of a value, which a command names; 0: the KV of 512 tokens")
    ] = 0
    commands_per_s: Annotated[
        int, within(0, 1 << 40, "commands that a daemon takes in a second; 0: no bound")
    ] = 0
    round_trip_ns: Annotated[Time, about("time of a command to a daemon and of its answer")] = 0
    exist: Annotated[bool, about("ask which values exist before retrieving these")] = False
    holes: Annotated[bool, about("retrieve what is behind a hole, and compute only the hole")] = (
        False
    )
    retrieve: Annotated[
        Literal["taken", "scheduled"],
        about("when: as a host takes a request, or when it has computed those before (scheduled)"),
    ] = "taken"
    hints: Annotated[
        Hints,
        about(
            "when hints are sent: at arrival, there by a router that knows hosts' pools, as a host "
            "takes a request (deadline), at the pause before it, or so long before its end as "
            "computing takes, by such a router (resume); perfect: all is staged"
        ),
    ] = "none"

    # The requests.
    trace: Annotated[str, about("trace of requests; empty: requests are generated")] = ""
    time_unit: Annotated[str, about("unit of the trace's times; empty: that of its format")] = ""
    requests: Annotated[int, within(1, 1 << 24, "the most requests read from the trace")] = 4000
    rate: Annotated[float, within(0, 1_000_000, "speed of arrivals, relative to the trace")] = 1.0
    grow: Annotated[
        Literal["tier", "all"],
        about("tier: all pods get the same load; all: hosts and tenants grow"),
    ] = "tier"
    sessions: Annotated[int, within(1, 1 << 20, "sessions to generate")] = 1000
    turns: Annotated[int, within(1, 1000, "turns of a generated session")] = 4
    turn_tokens: Annotated[int, within(1, 1 << 20, "tokens that each turn adds")] = 3000
    prompts: Annotated[int, within(1, 1 << 20, "distinct first prompts")] = 16
    prompt_tokens: Annotated[int, within(0, 1 << 20, "tokens of each of these")] = 6144
    arrivals_per_s: Annotated[float, within(0, 1_000_000, "rate of new sessions")] = 2.0
    gap_ns: Annotated[Time, about("mean time between turns of a generated session")] = (
        60_000_000_000
    )

    # The hosts.
    hosts: Annotated[int, within(1, 1024, "hosts that take requests")] = 8
    model: Annotated[str, about("the model that the KV belongs to")] = "llama-3-70b"
    prefill_tokens_per_s: Annotated[int, within(1, 1 << 40, "prefill rate of one host")] = 20_000
    time_per_token_ns: Annotated[Time, about("decode time per token")] = 40_000_000
    pool_bytes: Annotated[Size, about("KV that each host keeps in HBM")] = 128 << 30
    active: Annotated[int, within(1, 1 << 16, "requests that a host runs at once")] = 32
    waiting: Annotated[int, within(1, 1 << 20, "requests that may wait; more are refused")] = 1024
    schedules: Annotated[tuple[Schedule, ...], about("how a host is chosen for a request")] = (
        "least-loaded",
    )
    weight: Annotated[float, within(0, 1000, "weight of a matched prefix against load")] = 1.0
    patience: Annotated[int, within(0, 1 << 20, "how often a request may be passed over")] = 16

    seeds: Annotated[tuple[int, ...], about("seeds of names, arrivals and the faulty daemon")] = (
        1,
    )
    window_ns: Annotated[Time, about("window for comparing hits after a fault")] = 10_000_000_000

    @property
    def block_bytes(self) -> int:
        """KV of 512 tokens over all layers."""
        return _token_bytes(self.model) * TRACE_BLOCK_TOKENS

    @property
    def values_per_block(self) -> int:
        """Values in the KV of 512 tokens; the last may be shorter."""
        return -(-self.block_bytes // self.value_bytes) if self.value_bytes else 1

    @property
    def chunk_demands(self) -> int:
        """Number of blocks of one layer, as a daemon counts them, in 512 tokens of KV."""
        shape = geometry(self.model)
        return max(1, shape.layer_count * TRACE_BLOCK_TOKENS // shape.block_tokens)

    @property
    def drive_bytes_per_s(self) -> int:
        """Rate of large reads over all drives of a daemon, as published for the preset."""
        return self.drives * preset(self.drive).read_bytes_per_s

    @property
    def hinted(self) -> bool:
        """Whether hosts or a router send hints."""
        return self.hints not in ("none", "perfect")

    @property
    def read_latency_ns(self) -> int:
        """Latency of a first read, as published for the preset."""
        return preset(self.drive).cited["read_latency_ps"] // PS_PER_NS

    def blocks(self, size_bytes: int, parts: int = 1) -> int:
        """Whole blocks of 512 tokens that fit into each of `parts` equal parts of `size_bytes`."""
        return size_bytes // parts // self.block_bytes

    def check(self, where: str) -> None:
        """BadInput for keys that contradict each other."""
        geometry(self.model)
        if "read_latency_ps" not in preset(self.drive).cited:
            raise BadInput(
                f"no read latency of {self.drive} was published",
                f"{where} drive",
                "choose a drive with one: `offstage drive presets`",
            )
        if self.time_unit and not self.trace:
            raise BadInput(
                "time_unit is set, but trace is not", where, "set trace, or leave it out"
            )
        for name in ("daemons", "faults", "schedules", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise BadInput(f"{name} is empty or has a duplicate", where, "list each value once")
        least = 2 if set(self.faults) - {"none", "slow"} else 1
        if not least <= min(self.daemons) <= max(self.daemons) <= MEMBERS_MAX:
            fix = f"give {least} to {MEMBERS_MAX}"
            if least > 1:
                away = ", ".join(one for one in self.faults if one not in ("none", "slow"))
                fix += f': faults has {away}, which takes two; or set faults = ["none"]'
            raise BadInput(f"daemons = {list(self.daemons)}", where, fix)
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
                "first_shard_tokens exceeds shard_tokens",
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
                "a fault is compared with a run without one", where, 'add "none" to faults'
            )
        if self.hinted and set(self.faults) != {"none"}:
            raise BadInput(
                "hints are modelled without faults", where, 'set faults = ["none"], or no hints'
            )
        if len(points(self)) > POINTS_MAX:
            raise BadInput(f"{len(points(self))} points", where, f"give at most {POINTS_MAX}")


@lru_cache
def _token_bytes(model: str) -> int:
    return geometry(model).bytes_per_token()


def load_spec(path: Path | None, changes: Mapping[str, Any]) -> PodSpec:
    """The spec of a file, or the default spec, with `changes` applied."""
    where = "lab pod" if path is None else str(path)
    raw = read_toml(path, "give a spec's TOML file") if path is not None else {}
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        inner = raw.setdefault(table, {}) if table else raw
        if not isinstance(inner, dict):
            raise BadInput(f"{table} is not a table", where, f"leave {key} out")
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
        (generated, bool(spec.trace), "with a trace, which has the requests"),
        (("requests",), not spec.trace, "without a trace: sessions and turns set the number"),
        (
            ("hints",),
            spec.hints == "deadline" and spec.retrieve == "taken",
            "where a host retrieves at once: set retrieve",
        ),
        (("fault_at",), set(spec.faults) == {"none"}, "without a fault"),
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
