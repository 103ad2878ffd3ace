"""Does a live run accept every trace that `trace import` writes, with its requests' sharing?"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import prepare
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.importer import open_trace, write_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks

GOLDEN = Path(__file__).resolve().parents[2] / "golden/data/tiny_mooncake.jsonl"
BLOCK = 512

Ask = tuple[int, Sequence[int]]
"""(input tokens, ids) of one request."""


def trace_of(block_tokens: int | None, rows: Sequence[Ask]) -> Trace:
    columns = Columns(block_tokens, ordered=True)
    for at, (tokens, ids) in enumerate(rows):
        columns.add("here", at / 1000, tokens, 7, runs_of(ids))
    return columns.finish(Origin("made up", "test"))


def shared(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many leading ids are equal."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )


@given(
    st.sampled_from([16, 64, 100, 512, 1024, 1500]),
    st.lists(st.tuples(st.integers(1, 6000), st.integers(0, 60)), min_size=2, max_size=6),
)
def test_two_requests_share_what_the_trace_says_rounded_down(
    block_tokens: int, shape: list[tuple[int, int]]
) -> None:
    """Each shares its first blocks with the one before; an id names the prefix up to its block."""
    rows: list[Ask] = []
    fresh = 0
    for tokens, common in shape:
        count = tokens // block_tokens
        kept = list(rows[-1][1])[: min(common, count)] if rows else []
        own = list(range(fresh, fresh + count - len(kept)))
        fresh += len(own)
        rows.append((tokens, [*kept, *own]))
    requests = list(requests_in_blocks(trace_of(block_tokens, rows)))
    for request, (tokens, _) in zip(requests, rows, strict=True):
        assert request.input_tokens == tokens
        assert len(request.block_ids) == len(set(request.block_ids)) == math.ceil(tokens / BLOCK)
    for (one, two), (mine, theirs) in zip(pairwise(rows), pairwise(requests), strict=True):
        tokens = shared(one[1], two[1]) * block_tokens
        whole = shared(mine.block_ids, theirs.block_ids)
        longest = min(one[0], two[0])
        assert whole * BLOCK <= tokens or min(whole * BLOCK, longest) <= tokens
        assert whole >= min(tokens, longest) // BLOCK - (block_tokens > BLOCK) * math.ceil(
            block_tokens / BLOCK
        ), "less is shared than whole blocks of both allow"


def test_an_imported_trace_gives_the_plan_of_the_trace_itself(tmp_path: Path) -> None:
    imported = tmp_path / "imported.jsonl.gz"
    write_trace(open_trace(GOLDEN), imported)
    plans = [
        prepare(DriveOptions(trace=path, sessions=3, context_tokens=8192, steps=4)).plan
        for path in (GOLDEN, imported)
    ]
    assert plans[0].sessions == plans[1].sessions
    assert plans[0].sharing_session_count >= 2, "the trace shares, or this says little"
    assert "which blocks they select is drawn" in plans[1].sentence()


@pytest.mark.parametrize("block_tokens", [None, 16, 64])
def test_other_traces_are_planned_too(block_tokens: int | None, tmp_path: Path) -> None:
    """Sessions share nothing in a trace without blocks, and share with other block sizes."""
    count = 0 if block_tokens is None else 5000 // block_tokens
    rows = [
        (5000, [*range(count // 2), *range(base, base + count - count // 2)])
        for base in (10_000, 20_000, 30_000)
    ]
    path = tmp_path / "trace.jsonl"
    write_trace(trace_of(block_tokens, rows), path)
    options = DriveOptions(trace=path, sessions=3, context_tokens=4096, steps=4)
    plan = prepare(options).plan
    assert [one.context_tokens for one in plan.sessions] == [4096] * 3
    assert plan.sharing_session_count == (0 if block_tokens is None else 3)
