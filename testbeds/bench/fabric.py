"""`offstage bench fabric`: one-sided reads against memcpy, and the command ring against its floor.

Reads: a region larger than the caches, keys in random order. A hit includes all work of the driver:
directory lookup, copy, trailer before and after, checksum of the copy. Its reference is memcpy of
as many bytes out of other slots of the same region into the same buffer, in the same run, 16 blocks
of each in turn; a third turn reads without the checksum, which gives the checksum's cost. Medians
over the batches of a round, and the ratio is the median over the rounds.

Command ring: round trips of empty commands, timed one by one in C while the reactor polls, against
two threads that bounce one word of shared memory, the lower bound of this machine. The same call is
also timed from Python, including the call into C. Beside it, in the same run, a lookup of values;
and a staged value of 512 KiB against memcpy (`bench.staged_value`).

Stage timers: fetches with them on and off in turn (`bench.stages`).

Together: one layer of eight sessions, each with a few blocks that must come from an emulated
gen-5 drive, fetched in one batch as a batched decode does, against the same fetches one after
the other.
"""

import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice, BareSession
from offstage.bindings.driver import READ_BATCH, Driver
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest
from offstage.bindings.floors import spin_rtt
from offstage.bindings.units import format_size
from offstage.host.values import Values
from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.bench.staged_value import StagedValue, staged_value
from offstage.testbeds.bench.stages import RATIO_MIN, StageTimers, stage_timers

__all__ = ["FabricResult", "Layer", "Reads", "Ring", "bench_fabric", "result_of"]

KIB, MIB = 1 << 10, 1 << 20
READ_RATIO_MAX = {32 * KIB: 1.3, 64 * KIB: 1.1}  # by block size; others have no aim
NOP_RATIO_MAX = 1.5
VALUE_RATIO_MAX = 1.25
LOOKUP, LOOKUP_NS_MAX = 64, 20_000  # keys of one call of an engine
FETCH_TIMEOUT_NS = 10_000_000_000
SESSIONS, DEMANDS, LAYER_BYTES = 8, 4, 64 * KIB  # blocks of a layer that prefetch missed
BATCH = 64  # blocks put or fetched in one call while the arena is filled
NEVER_NS = (1 << 64) - 1  # the reactor spins throughout: this bench measures polling

Say = Callable[[str], None]


class Reads(msgspec.Struct, frozen=True):
    """Reads of blocks of one size: ns a block, medians over the rounds, and ratios to memcpy."""

    block_bytes: int
    region_bytes: int
    hit_ns: float
    memcpy_ns: float
    hit_unchecked_ns: float
    hit_bytes_per_s: float
    memcpy_bytes_per_s: float
    ratio: float
    ratio_range: tuple[float, float]
    ratio_unchecked: float
    checksum_included: bool = True


class Ring(msgspec.Struct, frozen=True):
    """Round trips of empty commands, and of a word between two threads."""

    rtt_ns_p50: float
    rtt_ns_p99: float
    floor_ns_p50: float
    floor_ns_p99: float
    ratio_to_floor: float
    python_rtt_ns_p50: float
    commands: int = 0
    lookup_ns_p50: float = 0.0
    """Whether 64 keys have values, of which every second has one."""


class Layer(msgspec.Struct, frozen=True):
    """One layer of several sessions, fetched one by one and together."""

    sessions: int
    demands: int
    block_bytes: int
    one_by_one_ns: float
    together_ns: float
    ratio: float
    provenance: str = "emulated"


class FabricResult(BenchResult, kw_only=True):
    """Reads by block size, the command ring, a staged value, the stage timers, one layer of
    several sessions."""

    reads: list[Reads]
    ring: Ring
    value: StagedValue
    stage_timers: list[StageTimers]
    layer: Layer
    rounds: int

    def about(self) -> list[str]:
        layer = self.layer
        return [
            "hits against memcpy of as many bytes out of the same region; round trips against two "
            f"threads that bounce one word; measured, {self.rounds} rounds, seed {self.seed}",
            f"one layer of {layer.sessions} sessions, together over one by one:"
            f" {layer.demands} misses of {format_size(layer.block_bytes)} in each,"
            " from an emulated gen-5 drive",
        ]


def bench_fabric(
    *,
    block_bytes: tuple[int, ...] = (32 * KIB, 64 * KIB),
    region_bytes: int = 512 * MIB,
    rounds: int = 7,
    batches: int = 400,
    commands: int = 20_000,
    seed: int = 1,
    say: Say = lambda line: None,
) -> FabricResult:
    """Reads by block size, and the command ring. Everything is measured. `batches` of 16 blocks
    per round and kind of read; `region_bytes` of slots are filled first. BadInput if a size is
    unavailable."""
    if rounds < 1 or batches < 10 or commands < 100:
        raise BadInput("too few rounds, batches or commands", "bench fabric", "give more")
    for size in block_bytes:
        if size < 4 * KIB or size % (4 * KIB) or region_bytes // size < 256:
            raise BadInput(
                f"blocks of {size} B in {region_bytes} B",
                "bench fabric",
                "give multiples of 4 KiB, and a region of at least 256 blocks",
            )
    reads = [_read_row(size, region_bytes, rounds, batches, seed, say) for size in block_bytes]
    ring = _ring(commands, rounds, say)
    value = staged_value(rounds, seed, say)
    timers = stage_timers(40 * rounds, max(commands // 200, 10), say)
    layer = _layer(max(4 * rounds, 8), seed, say)
    return result_of(reads, ring, value, timers, layer, rounds=rounds, seed=seed)


def result_of(
    reads: list[Reads],
    ring: Ring,
    value: StagedValue,
    timers: list[StageTimers],
    layer: Layer,
    *,
    rounds: int,
    seed: int,
) -> FabricResult:
    """Their rows, with aims."""
    return FabricResult(
        seed=seed,
        rounds=rounds,
        reads=reads,
        ring=ring,
        value=value,
        stage_timers=timers,
        layer=layer,
        rows=[
            *(row for one in reads for row in _of_reads(one)),
            *_of_ring(ring),
            _of_value(value),
            *map(_of_timers, timers),
            Row(
                f"layer of {layer.sessions} sessions, together",
                "ns",
                layer.together_ns,
                layer.one_by_one_ns,
                layer.ratio,
            ),
        ],
    )


def _of_timers(one: StageTimers) -> Row:
    name = f"{one.blocks} x {format_size(one.block_bytes)} fetch, {one.what} on"
    whole = one.what == "timers" or one.blocks > 1  # moments cost as much of the smallest fetch
    goal = aimed(one.ratio, ">=", RATIO_MIN) if whole else None
    return Row(name, "ns", one.on_ns, one.off_ns, one.ratio, goal)


def _of_reads(one: Reads) -> list[Row]:
    name, most = format_size(one.block_bytes), READ_RATIO_MAX.get(one.block_bytes)
    goal = None if most is None else aimed(one.ratio, "<=", most)
    return [
        Row(f"{name} hit, checksum included", "ns", one.hit_ns, one.memcpy_ns, one.ratio, goal),
        Row(
            f"{name} hit, checksum left out",
            "ns",
            one.hit_unchecked_ns,
            one.memcpy_ns,
            one.ratio_unchecked,
        ),
    ]


def _of_ring(one: Ring) -> list[Row]:
    return [
        Row(
            "command round trip p50, C",
            "ns",
            one.rtt_ns_p50,
            one.floor_ns_p50,
            one.ratio_to_floor,
            aimed(one.ratio_to_floor, "<=", NOP_RATIO_MAX),
        ),
        *(
            Row(f"command round trip {name}", "ns", ours, floor, ours / floor)
            for name, ours, floor in (
                ("p99, C", one.rtt_ns_p99, one.floor_ns_p99),
                ("p50, Python", one.python_rtt_ns_p50, one.floor_ns_p50),
            )
        ),
        Row(
            f"lookup of {LOOKUP} values p50, C",
            "ns",
            one.lookup_ns_p50,
            one.rtt_ns_p50,
            one.lookup_ns_p50 / one.rtt_ns_p50,
            aimed(one.lookup_ns_p50, "<=", LOOKUP_NS_MAX, "ns"),
        ),
    ]


def _of_value(one: StagedValue) -> Row:
    goal = aimed(one.ratio, "<=", VALUE_RATIO_MAX)
    name = f"{format_size(one.value_bytes)} value, staged, checked"
    return Row(name, "ns", one.retrieve_ns, one.memcpy_ns, one.ratio, goal)


def _read_row(
    size: int, region_bytes: int, rounds: int, batches: int, seed: int, say: Say
) -> Reads:
    count = region_bytes // (size + 512)
    config = BareConfig(
        payload_size_bytes=size,
        slot_count=count + BATCH,
        layer_count=1,
        block_max=count,
        backend="emulated",
        store_size_bytes=(count + 64) * (size + 512) * 5 // 4,
        demand_max=BATCH,
        spin_ns=0,  # a hit costs the DPU nothing; spinning would take a host core
    )
    with BareDevice(config) as device, device.driver() as driver:
        session = device.session(count)
        _fill(driver, session, count, size, seed)
        keys = _published(driver, session, count, seed)
        hit, memcpy, unchecked = _measure(driver, keys, size, rounds, batches)
    ratios = [a / b for a, b in zip(hit, memcpy, strict=True)]
    found = Reads(
        block_bytes=size,
        region_bytes=count * (size + 512),
        hit_ns=(hit_ns := statistics.median(hit)),
        memcpy_ns=(memcpy_ns := statistics.median(memcpy)),
        hit_unchecked_ns=statistics.median(unchecked),
        hit_bytes_per_s=size * 1e9 / hit_ns,
        memcpy_bytes_per_s=size * 1e9 / memcpy_ns,
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        ratio_unchecked=statistics.median(a / b for a, b in zip(unchecked, memcpy, strict=True)),
    )
    say(
        f"{size // KIB} KiB: hit {found.hit_ns / 1e3:.2f} us, memcpy "
        f"{found.memcpy_ns / 1e3:.2f} us, {found.ratio:.2f}; without the "
        f"checksum {found.ratio_unchecked:.2f}"
    )
    return found


def _fill(driver: Driver, session: BareSession, count: int, size: int, seed: int) -> None:
    """Write every block and fetch it once, so that all of them are in the arena."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 256, (BATCH, size), np.uint8)
    target = np.zeros_like(source)
    for step, first in enumerate(range(0, count, BATCH)):
        ordinals = np.arange(first, min(first + BATCH, count), dtype=np.uint32)
        rcs = driver.put(PutRequest(session.number, 0, ordinals, source[: len(ordinals)]))
        keys = np.ascontiguousarray(session.keys[0, ordinals])
        done = driver.fetch(
            FetchRequest(
                session.number, step, 0, ordinals, keys, target, timeout_ns=FETCH_TIMEOUT_NS
            )
        )
        if rcs.any() or done.rcs.any():
            raise RunFailed(
                "the arena could not be filled",
                "bench fabric",
                "see the errno",
                errno=-int(min(rcs.min(), done.rcs.min())),
            )
    driver.release(session.number)


def _published(driver: Driver, session: BareSession, count: int, seed: int) -> NDArray[np.uint64]:
    """Every key in random order; a block for which no bucket had room is left out."""
    target = np.zeros((BATCH, driver.payload_size_bytes), np.uint8)
    present: list[NDArray[np.uint32]] = []
    for first in range(0, count, BATCH):
        ordinals = np.arange(first, min(first + BATCH, count), dtype=np.uint32)
        keys = np.ascontiguousarray(session.keys[0, ordinals])
        done = driver.fetch(FetchRequest(session.number, 1 << 20, 0, ordinals, keys, target))
        if done.hit_count == len(ordinals):
            present.append(ordinals)
    order = np.random.default_rng(seed).permutation(np.concatenate(present))
    return np.ascontiguousarray(session.keys[0, order])


def _measure(
    driver: Driver, keys: NDArray[np.uint64], size: int, rounds: int, batches: int
) -> tuple[list[float], list[float], list[float]]:
    """ns a block in each round: hits, memcpy, and hits without the checksum."""
    target = np.zeros(size * READ_BATCH, np.uint8)
    samples = []
    for number in range(rounds + 1):
        turned = np.roll(keys, number * 16 * batches, axis=0)
        samples.append(np.median(driver.bench_read(turned, batches, target), axis=1).tolist())
    del samples[0]  # the first round warms pages and clocks
    hit, memcpy, unchecked = (list(column) for column in zip(*samples, strict=True))
    return hit, memcpy, unchecked


def _ring(commands: int, rounds: int, say: Say) -> Ring:
    """Ring and floor in turns; medians over the rounds."""
    config = BareConfig(
        backend="emulated", spin_ns=NEVER_NS, value_max=LOOKUP, demand_max=2 * LOOKUP
    )
    rows: list[list[float]] = []
    with BareDevice(config) as device, device.driver() as driver:
        keys = [number.to_bytes(2, "little") for number in range(LOOKUP)]
        values = Values(driver)
        for key in keys[::2]:
            values.store(key, b"value")
        for _ in range(rounds):
            rtt = np.percentile(driver.bench_nop(commands), [50, 99])
            python = np.percentile(_from_python(driver, max(commands // 20, 50)), 50)
            lookup = np.percentile(driver.bench_values(values.asks(keys), commands // 20), 50)
            rows.append([*rtt.tolist(), float(python), float(lookup)])
    floor = np.median([np.percentile(spin_rtt(commands), [50, 99]) for _ in range(rounds)], axis=0)
    p50, p99, python_p50, lookup_p50 = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    say(
        f"round trip p50 {p50:.0f} ns, p99 {p99:.0f} ns; floor of two spinning threads "
        f"{floor[0]:.0f} ns; from Python {python_p50:.0f} ns; lookup of {LOOKUP} values "
        f"{lookup_p50:.0f} ns"
    )
    return Ring(
        rtt_ns_p50=p50,
        rtt_ns_p99=p99,
        floor_ns_p50=float(floor[0]),
        floor_ns_p99=float(floor[1]),
        ratio_to_floor=p50 / float(floor[0]),
        python_rtt_ns_p50=python_p50,
        commands=commands,
        lookup_ns_p50=lookup_p50,
    )


def _from_python(driver: Driver, count: int) -> NDArray[np.int64]:
    """One command per call of Python: ns [count]."""
    times = np.zeros(count, np.int64)
    for i in range(count):
        start = time.perf_counter_ns()
        driver.bench_nop(1)
        times[i] = time.perf_counter_ns() - start
    return times


def _layer(rounds: int, seed: int, say: Say) -> Layer:
    """One layer of eight sessions, in turns one by one and together; every demand is a miss."""
    config = BareConfig(
        payload_size_bytes=LAYER_BYTES,
        slot_count=2 * SESSIONS * DEMANDS,
        layer_count=1,
        block_max=SESSIONS * DEMANDS,
        backend="emulated",
        nvme="gen5-tlc",
        store_size_bytes=4 * SESSIONS * DEMANDS * LAYER_BYTES,
        demand_max=DEMANDS,
        spin_ns=NEVER_NS,
    )
    rows: list[list[int]] = []
    with BareDevice(config) as device, device.driver() as driver:
        sessions = [device.session(DEMANDS, first=DEMANDS * i) for i in range(SESSIONS)]
        ordinals = np.arange(DEMANDS, dtype=np.uint32)
        source = np.random.default_rng(seed).integers(0, 256, (DEMANDS, LAYER_BYTES), np.uint8)
        targets = [np.zeros_like(source) for _ in sessions]
        for session in sessions:
            if driver.put(PutRequest(session.number, 0, ordinals, source)).any():
                raise RunFailed("the blocks could not be written", "bench fabric", "see the log")
        keys = [np.ascontiguousarray(session.keys[0]) for session in sessions]

        def begin(step: int, i: int) -> Fetch:
            return driver.fetch_begin(
                FetchRequest(
                    sessions[i].number,
                    step,
                    0,
                    ordinals,
                    keys[i],
                    targets[i],
                    timeout_ns=FETCH_TIMEOUT_NS,
                )
            )

        def run(step: int, together: bool) -> int:
            for session in sessions:
                driver.release(session.number)
            device.reset()
            start = time.perf_counter_ns()
            if together:
                done = [driver.fetch_end(one) for one in [begin(step, i) for i in range(SESSIONS)]]
            else:
                done = [driver.fetch_end(begin(step, i)) for i in range(SESSIONS)]
            took = time.perf_counter_ns() - start
            if any(one.rcs.any() or one.hit_count for one in done):
                raise RunFailed("not every block was a completed miss", "bench fabric", "see rcs")
            return took

        for n in range(rounds + 1):
            rows.append([run(2 * n, False), run(2 * n + 1, True)])
    single, together = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    ratio = statistics.median(b / a for a, b in rows[1:])
    say(
        f"one layer of {SESSIONS} sessions, {DEMANDS} misses of {LAYER_BYTES // KIB} KiB each: one "
        f"by one {single / 1e3:.0f} us, together {together / 1e3:.0f} us; together over one by one "
        f"{ratio:.2f}"
    )
    return Layer(SESSIONS, DEMANDS, LAYER_BYTES, single, together, ratio)
