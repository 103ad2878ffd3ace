"""`offstage bench tenants`: what a tenant's neighbours do to it, over a real drive.

A daemon of three tenants runs in a separate process. The victim fetches blocks that are not staged,
16 at a time, and some that always are: alone; next to processes that only compute; next to a
neighbour that floods with demand reads; next to one that floods in all ways concurrently. Then two
neighbours of unlike weights flood, and the bytes that each moved are read from the daemon's
figures.

Everything is measured in one run, so that ratios stay valid on a slow machine. The victim's time
alone is taken before and after, and the aims use both. A second table tells where a fetch's time
was spent: the daemon's times of the victim's steps by part, and the kernel's times of runnable
threads without a core, which on a machine with few shared cores are not the daemon's queueing.
"""

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.ledger import share
from offstage.bindings.stages import StageTimes
from offstage.bindings.units import format_size, format_time
from offstage.dpu.protocol import OPERATOR
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds.daemon import Daemon, Sections, serve
from offstage.testbeds.bench.qos import jain_index
from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.bench.tenants_hosts import (
    COLD,
    COMPUTE,
    FLOODS,
    PAYLOAD_BYTES,
    Host,
    flood,
)
from offstage.testbeds.table import Column, Table

__all__ = ["Phase", "Shares", "Steps", "TenantsResult", "bench_tenants", "rows_of"]

LBA_BYTES = 4096
SLOTS = 256  # of each tenant
HOT = 32  # blocks of the victim that stay staged
TENANTS = {"victim": 1, "flood": 1, "heavy": 3}  # and their weights
WAIT_S = 120.0
LOOKS = 20  # at the queues, while two flood
P99_RATIO_MAX, HIT_POINTS_MAX, WEIGHT_ERROR_MAX = 2.0, 1.0, 0.10

Say = Callable[[str], None]


NAMES = {
    "alone": "alone",
    "compute": "busy",
    "demands": "demands",
    "all ways": "all ways",
    "alone again": "again",
}
"""Phases, and their names in a narrow table."""
PARTS = {
    "ring_ns": "in the ring",
    "turn_ns": "until its turn",
    "drive_ns": "at the drive",
    "answer_ns": "until answered",
}


class Steps(msgspec.Struct, frozen=True):
    """Where the victim's steps spent their time, by the daemon: ns by part, over all of them and
    over the slowest percent."""

    count: int
    mean: dict[str, float]
    slowest_percent: dict[str, float]


class Phase(msgspec.Struct, kw_only=True):
    """Fetches of the victim in one phase. `ratio` and `ratio_p50` are to it alone, the slower of
    before and after; `no_core`: the share of the phase in which runnable threads had no core."""

    ns_p50: float
    ns_p99: float
    fetches: int
    single_ns_p50: float
    hit_percent: float
    steps: Steps
    taken_in_ns_mean: float
    no_core: dict[str, float]
    ratio: float = 1.0
    ratio_p50: float = 1.0


class Shares(msgspec.Struct, frozen=True):
    """What two floods of unlike weights moved."""

    tenants: list[str]
    weights: list[int]
    bytes: list[int]
    idle: list[float]
    bytes_per_s: float
    by_weight: list[float]
    jain: float


class TenantsResult(BenchResult, kw_only=True):
    """The attacked victim against itself alone; and what two floods of unlike weights moved."""

    phases: dict[str, Phase]
    shares: Shares
    cold_blocks: int = COLD
    block_bytes: int = PAYLOAD_BYTES
    storage: str
    seconds: float

    def about(self) -> list[str]:
        return [
            f"measured on {self.storage}, {self.seconds:g} s a phase, seed {self.seed}: "
            f"a fetch of {self.cold_blocks} blocks of {format_size(self.block_bytes)} that "
            "are not staged; the reference is the same tenant alone, before or after, the slower",
        ]

    def own_tables(self) -> list[Table]:
        """Where the time was spent: means of all of the victim's steps and of the slowest
        percent, by part; then runnable threads without a core, as a share of the phase."""
        shown = [self.phases[name] for name in NAMES]
        rows: list[list[object]] = [
            [f"{title}: {text}", *(format_time(getattr(one.steps, which)[part]) for one in shown)]
            for title, which in (("mean", "mean"), ("slowest 1 %", "slowest_percent"))
            for part, text in PARTS.items()
        ]
        taken = (format_time(one.taken_in_ns_mean) for one in shown)
        rows.append(["mean: until the host saw that", *taken])
        for who in shown[0].no_core:
            waited = (f"{100 * one.no_core[who]:.1f} %" for one in shown)
            rows.append([f"the {who} had work, no core", *waited])
        names = [Column(name) for name in NAMES.values()]
        return [Table.of([Column("where steps' time went", left=True), *names], rows)]


def bench_tenants(
    *,
    seconds: float = 3.0,
    folder: Path | None = None,
    seed: int = 1,
    say: Say = lambda line: None,
) -> TenantsResult:
    """Each phase takes `seconds`; the store is in `folder`. BadInput unless the time is
    positive."""
    if not 0.05 <= seconds <= 3600:
        raise BadInput(f"{seconds} s for a phase", "bench tenants", "choose 0.05 to 3600")
    # The address of a socket has at most 107 characters: the given folder may be too long.
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="offstage-tenants-") as made,
        tempfile.TemporaryDirectory(prefix="ofs-") as sockets,
    ):
        with serve(_sections(Path(made), Path(sockets)), Path(made)) as tier:
            return _phases(tier, seconds, seed, say)


def _sections(folder: Path, sockets: Path) -> Sections:
    return {
        "daemon": {
            "endpoint": f"ipc://{sockets}/control",
            "runtime_dir": str(sockets / "run"),
            "metrics_endpoint": "",
        },
        "arena": {
            "size": len(TENANTS) * SLOTS * (PAYLOAD_BYTES + LBA_BYTES),
            "payload": PAYLOAD_BYTES,
            "layers": 1,
        },
        "storage": {"path": str(folder / "store"), "size": 1 << 30},
        "store": {"durable": False},
        "policy": {"prefetchers": [], "eviction": "lru"},
        "limits": {"demands": 64},
        "tenant": [{"name": name, "weight": weight} for name, weight in TENANTS.items()],
    }


def _phases(tier: Daemon, seconds: float, seed: int, say: Say) -> TenantsResult:
    where = {name: tier.at(name) for name in TENANTS}
    victim = Host(where["victim"], seed)
    victim.driver.time_stages(True, all=True)
    reactor = _thread(tier.process.pid, "ofs-reactor")
    phases: dict[str, Phase] = {}
    try:
        for name in TENANTS:
            filled = victim if name == "victim" else Host(where[name], seed)
            filled.fill()
            if filled is not victim:
                filled.close()
        for name, kinds in {
            "alone": [],
            COMPUTE: [COMPUTE] * len(FLOODS),
            "demands": ["demands"] * 2,
            "all ways": list(FLOODS),
            "alone again": [],
        }.items():
            with _flooded([(where["flood"], kind) for kind in kinds]):
                phases[name] = _attributed(tier, victim, reactor, seconds)
            say(
                f"{name}: p50 {phases[name].ns_p50 / 1e3:.0f} us, "
                f"p99 {phases[name].ns_p99 / 1e3:.0f} us, "
                f"hits {phases[name].hit_percent:.1f} %"
            )
        shares = _by_weight(tier, where, seconds)
        say(f"bytes by weight: {', '.join(f'{one:.3f}' for one in shares.by_weight)}")
    finally:
        victim.close()
    _beside_alone(phases)
    return TenantsResult(
        phases=phases,
        shares=shares,
        storage=tier.storage,
        seconds=seconds,
        seed=seed,
        rows=rows_of(phases, shares),
    )


def _attributed(tier: Daemon, victim: Host, reactor: Path, seconds: float) -> Phase:
    """A phase, and where its time was spent: `steps` as in the daemon's status, `host` from
    their answers, and the share of the phase in which the reactor and the victim waited for a
    core."""
    with tier.control(OPERATOR, timeout_s=WAIT_S, heartbeat=False) as control:
        control.reset()  # the times of all before
        victim.ask(np.arange(HOT, dtype=np.uint32))
        threads = {"reactor": reactor, "victim": Path("/proc/thread-self/schedstat")}
        begun = {name: _waited_ns(file) for name, file in threads.items()}
        answered = victim.driver.stages().get("answer", StageTimes())
        begun_ns = time.monotonic_ns()
        took, single, hits = _measure(victim, seconds)
        took_ns = time.monotonic_ns() - begun_ns
        waited = {
            name: (_waited_ns(file) - begun[name]) / took_ns
            for name, file in threads.items()
            if begun[name] >= 0
        }
        answers = victim.driver.stages()["answer"]
        count = answers.count - answered.count
        host_ns = answers.ns_mean * answers.count - answered.ns_mean * answered.count
        steps = next(one["steps"] for one in control.status()["tenants"] if one["name"] == "victim")
    p50, p99 = np.percentile(took, [50, 99])
    return Phase(
        ns_p50=float(p50),
        ns_p99=float(p99),
        fetches=len(took),
        single_ns_p50=float(np.median(single)),
        hit_percent=100 * hits,
        steps=msgspec.convert(steps, Steps),
        taken_in_ns_mean=share(host_ns, count),
        no_core=waited,
    )


def _thread(pid: int, name: str) -> Path:
    """The kernel's scheduling figures of a thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            if (task / "comm").read_text(encoding="ascii").strip() == name:
                return task / "schedstat"
    raise RunFailed(f"the daemon has no thread {name}", "bench tenants", "see its log")


def _waited_ns(schedstat: Path) -> int:
    """How long the thread was runnable without a core; -1 if the kernel does not report it."""
    try:
        return int(schedstat.read_text(encoding="ascii").split()[1])
    except OSError:
        return -1


def _measure(victim: Host, seconds: float) -> tuple[list[int], list[int], float]:
    """Fetches of absent blocks, and between them one of staged blocks: ns of each fetch of many
    blocks, of each fetch of one, and the share of hits."""
    took: list[int] = []
    single: list[int] = []
    hits = asked = 0
    hot = np.arange(HOT, dtype=np.uint32)
    until = time.monotonic() + seconds
    while not took or time.monotonic() < until:
        ns, found = victim.ask(_beyond_hot(victim, COLD))
        took.append(ns)
        single.append(victim.ask(_beyond_hot(victim, 1))[0])
        _, there = victim.ask(hot)
        hits, asked = hits + found + there, asked + COLD + HOT
    return took, single, hits / asked


def _beyond_hot(victim: Host, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    while True:
        ordinals = victim.cold(count)
        if int(ordinals.min()) >= HOT:
            return ordinals


@contextlib.contextmanager
def _flooded(floods: Sequence[tuple[Endpoint, str]]) -> Iterator[None]:
    """Processes that flood, started before and ended after."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    ready = [spawn.Event() for _ in floods]
    processes = [
        spawn.Process(target=flood, args=(where, kind, up, stop), daemon=True)
        for (where, kind), up in zip(floods, ready, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        for up, (_, kind) in zip(ready, floods, strict=True):
            if not up.wait(WAIT_S):
                raise RunFailed(f"the flood of {kind} did not start", "bench tenants", "run again")
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(WAIT_S)
            if process.is_alive():
                process.kill()


def _by_weight(tier: Daemon, where: dict[str, Endpoint], seconds: float) -> Shares:
    """Two tenants flood with demand reads: what each moved, and how often it had nothing
    waiting, which is outside the scheduler's control."""
    names = ("flood", "heavy")
    floods = [(where[name], "demands") for name in names for _ in range(TENANTS[name])]
    with tier.control(OPERATOR, timeout_s=WAIT_S) as control:

        def look() -> list[Mapping[str, int]]:
            tenants = {one["name"]: one for one in control.status()["tenants"]}
            return [tenants[name] for name in names]

        with _flooded(floods):
            time.sleep(seconds / 4)
            looks = [look()]
            for _ in range(LOOKS):
                time.sleep(seconds / LOOKS)
                looks.append(look())
    before, after = ([one["issued_bytes"] for one in each] for each in (looks[0], looks[-1]))
    idle = [sum(one[i]["waiting"] == 0 for one in looks) / len(looks) for i in range(len(names))]
    bytes_moved = [b - a for a, b in zip(before, after, strict=True)]
    per_weight = [each / TENANTS[name] for name, each in zip(names, bytes_moved, strict=True)]
    fair = sum(bytes_moved) / sum(TENANTS[name] for name in names)
    return Shares(
        tenants=list(names),
        weights=[TENANTS[name] for name in names],
        bytes=bytes_moved,
        idle=idle,
        bytes_per_s=sum(bytes_moved) / seconds,
        by_weight=[each / fair for each in per_weight],
        jain=jain_index(per_weight),
    )


def _alone(phases: Mapping[str, Phase]) -> list[Phase]:
    return [phases["alone"], phases["alone again"]]


def _beside_alone(phases: Mapping[str, Phase]) -> None:
    alone = _alone(phases)
    for phase in phases.values():
        phase.ratio = phase.ns_p99 / max(one.ns_p99 for one in alone)
        phase.ratio_p50 = phase.ns_p50 / max(one.ns_p50 for one in alone)


def rows_of(phases: Mapping[str, Phase], shares: Shares) -> list[Row]:
    """Each phase against the victim alone; what both floods moved, by their weights."""
    alone = max(_alone(phases), key=lambda one: one.ns_p99)
    busy = phases["compute"]
    rows = [
        Row("cores busy, p99", "ns", busy.ns_p99, alone.ns_p99, busy.ratio),
        Row("cores busy, p50", "ns", busy.ns_p50, alone.ns_p50, busy.ratio_p50),
    ]
    for name in ("demands", "all ways"):
        rows += _attacked(name, phases[name], alone, _alone(phases))
    for name, weight, part in zip(shares.tenants, shares.weights, shares.by_weight, strict=True):
        goal = aimed(abs(part - 1), "<=", WEIGHT_ERROR_MAX, "%", "off")
        rows.append(Row(f"{name}: bytes, weight {weight}", "part", part, 1.0, part, goal))
    rows.append(Row("Jain's index of them", "index", shares.jain))
    for name, part in zip(shares.tenants, shares.idle, strict=True):
        rows.append(Row(f"{name}: nothing waited", "%", part))
    return rows


def _attacked(name: str, phase: Phase, alone: Phase, both: list[Phase]) -> list[Row]:
    """Its aims: two times as long as alone and one read of the drive more; hits within a point."""
    service_ns = max(one.single_ns_p50 for one in both)
    hits = [one.hit_percent for one in both]
    off = max(min(hits) - phase.hit_percent, phase.hit_percent - max(hits), 0.0)
    longest = aimed(phase.ns_p99, "<=", P99_RATIO_MAX * alone.ns_p99 + service_ns, "ns")
    return [
        Row(f"{name}, p99", "ns", phase.ns_p99, alone.ns_p99, phase.ratio, longest),
        Row(f"{name}, p50", "ns", phase.ns_p50, alone.ns_p50, phase.ratio_p50),
        Row(
            f"{name}, hits",
            "%",
            phase.hit_percent / 100,
            alone.hit_percent / 100,
            None,
            aimed(off, "<=", HIT_POINTS_MAX, "points"),
        ),
    ]
