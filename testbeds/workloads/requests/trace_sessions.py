"""Decode sessions that follow a request trace: lengths, arrivals and shared prefixes.

A request trace says nothing else of decoding: not which blocks a step selects.

The rule is deterministic:
- splits: if a trace has sessions, those at an even position in the order of their first arrival are
  `dev`, the others `test`; without sessions, the first half of its requests is `dev`. A request is
  in one split; a prefix that all requests share is in both.
- of a split, requests whose usable context is `context_tokens_min` or more, in order of arrival.
  The usable context is the prompt as far as block ids cover it, capped, in whole blocks of ours.
  Of a session only the first such request: its turns follow each other and never decode together.
- of these, `count` consecutive ones: preferably four sessions share their first block, then with
  the most context tokens in total, then the earliest.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.sessions import chain, root
from offstage.testbeds.workloads.requests.window import SHARING_SESSIONS_MIN

__all__ = ["SPLITS", "Split", "TraceSession", "sessions_from_trace", "split_of"]

Split = Literal["dev", "test"]
SPLITS: tuple[Split, ...] = ("dev", "test")

Int64Array = npt.NDArray[np.int64]
_WORD = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class TraceSession:
    """One request that decodes.

    `context_tokens` are whole blocks; `output_tokens` as recorded, at least 1; `arrival_s` counts
    from the first one taken. contents: uint64 `[blocks, 2]`, equal to another session's as far as
    the two share a prefix. `group` numbers those that share a first block, -1 if not shared.
    """

    name: str
    context_tokens: int
    output_tokens: int
    arrival_s: float
    contents: npt.NDArray[np.uint64]
    group: int


def split_of(trace: Trace, split: Split) -> Int64Array:
    """Positions of the requests of a split, ascending; see the module's rule."""
    if trace.has_sessions:
        _, first = np.unique(trace.session, return_index=True)
        position = np.empty(len(first), np.int64)
        position[np.argsort(first)] = np.arange(len(first))
        names = np.unique(trace.session, return_inverse=True)[1]
        is_test = position[names] % 2 == 1
    else:
        is_test = np.arange(len(trace)) >= (len(trace) + 1) // 2
    return np.flatnonzero(is_test == (split == "test"))


def sessions_from_trace(
    trace: Trace,
    count: int,
    context_tokens_min: int,
    context_tokens_max: int,
    split: Split = "dev",
    *,
    block_tokens: int = 64,
) -> list[TraceSession]:
    """`count` consecutive long requests of a split, in order of arrival, by the module's rule.

    A trace without blocks gives lengths and arrivals, and sessions that share nothing. Raises
    BadInput for an option out of range, a block size that does not fit the trace's, or a split with
    too few requests of that length.
    """
    _check(trace, count, context_tokens_min, context_tokens_max, split, block_tokens)
    positions = split_of(trace, split)
    context = _usable(trace, context_tokens_max, block_tokens)[positions]
    long = np.flatnonzero(context >= context_tokens_min)
    if trace.has_sessions:
        long = long[np.sort(np.unique(trace.session[positions[long]], return_index=True)[1])]
    positions, context = positions[long], context[long]
    if len(positions) < count:
        raise BadInput(
            f"{len(positions)} requests of split {split!r} have {context_tokens_min} tokens or "
            f"more, {count} are needed",
            trace.origin.name,
            "ask for fewer or shorter ones",
        )
    first = _first_blocks(trace, positions)
    start = _best_start(first, context, count)
    taken = slice(start, start + count)
    groups = _groups(first[taken])
    begin_s = float(trace.arrival_s[positions[start]])
    return [
        TraceSession(
            name=_name(trace, int(position)),
            context_tokens=int(tokens),
            output_tokens=max(1, int(trace.output_tokens[position])),
            arrival_s=float(trace.arrival_s[position]) - begin_s,
            contents=_contents(trace, int(position), int(tokens) // block_tokens, block_tokens),
            group=group,
        )
        for position, tokens, group in zip(positions[taken], context[taken], groups, strict=True)
    ]


def _check(
    trace: Trace, count: int, tokens_min: int, tokens_max: int, split: str, block_tokens: int
) -> None:
    if split not in SPLITS:
        raise BadInput(f"split {split!r}", "trace sessions", f"choose one of {', '.join(SPLITS)}")
    if count < 1 or not 1 <= block_tokens <= tokens_min <= tokens_max:
        raise BadInput(
            f"{count} sessions of {tokens_min} to {tokens_max} tokens, blocks of {block_tokens}",
            "trace sessions",
            "give 1 session or more, and one block or more of context",
        )
    theirs = trace.block_tokens
    if theirs and theirs % block_tokens and block_tokens % theirs:
        raise BadInput(
            f"blocks of {block_tokens} tokens on a trace with blocks of {theirs}",
            trace.origin.name,
            "give a multiple or a divisor of the trace's own",
        )


def _usable(trace: Trace, tokens_max: int, block_tokens: int) -> Int64Array:
    """int64 `[requests]`: context tokens of each request, in whole blocks."""
    tokens = np.minimum(trace.input_tokens, tokens_max)
    if trace.block_tokens is not None:
        tokens = np.minimum(tokens, trace.block_counts * trace.block_tokens)
    return tokens // block_tokens * block_tokens


def _first_blocks(trace: Trace, positions: Int64Array) -> Int64Array:
    """int64 `[n]`: identifies the first block; equal where it is shared."""
    if trace.block_tokens is None:
        return np.arange(len(positions))
    first = trace.runs.first[trace.offsets[positions]]
    return first.astype(np.int64)


def _best_start(first: Int64Array, context: Int64Array, count: int) -> int:
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(first, count), axis=1)
    sharing = np.ones(len(windows), np.int64)
    # Sorted, n equal first blocks are at most n - 1 positions apart: no need to count each value.
    for size in range(2, min(SHARING_SESSIONS_MIN, count) + 1):
        found = (windows[:, size - 1 :] == windows[:, : count - size + 1]).any(axis=1)
        sharing[found] = size
    ends = np.r_[0, np.cumsum(context)]
    total = ends[count:] - ends[:-count]
    # The last key is the primary one, and the sort is stable: the earliest of the best is first.
    return int(np.lexsort((-total, -sharing))[0])


def _groups(first: Int64Array) -> list[int]:
    numbers: dict[int, int] = {}
    shared = {int(value) for value in first if (first == value).sum() > 1}
    return [
        numbers.setdefault(int(value), len(numbers)) if int(value) in shared else -1
        for value in first
    ]


def _name(trace: Trace, position: int) -> str:
    if trace.has_sessions:
        return f"{trace.session_names[int(trace.session[position])]}/{int(trace.turn[position])}"
    return f"request-{position}"


def _contents(
    trace: Trace, position: int, blocks: int, block_tokens: int
) -> npt.NDArray[np.uint64]:
    """Chained identities of `blocks` whole blocks: trace blocks are split, or joined."""
    parent = root(0, f"requests of {trace.origin.name}")
    theirs = trace.block_tokens
    ids = trace.block_ids(position).tolist() if theirs else []
    found = np.empty((blocks, 2), np.uint64)
    for ordinal in range(blocks):
        if theirs is None:
            parent = chain(parent, "own", position, ordinal)
        else:
            start = ordinal * block_tokens // theirs
            end = -(-(ordinal + 1) * block_tokens // theirs)
            parent = chain(parent, "trace", *ids[start:end])
        found[ordinal] = parent & _WORD, parent >> 64
    return found
