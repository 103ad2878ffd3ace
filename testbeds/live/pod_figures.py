"""What one run over a pod found, as data, and how it is computed: of each member and of all.

What each member served is its own ledger's difference, held against what this host counted of it; a
member that went away has no ledger any more.
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


def member_result(one: Joined, ledger: Ledger | None) -> MemberResult:
    """Of one member; `ledger`: what it counted in the run, None where it cannot be asked."""
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
    """Of all members; `ledgers`: of those that could be asked."""
    found = sessions.map
    assert found is not None
    ended, total = record.ended(), Ledger.total(ledgers)
    loads = {
        one.member.name: results[one.member.name].demands
        for one in sessions.members
        if one.member.state == "up"
    }
    stall_ms = record.stall_ms()
    return PodResult(
        epoch=found.epoch,
        segment_tokens=found.segment_tokens,
        members=dict(results),
        demands=ended.total,
        hit_rate=ended.hit_rate,
        late_rate=ended.late_rate,
        miss_rate=ended.miss_rate,
        lost_rate=share(ended.unanswered, ended.total),
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
        prefetch_accuracy=total.accuracy,
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
        stall_ms_p50=quantile(stall_ms, 0.5),
        stall_ms_p99=quantile(stall_ms, 0.99),
        token_ms_max=float(record.token_ms().max()),
        tokens=len(record.tokens),
        passed_over=record.passed_over,
        wall_s=record.wall_s,
    )
