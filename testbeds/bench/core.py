"""`offstage bench core`: the decision core in virtual time against libCacheSim, policy by policy.

Flat rows: the same trace, the same capacity, demand only, both in C from the first access to the
last, in turns; for a policy that both have, unequal hit counts fail the run. libCacheSim reads
its binary format from a file in the page cache, ours an array. For each access ours does work
that libCacheSim does not: pins, leases, per-demand ends, a shadow directory, actions for every
read. The decode row is the cost of virtual time with scores and averages on; the replay row is
the rate at which a log is checked. All figures are `measured` on this machine, in seconds of one
core (time taken by other processes is not counted, on either side); simulated times do not
count.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig, replay
from offstage.bindings.errors import RunFailed
from offstage.bindings.layouts import EVICTIONS
from offstage.bindings.sim import DecodePlan, decode, populate
from offstage.bindings.units import format_size
from offstage.testbeds.bench.flat import (
    REFERENCES,
    Ids,
    dense,
    reference_run,
    run,
    write_oracle,
)
from offstage.testbeds.bench.lab import MEMORY_AIM_BYTES, SECONDS_AIM, LabFigures, lab_figures
from offstage.testbeds.bench.rows import UNITS, BenchResult, Row, aimed
from offstage.testbeds.workloads.requests.importer import open_trace

__all__ = ["CoreResult", "Decode", "Flat", "Replay", "bench_core", "rows_of"]

TRACE = "mooncake_conversation_0-2400s.jsonl.gz"
ROUNDS = 5
FLAT_AIM_RATIO = 0.5
DECODE_AIM_PER_S = 8e6
CAPACITY_SHARE = 0.1
ZIPF_EXPONENT = 1.2
ZIPF_ACCESSES = 1_000_000
DECODE_BLOCKS, DECODE_SELECTED = 2048, 64
DECODE_SESSIONS, DECODE_STEPS, DECODE_LAYERS = 2, 150, 4

Say = Callable[[str], None]


class Flat(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A flat trace under one eviction; with a reference if libCacheSim has the policy."""

    name: str
    eviction: str
    ours_per_s: float
    hits: int
    accesses: int = 0
    unique: int = 0
    capacity: int = 0
    reference_hits: int | None = None
    reference_per_s: float | None = None
    ratio: float | None = None


class Decode(msgspec.Struct, frozen=True):
    """Decode with averages and score eviction."""

    prefetchers: str
    selected: int
    blocks: int
    accesses_per_s: float
    eviction: str = "score"
    accesses: int = 0
    hit_rate: float = 0.0


class Replay(msgspec.Struct, frozen=True):
    """The rate at which a log is checked."""

    decisions_per_s: float
    decisions: int = 0


class CoreResult(BenchResult, kw_only=True):
    """Accesses a second against libCacheSim; the cost of decode and replay in virtual time."""

    flat: list[Flat]
    decode: Decode
    replay: Replay
    lab: LabFigures
    reference: str = "libCacheSim"
    rounds: int

    def about(self) -> list[str]:
        lab, equal = self.lab, sum(one.reference_hits is not None for one in self.flat)
        return [
            f"accesses and decisions per second, measured, against {self.reference}; "
            f"{self.rounds} rounds, seed {self.seed}; hit counts are equal in all "
            f"{equal} rows that have a reference",
            f"lab: {lab.layers} layers of {lab.blocks:,} blocks for {lab.steps:,} steps, "
            f"seconds of one core from the draw of the selections to the ledger, policy "
            f"{lab.policy}; {UNITS['M/s'](lab.accesses_per_s)} accesses without the drawing; at "
            f"most {format_size(lab.memory_peak_bytes)} of memory",
        ]


def bench_core(
    *, traces: Path | None = None, seed: int = 1, rounds: int = ROUNDS, say: Say = lambda _: None
) -> CoreResult:
    """Flat traces against libCacheSim, decode with averages, replay: accesses or decisions a
    second. `traces` is the folder of real traces (`OFFSTAGE_TRACES`); without it only the
    generated Zipf trace is run. Raises Missing("test") without libcachesim, RunFailed if hit
    counts differ."""
    flat = []
    for name, ids in _traces(traces, seed):
        say(f"flat: {name}, {len(ids)} accesses, every eviction")
        flat += _flat_rows(name, ids, rounds)
    say("decode with scores of every block")
    decoded, replayed = _decode_rows(seed, max(rounds // 2, 1))
    say("an experiment at full scale")
    lab = lab_figures(seed)
    return CoreResult(
        seed=seed,
        rounds=rounds,
        flat=flat,
        decode=decoded,
        replay=replayed,
        lab=lab,
        rows=rows_of(flat, decoded, replayed, lab),
    )


def rows_of(flat: list[Flat], decoded: Decode, replayed: Replay, lab: LabFigures) -> list[Row]:
    """Every flat trace, decode, replay, and one experiment of the laboratory."""
    per_s, what = decoded.accesses_per_s, f"{decoded.selected} of {decoded.blocks}"
    goal = aimed(per_s, ">=", DECODE_AIM_PER_S, "M/s")
    size = f"lab, {lab.layers} by {lab.steps:,} steps"
    peak = lab.memory_peak_bytes
    return [
        *map(_of_flat, flat),
        Row(f"decode, {decoded.prefetchers}, {what}", "M/s", per_s, None, None, goal),
        Row("replay of a log", "M/s", replayed.decisions_per_s),
        Row(size, "s", lab.seconds, None, None, aimed(lab.seconds, "<", SECONDS_AIM, "s")),
        Row("lab, memory", "bytes", peak, None, None, aimed(peak, "<", MEMORY_AIM_BYTES, "bytes")),
    ]


def _of_flat(one: Flat) -> Row:
    held = one.eviction == "lru" and one.ratio is not None
    goal = aimed(one.ratio or 0.0, ">=", FLAT_AIM_RATIO, "x") if held else None
    name = f"{one.eviction} on {one.name}"
    return Row(name, "M/s", one.ours_per_s, one.reference_per_s, one.ratio, goal)


def _traces(folder: Path | None, seed: int) -> list[tuple[str, Ids]]:
    """Dense ids of the real trace, if available, and of a generated one."""
    found: list[tuple[str, Ids]] = []
    folder = folder or Path(os.environ.get("OFFSTAGE_TRACES", "../shared/traces"))
    path = folder / TRACE
    if path.is_file():
        found.append(("mooncake", open_trace(path).accesses()))
    random = np.random.default_rng(seed)
    found.append(("zipf", dense(random.zipf(ZIPF_EXPONENT, ZIPF_ACCESSES) % 100_000)))
    return found


def _flat_rows(name: str, ids: Ids, rounds: int) -> list[Flat]:
    """One row for each eviction policy; the sides of a round alternate in order."""
    capacity = max(int((int(ids.max()) + 1) * CAPACITY_SHARE), 1)
    with tempfile.TemporaryDirectory(prefix="offstage-bench-") as folder:
        path = Path(folder) / "trace.oracleGeneral"
        write_oracle(path, ids)
        return [_flat_row(name, ids, path, capacity, each, rounds) for each in EVICTIONS]


def _flat_row(name: str, ids: Ids, path: Path, capacity: int, eviction: str, rounds: int) -> Flat:
    ours_s: list[float] = []
    reference_s: list[float] = []
    hits = reference_hits = 0

    def ours() -> None:
        nonlocal hits
        hits, spent = run(ids, capacity, eviction)
        ours_s.append(spent)

    def reference() -> None:
        nonlocal reference_hits
        reference_hits, spent = reference_run(path, len(ids), capacity, eviction)
        reference_s.append(spent)

    sides = [ours, reference] if eviction in REFERENCES else [ours]
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            side()
    if reference_s and hits != reference_hits:
        raise RunFailed(
            f"{hits} hits, but libCacheSim has {reference_hits}",
            f"bench core, {eviction} on trace {name}, capacity {capacity}",
            "the two policies differ: run the tests",
        )
    beside = bool(reference_s)
    ratios = [b / a for a, b in zip(ours_s, reference_s, strict=False)]
    return Flat(
        name=name,
        eviction=eviction,
        accesses=len(ids),
        unique=int(ids.max()) + 1,
        capacity=capacity,
        hits=hits,
        ours_per_s=len(ids) / statistics.median(ours_s),
        reference_hits=reference_hits if beside else None,
        reference_per_s=len(ids) / statistics.median(reference_s) if beside else None,
        ratio=statistics.median(ratios) if beside else None,
    )


def _decode_rows(seed: int, rounds: int) -> tuple[Decode, Replay]:
    """Accesses a second of decode with averages and score eviction, and of checking its log."""
    scores, demands = _score_process(seed)
    spent, checked = [], []
    accesses = agreed = 0
    hit_rate = 0.0
    for logged in [False] * rounds + [True] * rounds:
        core, plan = _decode_setup(scores, demands, (1 << 26) if logged else 0)
        began = time.thread_time()
        decode(core, plan)
        took = time.thread_time() - began
        ledger = core.ledger()
        accesses = ledger.demands
        hit_rate = ledger.ended.hit_rate
        if not logged:
            spent.append(took)
            continue
        log = core.log()
        began = time.thread_time()
        result = replay(log)
        checked.append(time.thread_time() - began)
        agreed = result.agreed
        if result.diverged_at is not None or ledger.log_bytes_lost:
            raise RunFailed("the replay of the run's log differs", "bench core", "run the tests")
    decoded = Decode(
        "ema",
        DECODE_SELECTED,
        DECODE_BLOCKS,
        accesses / statistics.median(spent),
        accesses=accesses,
        hit_rate=hit_rate,
    )
    return decoded, Replay(agreed / statistics.median(checked), agreed)


def _score_process(seed: int) -> tuple[npt.NDArray[np.uint16], Ids]:
    """Scores uint16 `[sessions, steps, layers, blocks]` (static + slow + fast), and top k."""
    random = np.random.default_rng(seed)
    shape = (DECODE_SESSIONS, DECODE_LAYERS, DECODE_BLOCKS)
    static, slow = random.normal(size=shape), random.normal(size=shape)
    scores = np.empty((DECODE_SESSIONS, DECODE_STEPS, *shape[1:]), np.uint16)
    demands = np.empty((*scores.shape[:3], DECODE_SELECTED), np.uint32)
    for step in range(DECODE_STEPS):
        slow = 0.97 * slow + 0.24 * random.normal(size=shape)
        now = 0.7 * static + slow + 0.4 * random.normal(size=shape)
        scores[:, step] = np.clip(now * 8000 + 32768, 1, 65535)
        best = np.argpartition(-now, DECODE_SELECTED, axis=-1)[..., :DECODE_SELECTED]
        demands[:, step] = best
    return scores, demands


def _decode_setup(
    scores: npt.NDArray[np.uint16], demands: Ids, log_size_bytes: int
) -> tuple[Core, DecodePlan]:
    slots = DECODE_SESSIONS * DECODE_LAYERS * 4 * DECODE_SELECTED
    config = CoreConfig(
        slots,
        2 * DECODE_SESSIONS * DECODE_BLOCKS,
        DECODE_BLOCKS,
        DECODE_LAYERS,
        session_max=DECODE_SESSIONS,
        demand_max=DECODE_SELECTED,
        log_size_bytes=log_size_bytes,
    )
    core = Core(config, Policy("ema", "score"))
    tenant = core.tenant_add(0, b"\0" * 16, slots)
    sessions = []
    for number in range(DECODE_SESSIONS):
        session = core.session_open(0, SessionConfig(tenant, DECODE_SELECTED))
        populate(core, session, DECODE_BLOCKS, content=number)
        core.session_set_generating(0, session, True)
        sessions.append(session)
    rows = DECODE_SESSIONS * DECODE_STEPS * DECODE_LAYERS
    offsets = np.arange(rows + 1, dtype=np.uint64) * DECODE_SELECTED
    plan = DecodePlan(
        tuple(sessions), DECODE_STEPS, offsets, demands.reshape(-1), scores, DECODE_SELECTED
    )
    return core, plan
