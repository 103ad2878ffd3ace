"""`offstage bench tenants`: what a tenant's neighbours do to it, over a real drive.

A daemon of three tenants runs in a process of its own. The victim fetches blocks that are not
staged, 16 at a time, and some that always are: alone; beside processes that only compute; beside a
neighbour that floods with demand reads; beside one that floods in every way at once. Then two
neighbours of unlike weights flood, and what each moved is read from the daemon's figures.

Everything is measured in one run, so that ratios hold where the machine is slow. The victim's time
alone is taken before and after, and the aims look at both. Where a fetch's time went is said beside
it: what the daemon says of the victim's steps by part, and what the kernel says of the threads that
had work and no core, which where all share a few cores is no queue of the daemon's.
"""

import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offstage.bindings.errors import BadInput, RunFailed
from offstage.dpu.protocol import OPERATOR
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds.daemon import Tier, serve
from offstage.testbeds.bench.qos import jain_index
from offstage.testbeds.bench.tenants_hosts import (
    COLD,
    COMPUTE,
    FLOODS,
    PAYLOAD_BYTES,
    Host,
    flood,
)

__all__ = ["bench_tenants"]

LBA_BYTES = 4096
SLOTS = 256  # of each tenant
HOT = 32  # blocks of the victim that stay staged
TENANTS = {"victim": 1, "flood": 1, "heavy": 3}  # and their weights
WAIT_S = 120.0
LOOKS = 20  # at the queues, while two flood
P99_RATIO_MAX, HIT_POINTS_MAX, WEIGHT_ERROR_MAX = 2.0, 1.0, 0.10

Say = Callable[[str], None]


def bench_tenants(
    *,
    seconds: float = 3.0,
    folder: Path | None = None,
    seed: int = 1,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Each phase takes `seconds`; the store lies in `folder`. BadInput where the time is none."""
    if not 0.05 <= seconds <= 3600:
        raise BadInput(f"{seconds} s for a phase", "bench tenants", "choose 0.05 to 3600")
    # The address of a socket has at most 107 characters: not under whatever folder was given.
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="offstage-tenants-") as made,
        tempfile.TemporaryDirectory(prefix="ofs-") as sockets,
    ):
        config = _write_config(Path(made), Path(sockets))
        with serve(config, Path(made) / "daemon.log") as tier:
            found = _phases(tier, seconds, seed, say)
    return {**found, "provenance": "measured", "seconds": seconds, "seed": seed}


def _write_config(folder: Path, sockets: Path) -> Path:
    sections: dict[str, dict[str, Any]] = {
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
    }
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(one)}" for key, one in values.items())]
    for name, weight in TENANTS.items():
        lines += ["[[tenant]]", f'name = "{name}"', f"weight = {weight}"]
    path = folder / "daemon.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _phases(tier: Tier, seconds: float, seed: int, say: Say) -> dict[str, Any]:
    runtime = Path(str(tier.ready["runtime_dir"]))
    where = {name: Endpoint(tier.endpoint, name, runtime_dir=runtime) for name in TENANTS}
    victim = Host(where["victim"], seed)
    victim.driver.time_stages(True, all=True)
    reactor = _thread(tier.process.pid, "ofs-reactor")
    phases: dict[str, dict[str, Any]] = {}
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
                f"{name}: p50 {phases[name]['ns_p50'] / 1e3:.0f} us, "
                f"p99 {phases[name]['ns_p99'] / 1e3:.0f} us, "
                f"hits {phases[name]['hit_percent']:.1f} %"
            )
        shares = _by_weight(tier, where, seconds)
        say(f"bytes by weight: {', '.join(f'{one:.3f}' for one in shares['by_weight'])}")
    finally:
        victim.close()
    return {
        "phases": phases,
        "shares": shares,
        "cold_blocks": COLD,
        "block_bytes": PAYLOAD_BYTES,
        "storage": tier.ready["storage"],
        **_judged(phases, shares),
    }


def _attributed(tier: Tier, victim: Host, reactor: Path, seconds: float) -> dict[str, Any]:
    """A phase, and where its time went: `steps` as the daemon's status has them, `host` of their
    answers, and which part of the phase the reactor and the victim waited for a core."""
    with _operator(tier).control(heartbeat=False) as control:
        control.reset()  # the times of all before
        victim.ask(np.arange(HOT, dtype=np.uint32))
        threads = {"reactor": reactor, "victim": Path("/proc/thread-self/schedstat")}
        begun = {name: _waited_ns(file) for name, file in threads.items()}
        answered = victim.driver.stages().get("answer", {"count": 0, "ns_mean": 0.0})
        begun_ns = time.monotonic_ns()
        found = _measure(victim, seconds)
        took_ns = time.monotonic_ns() - begun_ns
        waited = {
            name: (_waited_ns(file) - begun[name]) / took_ns
            for name, file in threads.items()
            if begun[name] >= 0
        }
        answers = victim.driver.stages()["answer"]
        count = answers["count"] - answered["count"]
        host_ns = answers["ns_mean"] * answers["count"] - answered["ns_mean"] * answered["count"]
        steps = next(one["steps"] for one in control.status()["tenants"] if one["name"] == "victim")
    return {**found, "steps": steps, "taken_in_ns_mean": host_ns / max(count, 1), "no_core": waited}


def _operator(tier: Tier) -> Endpoint:
    runtime = Path(str(tier.ready["runtime_dir"]))
    return Endpoint(tier.endpoint, OPERATOR, runtime_dir=runtime, timeout_s=WAIT_S)


def _thread(pid: int, name: str) -> Path:
    """What the kernel says of the scheduling of a thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            if (task / "comm").read_text(encoding="ascii").strip() == name:
                return task / "schedstat"
    raise RunFailed(f"the daemon has no thread {name}", "bench tenants", "see its log")


def _waited_ns(schedstat: Path) -> int:
    """How long the thread had work and no core; -1 where the kernel does not say."""
    try:
        return int(schedstat.read_text(encoding="ascii").split()[1])
    except OSError:
        return -1


def _measure(victim: Host, seconds: float) -> dict[str, Any]:
    """Fetches of blocks that are absent, and between them one of blocks that are there."""
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
    p50, p99 = np.percentile(took, [50, 99])
    return {
        "ns_p50": float(p50),
        "ns_p99": float(p99),
        "fetches": len(took),
        "single_ns_p50": float(np.median(single)),
        "hit_percent": 100 * hits / asked,
    }


def _beyond_hot(victim: Host, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    while True:
        ordinals = victim.cold(count)
        if int(ordinals.min()) >= HOT:
            return ordinals


@contextlib.contextmanager
def _flooded(floods: Sequence[tuple[Endpoint, str]]) -> Iterator[None]:
    """Processes that flood, begun before and ended after."""
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
                raise RunFailed(f"the flood of {kind} did not begin", "bench tenants", "run again")
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(WAIT_S)
            if process.is_alive():
                process.kill()


def _by_weight(tier: Tier, where: dict[str, Endpoint], seconds: float) -> dict[str, Any]:
    """Two tenants flood with demand reads: what each moved, and how often nothing of it waited,
    which is no work of the scheduler's."""
    names = ("flood", "heavy")
    floods = [(where[name], "demands") for name in names for _ in range(TENANTS[name])]
    with _operator(tier).control() as control:

        def look() -> list[dict[str, Any]]:
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
    return {
        "tenants": list(names),
        "weights": [TENANTS[name] for name in names],
        "bytes": bytes_moved,
        "idle": idle,
        "bytes_per_s": sum(bytes_moved) / seconds,
        "by_weight": [each / fair for each in per_weight],
        "jain": jain_index(per_weight),
    }


def _judged(phases: dict[str, dict[str, Any]], shares: dict[str, Any]) -> dict[str, Any]:
    alone = [phases["alone"], phases["alone again"]]
    p99 = max(one["ns_p99"] for one in alone)
    service = max(one["single_ns_p50"] for one in alone)
    hits = [one["hit_percent"] for one in alone]
    aims: dict[str, bool] = {}
    for phase in phases.values():
        phase["ratio"] = phase["ns_p99"] / p99
        phase["ratio_p50"] = phase["ns_p50"] / max(one["ns_p50"] for one in alone)
    for name in ("demands", "all ways"):
        phase = phases[name]
        aims[f"{name}: p99 <= 2 x alone + service"] = (
            phase["ns_p99"] <= P99_RATIO_MAX * p99 + service
        )
        aims[f"{name}: hits within 1 point"] = (
            min(hits) - HIT_POINTS_MAX <= phase["hit_percent"] <= max(hits) + HIT_POINTS_MAX
        )
    aims["bytes by weight within 10 %"] = all(
        abs(one - 1) <= WEIGHT_ERROR_MAX for one in shares["by_weight"]
    )
    return {"aims": aims, "aims_met": all(aims.values())}
