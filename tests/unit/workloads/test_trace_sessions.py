"""Do decode sessions take lengths, arrivals, sharing and both splits from a trace as stated?"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.trace_sessions import (
    SPLITS,
    sessions_from_trace,
    split_of,
)

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))

Ask = tuple[float, str | None, Sequence[int]]


def trace_of(rows: Sequence[Ask], block_tokens: int = 64) -> Trace:
    columns = Columns(block_tokens, ordered=True)
    for at, session, ids in rows:
        columns.add("here", at, block_tokens * len(ids), 9, runs_of(ids), session=session)
    return columns.finish(Origin("made up", "test"))


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 6)), min_size=1, max_size=30),
    st.booleans(),
)
def test_splits_cover_the_trace_and_share_no_request(
    rows: list[tuple[str, int]], with_sessions: bool
) -> None:
    """Every request is in exactly one split, and every session is whole in one."""
    trace = trace_of(
        [(float(i), s if with_sessions else None, range(n)) for i, (s, n) in enumerate(rows)]
    )
    dev, test = (split_of(trace, split).tolist() for split in SPLITS)
    assert sorted(dev + test) == list(range(len(trace)))
    if with_sessions:
        assert not {rows[i][0] for i in dev} & {rows[i][0] for i in test}
    else:
        assert dev == list(range(len(dev)))


def test_a_window_that_shares_goes_first() -> None:
    """Four requests that share their first block precede longer ones, and groups are reported."""
    alone = [[100 + 50 * i + j for j in range(40)] for i in range(6)]
    shared = [[1, 2, *range(1000 + 30 * i, 1030 + 30 * i)] for i in range(4)]
    rows = [(float(i), None, ids) for i, ids in enumerate([*alone, *shared, *alone, *alone])]
    taken = sessions_from_trace(trace_of(rows), 5, 1024, 4096)
    assert [one.name for one in taken] == [f"request-{i}" for i in range(5, 10)]
    assert [one.group for one in taken] == [-1, 0, 0, 0, 0]
    assert [one.arrival_s for one in taken] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [one.context_tokens for one in taken] == [40 * 64, *[32 * 64] * 4]
    first, second = taken[1].contents, taken[2].contents
    assert (first[:2] == second[:2]).all() and not (first[2:] == second[2:]).any()


@pytest.mark.parametrize("block_tokens", [16, 64, 256])
def test_contents_are_equal_as_far_as_prefixes_are(block_tokens: int) -> None:
    """Split or joined, our blocks agree exactly where all tokens before their end agree."""
    a, b = list(range(40)), [*range(10), *range(500, 530)]
    same_after = [*range(600, 620), *range(20, 40)]  # equal ids after a difference: equal text,
    rows = [(0.0, None, a), (1.0, None, b), (2.0, None, same_after), *[(9.0, None, a)] * 3]
    one, two, three = sessions_from_trace(
        trace_of(rows), 3, 1024, 40 * 64, block_tokens=block_tokens
    )
    assert len(one.contents) == 40 * 64 // block_tokens
    equal = (one.contents == two.contents).all(axis=1)
    assert equal.tolist() == [end * block_tokens <= 640 for end in range(1, len(equal) + 1)]
    assert not (one.contents == three.contents).any(axis=1).any()  # ... but not an equal prefix
    assert len({tuple(row) for row in one.contents.tolist()}) == len(one.contents)


def test_a_session_gives_one_request(tmp_path: Path) -> None:
    """Only a session's first long request is taken, since its turns do not decode at once."""
    ids = list(range(64))
    rows = [(0.0, "a", ids[:4]), (1.0, "b", ids), (2.0, "a", ids), (3.0, "c", ids), (4.0, "a", ids)]
    taken = sessions_from_trace(trace_of(rows), 2, 64 * 32, 64 * 64)
    assert [(one.name, one.arrival_s) for one in taken] == [("a/1", 0.0), ("c/0", 1.0)]


def test_lengths_alone_give_sessions_that_share_nothing() -> None:
    """A trace without blocks still gives lengths and arrivals."""
    columns = Columns(None, ordered=True)
    for at in range(6):
        columns.add("here", float(at), 1000 + at, 0)
    taken = sessions_from_trace(columns.finish(Origin("x", "test")), 3, 64, 512)
    assert [(one.context_tokens, one.output_tokens, one.group) for one in taken] == [
        (512, 1, -1)
    ] * 3
    assert len(np.unique(np.concatenate([one.contents for one in taken]), axis=0)) == 24


def test_what_does_not_fit_is_bad_input() -> None:
    """An impossible request is refused in one line."""
    trace = trace_of([(float(i), None, range(4)) for i in range(6)])
    for arguments, what in (
        ((4, 64, 256), "3 requests of split 'dev'"),
        ((1, 512, 512), "0 requests"),
        ((0, 64, 256), "0 sessions"),
        ((1, 256, 64), "256 to 64 tokens"),
        ((1, 32, 64), "32 to 64 tokens"),
    ):
        with pytest.raises(BadInput, match=what):
            sessions_from_trace(trace, *arguments)
    with pytest.raises(BadInput, match="blocks of 48 tokens"):
        sessions_from_trace(trace, 1, 64, 256, block_tokens=48)


@pytest.mark.parametrize("split", SPLITS)
def test_the_published_conversations_share_a_prefix(split: str) -> None:
    """Mooncake gives eight long sessions that share a prefix, in both splits, apart in time."""
    path = TRACES / "mooncake_conversation_0-2400s.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}; point OFFSTAGE_TRACES at the folder that holds it")
    trace = open_trace(path)
    taken = sessions_from_trace(trace, 8, 32_768, 131_072, "dev" if split == "dev" else "test")
    assert len(taken) == 8 and sum(one.group == 0 for one in taken) >= 4
    assert all(32_768 <= one.context_tokens <= 131_072 for one in taken)
    half = len(trace) / 2
    assert all((int(one.name.split("-")[1]) < half) == (split == "dev") for one in taken)
