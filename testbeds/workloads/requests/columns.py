"""A trace of requests in columns, independent of its file format.

Traces of agents have tens of millions of blocks, but few runs of consecutive ids, so blocks are
stored as runs. A `Trace` is built by a reader (`importer.open_trace`), is immutable, and owns only
arrays. A request for sessions or blocks that its format does not have is a `BadInput`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.bindings.prefix import Runs
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request

__all__ = ["Origin", "Trace"]


Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Origin:
    """Where a trace is from. `notes`: what a reader added to or changed in the data."""

    name: str
    format: str
    licence: str = ""
    sha256: tuple[str, ...] = ()
    """Digests of the files on disk, in the given order."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival.

    arrival_s, think_s: float64 `[requests]`; `think_s`, the client's time before the request, is
        NaN where not known. follows: bool `[requests]`: no arrival is recorded; the request begins
        `think_s` after the end of its session's turn before, and `arrival_s` is the earliest time,
        as if earlier turns took none. session: int64 `[requests]`, -1 without one, else an index of
        `session_names`. input_tokens, output_tokens: int64 `[requests]`.
    Request r has the runs `offsets[r]` to `offsets[r + 1]` (int64 `[requests + 1]`); run i is the
        ids `run_first[i]` (uint64) and `run_count[i] - 1` more (int64). No runs and
        `block_tokens = None` where the format has no prefixes.
    """

    origin: Origin
    block_tokens: int | None
    arrival_s: Float64Array
    think_s: Float64Array
    follows: npt.NDArray[np.bool_]
    session: Int64Array
    session_names: tuple[str, ...]
    input_tokens: Int64Array
    output_tokens: Int64Array
    offsets: Int64Array
    run_first: npt.NDArray[np.uint64]
    run_count: Int64Array

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on what its reader added, changed or found doubtful, shown with results."""
        return tuple(Note("trace", text) for text in self.origin.notes)

    @property
    def has_sessions(self) -> bool:
        """Every request belongs to a session."""
        return len(self) > 0 and bool((self.session >= 0).all())

    @property
    def session_count(self) -> int:
        """Sessions that its requests belong to: fewer than names where requests were left out."""
        return len(np.unique(self.session[self.session >= 0]))

    def need_sessions(self, what: str) -> None:
        """BadInput if the trace has no sessions; `what` names what needs them."""
        if not self.has_sessions:
            raise BadInput(
                f"{what} needs sessions, and the trace has none",
                self.origin.name,
                "give a trace with sessions (qwen, weka, lmcache, AIPerf), or choose another",
            )

    def need_blocks(self, what: str) -> int:
        """Tokens of one block; BadInput if the trace has no blocks; `what` needs them."""
        if self.block_tokens is None:
            raise BadInput(
                f"{what} needs prefix blocks, and format {self.origin.format} has none",
                self.origin.name,
                "give a trace with block ids (mooncake, qwen, weka, lmcache, sharegpt)",
            )
        return self.block_tokens

    @cached_property
    def turn(self) -> Int64Array:
        """int64 `[requests]`: position in its session, from 0; 0 without a session."""
        return self._within_session()[0]

    @cached_property
    def gap_s(self) -> Float64Array:
        """float64 `[requests]`: time since the session's last request; NaN for a first one."""
        return self._within_session()[1]

    def _within_session(self) -> tuple[Int64Array, Float64Array]:
        order = np.argsort(self.session, kind="stable")
        ids = self.session[order]
        first = np.r_[True, ids[1:] != ids[:-1]][: len(ids)] | (ids < 0)
        position = np.arange(len(ids))
        turn = np.zeros(len(ids), np.int64)
        turn[order] = position - np.maximum.accumulate(np.where(first, position, 0))
        gap_s = np.full(len(ids), np.nan)
        again = np.flatnonzero(~first)
        gap_s[order[again]] = self.arrival_s[order[again]] - self.arrival_s[order[again - 1]]
        return turn, gap_s

    @cached_property
    def block_counts(self) -> Int64Array:
        """int64 `[requests]`: blocks of each request."""
        ends = np.r_[0, np.cumsum(self.run_count)]
        counts: Int64Array = ends[self.offsets[1:]] - ends[self.offsets[:-1]]
        return counts

    @cached_property
    def last_tokens(self) -> Int64Array:
        """int64 `[requests]`: tokens in the last block of each request; 0 without blocks."""
        tokens = self.block_tokens or 0
        left = self.input_tokens - tokens * (self.block_counts - 1)
        return np.where(self.block_counts > 0, np.clip(left, 0, tokens), 0)

    def tokens_of(self, blocks: npt.NDArray[Any], last: npt.NDArray[Any]) -> Int64Array:
        """Tokens in that many blocks `[requests]`; `last` `[requests]`: includes the last one."""
        tokens = self.block_tokens or 0
        whole = blocks.astype(np.int64) * tokens
        return whole - np.where(last.astype(bool), tokens - self.last_tokens, 0)

    @cached_property
    def runs(self) -> Runs:
        """The runs with dense block numbers: ids in ascending order without the gaps."""
        return dense_runs(self)

    def block_ids(self, index: int) -> npt.NDArray[np.uint64]:
        """Ids of one request's blocks, front to back: uint64 `[blocks]`."""
        span = slice(self.offsets[index], self.offsets[index + 1])
        count = self.run_count[span]
        inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        ids: npt.NDArray[np.uint64] = np.repeat(self.run_first[span], count)
        return ids + inside.astype(np.uint64)

    def accesses(self) -> npt.NDArray[np.uint32]:
        """Dense block numbers of all requests in order of access: uint32 `[accesses]`."""
        runs = self.runs
        ends = np.cumsum(runs.count, dtype=np.int64)
        result = np.ones(runs.access_count, np.uint32)
        if len(ends):
            # Steps of one inside a run; at its start, the jump from the end of the run before.
            begins = np.r_[0, ends[:-1]]
            last = runs.first.astype(np.int64) + runs.count - 1
            result[begins] = (runs.first - np.r_[0, last[:-1]]).astype(np.uint32)
            np.cumsum(result, dtype=np.uint32, out=result)
        return result

    def request(self, index: int) -> Request:
        """One request as a record."""
        gap_s, think_s = float(self.gap_s[index]), float(self.think_s[index])
        session = int(self.session[index])
        return Request(
            index=index,
            timestamp_ms=float(self.arrival_s[index]) * 1e3,
            input_tokens=int(self.input_tokens[index]),
            output_tokens=int(self.output_tokens[index]),
            block_ids=tuple(self.block_ids(index).tolist()),
            session=self.session_names[session] if session >= 0 else None,
            turn=int(self.turn[index]) if session >= 0 else None,
            gap_s=None if np.isnan(gap_s) else gap_s,
            think_s=None if np.isnan(think_s) else think_s,
            trace_block_tokens=self.block_tokens or TRACE_BLOCK_TOKENS,
        )

    def requests(self) -> Iterator[Request]:
        """All requests as records, one at a time."""
        return (self.request(index) for index in range(len(self)))

    def select(self, indices: npt.NDArray[np.int64]) -> "Trace":
        """The trace of these requests alone, `[n]` ascending; arrival times are unchanged."""
        starts, ends = self.offsets[indices], self.offsets[indices + 1]
        counts = ends - starts
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        runs = np.repeat(starts, counts) + inside
        columns = ("arrival_s", "think_s", "follows", "session", "input_tokens", "output_tokens")
        return replace(
            self,
            **{name: getattr(self, name)[indices] for name in columns},
            offsets=np.r_[0, np.cumsum(counts)],
            run_first=self.run_first[runs],
            run_count=self.run_count[runs],
        )


def dense_runs(trace: Trace) -> Runs:
    """Numbers the distinct ids of a trace from 0, without expanding its runs.

    Consecutive ids in a run stay consecutive, so a run stays one run: distinct ids are a union of
    intervals, and a number is a position in that union.
    """
    first, count = trace.run_first, trace.run_count.astype(np.uint64)
    order = np.argsort(first, kind="stable")
    starts = first[order]
    reach = np.maximum.accumulate(starts + count[order])
    opens = np.r_[True, starts[1:] > reach[:-1]][: len(starts)]
    interval_start = starts[opens]
    closes = np.r_[np.flatnonzero(opens)[1:], len(starts)][: len(interval_start)]
    interval_end = reach[closes - 1] if len(starts) else interval_start
    lengths = interval_end - interval_start
    base = np.cumsum(lengths) - lengths
    interval = np.searchsorted(interval_start, first, side="right") - 1
    return Runs(
        offsets=trace.offsets.astype(np.uint64),
        first=(first - interval_start[interval] + base[interval]).astype(np.uint32),
        count=trace.run_count.astype(np.uint32),
        block_count=int(lengths.sum()),
    )
