"""Do a point's figures follow their definitions, and do intervals have their stated coverage?"""

import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.layouts import CAUSES, ENDS, FATES
from offstage.bindings.ledger import Ledger
from offstage.testbeds.lab.results.bootstrap import Bootstrap
from offstage.testbeds.lab.results.ledger import ROW, totals
from offstage.testbeds.lab.results.measure import measure
from offstage.testbeds.lab.results.summary import Interval, SeedBounds, SeedRun

UNIT = Path(__file__).resolve().parents[1]
LAB = SimpleNamespace(**runpy.run_path(str(UNIT / "report/lab_synthetic.py")))
BOUND_ROW = np.dtype(
    [
        *(("session", "<u4"), ("demands", "<u2"), ("nontrivial", "<u2")),
        *(("hits", "<u2", (2,)), ("nontrivial_hits", "<u2", (2,))),
    ]
)


def row(session: int, step: int, layer: int, ends: dict[str, int], **fields: int) -> Any:
    """Return one row whose demands are the sum of its ends; all are non-trivial but `trivial`
    retained ones."""
    made = np.zeros(1, ROW)[0]
    made["session"], made["step"], made["layer"] = session, step, layer
    for end, count in ends.items():
        made["ends"][ENDS.index(end)] = count
    made["nontrivial_ends"] = made["ends"]
    made["nontrivial_ends"][ENDS.index("retained")] -= fields.pop("trivial", 0)
    made["demands"], made["nontrivial"] = made["ends"].sum(), made["nontrivial_ends"].sum()
    made["selected"] = made["demands"] + fields.get("pool_hits", 0)
    made["nontrivial_selected"] = made["nontrivial"] + fields.get("nontrivial_pool_hits", 0)
    for name, value in fields.items():
        made[name] = value
    return made


def run(seed: int, rows: Sequence[Any], **changes: Any) -> SeedRun:
    table = np.array(rows, ROW)
    counters = Ledger(
        demand_bytes_read=int(table["demand_reads"].sum()) * 100,
        prefetch_bytes_read=int(table["prefetch_reads"].sum()) * 100,
        hint_bytes=1300,
        **changes.pop("counters", {}),
    )
    return SeedRun(seed, table, counters, 9, int(table["demand_reads"].sum()), 0, **changes)


@pytest.fixture(scope="module")
def by_hand() -> tuple[SeedRun, SeedRun, SeedBounds]:
    """A policy, no prefetch, and bounds, over two requests of ten demands each."""
    fates = [[0] * len(FATES) for _ in CAUSES]
    fates[CAUSES.index("pattern")] = [3, 1, 2, 7, 0]
    fates[CAUSES.index("demand")] = [9, 9, 9, 9, 9]
    own = run(
        0,
        [
            row(
                0,
                0,
                0,
                {"pattern": 2, "retained": 4, "late": 1, "cold": 1},
                trivial=2,
                pool_hits=4,
                nontrivial_pool_hits=1,
                prefetch_reads=3,
                demand_reads=1,
                stall_ns=2_000_000,
                pollution=1,
            ),
            row(0, 70, 1, {"retained": 2}, stall_ns=0),
            row(
                1,
                63,
                1,
                {"pattern": 1, "retained": 4, "policy": 1},
                demand_reads=1,
                stall_ns=1_000_000,
            ),
            row(1, 64, 0, {"retained": 3, "capacity": 1}, demand_reads=1, stall_ns=4_000_000),
            row(1, 64, 1, {}, stall_ns=3_000_000),
        ],
        turns={1: (64,)},
        counters={"fates": fates},
    )
    none = run(
        0,
        [
            row(0, 0, 0, {"retained": 5, "capacity": 3}, trivial=2, demand_reads=3),
            row(0, 70, 1, {"retained": 2}),
            row(1, 63, 1, {"retained": 4, "policy": 2}, demand_reads=2),
            row(1, 64, 0, {"retained": 1, "capacity": 3}, demand_reads=3),
        ],
    )
    rows = np.array([(0, 10, 8, (9, 10), (7, 8)), (1, 10, 10, (8, 10), (8, 10))], BOUND_ROW)
    return own, none, SeedBounds(0, ("belady", "clairvoyant"), rows, {"belady": 4}, 20)


def value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def test_figures_of_a_ledger_made_by_hand(by_hand: tuple[SeedRun, SeedRun, SeedBounds]) -> None:
    own, none, bounds = by_hand
    info = LAB.info(block_bytes=100)
    found = measure(info, [own], [bounds], none=[none], reference=[own])
    shares = {
        "hit": 16 / 20,
        "nontrivial_hit": 14 / 18,
        "hit_without_cold": 16 / 19,
        "nontrivial_hit_without_cold": 14 / 17,
        "selection_hit": 20 / 24,
        "nontrivial_selection_hit": 15 / 19,
        "hbm_share": 4 / 24,
        "late": 1 / 20,
        "cold": 1 / 20,
        "capacity": 1 / 20,
        "policy": 1 / 20,
        "pollution": 1 / 20,
        "coverage": 1 - 4 / 8,
        "accuracy": 3 / 6,
        "traffic_ratio": 6 / 8,
        "traffic_vs_reference": 1.0,
        "gap_closed": (16 - 12) / (20 - 12),
        "nontrivial_gap_closed": (14 - 10) / (18 - 10),
        "stall_ms_p50": 1.0,
        "stall_ms_p99": 7.0,
        "hint_bytes_per_token": 1300 / 4,
        "kv_bytes_per_token": 20 * 100 / 4,
    }
    got = {name: value(getattr(found, name)) for name in shares}
    assert got == pytest.approx(shares)
    assert (found.requests, found.weak, found.demands, found.nontrivial) == (2, True, 20, 18)
    assert found.worst_layer is not None and found.worst_layer.layer == 0
    assert value(found.worst_layer.nontrivial_hit) == 7 / 10
    assert found.worst_requests is not None and found.worst_requests.demands == 10
    assert value(found.worst_requests.nontrivial_hit) == 6 / 8
    assert found.first_steps.demands == 14 and value(found.first_steps.hit) == 11 / 14
    assert found.turn_steps.demands == 4 and value(found.turn_steps.hit) == 3 / 4
    assert found.hit_by_layer == [9 / 12, 7 / 8]
    assert found.fates == {"pattern": dict(zip(FATES, (3, 1, 2, 7, 0), strict=True))}
    belady, clairvoyant, limit = found.bounds
    assert limit.name == "cap_limit" and limit.hit == Interval(value=1.0)
    assert value(belady.hit) == 17 / 20 and value(belady.nontrivial_hit) == 15 / 18
    assert belady.traffic_ratio == 4 / 8 and clairvoyant.traffic_ratio is None


def test_one_request_has_no_interval_and_nothing_has_no_value() -> None:
    """Undefined figures are absent: no interval from one request, no rate without demands."""
    alone = run(0, [row(0, 0, 0, {"retained": 1, "cold": 1}, trivial=1, demand_reads=1)])
    found = measure(LAB.info(), [alone], [], none=[alone])
    assert found.hit == Interval(value=0.5) and found.accuracy is None
    assert found.gap_closed is None and found.turn_steps.hit is None and found.coverage is not None
    quiet = run(0, [row(0, 0, 0, {}), row(1, 0, 0, {})])
    found = measure(LAB.info(), [quiet], [], none=[quiet])
    assert found.hit is None and found.traffic_ratio is None and found.worst_layer is None


def test_a_gap_that_is_none_is_not_divided_by(
    by_hand: tuple[SeedRun, SeedRun, SeedBounds],
) -> None:
    own, none, bounds = by_hand
    rows = bounds.rows.copy()
    rows["hits"], rows["nontrivial_hits"] = [[7, 7], [5, 5]], [[5, 5], [5, 5]]
    found = measure(LAB.info(), [own], [replace(bounds, rows=rows)], none=[none])
    assert found.gap_closed is None and found.nontrivial_gap_closed is None


def test_requests_of_another_run_are_refused(by_hand: tuple[SeedRun, SeedRun, SeedBounds]) -> None:
    """Pairing needs the same requests on every side."""
    own, none, _ = by_hand
    with pytest.raises(AssertionError, match="other requests"):
        measure(LAB.info(), [own], [], none=[replace(none, seed=1)])


ENDS_OF = st.lists(st.integers(0, 3), min_size=len(ENDS), max_size=len(ENDS))
CELLS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(0, 2)),
    st.tuples(ENDS_OF, st.integers(0, 5), st.integers(0, 3), st.integers(0, 4 * 10**9)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(CELLS, st.dictionaries(st.integers(0, 3), st.lists(st.integers(1, 80), max_size=3)))
def test_sums_equal_those_of_a_slow_loop(
    cells: dict[tuple[int, int, int], Any], turns: dict[int, list[int]]
) -> None:
    """Every sum per request equals that of a loop over rows without numpy."""
    made = []
    for (session, step, layer), (ends, pool, reads, stall) in cells.items():
        made.append(
            row(
                session,
                step,
                layer,
                dict(zip(ENDS, ends, strict=True)),
                pool_hits=pool,
                trivial=min(1, ends[4]),
                demand_reads=reads,
                prefetch_reads=1,
                stall_ns=stall,
            )
        )
    begins = {session: tuple(steps) for session, steps in turns.items()}
    found = totals(run(3, made, turns=begins))
    sessions = sorted({session for session, _, _ in cells})
    assert found.requests == tuple((3, session) for session in sessions)
    for index, session in enumerate(sessions):
        own = [one for one in made if one["session"] == session]
        hits = [int(sum(one["ends"][:5])) for one in own]
        first = [hit for hit, one in zip(hits, own, strict=True) if one["step"] < 64]
        turn = [
            int(one["nontrivial"])
            for one in own
            if any(0 <= int(one["step"]) - begin < 16 for begin in begins.get(session, ()))
        ]
        wait: dict[int, int] = {}
        for one in own:
            wait[int(one["step"])] = wait.get(int(one["step"]), 0) + int(one["stall_ns"])
        got = {name: int(column[index]) for name, column in found.columns.items()}
        assert got["hits"] == sum(hits) and got["first_hits"] == sum(first)
        assert got["turn_nontrivial"] == sum(turn)
        assert got["selected"] == sum(int(one["selected"]) for one in own)
        assert got["end_late"] == sum(int(one["ends"][5]) for one in own)
        assert got["prefetch_bytes"] == 100 * len(own)
        assert sorted(found.stall_ns[found.stall_request == index]) == sorted(wait.values())
        for layer in range(found.layers["hits"].shape[1]):
            assert found.layers["hits"][index, layer] == sum(
                hit for hit, one in zip(hits, own, strict=True) if one["layer"] == layer
            )


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """95 % intervals of a ratio over 40 requests of unequal size contain it in about 95 of 100
    trials; the percentile bootstrap is known to fall a little short at such sizes."""
    draw = np.random.default_rng(5)
    truth, held, trials = 0.8, 0, 400
    for _ in range(trials):
        demands = draw.integers(50, 500, 40)
        rates = draw.beta(0.8 * 12, 0.2 * 12, 40)
        found = Bootstrap(40, 1000, 0).ratio(draw.binomial(demands, rates), demands)
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    assert 0.91 <= held / trials <= 0.98


def test_points_are_paired() -> None:
    """A policy that is slightly better than none in every request is significantly better, however
    different the requests: coverage excludes 0 where the two rates' own intervals overlap
    widely."""
    draw = np.random.default_rng(6)
    level = draw.integers(10, 60, 30)
    rows = [
        row(at, 0, 0, {"retained": 80 - n, "capacity": n, "late": 1}) for at, n in enumerate(level)
    ]
    better = [row(at, 0, 0, {"retained": 81 - n, "capacity": n}) for at, n in enumerate(level)]
    none, own = run(0, rows), run(0, better)
    found = measure(LAB.info(), [own], [], none=[none])
    base = measure(LAB.info(), [none], [], none=[none])
    assert found.coverage is not None and found.coverage.low is not None
    assert 0 < found.coverage.low and base.coverage == Interval(value=0.0, low=0.0, high=0.0)
    assert found.hit is not None and base.hit is not None
    assert found.hit.low is not None and found.hit.low < base.hit.value


def test_recurring_requests_are_counted_once() -> None:
    """A captured request run under five seeds is one request: seeds must not shrink intervals."""
    seeds = [replace(LAB.run("ema", 2.0, 1), seed=seed) for seed in range(5)]
    many = measure(LAB.info(), seeds, [], none=seeds)
    once = measure(LAB.info(), seeds, [], none=seeds, recurring=True)
    single = measure(LAB.info(), seeds[:1], [], none=seeds[:1])
    assert (many.requests, once.requests, single.requests) == (20, 4, 4)
    assert once.weak and not many.weak and once.hit == single.hit
    assert many.demands == once.demands == 5 * single.demands


def test_quantiles_of_draws_are_those_of_the_drawn_tokens() -> None:
    """For few tokens the grid is exact: it equals drawing the tokens themselves."""
    draw = np.random.default_rng(7)
    values, unit = draw.integers(0, 10_000, 300), draw.integers(0, 6, 300)
    boot = Bootstrap(6, 200, 1)
    found = boot.quantile(values, unit, 0.9)
    drawn = [
        np.quantile(np.repeat(values, weights[unit].astype(int)), 0.9, method="inverted_cdf")
        for weights in boot.weights
    ]
    low, high = np.percentile(drawn, (2.5, 97.5))
    exact = np.quantile(values, 0.9, method="inverted_cdf")
    assert found == Interval(value=float(exact), low=float(low), high=float(high))


def test_the_worst_tenth_of_a_draw_is_taken_from_the_draw() -> None:
    draw = np.random.default_rng(8)
    hits, demands = draw.integers(1, 50, 25).astype(float), np.full(25, 50.0)
    boot = Bootstrap(25, 100, 2)
    chosen, found = boot.worst(hits, demands, hits / demands, 0.1)
    assert len(chosen) == 3 and found is not None
    slow = []
    for weights in boot.weights:
        rates = np.sort(np.repeat(hits / demands, weights.astype(int)))
        slow.append(rates[:3].mean())
    low, high = np.percentile(slow, (2.5, 97.5))
    assert found.value == np.sort(hits / demands)[:3].mean()
    assert (found.low, found.high) == pytest.approx((low, high))


def test_medians_of_draws_are_those_of_the_drawn_pairs() -> None:
    """Of an even and of an odd number of pairs they equal drawing the pairs themselves; where every
    pair has one ratio, so has every draw, however much the pairs differ."""
    draw = np.random.default_rng(9)
    for units in (8, 9):
        first, second = draw.gamma(2.0, size=units), draw.gamma(2.0, size=units)
        boot = Bootstrap(units, 200, 3)
        found = boot.median_ratio(first, second)
        drawn = [
            np.median(np.repeat(first, times)) / np.median(np.repeat(second, times))
            for times in boot.weights.astype(int)
        ]
        low, high = np.percentile(drawn, (2.5, 97.5))
        assert found is not None and found.value == np.median(first) / np.median(second)
        assert found.ends == pytest.approx((low, high))
        even = boot.median_ratio(1.25 * second, second)
        assert even is not None and even.ends == pytest.approx((1.25, 1.25))
