"""`offstage bench asic`: the event engine of the chip model, against SimPy and on a whole chip.

The first row runs one queueing network, three stages of one, two and four servers at a load of
0.8, on both engines in turns; the mean time in the system is known, and an engine that misses it
fails the run. An event of ours is one taken from the heap or an arrival, one of SimPy's is one
that it schedules. The chip rows are hits of a preset, as whole blocks and cut as the preset cuts
them, and a mix of all routes. The last row streams requests through the same chip in batches:
the memory it takes must not depend on their number. Times are of one core; on a busy machine
ratios remain valid and rates are low.
"""

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.asic_model.chip import network
from offstage.asic_model.parameters import read_preset
from offstage.bindings.chip import Array, Chip, Limits, Network, Stage, Unit, make_requests
from offstage.bindings.errors import Missing, RunFailed
from offstage.bindings.units import format_size
from offstage.testbeds.bench.rows import BenchResult, Row, aimed

__all__ = ["AsicResult", "ChipFigures", "Long", "Stages", "bench_asic", "rows_of"]

PRESET = "asic_7nm"
EVENTS_AIM_RATIO = 25
REQUESTS_AIM_PER_S = 1e6
GROWTH_AIM_BYTES = 16 << 20
ROUNDS = 5
SIMPY_REQUESTS = 20_000
OUR_REQUESTS = 500_000
CHIP_REQUESTS = 200_000
BATCH = 1 << 16
BLOCK_BYTES = 65536
LOAD = 0.8
SERVERS = (1, 2, 4)
SERVICE_PS = 1_000_000
MEAN = 9.0
"""Mean services that a request spends in the system: 3 in the first stage (M/D/1 at 0.8), whose
departures are spaced so that no request waits after it, then 2 and 4."""
MEAN_ERROR = 0.1
GAP_PS = 2_000_000
"""Mean time between blocks: the chip's link is busy for 70 %."""
MIX = {"hit": 0.85, "read": 0.05, "write": 0.02, "command": 0.08}
OF_WHOLE_BLOCKS = ("hits, whole blocks", "mix, whole blocks")
PIECES_MAX = 1 << 16

Say = Callable[[str], None]


class Stages(msgspec.Struct, frozen=True):
    """One network on both engines, in seconds of one core each."""

    events_per_s: float
    requests_per_s: float
    reference_events_per_s: float
    reference_requests_per_s: float
    ratio: float
    requests_ratio: float


class ChipFigures(msgspec.Struct, frozen=True):
    """Blocks on a whole chip."""

    name: str
    units: int
    block_bytes: int
    events_per_request: float
    events_per_s: float
    requests_per_s: float


class Long(msgspec.Struct, frozen=True):
    """A run in batches: growth of the process after the first tenth."""

    requests: int
    simulated_s: float
    seconds: float
    chip_bytes: int
    growth_bytes: int


class AsicResult(BenchResult, kw_only=True):
    """Events a second against SimPy; blocks a second on a whole chip; memory of a long run."""

    stages: Stages
    chips: list[ChipFigures]
    long: Long
    reference: str = "SimPy"
    preset: str = PRESET
    rounds: int

    def about(self) -> list[str]:
        chip, long = self.chips[0], self.long
        per = ", ".join(f"{one.events_per_request:.1f} ({one.name})" for one in self.chips)
        return [
            f"measured, against {self.reference} on the same network; {self.rounds} rounds, "
            f"seed {self.seed}; both reach the theoretical mean",
            f"{self.preset}: {chip.units} units, blocks of "
            f"{format_size(chip.block_bytes)}; events for each request: {per}",
            f"{long.requests:,} hits took {long.seconds:.0f} s for {long.simulated_s:.1f} "
            f"simulated s, their chip {format_size(long.chip_bytes)}",
        ]


def bench_asic(
    *, requests: int, seed: int = 1, rounds: int = ROUNDS, say: Say = lambda _: None
) -> AsicResult:
    """Events and requests a second; memory of a run of `requests`. Missing("test") without
    simpy, RunFailed if one of the engines does not reach the theoretical mean."""
    say("three stages against SimPy")
    stages = _beside_simpy(seed, rounds)
    say(f"{PRESET}: blocks")
    chips = [
        _chip_row("hits, whole blocks", {"hit": 1.0}, BLOCK_BYTES, seed, rounds),
        _chip_row("hits, in pieces", {"hit": 1.0}, 0, seed, rounds),
        _chip_row("mix, whole blocks", MIX, BLOCK_BYTES, seed, rounds),
    ]
    say(f"{requests:,} requests in bounded memory")
    long = _long(requests, seed)
    rows = rows_of(stages, chips, long)
    return AsicResult(stages=stages, chips=chips, long=long, seed=seed, rounds=rounds, rows=rows)


def rows_of(stages: Stages, chips: list[ChipFigures], long: Long) -> list[Row]:
    """Both engines on one network, every chip, and the memory of the long run."""
    growth = long.growth_bytes
    return [
        Row(
            "three stages, events",
            "M/s",
            stages.events_per_s,
            stages.reference_events_per_s,
            stages.ratio,
            aimed(stages.ratio, ">=", EVENTS_AIM_RATIO, "x"),
        ),
        Row(
            "three stages, requests",
            "M/s",
            stages.requests_per_s,
            stages.reference_requests_per_s,
            stages.requests_ratio,
        ),
        *map(_of_chip, chips),
        Row(
            "memory more after a tenth",
            "bytes",
            growth,
            None,
            None,
            aimed(growth, "<", GROWTH_AIM_BYTES, "bytes"),
        ),
    ]


def _of_chip(one: ChipFigures) -> Row:
    per_s, held = one.requests_per_s, one.name in OF_WHOLE_BLOCKS
    goal = aimed(per_s, ">=", REQUESTS_AIM_PER_S, "M/s") if held else None
    return Row(f"{one.name}, requests", "M/s", per_s, None, None, goal)


def _beside_simpy(seed: int, rounds: int) -> Stages:
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for turn in range(rounds):
        random = np.random.default_rng([seed, turn])
        if turn % 2:
            theirs.append(_theirs(random))
        ours.append(_ours(random))
        if turn % 2 == 0:
            theirs.append(_theirs(random))
    events, per_s = (statistics.median(one) for one in zip(*ours, strict=True))
    reference, reference_per_s = (statistics.median(one) for one in zip(*theirs, strict=True))
    return Stages(
        events_per_s=events,
        requests_per_s=per_s,
        reference_events_per_s=reference,
        reference_requests_per_s=reference_per_s,
        ratio=statistics.median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True)),
        requests_ratio=per_s / reference_per_s,
    )


def _arrivals(random: np.random.Generator, count: int) -> Any:
    return np.cumsum(random.exponential(SERVICE_PS / LOAD, count)).round().astype(np.uint64)


def _check(mean_ps: float, side: str) -> None:
    if abs(mean_ps / SERVICE_PS - MEAN) > MEAN_ERROR * MEAN:
        raise RunFailed(
            f"{mean_ps / SERVICE_PS:.2f} mean services in the system, but theory gives {MEAN}",
            f"bench asic, {side}",
            "run the tests of tests/validation",
        )


def _ours(random: np.random.Generator) -> tuple[float, float]:
    """Events and requests a second."""
    units = tuple(
        Unit(f"stage{servers}", servers=servers, fixed_ps=servers * SERVICE_PS)
        for servers in SERVERS
    )
    route = tuple(Stage(unit.name) for unit in units)
    chip = Chip(Network(units, {"only": route}), limits=Limits(end_max=0))
    trace = make_requests(OUR_REQUESTS, at_ps=_arrivals(random, OUR_REQUESTS))
    began = time.thread_time()
    chip.run(trace)
    spent = time.thread_time() - began
    _check(chip.route_stats()["only"].latency.mean_ps, "our engine")
    return chip.figures["events"] / spent, OUR_REQUESTS / spent


def _theirs(random: np.random.Generator) -> tuple[float, float]:
    try:
        import simpy
    except ImportError:
        raise Missing("test", "SimPy, the reference, is not installed", "bench asic") from None
    env: Any = simpy.Environment()
    stages = [(simpy.Resource(env, servers), servers * SERVICE_PS) for servers in SERVERS]
    gaps = random.exponential(SERVICE_PS / LOAD, SIMPY_REQUESTS).round().astype(int).tolist()
    inside: list[int] = []

    def request() -> Iterator[Any]:
        began = env.now
        for servers, takes in stages:
            with servers.request() as turn:
                yield turn
                yield env.timeout(takes)
        inside.append(env.now - began)

    def source() -> Iterator[Any]:
        for gap in gaps:
            yield env.timeout(gap)
            env.process(request())

    env.process(source())
    before = next(env._eid)  # the number of the next event: SimPy has no other counter
    began = time.thread_time()
    env.run()
    spent = time.thread_time() - began
    _check(statistics.mean(inside), "SimPy")
    return (next(env._eid) - before) / spent, SIMPY_REQUESTS / spent


def _requests(chip: Network, mix: dict[str, float], count: int, random: Any) -> Array:
    """Blocks of all routes, by share; arrivals begin at 0."""
    shares = [mix.get(name, 0.0) for name in chip.routes]
    return make_requests(
        count,
        at_ps=np.cumsum(random.exponential(GAP_PS, count)).astype(np.uint64),
        size_bytes=BLOCK_BYTES,
        count=1,
        key=random.integers(0, 1 << 20, count),
        offset_bytes=random.integers(0, 1 << 20, count) * BLOCK_BYTES,
        route=random.choice(len(shares), count, p=shares),
    )


def _chip_row(
    name: str, mix: dict[str, float], piece_bytes: int, seed: int, rounds: int
) -> ChipFigures:
    """Figures of a whole chip; the median of the rounds."""
    made = network(read_preset(PRESET), piece_bytes=piece_bytes)
    trace = _requests(made, mix, CHIP_REQUESTS, np.random.default_rng(seed))
    chip = Chip(made, seed=seed, limits=Limits(piece_max=PIECES_MAX, end_max=0))
    spent = []
    for _ in range(rounds):
        chip.reset()
        began = time.thread_time()
        chip.run(trace)
        spent.append(time.thread_time() - began)
    took = statistics.median(spent)
    return ChipFigures(
        name=name,
        units=len(made.units),
        block_bytes=BLOCK_BYTES,
        events_per_request=chip.figures["events"] / CHIP_REQUESTS,
        events_per_s=chip.figures["events"] / took,
        requests_per_s=CHIP_REQUESTS / took,
    )


def _long(requests: int, seed: int) -> Long:
    """Requests in batches; growth of the process after the first tenth."""
    made = network(read_preset(PRESET), piece_bytes=BLOCK_BYTES)
    chip = Chip(made, seed=seed, limits=Limits(piece_max=PIECES_MAX, end_max=0))
    random = np.random.default_rng(seed)
    began, taken, early = time.thread_time(), 0, 0

    def batches() -> Iterator[Array]:
        at_ps = 0
        for first in range(0, requests, BATCH):
            batch = _requests(made, {"hit": 1.0}, min(BATCH, requests - first), random)
            batch["at_ps"] += np.uint64(at_ps)
            at_ps = int(batch["at_ps"][-1])
            yield batch

    for _ in chip.stream(batches()):
        taken = chip.figures["taken"]
        if taken <= max(requests // 10, BATCH):
            early = _resident()
    return Long(
        requests=chip.figures["ended"],
        simulated_s=chip.now_ps / 1e12,
        seconds=time.thread_time() - began,
        chip_bytes=chip.figures["memory_bytes"],
        growth_bytes=max(_resident() - early, 0),
    )


def _resident() -> int:
    """Resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
