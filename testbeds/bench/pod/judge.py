"""The judgement of a run over a live pod: figures of each phase, aims, and invariants.

Pure functions of samples, faults and the map's record; nothing here talks to a daemon.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from offstage.bindings.ledger import share
from offstage.testbeds.bench.pod.faults import Done, Look
from offstage.testbeds.bench.pod.host import Board, Miss, Sample, Seen
from offstage.testbeds.bench.pod.reasons import Reasons
from offstage.testbeds.bench.pod.result import (
    FaultFigures,
    Figures,
    PodResult,
    Series,
    TraceResult,
)
from offstage.testbeds.bench.rows import Row, aimed

__all__ = ["held", "judged", "of_run", "served_past_a_fence", "unexplained"]

BACK_S, BACK_SHARE = 10.0, 0.95
WINDOW_S = 1.0
DEADLINE_SLACK = 1.1
"""A loop checks a deadline once per turn."""
SIGMAS = 3.0
MEMBERS, SHARD_CHUNKS = 4, 8
UNEXPLAINED_MAX = 20
"""The number of unexplained misses that are listed."""


def judged(
    board: Board, done: Sequence[Done], looks: Sequence[Look], deadline_s: float
) -> PodResult:
    """All phases. The first phase is the reference of the others."""
    by_phase: dict[str, list[Sample]] = {}
    for sample in board.samples:
        by_phase.setdefault(sample.phase, []).append(sample)
    phases = {name: samples for name, samples in by_phase.items() if "fill" not in name}
    reference = _by_number(phases.pop("none", []))
    alone = _all(list(reference.values()))
    alone.blocks_copied = board.phases.get("none", (0, 0))[1]
    found: dict[str, Figures | FaultFigures] = {"no fault": alone}
    rows: list[Row] = []
    for name, samples in phases.items():
        struck = next((one for one in done if f"{one.fault} {one.member}" == name), None)
        if struck is None:  # the run broke earlier
            continue
        found[name] = cost = _phase(samples, reference, struck, board.seen, looks, board)
        rows += _aims(name, cost, deadline_s)
    return PodResult(
        deadline_s=deadline_s,
        phases=found,
        rows=rows,
        verdicts=held(board, done, looks, deadline_s),
        broken=list(board.broken),
        seen=list(board.seen),
        done=list(done),
    )


def of_run(
    board: Board, done: Sequence[Done], looks: Sequence[Look], deadline_s: float
) -> TraceResult:
    """The judgement of a run with one fault after another."""
    samples = board.samples
    late = sorted(one.begin_s - one.due_s for one in samples) or [0.0]
    left = unexplained(samples, Reasons(done, board.seen, looks, deadline_s))
    return TraceResult(
        figures=_all(samples),
        deadline_s=deadline_s,
        wrong=sum(one.wrong for one in samples),
        refused=sum(one.refused for one in samples),
        put=sum(one.put for one in samples),
        put_again=sum(len(one.again) for one in samples),
        late_s_p50=late[len(late) // 2],
        late_s_p99=late[int(len(late) * 0.99)],
        waited_s_max=max(board.waited_s.values(), default=0.0),
        faults=dict(Counter(one.fault for one in done if not one.healed)),
        unexplained=[(number, *miss) for number, miss in left[:UNEXPLAINED_MAX]],
        verdicts=held(board, done, looks, deadline_s),
        broken=list(board.broken),
        seen=list(board.seen),
        done=list(done),
    )


def held(
    board: Board, done: Sequence[Done], looks: Sequence[Look], deadline_s: float
) -> dict[str, bool | None]:
    """The invariants whatever the faults; None: no data to judge by."""
    samples = board.samples
    reasons = Reasons(done, board.seen, looks, deadline_s)
    ended = all(one.end_s > 0 for one in samples)
    judged = {
        "every_block_right": any(one.hits or one.wrong for one in samples),
        "every_request_ended": bool(samples or board.broken),
        "every_miss_has_a_reason": any(one.known for one in samples),
        "nothing_served_past_a_fence": bool(_ended_incarnations(looks)),
    }
    good = {
        "every_block_right": not any(one.wrong for one in samples),
        "every_request_ended": not board.broken and ended,
        "every_miss_has_a_reason": not unexplained(samples, reasons),
        "nothing_served_past_a_fence": not served_past_a_fence(samples, looks),
    }
    return {name: met if judged[name] else None for name, met in good.items()}


def unexplained(samples: Iterable[Sample], reasons: Reasons) -> list[tuple[int, Miss]]:
    """Misses without a reason, and of which request."""
    return [
        (one.number, miss) for one in samples for miss in one.misses if not reasons.has(one, miss)
    ]


def served_past_a_fence(samples: Iterable[Sample], looks: Sequence[Look]) -> list[int]:
    """Requests that began after the map had dropped the incarnation that served them."""
    ended = _ended_incarnations(looks)
    return [
        one.number
        for one in samples
        if any(ended.get(who, one.begin_s + 1) < one.begin_s for who in one.by_member)
    ]


def _ended_incarnations(looks: Sequence[Look]) -> dict[str, float]:
    """When the map dropped each incarnation; empty without leases."""
    ended: dict[str, float] = {}
    for before, after in pairwise(looks):
        for name, (state, incarnation) in before.members.items():
            now = after.members.get(name, ("gone", incarnation))
            if incarnation and state != "gone" and (now[0] == "gone" or now[1] != incarnation):
                ended.setdefault(f"{name}/{incarnation}", after.at_s)
    return ended


def _by_number(samples: Iterable[Sample]) -> dict[int, Sample]:
    return {one.number: one for one in samples}


def _all(some: Sequence[Sample]) -> Figures:
    """The figures of one phase, with or without a fault."""
    took = sorted(one.end_s - one.begin_s for one in some)
    known, hits = sum(one.known for one in some), sum(one.hits for one in some)
    return Figures(
        requests=len(some),
        asked=sum(one.asked for one in some),
        known=known,
        hits=hits,
        hit_rate=hits / known if known else None,
        request_s_p50=took[len(took) // 2] if took else 0.0,
        request_s_p99=took[int(len(took) * 0.99)] if took else 0.0,
        request_s_max=took[-1] if took else 0.0,
        without_tier=sum(bool(one.error) for one in some),
        late_s_max=max((one.begin_s - one.due_s for one in some), default=0.0),
        misses=_named(some),
        series=_series(some),
    )


def _named(samples: Iterable[Sample]) -> dict[str, int]:
    """Misses by their reason, in words."""
    total: Counter[str] = Counter()
    for one in samples:
        for (was, now, error, _), count in one.misses.items():
            moved = f"at {was}, asked of {now}" if was != now else f"not there any more at {was}"
            total[f"{error} of {was}" if error else moved] += count
    return dict(total)


def _phase(
    samples: Sequence[Sample],
    reference: Mapping[int, Sample],
    struck: Done,
    seen: Sequence[Seen],
    looks: Sequence[Look],
    board: Board,
) -> FaultFigures:
    end_s = max(one.end_s for one in samples)
    after = [one for one in samples if one.begin_s >= struck.at_s]
    noted = [
        one for one in seen if struck.at_s <= one.at_s <= end_s and one.member == struck.member
    ]
    joins = struck.fault == "join"
    first: dict[str, float] = {}
    for one in noted:
        if joins is (one.what == "back"):
            first.setdefault(one.host, one.at_s - struck.at_s)
    told = list(first.values())
    lost = sum(
        max(0, reference[one.number].hits - one.hits) for one in samples if one.number in reference
    )
    marked = share(sum(one.marked for one in after), sum(one.known for one in after))
    answer = min(
        (one.end_s for one in after if one.marked and not one.error and not one.refused),
        default=None,
    )
    served = [
        one
        for one in after
        if one.marked_hits
        or (joins and any(who.startswith(f"{struck.member}/") for who in one.by_member))
    ]
    hit = min((one.end_s for one in served), default=None)
    moved = [chunk for one in after for chunk in one.again]
    others = [
        one
        for one in seen
        if struck.at_s <= one.at_s <= end_s and one.member != struck.member and one.what != "back"
    ]
    filled, copied = board.phases.get(samples[0].phase, (0, 0))
    return FaultFigures(
        **msgspec.structs.asdict(_all(samples)) | {"blocks_copied": copied},
        fault=struck.fault,
        member=struck.member,
        struck_s=struck.at_s,
        ended_s=end_s - struck.at_s,
        detected_first_s=min(told, default=None),
        detected_last_s=max(told, default=None),
        in_map_s=_in_map(struck, looks, end_s),
        answer_s=None if answer is None else answer - struck.at_s,
        hit_s=None if hit is None else hit - struck.at_s,
        hits_lost=lost,
        hits_lost_share=lost
        / max(1, sum(reference[one.number].hits for one in samples if one.number in reference)),
        share_of_member=marked,
        back_s=_back(after, reference, marked, struck.at_s),
        blocks_put_again=len(moved),
        blocks_put_again_least=len(set(moved)),
        blocks_filled=filled,
        blocks_asked=len({chunk for one in after for chunk in one.chunks}),
        waited_s=_waited(board, struck.member),
        others_suspected=len(others),
    )


def _in_map(struck: Done, looks: Sequence[Look], end_s: float) -> float | None:
    """When the map's state of the member changed; None: it did not."""
    before = next((one for one in reversed(looks) if one.at_s <= struck.at_s), None)
    state = before.members.get(struck.member) if before is not None else None
    return next(
        (
            one.at_s - struck.at_s
            for one in looks
            if struck.at_s < one.at_s <= end_s and one.members.get(struck.member) != state
        ),
        None,
    )


def _back(
    after: Sequence[Sample], reference: Mapping[int, Sample], share: float, struck_s: float
) -> float | None:
    """The second from which each second's hits are 95 % of the reference's for the same
    requests, less the member's share; None: not in this phase. Requests are counted by the
    second in which they ended."""
    last, windows = 0.0, _windows(after, struck_s)
    for number, some in sorted(windows.items()):
        due = sum(reference[one.number].hits for one in some if one.number in reference)
        if sum(one.hits for one in some) < BACK_SHARE * (1 - share) * due:
            last = (number + 1) * WINDOW_S
    return last if windows and last <= max(windows) * WINDOW_S else None


def _windows(samples: Iterable[Sample], begin_s: float) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for one in samples:
        found.setdefault(int((one.end_s - begin_s) // WINDOW_S), []).append(one)
    return found


def _series(samples: Sequence[Sample]) -> Series:
    """Known blocks requested and hits, by second since the bench began."""
    return [
        (number * WINDOW_S, sum(one.known for one in some), sum(one.hits for one in some))
        for number, some in sorted(_windows(samples, 0.0).items())
    ]


def _waited(board: Board, member: str) -> float:
    """The most that one connection to it cost one host."""
    return max(
        (cost for (_, name, _), cost in board.waited_s.items() if name == member), default=0.0
    )


def _aims(name: str, found: FaultFigures, deadline_s: float) -> list[Row]:
    """The limits of a fault's cost, a row each."""

    def row(what: str, value: float | None, bound: float, unit: str) -> Row:
        return Row(f"{name}: {what}", unit, value, None, None, aimed(value, "<=", bound, unit))

    rows = [
        row("a connection waited", found.waited_s, DEADLINE_SLACK * deadline_s, "seconds"),
        row("hits back", found.back_s, BACK_S, "seconds"),
    ]
    if found.fault == "join":
        rows.append(row("first hit from what joined", found.hit_s, found.ended_s, "seconds"))
        share = 1 / (MEMBERS + 1)
        shards = max(1, found.blocks_asked // SHARD_CHUNKS)
        most = share + SIGMAS * (share * (1 - share) / shards) ** 0.5
        moved = (found.blocks_filled + found.blocks_put_again) / max(1, found.blocks_asked)
        rows.append(row("moved, of what is asked", moved, most, "%"))
    if found.fault in ("etcd", "quorum"):
        rows.append(row("hits lost", found.hits_lost, 0, "count"))
    return rows
