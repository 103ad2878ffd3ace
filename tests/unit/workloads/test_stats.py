"""Are the figures of a trace those of their definitions, computed the plain way?"""

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

from offstage.testbeds.workloads.stats import (
    previous_access,
    render,
    stack_distances,
    summarise,
    to_dict,
    trace_info,
)
from offstage.testbeds.workloads.trace import Request

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
CONVERSATION = TRACES / "mooncake_conversation_0-2400s.jsonl.gz"

needs_traces = pytest.mark.skipif(
    not CONVERSATION.exists(),
    reason=f"no {CONVERSATION.name}; point OFFSTAGE_TRACES at the folder that holds it",
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
    """Requests with these ids, the last block of each a third full, one second apart."""
    return [
        Request(index, 1e3 * index, max(0, 512 * len(ids) - 341), 7, tuple(ids))
        for index, ids in enumerate(rows)
    ]


@given(st.lists(st.lists(st.integers(0, 12), max_size=9), min_size=1, max_size=30))
def test_figures_equal_a_plain_count(rows: list[list[int]]) -> None:
    """Do LRU, ideal block, prefix and token hit rates equal a loop that just counts them?"""
    requests = requests_of(rows)
    info = summarise(requests, "made up")
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


@given(st.lists(st.integers(0, 20), max_size=120), st.integers(1, 25))
def test_stack_distance_decides_lru_at_every_size(ids: list[int], capacity: int) -> None:
    """Is an access an LRU hit exactly where its stack distance is below the capacity?"""
    distances = stack_distances(previous_access(np.array(ids, dtype=np.int64)))
    assert int((distances < capacity).sum()) == lru_hits(ids, capacity)


def test_the_table_and_the_json_carry_the_same_figures() -> None:
    """Can a reader of either find the definitions beside the figures?"""
    info = summarise(requests_of([[1, 2, 3], [1, 2, 4], [1, 5]]), "small")
    data = json.loads(json.dumps(to_dict(info)))
    assert data["ideal_block_hit_rate"] == 3 / 8
    assert [point["capacity_blocks"] for point in data["lru"]] == [1, 1, 1, 1, 2]
    assert {"access", "lru", "ideal_token_hit_rate"} <= data["definitions"].keys()
    out = StringIO()
    Console(width=100, file=out).print(render(info))
    assert "0.3750" in out.getvalue() and "small" in out.getvalue()


@needs_traces
def test_the_real_trace_gives_the_reference_figures() -> None:
    """Does an independent implementation's reference on the Mooncake trace come out, to 4 digits?

    Its reuse distance counts the block itself, ours the other blocks: one less.
    """
    reference = json.loads((TRACES / "reference_stats.json").read_text())
    want = reference["traces"][CONVERSATION.name]
    info = trace_info(CONVERSATION)
    assert info.request_count == want["n"]
    assert info.block_access_count == want["accesses"]
    assert info.unique_block_count == want["unique"]
    assert round(info.ideal_block_hit_rate, 4) == want["ideal_block"]
    assert round(info.ideal_prefix_hit_rate, 4) == want["ideal_prefix"]
    assert round(info.ideal_token_hit_rate, 4) == want["ideal_token"]
    assert round(info.reused_block_fraction, 4) == want["blocks_reused_frac"]
    assert [point.fraction for point in info.lru] == reference["capacity_fractions"]
    assert [round(point.hit_rate, 4) for point in info.lru] == want["lru_block"]
    assert all(a.hit_rate < b.hit_rate for a, b in pairwise(info.lru))
    distance, time_s = info.reuse_distance_blocks, info.reuse_time_s
    want_distance = [value - 1 for value in want["reuse_dist"][2:]]
    assert [distance.p50, distance.p90, distance.p99] == pytest.approx(want_distance, abs=1)
    assert [time_s.p50, time_s.p90, time_s.p99] == pytest.approx(want["reuse_time_s"][2:], abs=0.01)
