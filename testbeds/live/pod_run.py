"""`offstage pod run`: a workload over all members of a pod at once, and one report for the pod.

The host computes where each segment lives, so all members are asked at the same time and none of
them knows of another. What each served is its own ledger's difference, held against what this host
counted of it; a member that went away has no ledger any more, and says so in the report.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.dpu.pod.map import PodMap
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import Joined
from offstage.host.pod.sessions import PodSessions
from offstage.host.record import AgentRecord
from offstage.testbeds.beds.connect import Link, attached
from offstage.testbeds.live.figures import ledger_since
from offstage.testbeds.live.host_run import RUN_NAME, check_alone, check_fit, store_bytes
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload, decode, prefill, prepare
from offstage.testbeds.progress import Progress

__all__ = ["MemberResult", "PodResult", "run"]


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
    blocks_verified: int
    blocks_corrupt: int
    blocks_recomputed: int
    attention_checked: int
    attention_error_max: float
    stall_ms_p50: float
    stall_ms_p99: float
    token_ms_max: float
    """The longest that a token took, all that a dead member cost included."""
    tokens: int
    wall_s: float


def run(
    options: DriveOptions, found: PodMap, link: Link, runtime_dir: Path | None, deadline_ns: int,
    progress: Progress,
) -> PodResult:  # fmt: skip
    """Prefill what the pod lacks, decode, and take the figures. `link` says as whom and over which
    fabric; its endpoint is each member's own.

    BadInput: options, sizes that do not fit, no member there. RunFailed: blocks were wrong, or a
    member disagrees on what it served."""
    options.check()
    with _joined(found, link, runtime_dir) as members:
        for one in members:
            check_fit(options.geometry, one.control)
            check_alone(one.control, link.tenant)
        chunks = found.segment_tokens // options.geometry.block_tokens
        workload = prepare(options, sum(store_bytes(one.control) for one in members))
        _check_limits(options, workload, members, chunks)
        sessions = PodSessions(members, chunks)
        fabric = PodFabric(sessions, deadline_ns)
        filled = prefill(options, workload, sessions, fabric, progress)
        before = _ledgers(members)
        for one in members:
            one.ends[:], one.failed, one.fetch_ns = 0, 0, 0
        plan = workload.plan.sessions
        progress.start(f"decode over {len(members)} daemons", sum(s.decode_steps for s in plan))
        record = decode(options, workload, filled.contexts, sessions, fabric, RUN_NAME, progress)
        results = {one.member.name: _member(one, before) for one in members}
        fabric.close()
    if record.blocks_corrupt:
        raise RunFailed(f"{record.blocks_corrupt} blocks were not what prefill wrote", "pod",
                        "report this with the seed")  # fmt: skip
    return _result(found, members, results, record, sessions.rehomed)


@contextlib.contextmanager
def _joined(found: PodMap, link: Link, runtime_dir: Path | None) -> Iterator[list[Joined]]:
    """All members that answer. BadInput where none does."""
    with contextlib.ExitStack() as stack:
        members, refused = [], []
        for member in found.readable:
            folder = None if runtime_dir is None else runtime_dir / member.name
            own = replace(link, endpoint=member.endpoint, runtime_dir=folder)
            try:
                control, fabric = stack.enter_context(attached(own))
            except OffstageError as error:
                refused.append(error)
                continue
            members.append(Joined(member, control, fabric))
        if not members:
            none = BadInput("the pod has no member", "pod map",
                            "offstage pod add MAP NAME ENDPOINT")  # fmt: skip
            raise refused[0] if refused else none
        yield members


def _check_limits(
    options: DriveOptions, workload: Workload, members: list[Joined], chunks: int
) -> None:
    """The daemons would refuse these too, but after minutes of prefill."""
    tokens, plan = options.geometry.block_tokens, workload.plan
    longest = max(-(-(one.context_tokens + one.decode_steps) // tokens) for one in plan.sessions)
    needed = min(len(plan.sessions), plan.sessions_max) * -(-longest // max(chunks, 1))
    for one in members:
        limits = one.control.limits
        if not 1 <= chunks <= limits.session_chunk_max:
            raise BadInput(
                f"a segment has {chunks} blocks of {tokens} tokens, and {one.member.name} takes "
                f"1 to {limits.session_chunk_max}", "pod map",
                "change segment_tokens of the map, or [limits] context_tokens of the daemon",
            )  # fmt: skip
        if needed > limits.session_max:
            raise BadInput(
                f"{needed} segments at once may be at {one.member.name}, which takes "
                f"{limits.session_max}", one.control.endpoint,
                "raise [limits] sessions of the daemon, or segment_tokens of the map",
            )  # fmt: skip


def _ledgers(members: list[Joined]) -> dict[str, Any]:
    """By name, of those that answer: one that was lost in prefill is counted no more."""
    found = {}
    for one in members:
        with contextlib.suppress(OffstageError):
            found[one.member.name] = one.control.ledger()
    return found


def _member(one: Joined, before: dict[str, Any]) -> MemberResult:
    """RunFailed where its ledger has other ends than it told this host with each fetch."""
    bytes_read, name, ledger = -1, one.member.name, None
    state = f"lost: {one.lost}" if one.lost else "served"
    if one.suspected and not one.lost:
        state = f"suspected {one.suspected} times"
    if not one.lost and name in before:
        with contextlib.suppress(OffstageError):  # it was stopped, or began anew
            ledger = ledger_since(before[name], one.control.ledger())
    if ledger is not None:
        bytes_read = int(ledger["demand_bytes_read"]) + int(ledger["prefetch_bytes_read"])
        untold = np.array(ledger["ends"], np.int64) - one.ends  # of blocks that came as an error
        if not one.suspected and (untold.min() < 0 or int(untold.sum()) != one.failed):
            raise RunFailed(f"host and DPU disagree on the ends of demands: {one.ends.tolist()} "
                            f"against {list(ledger['ends'])}", name,
                            "the figures of this run are not to be used")  # fmt: skip
    demands = int(one.ends.sum())
    return MemberResult(
        weight=one.member.weight, state=state, demands=demands, bytes_read=bytes_read,
        hit_rate=_share(int(one.ends[:HIT_ENDS].sum()), demands), fetch_ms_max=one.fetch_ns / 1e6,
    )  # fmt: skip


def _result(
    found: PodMap, members: list[Joined], results: dict[str, MemberResult], record: AgentRecord,
    rehomed: int,
) -> PodResult:  # fmt: skip
    ends = sum((token.ends for token in record.tokens), np.zeros(len(ENDS), np.int64))
    demands = sum(token.demands for token in record.tokens)
    loads = [results[one.member.name].demands / one.member.weight for one in members
             if one.member.state == "up"]  # fmt: skip
    stall_ms = record.stall_ms()
    hits, late = int(ends[:HIT_ENDS].sum()), int(ends[HIT_ENDS])
    return PodResult(
        epoch=found.epoch, segment_tokens=found.segment_tokens, members=results, demands=demands,
        hit_rate=_share(hits, demands), late_rate=_share(late, demands),
        miss_rate=_share(int(ends[HIT_ENDS + 1 :].sum()), demands),
        lost_rate=_share(demands - int(ends.sum()), demands),
        load_cv=float(np.std(loads) / np.mean(loads)) if np.any(loads) else 0.0,
        segments_rehomed=rehomed, blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt, blocks_recomputed=record.blocks_recomputed,
        attention_checked=record.attention_checked,
        attention_error_max=record.attention_error_max,
        stall_ms_p50=float(np.quantile(stall_ms, 0.5)),
        stall_ms_p99=float(np.quantile(stall_ms, 0.99)),
        token_ms_max=float(record.token_ms().max()),
        tokens=len(record.tokens), wall_s=record.wall_s,
    )  # fmt: skip


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
