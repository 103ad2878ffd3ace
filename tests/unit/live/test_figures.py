"""Do the figures of a run follow from its counts, and are inconsistent counts refused?"""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import RunFailed
from offstage.bindings.firmware import ffi
from offstage.bindings.layouts import CAUSES, ENDS, FATES
from offstage.bindings.ledger import Demands, Ledger
from offstage.bindings.notes import Note, note_lines
from offstage.host.decode.record import AgentRecord, Token
from offstage.testbeds.live.checks import found, refuse
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.live.run_figures import RunLabel, against_lru, against_reference, run_result
from offstage.testbeds.live.workload import describe, prepare
from offstage.testbeds.machine import run_machine

LABEL = RunLabel("window", "io_uring", "measured", ("window",))
COUNTERS = {
    "busy_ns": 1,
    "idle_ns": 2,
    "sleep_ns": 1,
    "reads": 90,
    "writes": 10,
    "emulation_late": 0,
    "emulation_late_ns_sum": 0,
}
BLOCK = 4096
#        window pattern lookahead shared retained late cold capacity policy
ENDED = (30, 10, 0, 5, 15, 8, 20, 7, 5)


def ledger_of(ends: tuple[int, ...] = ENDED, **changed: Any) -> Ledger:
    """A ledger that is consistent with `ends`."""
    fates = [[0] * len(FATES) for _ in CAUSES]
    fates[CAUSES.index("window")] = [30, 3, 40, 100, 7]
    fates[CAUSES.index("demand")] = [15, 0, 9, 0, 0]
    made: dict[str, Any] = {
        "steps": 8,
        "selected": 2 * sum(ends),
        "demands": sum(ends),
        "nontrivial": sum(ends),
        "ends": list(ends),
        "nontrivial_ends": list(ends),
        "fates": fates,
        "issued": [0] * 8,
        "demand_bytes_read": 32 * BLOCK,
        "prefetch_bytes_read": 80 * BLOCK,
        "shadow_misses": 56,
        "pollution": 2,
        "evictions": 9,
        "shared_chunks": 4,
        "lead_ns_log2": [0] * 64,
        "late_ns_log2": [0] * 64,
        "degree_now": 4,
        "resident_slots": 3,
    }
    return Ledger.of({**made, **changed})


def record_of(ends: tuple[int, ...] = ENDED) -> AgentRecord:
    """A host's record of the same demands, spread over two tokens of one session."""
    whole = np.array(ends, np.int64)
    first = whole // 3
    tokens = [
        Token(0, 0, stall_ns=2_000_000, begun_ns=0, ended_ns=5_000_000, ends=first),
        Token(0, 1, stall_ns=4_000_000, begun_ns=0, ended_ns=7_000_000, ends=whole - first),
    ]
    return AgentRecord(tokens=tokens, blocks_verified=sum(ends))


def result_of(ledger: Ledger, record: AgentRecord) -> RunResult:
    return run_result(LABEL, ledger, COUNTERS, record, -1, [])


def test_rates_of_a_made_ledger() -> None:
    """By hand: 100 demands are 60 hits, 8 late and 32 misses; 30 of 80 prefetches were used."""
    run = result_of(ledger_of(), record_of())
    assert (run.hit, run.late, run.miss) == (0.60, 0.08, 0.32)
    assert run.hit_without_cold == 60 / 80 and run.hbm_share == 0.5
    assert run.selection_hit == (run.demands + 60) / (2 * run.demands)
    assert run.accuracy == 30 / 80, "dropped candidates were never prefetched, demands neither"
    assert run.bytes_read == 112 * BLOCK and run.busy_share == 0.25
    assert (run.stall_ms_p50, run.token_ms_p50, run.token_ms_mean) == (3.0, 6.0, 6.0)
    assert run.demands_by_step == [30, 70] and set(run.fates) == {"window"}


@pytest.mark.parametrize(("issued", "unused"), [(120, 80), (80, 40), (70, 40)])
def test_what_is_staged_at_the_end_of_a_run_was_no_use(issued: int, unused: int) -> None:
    """Does every block that was read ahead have a fate? The daemon keeps it staged after the run;
    of blocks staged before the run there may be more fates than reads."""
    reads = [0] * len(CAUSES)
    reads[CAUSES.index("window")] = issued
    run = result_of(ledger_of(issued=reads), record_of())
    assert run.fates["window"]["unused"] == unused
    assert run.accuracy == 30 / max(issued, 80)


@given(st.lists(st.integers(0, 50), min_size=len(ENDS), max_size=len(ENDS)))
def test_identities_hold_for_any_counts(counts: list[int]) -> None:
    """Each demand has one end, so the rates add up to 1; without demands there is no rate."""
    ends = tuple(counts)
    run = result_of(ledger_of(ends), record_of(ends))
    total = run.hit + run.late + run.miss
    assert total == pytest.approx(1.0 if sum(ends) else 0.0)
    assert sum(run.demands_by_step) == run.demands == sum(run.ends.values())
    assert all(rate == -1.0 or 0.0 <= rate <= 1.0 for rate in run.hit_rate_by_step)


@pytest.mark.parametrize("end", [at for at in range(len(ENDS)) if ENDED[at]])
def test_host_and_device_that_disagree_fail_the_run(end: int) -> None:
    """One demand that ended differently for the host fails the run, though totals are equal."""
    ended = list(ENDED)
    ended[end] -= 1
    ended[(end + 1) % len(ENDS)] += 1
    failures = found(result_of(ledger_of(), record_of(tuple(ended))))
    (failure,) = failures
    assert failure.startswith("host and DPU disagree on how demands ended, at least 1 of them")
    with pytest.raises(RunFailed, match="do not use the figures"):
        refuse(failures, "run")
    assert found(result_of(ledger_of(), record_of())) == []


@pytest.mark.parametrize(("untold", "differ"), [(7, 0), (6, 1), (8, 1)])
def test_what_came_as_an_error_ended_at_the_device_alone(untold: int, differ: int) -> None:
    """The host got errors instead of the ends of seven demands: the counts agree for exactly seven,
    and disagree for one more or less."""
    ended = list(ENDED)
    ended[6] -= 4
    ended[7] -= 3
    record = record_of(tuple(ended))
    record.untold = untold
    assert result_of(ledger_of(), record).ends_differ == differ


def test_a_ledger_has_the_fields_of_the_firmware() -> None:
    """Every field, in the same order, with the same number of counts."""
    fields = ffi.typeof("struct ofs_ledger").fields
    assert list(Ledger.__struct_fields__) == [name for name, _ in fields]
    for name, field in fields:
        counts = np.array(getattr(Ledger(), name))
        assert counts.size * 8 == ffi.sizeof(field.type), name


def test_demands_by_hand() -> None:
    """One kind of end is late, the ones before it are hits; an unanswered demand has no end."""
    demands = Demands.of(ENDED, unanswered=100)
    assert (demands.hits, demands.late, demands.misses, demands.total) == (60, 8, 32, 200)
    assert (demands.hit_rate, demands.late_rate, demands.miss_rate) == (0.3, 0.04, 0.16)
    assert demands.warm_hit_rate == 60 / 180 and Demands.of([0] * len(ENDS)).hit_rate == 0.0


def test_ledgers_add_up_and_none_are_zero() -> None:
    twice = Ledger.total([ledger_of(), ledger_of()])
    assert twice.ends == [2 * count for count in ENDED] and twice.accuracy == 30 / 80
    assert Ledger.total([]) == Ledger()


def test_an_unknown_busy_share_is_not_a_share() -> None:
    assert run_result(LABEL, ledger_of(), None, record_of(), -1, []).busy_share == -1.0


def test_coverage_and_traffic_against_a_run_and_against_the_lru_beside_it() -> None:
    """Of a demand-only LRU's 56 misses, 16 are removed, at twice its bytes."""
    run = result_of(ledger_of(), record_of())
    beside = against_lru(run, ledger_of(), BLOCK)
    assert beside.coverage == pytest.approx(1 - 40 / 56) and beside.traffic_ratio == 2.0
    plain = (0, 0, 0, 0, 44, 0, 20, 36, 0)
    lru = result_of(
        ledger_of(plain, demand_bytes_read=56 * BLOCK, prefetch_bytes_read=0), record_of(plain)
    )
    against = against_reference(run, lru)
    assert (against.coverage, against.traffic_ratio) == (beside.coverage, beside.traffic_ratio)
    assert against_reference(lru, lru).coverage == 0.0


def test_a_run_counts_for_itself() -> None:
    """The ledger has earlier counts: the figures cover only the run's own."""
    before = ledger_of((7,) * len(ENDS), resident_slots=500)
    after = ledger_of(tuple(a + 7 for a in ENDED), selected=before.selected + 200)
    since = after.since(before)
    assert since.ends == list(ENDED) and since.selected == 200
    assert since.fates == Ledger().fates
    assert since.resident_slots == 3, "a gauge is not a count"
    assert result_of(since, record_of()).hit == 0.60


def test_a_ledger_that_was_reset_in_between_fails_the_run() -> None:
    with pytest.raises(RunFailed, match="reset"):
        ledger_of(tuple(n // 2 for n in ENDED)).since(ledger_of())


@pytest.mark.parametrize(("late", "notes"), [(4, 0), (5, 1)])
def test_an_emulation_that_lags_is_told(late: int, notes: int) -> None:
    """From 5 % on, the report says that the emulated drive was slower than its model."""
    counters = {**COUNTERS, "emulation_late": late, "emulation_late_ns_sum": 10**6}
    label = RunLabel("window", "gen5-tlc", "emulated", ("window",))
    result = run_result(label, ledger_of(), counters, record_of(), -1, [])
    assert len(result.notes) == notes
    measured = run_result(LABEL, ledger_of(), counters, record_of(), -1, [])
    assert measured.notes == []


def test_a_note_of_several_runs_is_told_once_with_the_figures_of_each() -> None:
    """A note without figures that holds for all runs is printed without any."""
    runs = [
        msgspec.structs.replace(
            result_of(ledger_of(), record_of()),
            name=name,
            notes=[Note("late", "many are late", figures=f"{late} %"), Note("warm", "it is warm")],
        )
        for name, late in (("none", 48), ("window", 64))
    ]
    small = DriveOptions(sessions=1, context_tokens=4096, steps=1)
    summary = Summary(
        runs=runs,
        workload=describe(small, prepare(small)),
        machine=run_machine({}, 0.0),
        seed=1,
        sentence="",
        curve=[],
        definitions={},
        command="",
        version="",
    )
    where = f"on {runs[0].storage}"
    assert note_lines(summary.noted()) == [
        f"note: many are late (no prefetch {where}: 48 %; window {where}: 64 %)",
        "note: it is warm",
    ]
