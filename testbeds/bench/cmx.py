"""`offstage bench cmx`: what NVIDIA asks of engines that use CMX, rule by rule, in virtual time.

The rules are of GTC 2026 (S81773), second-hand; every arm keeps them but for one. An arm is the
laboratory's pod (`lab.pod`) with one key changed, over the same requests: hosts take them by turns,
and retrieve when they come to a request. A session's turn waits for its answer, so where answers
come at other times some requests find another host; each arm says how many (`elsewhere`). The
daemon is a BlueField-4 as the presets and prices project it. References on equal terms: no tier,
where all that a host's own pool has not is computed; and perfect hints, with which all that is
retrieved is staged.

Keys are counted apart from the arms: the laboratory names values by numbers, which cannot collide.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from offstage.asic_model.parameters import read_preset
from offstage.bindings.errors import BadInput
from offstage.bindings.keys import value_key
from offstage.bindings.units import (
    format_count,
    format_rate,
    format_size,
    format_time,
)
from offstage.testbeds.bench.rows import UNITS, BenchResult
from offstage.testbeds.lab.pod.point_figures import served
from offstage.testbeds.lab.pod.requests import requests_of, trace_notes
from offstage.testbeds.lab.pod.run import Ran, simulate
from offstage.testbeds.lab.pod.spec import PodSpec, load_spec, points
from offstage.testbeds.lab.run.source import trace_path
from offstage.testbeds.prices import catalog
from offstage.testbeds.table import Column, Table
from offstage.testbeds.workloads.requests.served import column

__all__ = [
    "ARMS",
    "Arm",
    "Case",
    "CmxResult",
    "Keys",
    "LeftOut",
    "bench_cmx",
    "device",
    "figures_of",
    "keys_of",
    "spec_of",
]

DEVICE = "bluefield4"
KEY_BITS = 128
HOSTS = 4
"""Half of the laboratory's, so that requests wait for each other at the rate of the traces."""
RULES: dict[str, Any] = {"retrieve": "scheduled", "holes": True, "value": "10MiB"}
"""Retrieve without asking, compute the holes; values of about 10 MB, for a 70B model with GQA."""
KEPT = "rules kept"
ARMS: dict[str, dict[str, Any]] = {
    "no tier": {"store_bytes": 0},
    KEPT: {},
    "exist first": {"exist": True},
    "exist, prefix": {"exist": True, "holes": False},
    "hints": {"hints": "deadline"},
    "1 MiB values": {"value_bytes": 1 << 20},
    "perfect hints": {"hints": "perfect"},
}
"""By name: the fields of the spec in which an arm differs from the rules."""
OWN = ("exist", "holes", "hints", "retrieve", "value", "faults", "seeds")
"""Keys of the spec that the bench sets."""

Say = Callable[[str], None]


class LeftOut(msgspec.Struct, frozen=True):
    """A rule that the laboratory cannot judge, and why."""

    rule: str
    reason: str


LEFT_OUT = (
    LeftOut(
        "huge pages",
        "the laboratory has no page tables; `offstage bench storage` reads into base pages and "
        "into huge ones on this machine",
    ),
    LeftOut(
        "any node reads",
        "every host of the laboratory reads every daemon, and no store belongs to one host",
    ),
)


class Keys(msgspec.Struct, frozen=True):
    """Keys of the case's distinct values. `probability`: that any two of as many are equal."""

    distinct: int
    collisions: int
    probability: float


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. Shares are of the `values` that hosts wanted and their pools lacked, and add up
    to 1; None: hosts had no tier."""

    name: str
    first_ms_p50: float
    first_ms_p99: float
    hit: float
    refused: int
    values: int
    on_time: float | None
    late: float | None
    missing: float | None
    absent: float | None
    behind: float | None
    """In the tier behind a hole, and computed all the same."""
    hinted: int
    """Values read for a hint."""
    wasted: float | None
    """Share of them that nobody retrieved; None: none was read."""
    read_bytes: int
    """From drives, on demand and for hints."""
    elsewhere: int = 0
    """Requests at another host than where the rules are kept."""


class Case(msgspec.Struct, frozen=True):
    """One trace, or the generated requests."""

    trace: str
    requests: int
    keys: Keys
    arms: list[Arm]


class CmxResult(BenchResult, kw_only=True):
    """Every case, under the spec of the rules."""

    provenance: str = "modelled"
    spec: PodSpec
    cases: list[Case]
    left_out: tuple[LeftOut, ...] = LEFT_OUT

    def about(self) -> list[str]:
        spec = self.spec
        lines = [
            f"{self.provenance}: {spec.hosts} hosts of {spec.model}, {spec.daemons[0]} daemon(s) "
            f"with {format_size(spec.store_bytes)} on {spec.drives} {spec.drive}, arenas of "
            f"{format_size(spec.arena_bytes)}, links of {format_rate(spec.link_bytes_per_s)}, "
            f"{format_count(spec.commands_per_s)} commands/s, round trips of "
            f"{format_time(spec.round_trip_ns)}; arrivals {spec.rate:g} times as fast",
            "rules kept: retrieved without asking, holes computed, values of 10 MiB, no hints; "
            "each other arm differs in what it is named by",
            "on time, late, missing, absent: of the values that hosts' pools lacked; missing: "
            "only the drives had it; absent: nobody, computed; wasted: of those read for hints",
        ]
        for case in self.cases:
            keys = case.keys
            lines.append(
                f"{case.trace}: {format_count(keys.distinct)} keys of 16 bytes, "
                f"{keys.collisions} equal; chance of any: {keys.probability:.0e}"
            )
            moved = [f"{one.name} {one.elsewhere:,}" for one in case.arms if one.elsewhere]
            if moved:
                lines.append(f"at other hosts than where the rules are kept: {', '.join(moved)}")
            lines += [
                f"{one.name}: {one.refused:,} of its requests were refused, and are in no time"
                for one in case.arms
                if one.refused
            ]
        return [*lines, *(f"no arm for {one.rule}: {one.reason}" for one in self.left_out)]

    def own_tables(self) -> list[Table]:
        """An arm to a row, the time to the first token before all shares."""
        columns = [
            Column("arm", left=True),
            Column("first token p50", _ms, short="first p50"),
            Column("p99", _ms),
            Column("on time", UNITS["%"]),
            Column("late", UNITS["%"]),
            Column("missing", UNITS["%"]),
            Column("absent", UNITS["%"]),
            Column("wasted", UNITS["%"]),
            Column("read", format_size),
        ]
        return [
            Table.of(columns, map(_row, case.arms), f"{case.trace}, {case.requests:,} requests")
            for case in self.cases
        ]


def _row(arm: Arm) -> list[object]:
    shares = [arm.on_time, arm.late, arm.missing, arm.absent, arm.wasted]
    return [arm.name, arm.first_ms_p50, arm.first_ms_p99, *shares, arm.read_bytes]


def _ms(value: float) -> str:
    return format_time(1e6 * value)


def bench_cmx(
    *,
    traces: Sequence[Path],
    changes: Mapping[str, Any],
    seed: int,
    time_unit: str | None = None,
    say: Say = lambda line: None,
) -> CmxResult:
    """Every arm on every trace, or on generated requests. `changes`: keys of a spec of `lab pod`.
    BadInput: a key that the bench sets, several pods, or no trace of prefixes."""
    specs = [
        spec_of("bench cmx", RULES, OWN, changes, trace=one, seed=seed, time_unit=time_unit)
        for one in traces or (None,)
    ]
    cases = [_case(one, say) for one in specs]
    notes = [note for one in specs for note in trace_notes(one)]
    return CmxResult(
        seed=seed, spec=msgspec.structs.replace(specs[0], trace=""), cases=cases, notes=notes
    )


def spec_of(
    bench: str,
    rules: dict[str, Any],
    own: Collection[str],
    changes: Mapping[str, Any],
    *,
    trace: Path | None,
    seed: int,
    time_unit: str | None,
) -> PodSpec:
    """The spec of a `bench` on one device: its `rules`, and `changes` of keys that are not its
    `own`. BadInput: one that is, several pods, or a store of nothing."""
    for key in own:
        if key in changes:
            raise BadInput(f"{key} is given", bench, "leave it out: the bench sets it")
    given = {"trace": str(trace_path(str(trace)))} if trace is not None else {}
    unit = {"time_unit": time_unit} if time_unit is not None else {}
    spec = load_spec(None, device() | rules | dict(changes) | given | unit | {"seeds": [seed]})
    if len(points(spec)) != 1:
        raise BadInput("several pods", bench, "give one of daemons and of schedules")
    if not spec.blocks(spec.store_bytes):
        raise BadInput("the store holds nothing", bench, "give more")
    return spec


def device() -> dict[str, Any]:
    """One daemon on a BlueField-4: its commands by the preset of the chip model, its link and the
    trip to it by the prices. Each has source and range there; some are guesses."""
    cores = read_preset(DEVICE).cores
    assert cores is not None
    network = catalog().numbers(DEVICE)
    return {
        "daemons": [1],
        "faults": ["none"],
        "schedules": ["round-robin"],
        "hosts": HOSTS,
        "link": f"{network['link'].whole}B/s",
        "round_trip": f"{round(network['latency'].base * 1e9)}ns",
        "commands_per_s": round(cores.reactors.base * 1e12 / cores.command.base),  # in ps
    }


def keys_of(blocks: int, values: int, bits: int = KEY_BITS) -> Keys:
    """The keys of as many values for each of so many blocks, hashed as a daemon hashes those of a
    volume, SipHash of 128 bits. Counts the first `bits` of each; the chance is the birthday
    bound, n (n - 1) / 2 over 2 to the `bits`."""
    volume, size = bytes(16), bits // 8
    found = {
        value_key(volume, block.to_bytes(8, "little") + value.to_bytes(8, "little"))[:size]
        for block in range(blocks)
        for value in range(values)
    }
    count = blocks * values
    return Keys(count, count - len(found), min(1.0, count * (count - 1) / 2 / 2.0**bits))


def _case(spec: PodSpec, say: Say) -> Case:
    name = Path(spec.trace).name if spec.trace else "generated"
    requests, hosts, arms = requests_of(spec, 1, spec.seeds[0]), {}, []
    for one, fields in ARMS.items():
        own = msgspec.structs.replace(spec, **fields)
        ran = simulate(own, points(own)[0], requests, own.hosts)
        hosts[one] = column(ran.records, "host")
        arms.append(figures_of(one, ran))
        say(f"{name}, {one}: {_ms(arms[-1].first_ms_p50)} to the first token")
    arms = [
        msgspec.structs.replace(one, elsewhere=int((hosts[one.name] != hosts[KEPT]).sum()))
        for one in arms
    ]
    return Case(name, len(requests), keys_of(requests.block_count, spec.values_per_block), arms)


def figures_of(name: str, ran: Ran) -> Arm:
    """The figures of an arm."""
    met, ends, fates = served(ran.records), ran.ends, ran.fates

    def share(count: int) -> float | None:
        return count / ends.total if ends.total else None

    return Arm(
        name=name,
        first_ms_p50=met.first_ms_p50,
        first_ms_p99=met.first_ms_p99,
        hit=met.hit,
        refused=met.refused,
        values=ends.total,
        on_time=share(ends.on_time),
        late=share(ends.late),
        missing=share(ends.missing),
        absent=share(ends.absent),
        behind=share(ends.behind),
        hinted=fates.read,
        wasted=fates.unused / fates.read if fates.read else None,
        read_bytes=ran.drive_bytes,
    )
