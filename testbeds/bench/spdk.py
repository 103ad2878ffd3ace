"""`offstage bench storage --backend spdk`: our SPDK side against `spdk_nvme_perf` on one target.

The target is an `nvmf_tgt` started by the bench with a drive in its memory: the comparison is of
the path to a drive, not of a drive. Both read it at random with the same block and depth over
the same transport, in SPDK's memory without huge pages, polling on the same core, in turns (A B,
B A, ...). A ratio is the median over the rounds of ours / perf in the same round. Ours reads a
number of blocks, perf for a time, because those are their interfaces.
"""

import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from offstage.bindings import spdk
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.units import format_size
from offstage.dpu.storage.spdk_target import Target
from offstage.testbeds.bench.rows import BenchResult, Row, aimed, check_size

__all__ = ["CaseFigures", "SpdkResult", "bench_spdk", "rows_of"]

KIB, MIB = 1 << 10, 1 << 20
DRIVE_BYTES = 64 * MIB
TARGET_MIB = 1024
SECONDS = 2  # of one run of perf, whole ones
PERF_TIMEOUT_S = 60
PERF_TRIES = 3  # on a busy machine it may not reach the target in time, and measures nothing
TRANSPORTS = ("TCP", "VFIOUSER")
# "Total   :   356786.67    1393.70      89.67 ...": I/Os a second, MiB/s, average latency in us
TOTAL = re.compile(r"^Total\s*:\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)", re.MULTILINE)
NOTHING_FOUND = "No valid NVMe controllers"  # with exit code 0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """One row: the read, and the least ratio of ours to perf that is its aim."""

    block_bytes: int
    queue_depth: int
    ratio_min: float | None = None


CASES = (
    Case(64 * KIB, 32, 0.95),
    Case(4 * KIB, 32, 0.90),
    Case(64 * KIB, 1),
    Case(4 * KIB, 1),
)


class CaseFigures(msgspec.Struct, frozen=True):
    """One case over one transport: medians of both sides, and the ratios of a round."""

    transport: str
    block_bytes: int
    queue_depth: int
    count: int
    ours_iops: float
    perf_iops: float
    ratio: float
    ratio_range: tuple[float, float]
    ratio_min: float | None = None


class SpdkResult(BenchResult, kw_only=True):
    """Reads of one target, by our side and by SPDK's tool."""

    cases: list[CaseFigures]
    reference: str
    rounds: int

    def about(self) -> list[str]:
        return [
            f"measured against {self.reference}, on a drive in the memory of one target, seed "
            f"{self.seed}: the ratio is the median of {self.rounds} rounds",
        ]


def bench_spdk(
    program: str,
    *,
    rounds: int = 3,
    seed: int = 1,
    scale: float = 1.0,
    say: Say = lambda line: None,
) -> SpdkResult:
    """Each transport and case. `program`: the nvmf_tgt; spdk_nvme_perf is in the same folder.
    `scale` shrinks a run of ours, in seconds. BadInput if one is missing."""
    spdk.ensure()
    check_size(rounds, scale)
    perf = shutil.which("spdk_nvme_perf", path=f"{Path(program).parent}:{os.environ['PATH']}")
    if perf is None:
        raise BadInput("spdk_nvme_perf is not in its folder", program, "build SPDK with its apps")
    cases = []
    with Target(program, memory_mib=TARGET_MIB) as target:
        for transport in TRANSPORTS:
            path = target.serve(target.memory_drive(transport.lower(), DRIVE_BYTES), transport)
            cases += [
                _measured(perf, path, transport, case, rounds, seed, scale, say) for case in CASES
            ]
    return SpdkResult(
        cases=cases,
        rows=rows_of(cases),
        reference=f"spdk_nvme_perf of SPDK {spdk.release()}, --no-huge, the same core",
        rounds=rounds,
        seed=seed,
    )


def rows_of(cases: list[CaseFigures]) -> list[Row]:
    """One for each case, with its aim where it has one."""
    return [
        Row(
            f"{one.transport} {format_size(one.block_bytes)} depth {one.queue_depth}",
            "/s",
            one.ours_iops,
            one.perf_iops,
            one.ratio,
            None if one.ratio_min is None else aimed(one.ratio, ">=", one.ratio_min),
        )
        for one in cases
    ]


def _measured(
    perf: str, path: str, transport: str, case: Case, rounds: int, seed: int, scale: float, say: Say
) -> CaseFigures:
    pairs: list[tuple[float, float]] = []
    count = _count(path, case, seed, scale)
    for number in range(rounds):
        # A B, B A, A B ...: the second side finds the state that the first left behind.
        if number % 2 == 0:
            ours = _ours(path, case, count, seed + number)
            theirs = _perf(perf, path, case)
        else:
            theirs = _perf(perf, path, case)
            ours = _ours(path, case, count, seed + number)
        pairs.append((ours, theirs))
    ratios = [ours / theirs for ours, theirs in pairs]
    found = CaseFigures(
        transport=transport,
        block_bytes=case.block_bytes,
        queue_depth=case.queue_depth,
        count=count,
        ours_iops=statistics.median(ours for ours, _ in pairs),
        perf_iops=statistics.median(theirs for _, theirs in pairs),
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        ratio_min=case.ratio_min,
    )
    say(
        f"{transport} {case.block_bytes // KIB} KiB QD {case.queue_depth}: "
        f"{found.ours_iops:,.0f} IOPS, {found.ratio:.2f} of spdk_nvme_perf"
    )
    return found


def _count(path: str, case: Case, seed: int, scale: float) -> int:
    """The number of blocks that take ours about as long as perf reads."""
    probe = 20 * case.queue_depth
    return max(probe, int(_ours(path, case, probe, seed) * SECONDS * scale))


def _ours(path: str, case: Case, count: int, seed: int) -> float:
    """I/Os a second, on the core that perf also runs on."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        config = StorageConfig("spdk", path, queue_depth_max=case.queue_depth, huge=False)
        with Storage(config) as storage:
            memory = spdk.Memory(case.block_bytes * case.queue_depth)
            elapsed_ns, _ = storage.bench_read(
                memory, case.block_bytes, case.queue_depth, count, seed
            )
    finally:
        os.sched_setaffinity(0, cores)
    return count * 1e9 / elapsed_ns


def _perf(perf: str, path: str, case: Case) -> float:
    command = [
        perf,
        "-q",
        str(case.queue_depth),
        "-o",
        str(case.block_bytes),
        "-w",
        "randread",
        "-t",
        str(SECONDS),
        "-r",
        path,
        "-c",
        f"[{min(os.sched_getaffinity(0))}]",
        "-s",
        "256",
        "--no-huge",
    ]
    for _ in range(PERF_TRIES):
        done = subprocess.run(
            command, capture_output=True, errors="replace", timeout=PERF_TIMEOUT_S, check=False
        )
        found = TOTAL.search(done.stdout)
        if done.returncode == 0 and found is not None:
            return float(found[1])
        if done.returncode != 0 or NOTHING_FOUND not in done.stderr:
            break
    lines = (done.stdout + done.stderr).split("\n")  # its errors are on stderr
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    raise RunFailed(f"spdk_nvme_perf ended with {done.returncode}: {last}", path, "run it by hand")
