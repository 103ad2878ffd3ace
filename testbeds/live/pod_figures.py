"""The results of one run over a pod, as data, and their computation: per member and in total.

What each member served is the difference of its ledger, compared with this host's counts; a
member that left has no ledger.
"""

from collections.abc import Mapping, Sequence

import msgspec

from offstage.bindings.ledger import Demands, Ledger, quantile, share
from offstage.bindings.notes import Note
from offstage.host.decode.record import AgentRecord
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions
from offstage.host.pod.upkeep import Counts
from offstage.testbeds.live.pod_status import load_cv
from offstage.testbeds.live.run_figures import ends_differ

__all__ = ["MemberResult", "PodResult", "member_result", "pod_result"]


class MemberResult(msgspec.Struct, kw_only=True):
    """One member's part in a run."""

    weight: int
    state: str
    """`served`, `suspected` with a count, or why it was lost."""
    demands: int
    """Demands that it answered."""
    hit_rate: float
    bytes_read: int
    """Bytes read from its drive; -1 if the member is gone."""
    fetch_ms_max: float
    """The longest time of one piece of a fetch, deadlines included."""
    prefetched_blocks: int
    """-1, as the next, if the member is gone."""
    shared_chunks: int
    """Chunks that it already had from another session when they were appended."""
    moved_blocks: int
    """Read there to be copied to other members; in no other figure of demands."""
    ends_differ: int = 0
    """A lower bound of the demands whose end in its ledger differs from the one it returned with
    each fetch; also 0 if it was suspected or is gone."""


class PodResult(msgspec.Struct, kw_only=True):
    """One run over a pod; rates are over the demands of all members."""

    epoch: int
    shard_tokens: int
    members: dict[str, MemberResult]
    demands: int
    hit_rate: float
    late_rate: float
    miss_rate: float
    lost_rate: float
    """Demands without an answer, because their member did not answer."""
    load_cv: float
    """Coefficient of variation of demands over weight, of the members that take new shards."""
    shards_rehomed: int
    stale_lookups: int
    """Shards absent at their home and present at the previous home."""
    shards_filled: int
    bytes_filled: int
    """Bytes copied to their home from the previous one."""
    filled_share: float
    """The share of the demands since the last change of homes that were copied to their home."""
    least_share: float
    """What any placement moves for that change: the excess is `filled_share` over it."""
    copies_made: int
    copies_dropped: int
    copies_held: int
    bytes_copied: int
    prefetch_accuracy: float
    """Prefetched blocks that were used, of those whose end is known, over all members."""
    prefetched_blocks: int
    shared_chunks: int
    bytes_read: int
    """Bytes read from the drives of the reachable members."""
    blocks_verified: int
    blocks_corrupt: int
    ends_differ: int
    """The sum over all members."""
    pace_overruns: float
    """Share of requests that ended later than on a modelled device, of the member with the
    largest share; -1 if none is modelled, or its counters are not known."""
    blocks_recomputed: int
    attention_checked: int
    attention_error_max: float
    selected: int
    """Blocks that tokens selected, those of the HBM pool among them."""
    tokens_per_s: float
    """Of all sessions, while they decoded."""
    stall_ms_mean: float
    stall_ms_p50: float
    stall_ms_p99: float
    token_ms_mean: float
    """The mean time of a token, its pace and its stall included."""
    token_ms_max: float
    """The longest time of a token, including all delays from a dead member."""
    tokens: int
    notes: list[Note] = []
    passed_over: int
    """How often a session was passed over for a later one that shares more with those that ran."""
    wall_s: float


def member_result(one: Joined, ledger: Ledger | None) -> MemberResult:
    """The figures of one member; `ledger`: its counts in the run, None if it is gone."""
    bytes_read = prefetched = shared = -1
    differ = 0
    state = f"lost: {one.lost}" if one.lost else "served"
    if one.suspected and not one.lost:
        state = f"suspected {one.suspected} times"
    if ledger is not None:
        bytes_read = ledger.bytes_read
        prefetched, shared = ledger.prefetched_blocks, ledger.shared_chunks
        if not one.suspected:
            differ = ends_differ(ledger.ends, one.ends, one.failed)
    answered = Demands.of(one.ends - one.moved_ends)
    return MemberResult(
        weight=one.member.weight,
        state=state,
        demands=answered.total,
        bytes_read=bytes_read,
        hit_rate=answered.hit_rate,
        fetch_ms_max=one.fetch_ns / 1e6,
        prefetched_blocks=prefetched,
        shared_chunks=shared,
        moved_blocks=int(one.moved_ends.sum()),
        ends_differ=differ,
    )


def pod_result(
    sessions: PodSessions,
    results: Mapping[str, MemberResult],
    record: AgentRecord,
    done: Counts,
    ledgers: Sequence[Ledger],
) -> PodResult:
    """The figures of all members; `ledgers`: those of the reachable ones."""
    found = sessions.map
    assert found is not None
    ended, total = record.ended(), Ledger.total(ledgers)
    loads = {
        one.member.name: results[one.member.name].demands
        for one in sessions.members
        if one.member.state == "up"
    }
    stall_ms, token_ms = record.stall_ms(), record.token_ms()
    return PodResult(
        epoch=found.epoch,
        shard_tokens=found.shard_tokens,
        members=dict(results),
        demands=ended.total,
        hit_rate=ended.hit_rate,
        late_rate=ended.late_rate,
        miss_rate=ended.miss_rate,
        lost_rate=share(ended.unanswered, ended.total),
        load_cv=load_cv(found, loads),
        shards_rehomed=done.rehomed,
        stale_lookups=done.stale_lookups,
        shards_filled=done.filled_shards,
        bytes_filled=done.filled_bytes,
        filled_share=done.asked_moved_share,
        least_share=done.least_share,
        copies_made=done.copied_shards,
        copies_dropped=done.dropped_copies,
        copies_held=done.copies_held,
        bytes_copied=done.copied_bytes,
        prefetch_accuracy=total.at_end().accuracy,
        prefetched_blocks=total.prefetched_blocks,
        shared_chunks=total.shared_chunks,
        bytes_read=total.bytes_read,
        blocks_verified=record.blocks_verified,
        blocks_corrupt=record.blocks_corrupt,
        blocks_recomputed=record.blocks_recomputed,
        ends_differ=sum(one.ends_differ for one in results.values()),
        pace_overruns=-1.0,
        attention_checked=record.attention_checked,
        attention_error_max=record.attention_error_max,
        selected=sum(one.selected for one in record.tokens),
        tokens_per_s=len(record.tokens) / record.wall_s if record.wall_s else 0.0,
        stall_ms_mean=float(stall_ms.mean()),
        stall_ms_p50=quantile(stall_ms, 0.5),
        stall_ms_p99=quantile(stall_ms, 0.99),
        token_ms_mean=float(token_ms.mean()),
        token_ms_max=float(token_ms.max()),
        tokens=len(record.tokens),
        passed_over=record.passed_over,
        wall_s=record.wall_s,
    )
