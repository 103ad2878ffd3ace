"""Do the figures of a trace follow their definitions, computed the plain way?"""

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from offstage.bindings.prefix import Runs, distances, ideal
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import (
    BlockInfo,
    Optimum,
    TraceInfo,
    collect,
    render,
    summarise,
    to_dict,
)
from offstage.testbeds.workloads.requests.trace import Request

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
REFERENCE = TRACES / "reference_stats.json"
BLOCK_TRACES = (
    "mooncake_conversation_0-2400s.jsonl.gz",
    "lmcache_magagent_dev.jsonl.gz",
    "lmcache_miniswe_dev.jsonl.gz",
    "sharegpt_llmservingsim_300.jsonl.gz",
    pytest.param("weka_claudecode_sessions_dev.jsonl.gz", marks=pytest.mark.slow),
)

needs_traces = pytest.mark.skipif(
    not REFERENCE.exists(),
    reason=f"no {REFERENCE.name}; point OFFSTAGE_TRACES at the folder that holds it",
)


def lru_hits(ids: Sequence[int], capacity: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in ids:
        if block in cache:
            cache.move_to_end(block)
            hits += 1
        else:
            cache[block] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def requests_of(rows: Sequence[Sequence[int]]) -> list[Request]:
    """Requests with these ids, one second apart, the last block of each a third full."""
    return [
        Request(index, 1e3 * index, max(0, 512 * len(ids) - 341), 7, tuple(ids))
        for index, ids in enumerate(rows)
    ]


def blocks_of(trace: Trace) -> BlockInfo:
    blocks = summarise(trace).blocks
    assert blocks is not None
    return blocks


many_rows = st.lists(
    st.one_of(
        st.lists(st.integers(0, 12), max_size=9),
        st.lists(st.integers(2**63 - 20, 2**63 - 3), max_size=9),
    ),
    min_size=1,
    max_size=30,
)


@given(many_rows)
def test_figures_equal_a_plain_count(rows: list[list[int]]) -> None:
    """LRU, ideal block, prefix and token hit rates equal those of a loop that counts them."""
    requests = requests_of(rows)
    info = blocks_of(collect(requests, "made up"))
    ids = [block for ids in rows for block in ids]
    seen: set[int] = set()
    block_hits = prefix_hits = token_hits = 0
    for request in requests:
        unbroken = True
        for ordinal, block in enumerate(request.block_ids):
            hit = block in seen
            unbroken &= hit
            block_hits += hit
            prefix_hits += unbroken
            token_hits += hit * request.block_tokens(ordinal)
            seen.add(block)
    assert info.block_access_count == len(ids)
    assert info.unique_block_count == len(set(ids))
    if not ids:
        return
    assert info.ideal_block_hit_rate == block_hits / len(ids)
    assert info.ideal_prefix_hit_rate == prefix_hits / len(ids)
    tokens = sum(request.input_tokens for request in requests)
    assert info.ideal_token_hit_rate == token_hits / tokens
    for point in info.lru:
        assert point.hit_rate == lru_hits(ids, point.capacity_blocks) / len(ids)


@given(st.lists(st.integers(0, 20), max_size=400), st.integers(1, 25))
def test_stack_distance_decides_lru_at_every_size(ids: list[int], capacity: int) -> None:
    """An access is an LRU hit exactly if its stack distance is below the capacity.

    The trace is long enough that the marks behind the distances are compacted several times.
    """
    runs = Runs(
        np.arange(len(ids) + 1, dtype=np.uint64),
        np.array(ids, np.uint32),
        np.ones(len(ids), np.uint32),
        21,
    )
    assert int(distances(runs)[:capacity].sum()) == lru_hits(ids, capacity)


@given(many_rows)
def test_dense_numbers_name_the_same_blocks(rows: list[list[int]]) -> None:
    """Runs and single accesses give equal blocks equal numbers, and others different ones."""
    trace = collect(requests_of(rows), "made up")
    ids = [block for ids in rows for block in ids]
    names = trace.accesses().tolist()
    assert len(names) == len(ids)
    assert len(set(zip(ids, names, strict=True))) == len(set(ids)) == len(set(names))
    assert all(0 <= name < trace.runs.block_count for name in names)
    for index, row in enumerate(rows):
        assert trace.block_ids(index).tolist() == row
        assert trace.request(index).block_ids == tuple(row)


@given(many_rows)
def test_reuses_account_for_every_hit(rows: list[list[int]]) -> None:
    """The reuses of an unlimited cache name the request that last used each block."""
    trace = collect(requests_of(rows), "made up")
    found = ideal(trace.runs)
    want: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    for index, row in enumerate(rows):
        for block in row:
            if block in last:
                want[index, last[block]] = want.get((index, last[block]), 0) + 1
            last[block] = index
    have: dict[tuple[int, int], int] = {}
    for request, previous, count in found.reuses.tolist():
        have[request, previous] = have.get((request, previous), 0) + count
    assert have == want
    assert found.uses.sum() == trace.runs.access_count


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5)), min_size=1, max_size=40))
def test_quantiles_are_those_of_numpy(rows: list[tuple[float, int]]) -> None:
    """Request lengths, each counted once, have numpy's percentiles."""
    lengths = [int(value) for value, times in rows for _ in range(times)]
    requests = [
        Request(i, 1e3 * i, n, 0, tuple(range(-(-n // 512)))) for i, n in enumerate(lengths)
    ]
    found = summarise(collect(requests, "made up")).input_tokens
    want = np.percentile(lengths, (50, 90, 99))
    assert np.allclose([found.p50, found.p90, found.p99], want)
    assert found.max == max(lengths)


def test_sessions_are_told_apart() -> None:
    """Turns, gaps and hits inside a session are counted per session, not between neighbours."""
    rows = [(0.0, "a", 1), (1.0, "b", 1), (5.0, "a", 1), (9.0, "b", 2)]
    trace = collect(
        [
            Request(i, 1e3 * at, 512, 1, (block,), session=name, think_s=0.5)
            for i, (at, name, block) in enumerate(rows)
        ],
        "made up",
    )
    assert trace.turn.tolist() == [0, 0, 1, 1]
    assert np.array_equal(trace.gap_s, [np.nan, np.nan, 5.0, 8.0], equal_nan=True)
    info = summarise(trace)
    assert info.sessions is not None and info.sessions.session_count == 2
    assert info.sessions.gap_s is not None and info.sessions.gap_s.mean == 6.5
    assert info.sessions.think_s is not None and info.sessions.think_s.mean == 0.5
    assert blocks_of(trace).hits_in_session == 0  # sessions a, b, a use block 1
    request = trace.request(3)
    assert (request.session, request.turn, request.gap_s, request.think_s) == ("b", 1, 8.0, 0.5)


def test_what_a_trace_does_not_have_is_no_figure() -> None:
    """Where nothing comes back, no session goes on and all arrive at once: is there a zero, which
    would be the shortest distance and the lowest rate?"""
    found = [Request(i, 5.0, 512, 1, (i,), session=f"s{i}") for i in range(3)]
    info = summarise(collect(found, "single"))
    assert info.blocks is not None and info.sessions is not None
    assert (info.requests_per_s, info.requests_per_s_max) == (None, None)
    assert (info.blocks.reuse_distance_blocks, info.blocks.reuse_time_s) == (None, None)
    assert info.sessions.gap_s is None
    shown = table_of(info)
    assert "all arrive at once" in shown and shown.count("there is none") == 3


def test_times_below_a_second_are_shown() -> None:
    """Requests 20 ms apart: does the table say so, or 0 s?"""
    found = [Request(i, 20.0 * i, 512, 1, (1,), session="a") for i in range(3)]
    shown = table_of(summarise(collect(found, "quick")))
    assert shown.count("0.02 / 0.02 / 0.02") == 2 and "0.04 s" in shown


def table_of(info: TraceInfo) -> str:
    out = StringIO()
    Console(width=100, file=out).print(render(info))
    return out.getvalue()


def test_the_table_and_the_json_carry_the_same_figures() -> None:
    """The JSON has the definitions next to the figures."""
    info = summarise(collect(requests_of([[1, 2, 3], [1, 2, 4], [1, 5]]), "small"))
    data = json.loads(json.dumps(to_dict(info)))
    assert data["ideal_block_hit_rate"] == 3 / 8
    assert [point["capacity_blocks"] for point in data["lru"]] == [1, 1, 1, 1, 2]
    assert {"access", "lru", "ideal_token_hit_rate"} <= data["definitions"].keys()
    out = StringIO()
    Console(width=100, file=out).print(render(info))
    assert "0.3750" in out.getvalue() and "small" in out.getvalue()


@needs_traces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BLOCK_TRACES)
def test_real_traces_give_the_reference_figures(name: str) -> None:
    """Each trace gives the figures of an independent implementation, to 4 digits.

    That one rounds capacities, counts the block itself in a reuse distance (one more than ours),
    and merges the sessions of WEKA on the clock that the reader uses.
    """
    reference = json.loads(REFERENCE.read_text())
    stem = [key for key in reference["traces"] if key.startswith(name) and "True" not in key]
    want = reference["traces"][stem[0]]
    trace = open_trace(TRACES / name)
    info = summarise(trace)
    blocks = info.blocks
    assert blocks is not None
    assert (info.request_count, blocks.block_access_count, blocks.unique_block_count) == (
        want["n"],
        want["accesses"],
        want["unique"],
    )
    for key, value in (
        ("ideal_block", blocks.ideal_block_hit_rate),
        ("ideal_prefix", blocks.ideal_prefix_hit_rate),
        ("ideal_token", blocks.ideal_token_hit_rate),
        ("req_with_hit", blocks.requests_with_hit_fraction),
        ("blocks_reused_frac", blocks.reused_block_fraction),
        ("hits_on_top1pct", blocks.hits_on_top_1_percent),
        ("hits_on_top10pct", blocks.hits_on_top_10_percent),
    ):
        assert round(value, 4) == want[key], key
    assert blocks.block_uses_max == want["max_pop"]
    if "hit_same_session" in want:
        assert blocks.hits_in_session is not None
        assert round(blocks.hits_in_session, 4) == want["hit_same_session"]
    below = np.cumsum(distances(trace.runs)) / blocks.block_access_count
    sizes = [max(1, round(s * want["unique"])) for s in reference["capacity_fractions"]]
    assert [round(float(below[size - 1]), 4) for size in sizes] == want["lru_block"]
    small = blocks.block_access_count < 1_000_000
    if small:
        optimum = Optimum(trace)
        assert [round(optimum.block_hit_rate(size), 4) for size in sizes] == want["opt_block"]
    # Our capacities are smaller by at most a block, which matters more where there are few.
    near = pytest.approx(want["opt_block"], abs=0.004 if small else 2e-4)
    assert [point.hit_rate for point in blocks.opt] == near
    assert all(a.hit_rate <= b.hit_rate for a, b in pairwise(blocks.lru))
    assert all(a.hit_rate <= b.hit_rate for a, b in zip(blocks.lru, blocks.opt, strict=True))
    distance, time_s = blocks.reuse_distance_blocks, blocks.reuse_time_s
    assert distance is not None and time_s is not None
    want_distance = [value - 1 for value in want["reuse_dist"][2:]]
    assert [distance.p50, distance.p90, distance.p99] == pytest.approx(want_distance, abs=1)
    assert [time_s.p50, time_s.p90, time_s.p99] == pytest.approx(want["reuse_time_s"][2:], abs=0.01)
