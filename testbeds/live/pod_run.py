"""`offstage pod run`: a workload over all members of a pod at once, and one report for the pod.

The host computes where each segment lives, so all members are asked at the same time and none of
them knows of another. What each served is its own ledger's difference, held against what this host
counted of it; a member that went away has no ledger any more, and says so in the report. The host
follows the map where it is told its place, so members may join and be drained while it runs.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.layouts import CAUSES, FATES, HIT_ENDS
from offstage.bindings.notes import Note
from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.membership import Membership
from offstage.dpu.pod.segments import SegmentGrid
from offstage.host.endpoint import Endpoint
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.follow import Follower
from offstage.host.pod.joined import Joined
from offstage.host.pod.sessions import PodSessions
from offstage.host.pod.upkeep import Counts, Upkeep
from offstage.host.record import AgentRecord
from offstage.testbeds.beds.status import counters_since, device_counters
from offstage.testbeds.live.figures import accuracy, ends_differ, ledger_since, prefetched_blocks
from offstage.testbeds.live.host_run import (
    RUN_NAME,
    check_alone,
    check_fit,
    overruns,
    store_bytes,
)
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_status import fates_by_cause, load_cv
from offstage.testbeds.live.workload import Workload, decode, prefill, prepare
from offstage.testbeds.progress import Progress

__all__ = ["MemberResult", "PodResult", "join", "joined", "run"]


class MemberResult(msgspec.Struct, kw_only=True):
    """What one member did in a run."""

    weight: int
    state: str
    """`served`, `suspected` so many times, or why it was lost."""
    demands: int
    """Demands that it answered."""
    hit_rate: float
    bytes_read: int
    """From its drive; -1 where it can no longer be asked."""
    fetch_ms_max: float
    """The longest that one piece of a fetch took, its deadline included."""
    prefetched_blocks: int
    """-1, as the next, where it can no longer be asked."""
    shared_chunks: int
    """Chunks that it had of another session when they were appended."""
    moved_blocks: int
    """Read there to be brought to other members; in no other figure of demands."""
    ends_differ: int = 0
    """Demands, at the least, that ended otherwise by its ledger than it told this host with each
    fetch; 0 too where it was suspected or cannot be asked."""


class PodResult(msgspec.Struct, kw_only=True):
    """One run over a pod; rates are over the demands of all members."""

    epoch: int
    segment_tokens: int
    members: dict[str, MemberResult]
    demands: int
    hit_rate: float
    late_rate: float
    miss_rate: float
    lost_rate: float
    """Demands that nobody answered, because their member did not."""
    load_cv: float
    """Coefficient of variation of demands over weight, of the members that take new segments."""
    segments_rehomed: int
    stale_lookups: int
    """Segments that their home lacked, and who was home before had."""
    segments_filled: int
    bytes_filled: int
    """Brought home from there."""
    filled_share: float
    """Of what was asked since the last change of who is home: what was brought home."""
    least_share: float
    """What any placement moves for that change: `filled_share` over it is what was too much."""
    copies_made: int
    copies_dropped: int
    copies_held: int
    bytes_copied: int
    prefetch_accuracy: float
    """Prefetched blocks that were used, of those whose end is known, over all members."""
    prefetched_blocks: int
    shared_chunks: int
    bytes_read: int
    """From the drives of the members that could be asked."""
    blocks_verified: int
    blocks_corrupt: int
    ends_differ: int
    """Of all members."""
    pace_overruns: float
    """Share of requests that ended later than a modelled device would have ended them, of the
    member that was furthest off; -1 where none is modelled, or its counters are not known."""
    blocks_recomputed: int
    attention_checked: int
    attention_error_max: float
    stall_ms_p50: float
    stall_ms_p99: float
    token_ms_max: float
    """The longest that a token took, all that a dead member cost included."""
    tokens: int
    notes: list[Note] = []
    passed_over: int
    """How often a session that came earlier was, for one that shares more with those that ran."""
    wall_s: float


def run(
    options: DriveOptions,
    found: PodMap,
    link: Endpoint,
    runtime_dir: Path | None,
    deadline_ns: int,
    progress: Progress,
    membership: Membership | None = None,
) -> PodResult:
    """Prefill what the pod lacks, decode, and take the figures. `link` says as whom and over which
    fabric; its endpoint is each member's own. `membership`: where the map is followed while it
    runs; it is closed at the end.

    BadInput: options, sizes that do not fit, no member there."""
    options.check()
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(joined(found, link, runtime_dir))
        for one in members:
            check_fit(options.geometry, one.control)
            check_alone(one.control, link.tenant)
        grid = found.grid(options.geometry.block_tokens)
        workload = prepare(options, sum(store_bytes(one.control) for one in members))
        _check_limits(options, workload, members, grid)
        sessions = PodSessions(members, grid)
        sessions.map = found
        fabric = PodFabric(sessions, deadline_ns)
        before: dict[str, Any] = {}

        def login(member: Member, epoch: int) -> Joined:
            coming = join(member, link, runtime_dir, epoch)
            try:
                check_fit(options.geometry, coming.control)
                _check_limits(options, workload, [coming], grid)
                before[member.name] = coming.control.ledger()
            except OffstageError:
                coming.fabric.close()
                coming.control.close()
                raise
            return coming

        follow = None
        if membership is not None:
            follow = Follower(membership, login, fabric, sessions)
            stack.callback(_leave_new, sessions, list(members))
            stack.callback(follow.close)
        upkeep = Upkeep(
            sessions,
            fabric,
            options.geometry.layer_count,
            follow.take if follow is not None else lambda: None,
        )
        filled = prefill(options, workload, sessions, fabric, progress)
        before |= _ledgers(sessions.members)
        counted = _modelled(sessions.members, link, runtime_dir)
        for one in sessions.members:
            one.ends[:], one.moved_ends[:], one.failed, one.fetch_ns = 0, 0, 0, 0
        plan = workload.plan.sessions
        progress.start(f"decode over {len(members)} daemons", sum(s.decode_steps for s in plan))
        record = decode(options, workload, filled.contexts, sessions, fabric, RUN_NAME, progress)
        upkeep.close()
        ledgers = {one.member.name: _ledger(one, before) for one in sessions.members}
        results = {
            one.member.name: _member(one, ledgers[one.member.name]) for one in sessions.members
        }
        paces = [
            overruns(model, counters_since(counted[name][1], after))
            for name, (model, after) in _modelled(sessions.members, link, runtime_dir).items()
            if name in counted
        ]
        fabric.close()
    known = [one for one in ledgers.values() if one is not None]
    result = _result(sessions, results, record, upkeep.total(), known)
    result.pace_overruns = max(paces, default=-1.0)
    slots = sum(one.control.geometry.slot_count for one in members)
    result.notes = workload.noted(slots, options.geometry.layer_count, options.pool_layer_blocks)
    return result


def join(member: Member, link: Endpoint, runtime_dir: Path | None, epoch: int) -> Joined:
    """Log in to one, by the map of `epoch`; it is the caller's to close. OffstageError: it cannot
    be had."""
    control, fabric = link.at(member, runtime_dir, epoch).connect()
    return Joined(
        member, control, fabric, lease_ns=control.lease_ns, tenant=link.tenant, epoch=epoch
    )


def _leave_new(sessions: PodSessions, first: list[Joined]) -> None:
    """Those that came while it ran."""
    for one in sessions.members:
        if one not in first:
            one.fabric.close()
            one.control.close()


@contextlib.contextmanager
def joined(found: PodMap, link: Endpoint, runtime_dir: Path | None) -> Iterator[list[Joined]]:
    """All members that answer. BadInput where none does."""
    with contextlib.ExitStack() as stack:
        members, refused = [], []
        for member in found.readable:
            try:
                one = join(member, link, runtime_dir, found.epoch)
            except OffstageError as error:
                refused.append(error)
                continue
            stack.callback(one.control.close)
            stack.callback(one.fabric.close)
            members.append(one)
        if not members:
            none = BadInput(
                "the pod has no member", "pod map", "offstage pod add MAP NAME ENDPOINT"
            )
            raise refused[0] if refused else none
        yield members


def _check_limits(
    options: DriveOptions, workload: Workload, members: list[Joined], grid: SegmentGrid
) -> None:
    """The daemons would refuse these too, but after minutes of prefill."""
    tokens, plan = options.geometry.block_tokens, workload.plan
    longest = max(-(-(one.context_tokens + one.decode_steps) // tokens) for one in plan.sessions)
    at_once = options.active or plan.sessions_max
    needed = min(len(plan.sessions), at_once) * (grid.count(longest) if grid.most else 1)
    for one in members:
        limits = one.control.limits
        if not 1 <= grid.most <= limits.session_chunk_max:
            raise BadInput(
                f"a segment has {grid.most} blocks of {tokens} tokens, and {one.member.name} takes "
                f"1 to {limits.session_chunk_max}",
                "pod map",
                "change segment_tokens of the map, or [limits] context_tokens of the daemon",
            )
        if needed > limits.session_max:
            raise BadInput(
                f"{needed} segments at once may be at {one.member.name}, which takes "
                f"{limits.session_max}",
                one.control.endpoint,
                "raise [limits] sessions of the daemon, or segment_tokens of the map",
            )


def _ledgers(members: list[Joined]) -> dict[str, Any]:
    """By name, of those that answer: one that was lost in prefill is counted no more."""
    found = {}
    for one in members:
        with contextlib.suppress(OffstageError):
            found[one.member.name] = one.control.ledger()
    return found


def _modelled(
    members: list[Joined], link: Endpoint, runtime_dir: Path | None
) -> dict[str, tuple[str, dict[str, int] | None]]:
    """The device that each member stands for, and its counters; of those that do and answer."""
    found = {}
    for one in members:
        with contextlib.suppress(OffstageError):
            if not one.lost and (model := str(one.control.status()["model"])):
                own = link.at(one.member, runtime_dir)
                found[one.member.name] = model, device_counters(own)
    return found


def _ledger(one: Joined, before: dict[str, Any]) -> dict[str, Any] | None:
    """What it counted since; None where it was lost, stopped, or began anew."""
    if not one.lost and one.member.name in before:
        with contextlib.suppress(OffstageError):
            return ledger_since(before[one.member.name], one.control.ledger())
    return None


def _member(one: Joined, ledger: dict[str, Any] | None) -> MemberResult:
    bytes_read = prefetched = shared = -1
    differ = 0
    state = f"lost: {one.lost}" if one.lost else "served"
    if one.suspected and not one.lost:
        state = f"suspected {one.suspected} times"
    if ledger is not None:
        bytes_read = _bytes_read(ledger)
        prefetched, shared = prefetched_blocks(ledger), int(ledger["shared_chunks"])
        if not one.suspected:
            differ = ends_differ(ledger["ends"], one.ends, one.failed)
    ends = one.ends - one.moved_ends
    demands = int(ends.sum())
    return MemberResult(
        weight=one.member.weight,
        state=state,
        demands=demands,
        bytes_read=bytes_read,
        hit_rate=_share(int(ends[:HIT_ENDS].sum()), demands),
        fetch_ms_max=one.fetch_ns / 1e6,
        prefetched_blocks=prefetched,
        shared_chunks=shared,
        moved_blocks=int(one.moved_ends.sum()),
        ends_differ=differ,
    )


def _bytes_read(ledger: dict[str, Any]) -> int:
    return int(ledger["demand_bytes_read"]) + int(ledger["prefetch_bytes_read"])


def _result(
    sessions: PodSessions,
    results: dict[str, MemberResult],
    record: AgentRecord,
    done: Counts,
    ledgers: list[dict[str, Any]],
) -> PodResult:
    found = sessions.map
    assert found is not None
    ends = record.ends()
    demands = sum(token.demands for token in record.tokens)
    loads = {
        one.member.name: results[one.member.name].demands
        for one in sessions.members
        if one.member.state == "up"
    }
    stall_ms = record.stall_ms()
    hits, late = int(ends[:HIT_ENDS].sum()), int(ends[HIT_ENDS])
    fates = sum(
        (np.array(one["fates"], np.int64) for one in ledgers),
        np.zeros((len(CAUSES), len(FATES)), np.int64),
    )
    return PodResult(
        epoch=found.epoch,
        segment_tokens=found.segment_tokens,
        members=results,
        demands=demands,
        hit_rate=_share(hits, demands),
        late_rate=_share(late, demands),
        miss_rate=_share(int(ends[HIT_ENDS + 1 :].sum()), demands),
        lost_rate=_share(demands - int(ends.sum()), demands),
        load_cv=load_cv(found, loads),
        segments_rehomed=done.rehomed,
        stale_lookups=done.stale_lookups,
        segments_filled=done.filled_segments,
        bytes_filled=done.filled_bytes,
        filled_share=done.asked_moved_share,
        least_share=done.least_share,
        copies_made=done.copied_segments,
        copies_dropped=done.dropped_copies,
        copies_held=done.copies_held,
        bytes_copied=done.copied_bytes,
        prefetch_accuracy=accuracy(fates_by_cause(fates)),
        prefetched_blocks=sum(map(prefetched_blocks, ledgers)),
        shared_chunks=sum(int(one["shared_chunks"]) for one in ledgers),
        bytes_read=sum(map(_bytes_read, ledgers)),
        blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt,
        blocks_recomputed=record.blocks_recomputed,
        ends_differ=sum(one.ends_differ for one in results.values()),
        pace_overruns=-1.0,
        attention_checked=record.attention_checked,
        attention_error_max=record.attention_error_max,
        stall_ms_p50=float(np.quantile(stall_ms, 0.5)),
        stall_ms_p99=float(np.quantile(stall_ms, 0.99)),
        token_ms_max=float(record.token_ms().max()),
        tokens=len(record.tokens),
        passed_over=record.passed_over,
        wall_s=record.wall_s,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
