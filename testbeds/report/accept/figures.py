"""The figures of an acceptance: out of the folder of a run, and out of the JSON of benches.

What can fail: `BadInput` for a folder that holds no run, a policy that it does not have, and a file
that is of no bench whose figures are judged. A figure that a source lacks is no failure.
"""

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.outside import decode_json, read_json
from offstage.testbeds.bench.engines.result import RECOMPUTE, Arm, EngineResult
from offstage.testbeds.bench.fabric import FabricResult
from offstage.testbeds.bench.links import LinksResult
from offstage.testbeds.bench.pod.reuse import ScheduleResult
from offstage.testbeds.bench.spdk import SpdkResult
from offstage.testbeds.bench.storage_result import StorageResult
from offstage.testbeds.lab.pod.summary import POD_JSON, PodSummary
from offstage.testbeds.lab.results.summary import LAB_KIND
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.accept.judge import Provenance, Seen
from offstage.testbeds.report.accept.rules import LOST
from offstage.testbeds.report.page.files import (
    SUMMARY_NAME,
    read_lab_summary,
    read_summary,
)
from offstage.testbeds.report.page.files import read_json as read_bytes
from offstage.testbeds.report.run.runs import run_of

__all__ = ["RunSeen", "digest", "of_bench", "of_live", "of_run"]

FIX = (
    "name a folder of `demo`, `host run`, `testbed run`, `pod run`, `lab run` or `lab pod`, "
    "or the file of `bench engine --out`"
)
BENCH_FIX = "give what `offstage bench fabric|storage|engine|schedule --out` wrote"
NOT_THE_TIER = (RECOMPUTE, "file system")
"""Arms of `bench engine` without it."""
UNREADABLE = "get_unreadable"
"""The connector's count of objects that were stored and failed their check or their read."""


@dataclass(frozen=True)
class RunSeen:
    """The figures of a run; `subject`: what of it they are of."""

    subject: str
    sha256: str
    seen: list[Seen]


class _Kind(msgspec.Struct):
    kind: str = ""


def digest(path: Path) -> str:
    """SHA-256 of the file that the run's figures come from, or of the summary.json of a folder."""
    return hashlib.sha256(read_bytes(path, FIX)[0]).hexdigest()


def of_run(folder: Path, policy: str = "") -> RunSeen:
    """The figures of any run; of a demo those of its arm `policy`, by default its report's."""
    path = folder
    if folder.is_dir() and not (folder / SUMMARY_NAME).is_file():
        path = folder / POD_JSON
    if path.name == POD_JSON and path.is_file():
        pod = read_json(path, FIX, PodResult, what="not the result of a pod")
        _check_policy(policy, (), str(path))
        return RunSeen("the pod", digest(path), _checked(_of_pod(pod), str(path)))
    data, where = read_bytes(folder, FIX)
    path = Path(where)
    kind = decode_json(data, where, FIX, _Kind).kind
    if _is_of(EngineResult, data, where):
        engine = decode_json(data, where, FIX, EngineResult, what="not the result of a bench")
        _check_policy(policy, map(_of_arm, engine.arms), where)
        seen = _checked(_engine(engine, path.name, policy), where)
        return RunSeen(policy or "all arms", digest(path), seen)
    if kind == LAB_KIND:
        return RunSeen(policy or "all points", digest(path), list(_of_lab(path, policy)))
    if kind == "pod":
        return RunSeen(policy or "all rows", digest(path), list(_of_pods(data, where, policy)))
    run = run_of(read_summary(path), policy, where)
    return RunSeen(run.called, digest(path), list(of_live(run)))


def of_live(run: RunResult) -> Iterator[Seen]:
    """Of one run of a host."""
    name, of = "p99_over_median", run.provenance
    if run.fetch_count and run.fetch_ms_p50:
        value = run.fetch_ms_p99 / run.fetch_ms_p50
        yield Seen(name, value, of, f"{run.fetch_count:,} fetches of the run")
    else:
        yield Seen(name, None, reason="the run timed no fetch")
    decided = run.stages.get("decide")
    if decided is not None and decided.count:
        source = f"{decided.count:,} timed steps of the run"
        yield Seen("decision_ms", decided.ns_p99 / 1e6, of, source)
    else:
        yield Seen("decision_ms", None, reason="the run timed no decision")
    if not run.blocks_verified + run.blocks_corrupt + run.blocks_recomputed:
        yield Seen(LOST, None, reason="no fetched block was compared")
        return
    bad = run.blocks_corrupt + run.blocks_recomputed + run.ends_differ + run.records_lost
    bad += run.log_bytes_lost + (run.log_diverged_at >= 0)
    yield Seen(LOST, bad, of, f"{run.blocks_verified:,} blocks that the run compared, its records")


def _of_pod(pod: PodResult) -> Iterator[Seen]:
    # A pod's result has no word for it; what is paced, and only that, counts overruns.
    of: Provenance = "emulated" if pod.pace_overruns >= 0 else "measured"
    if pod.demands and len(pod.members) > 1:
        yield Seen("load_cv", pod.load_cv, of, f"{len(pod.members)} members of the pod")
    else:
        yield Seen("load_cv", None, reason="one member, or no demand")
    if not pod.blocks_verified + pod.blocks_corrupt + pod.blocks_recomputed:
        yield Seen(LOST, None, reason="no fetched block was compared")
        return
    bad = pod.blocks_corrupt + pod.blocks_recomputed + pod.ends_differ
    yield Seen(LOST, bad, of, f"{pod.blocks_verified:,} blocks that the pod gave")


def _of_lab(path: Path, policy: str) -> Iterator[Seen]:
    """Reuse of the rows of request traces, `policy` their eviction, and of points failed reads."""
    summary = read_lab_summary(path)
    known = [one.info.policy for one in summary.points]
    _check_policy(policy, [*known, *(row.eviction for row in summary.requests)], str(path))
    for row in summary.requests:
        if policy in ("", row.eviction):
            source = f"{row.trace}, {row.eviction} in {row.capacity_blocks:,} blocks"
            yield Seen("reuse", row.token_hit_rate, "modelled", source)
    points = [one for one in summary.points if policy in ("", one.info.policy)]
    if any(one.reads for one in points):
        reads = sum(one.reads for one in points)
        failed = sum(one.reads_failed for one in points)
        yield Seen(LOST, failed, "modelled", f"{reads:,} reads of the points")
    else:
        yield Seen(LOST, None, reason="the lab run read no storage")


def _of_pods(data: bytes, where: str, policy: str) -> Iterator[Seen]:
    """Of pods of the laboratory without a fault, by their schedule."""
    summary = decode_json(data, where, FIX, PodSummary, what="not the summary of pods")
    rows = [row for row in summary.rows if row.fault == "none"]
    _check_policy(policy, [row.schedule for row in rows], where)
    for row in rows:
        if policy not in ("", row.schedule):
            continue
        source = f"{row.daemons} daemons, schedule {row.schedule}"
        if "load_cv" in row.means and row.daemons > 1:
            yield Seen("load_cv", row.means["load_cv"], "modelled", source)
        if "hit" in row.means:
            yield Seen("reuse", row.means["hit"], "modelled", source)
    yield Seen(LOST, None, reason="`lab pod` has no bytes to compare")


def of_bench(path: Path) -> list[Seen]:
    """The figures of the JSON of a bench. BadInput for a bench that has none of them."""
    data, where = read_bytes(path, BENCH_FIX)
    for _, kind, seen in BENCHES:
        if _is_of(kind, data, where):
            found: Any = decode_json(data, where, BENCH_FIX, kind, what="no result of a bench")
            return _checked(seen(found, path.name), where)
    raise BadInput("no result of a bench that is judged", where, BENCH_FIX)


def _is_of(kind: type, data: bytes, where: str) -> bool:
    """Whether a JSON document has the keys of this bench's result."""
    keys = decode_json(data, where, BENCH_FIX, dict[str, object], what="no result of a bench")
    return any(one is kind and all(key in keys for key in mark) for mark, one, _ in BENCHES)


def _links(found: LinksResult, file: str) -> Iterator[Seen]:
    rows = [one for one in found.links if one.block_bytes == found.aim_bytes]
    for one in rows:
        source = f"{file}: {one.link}, {found.batch} reads of {one.block_bytes:,} B together"
        yield Seen("link_rate", one.bandwidth_ratio, source=source)
        if one.line_bytes_per_s is not None:
            source += " against the NIC's line rate"
            yield Seen("link_rate", one.bytes_per_s / one.line_bytes_per_s, source=source)
    if not rows:
        yield Seen("link_rate", None, reason=f"no link at {found.aim_bytes:,} B")


def _fabric(found: FabricResult, file: str) -> Iterator[Seen]:
    for one in found.reads:
        if one.hit_ns <= 0:
            continue
        source = f"{file}: staged hits of {one.block_bytes:,} B against memcpy"
        yield Seen("link_rate", one.memcpy_ns / one.hit_ns, source=source)


def _storage(found: StorageResult, file: str) -> Iterator[Seen]:
    for one in found.cases:
        if one.queue_depth > 1:
            source = f"{file}: {one.block_bytes:,} B, depth {one.queue_depth}, against fio"
            yield Seen("drive_rate", one.bandwidth_ratio, source=source)


def _spdk(found: SpdkResult, file: str) -> Iterator[Seen]:
    for one in found.cases:
        if one.queue_depth > 1:
            source = f"{file}: {one.block_bytes:,} B over {one.transport}, against spdk_nvme_perf"
            yield Seen("drive_rate", one.ratio, source=source)


def _schedule(found: ScheduleResult, file: str) -> Iterator[Seen]:
    for one in found.arms:
        source = f"{file}: {found.trace}, schedule {one.schedule}, load {one.load}"
        yield Seen("reuse", one.live.hit, source=source)


def _engine(found: EngineResult, file: str, policy: str = "") -> Iterator[Seen]:
    """Of each arm with the tier, or of the one with the name `policy`."""
    for name, arm in found.arms.items():
        which = _of_arm(name)
        if which in NOT_THE_TIER or policy not in ("", which):
            continue
        alone = found.arms.get(name.removesuffix(which) + RECOMPUTE, Arm())
        count = len(arm.first_s)
        pairs = _without_hits(arm, alone)
        if pairs:
            with_tier, without = (statistics.median(side) for side in zip(*pairs, strict=True))
            source = f"{file}: {name}, {len(pairs):,} requests without a hit"
            yield Seen("ttft_cost", with_tier / without - 1.0, source=source)
        else:
            yield Seen("ttft_cost", None, reason=f"{name}: no request without a hit")
        if found.load_before is None and arm.reused:
            share = sum(arm.reused) / (found.rounds * sum(found.tokens))
            yield Seen(
                "reuse", share, source=f"{file}: {name}, {count:,} requests of {found.trace}"
            )
        if UNREADABLE in arm.counters:
            source = f"{file}: {name}, {count:,} requests with the same tokens as without the tier"
            yield Seen(LOST, arm.counters[UNREADABLE], source=source)


def _of_arm(name: str) -> str:
    """The arm's own name, without the length of its prompts."""
    return name.rpartition(" tokens, ")[2]


def _without_hits(arm: Arm, alone: Arm) -> list[tuple[float, float]]:
    """Times to the first token with the tier and without, of requests that reused nothing in
    either; empty where the arms did not end the same requests."""
    counts = {len(one) for one in (arm.first_s, arm.reused, alone.first_s, alone.reused)}
    if len(counts) > 1:
        return []
    rows = zip(arm.first_s, alone.first_s, arm.reused, alone.reused, strict=True)
    return [(one, other) for one, other, *reused in rows if not any(reused) and other > 0]


def _checked(seen: Iterable[Seen], where: str) -> list[Seen]:
    """The same. BadInput for a figure that cannot be true."""
    found = list(seen)
    for one in found:
        if one.value is not None and not -1.0 <= one.value < math.inf:
            raise BadInput(f"{one.name} = {one.value}", where, "run again to rewrite it")
    return found


def _check_policy(policy: str, known: Iterable[str], where: str) -> None:
    """BadInput where a policy is given that is not one of `known`."""
    names = list(dict.fromkeys(known))
    if policy and policy not in names:
        fix = nearest(policy, names) if names else "leave --policy out"
        raise BadInput(f"nothing with the policy {policy!r}", where, fix)


BENCHES: tuple[tuple[tuple[str, ...], type, Callable[..., Iterator[Seen]]], ...] = (
    (("links", "batch"), LinksResult, _links),
    (("reads", "ring"), FabricResult, _fabric),
    (("cases", "granules"), StorageResult, _storage),
    (("cases", "reference"), SpdkResult, _spdk),
    (("arms", "kept_blocks"), ScheduleResult, _schedule),
    (("arms", "hurry"), EngineResult, _engine),
)
"""Keys that only this bench has, its result, and its figures."""
