"""`offstage bench prefetch`: when a hint must be sent for prefetch to pay, in virtual time.

An arm is a moment at which hints are sent, in the laboratory's pod (`lab.pod`); a row is an arm at
one speed of arrivals. All arms have the same requests, from hosts that are chosen as a router does
that knows what they keep. Bounds beside them: no hints, and perfect ones, with which all that is
retrieved is staged. A hint's deadline is its need and the time of computing what it names.

At a pause the whole prompt is hinted at once, as by vLLM's `kv_hints`; *before resume* a router
that knows what hosts keep hints the rest, so long before as computing it would take. A pause's
length is known, and none is hinted that no turn follows: the best that an orchestrator can say.
Requests without sessions have no pauses, and no such arm.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import quantile
from offstage.bindings.units import format_rate, format_size, format_time
from offstage.testbeds.bench.cmx import Say, figures_of, spec_of
from offstage.testbeds.bench.hint_arms import NONE, PERFECT, HintArm, HintCase
from offstage.testbeds.bench.rows import UNITS, BenchResult
from offstage.testbeds.lab.pod.requests import Requests, requests_of, scaled, trace_notes
from offstage.testbeds.lab.pod.run import simulate
from offstage.testbeds.lab.pod.spec import PodSpec, points
from offstage.testbeds.table import Column, Table
from offstage.testbeds.workloads.requests.served import ttft_ms

__all__ = [
    "ARMS",
    "Load",
    "Moment",
    "PrefetchCase",
    "PrefetchResult",
    "bench_prefetch",
    "requests_by",
]

ARMS = {
    NONE: "none",
    "on arrival": "arrival",
    "router knows": "router",
    "host takes": "deadline",
    "on pause": "pause",
    "before resume": "resume",
    PERFECT: "perfect",
}
"""By name: when hints are sent, as `hints` of a spec."""
PAUSES = ("on pause", "before resume")
RULES: dict[str, Any] = {
    "schedules": ["reuse"],
    "retrieve": "scheduled",
    "holes": True,
    "value": "10MiB",
}
OWN = ("hints", "rate", "retrieve", "faults", "seeds", "trace")
LOADS_MAX = 16
NO_PAUSES = "no request is a later turn of a session, so that no pause is known"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load. Shares of values are as in `bench cmx`; `gained`: by how much the mean
    time to the first token is shorter than without hints; None: nothing was served."""

    name: str
    first_ms_mean: float
    first_ms_p50: float
    first_ms_p90: float
    first_ms_p99: float
    gained: float | None
    refused: int
    on_time: float | None
    late: float | None
    missing: float | None
    absent: float | None
    hinted: int
    """Values read for a hint."""
    dropped: int
    """Values that hints named and no hint read: their deadline passed, or a demand came first."""
    wasted: float | None
    """Share of `hinted` that nobody retrieved; None: none was read."""
    read_bytes: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One speed of arrivals. Busy shares are of the arm without hints; None: nothing was served."""

    rate: float
    gpu: float | None
    drive: float | None
    moments: list[Moment]


class PrefetchCase(msgspec.Struct, frozen=True):
    """One trace, or the generated requests. `left_out`: by arm, why it did not run."""

    trace: str
    requests: int
    loads: list[Load]
    left_out: dict[str, str]


class PrefetchResult(BenchResult, kw_only=True):
    """Every case, under the spec without hints."""

    provenance: str = "modelled"
    spec: PodSpec
    cases: list[PrefetchCase]

    def shown(self) -> list[HintCase]:
        """The arms as the page shows them."""
        return [
            HintCase(one.trace, {load.rate: list(map(_shown, load.moments)) for load in one.loads})
            for one in self.cases
        ]

    def about(self) -> list[str]:
        """Whether prefetch pays, and the setup."""
        return [*(one.said() for one in self.shown()), *self.setup()]

    def setup(self) -> list[str]:
        """How it was modelled."""
        spec = self.spec
        return [
            f"{self.provenance}: {spec.hosts} hosts of {spec.model} that keep "
            f"{format_size(spec.pool_bytes)} each, {spec.daemons[0]} daemon(s) with arenas of "
            f"{format_size(spec.arena_bytes)} over {spec.drives} {spec.drive}, links of "
            f"{format_rate(spec.link_bytes_per_s)}; a host chosen by {spec.schedules[0]}",
            "load: speed of arrivals, relative to the trace; gpu, drive: how busy without hints",
            "gained: by how much the mean time to the first token is shorter than without hints",
            "on time, late, missing, absent: of the values that hosts' pools lacked; wasted: of "
            "those read for hints",
            *(
                f"{case.trace}: no arm {arm}: {reason}"
                for case in self.cases
                for arm, reason in case.left_out.items()
            ),
            *(
                f"{case.trace}, load {load.rate:g}, {one.name}: {one.refused:,} requests were "
                "refused, and are in no time"
                for case in self.cases
                for load in case.loads
                for one in load.moments
                if one.refused
            ),
        ]

    def own_tables(self) -> list[Table]:
        """A load and arm to a row, loads in ascending order."""
        columns = [
            Column("load", left=True),
            Column("hints", left=True),
            Column("first token mean", _ms, short="mean"),
            Column("p50", _ms),
            Column("p99", _ms),
            Column("gained", UNITS["%"]),
            Column("on time", UNITS["%"]),
            Column("late", UNITS["%"]),
            Column("missing", UNITS["%"]),
            Column("wasted", UNITS["%"]),
        ]
        return [
            Table.of(
                columns,
                [_row(load, one) for load in case.loads for one in load.moments],
                f"{case.trace}, {case.requests:,} requests; {_busy(case.loads)}",
            )
            for case in self.cases
        ]


def _row(load: Load, one: Moment) -> list[object]:
    times = [one.first_ms_mean, one.first_ms_p50, one.first_ms_p99, one.gained]
    return [f"{load.rate:g}", one.name, *times, one.on_time, one.late, one.missing, one.wasted]


def _shown(one: Moment) -> HintArm:
    return HintArm(
        name=one.name,
        mean_s=one.first_ms_mean / 1e3,
        p50_s=one.first_ms_p50 / 1e3,
        p99_s=one.first_ms_p99 / 1e3,
        gained=one.gained,
        on_time=one.on_time,
        late=one.late,
        missing=one.missing,
        absent=one.absent,
        wasted=one.wasted,
    )


def _busy(loads: Sequence[Load]) -> str:
    shown = [
        f"{one.rate:g}: gpu {one.gpu:.0%}, drive {one.drive:.0%}"
        for one in loads
        if one.gpu is not None and one.drive is not None
    ]
    return "; ".join(shown) if shown else "nothing was served"


def _ms(value: float) -> str:
    return format_time(1e6 * value)


def bench_prefetch(
    *,
    traces: Sequence[Path],
    changes: Mapping[str, Any],
    loads: Sequence[float],
    seed: int,
    time_unit: str | None = None,
    say: Say = lambda line: None,
) -> PrefetchResult:
    """Every arm at every load on every trace, or on generated requests. `changes`: keys of a spec
    of `lab pod`. BadInput: a key that the bench sets, a load that is no speed, or several pods."""
    if not 0 < len(loads) <= LOADS_MAX or len(set(loads)) < len(loads):
        raise BadInput(
            f"{len(loads)} loads, or one twice", "--load", f"give 1 to {LOADS_MAX} different ones"
        )
    specs = [
        spec_of("bench prefetch", RULES, OWN, changes, trace=one, seed=seed, time_unit=time_unit)
        for one in traces or (None,)
    ]
    for load in loads:
        if not 0 < load <= 1_000_000:
            raise BadInput(f"a load of {load:g}", "--load", "give more than 0, at most 1,000,000")
    cases = [_case(one, sorted(loads), say) for one in specs]
    notes = [note for one in specs for note in trace_notes(one)]
    return PrefetchResult(
        seed=seed, spec=msgspec.structs.replace(specs[0], trace=""), cases=cases, notes=notes
    )


def requests_by(
    changes: Mapping[str, Any], *, trace: Path | None, seed: int, time_unit: str | None
) -> Requests:
    """The requests of a trace, or generated ones, by keys of a spec. BadInput as `bench_prefetch`,
    and for a turn that only follows another one, without a time of its own."""
    spec = spec_of(
        "bench prefetch", RULES, OWN, changes, trace=trace, seed=seed, time_unit=time_unit
    )
    found = requests_of(spec, 1, seed)
    if found.follows.any():
        raise BadInput("turns without a time of their own", str(trace), "choose another trace")
    return found


def _case(spec: PodSpec, loads: Sequence[float], say: Say) -> PrefetchCase:
    name = Path(spec.trace).name if spec.trace else "generated"
    requests = requests_of(spec, 1, spec.seeds[0])
    left_out = {} if (requests.next_turn >= 0).any() else dict.fromkeys(PAUSES, NO_PAUSES)
    arms = {arm: hints for arm, hints in ARMS.items() if arm not in left_out}
    found = []
    for load in loads:
        found.append(_load(spec, scaled(requests, load), load, arms))
        say(f"{name}, load {load:g}: {_ms(found[-1].moments[0].first_ms_p50)} without hints")
    return PrefetchCase(name, len(requests), found, left_out)


def _load(spec: PodSpec, requests: Requests, load: float, arms: Mapping[str, str]) -> Load:
    ran, point = {}, points(spec)[0]
    for arm, hints in arms.items():
        own = msgspec.structs.replace(spec, hints=hints)
        ran[arm] = simulate(own, point, requests, own.hosts)
    figures = {arm: figures_of(arm, one) for arm, one in ran.items()}
    first_ms = {
        arm: ttft_ms([each for each in one.records if not each.refused]) for arm, one in ran.items()
    }
    mean_ms = {arm: float(np.mean(one)) if len(one) else 0.0 for arm, one in first_ms.items()}
    moments = [
        Moment(
            name=arm,
            first_ms_mean=mean_ms[arm],
            first_ms_p50=one.first_ms_p50,
            first_ms_p90=quantile(first_ms[arm], 0.9),
            first_ms_p99=one.first_ms_p99,
            gained=1 - mean_ms[arm] / mean_ms[NONE] if mean_ms[NONE] > 0 else None,
            refused=one.refused,
            on_time=one.on_time,
            late=one.late,
            missing=one.missing,
            absent=one.absent,
            hinted=one.hinted,
            dropped=ran[arm].fates.dropped,
            wasted=one.wasted,
            read_bytes=one.read_bytes,
        )
        for arm, one in figures.items()
    ]
    used = ran[NONE].used
    return Load(rate=load, gpu=used.gpu, drive=used.drive, moments=moments)
