"""Collects a reader's requests, checks them, and builds a `Trace`.

Owns the growing columns of one trace. Every request is checked on arrival, while the reader still
knows its file and line: invalid or decreasing times, negative lengths, and a number of blocks that
does not fit the tokens are a `BadInput`.
"""

import math
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.columns import Origin, Trace

__all__ = ["BLOCK_ID_MAX", "TOKENS_MAX", "Columns", "runs_of"]


BLOCK_ID_MAX = 2**63 - 1
"""Larger ids are refused: a longer hash must be cut to 63 bits first."""

_ARRIVAL_S_MAX = 1e12

REQUESTS_MAX = 1 << 26
"""Requests of a trace: columns of about 4 GiB."""

TOKENS_MAX = 1 << 30
"""Tokens of a prompt or an answer: beyond any model's context."""

ACCESSES_MAX = 1 << 29
"""Blocks of all requests of a trace: arrays over them are of 2 to 4 GiB."""


class Columns:
    """Requests so far. `ordered`: arrivals must not decrease; else `finish` sorts them."""

    def __init__(self, block_tokens: int | None, *, ordered: bool) -> None:
        self.block_tokens = block_tokens
        self._ordered = ordered
        self._arrival_s, self._think_s, self._follows = array("d"), array("d"), array("b")
        self._input, self._output = array("q"), array("q")
        self._session, self._run_total = array("q"), array("q", [0])
        self._first, self._count = array("Q"), array("q")
        self._numbers: dict[str, int] = {}
        self._accesses = 0

    def __len__(self) -> int:
        return len(self._arrival_s)

    def add(
        self,
        where: str,
        arrival_s: float,
        input_tokens: int,
        output_tokens: int,
        runs: Iterable[Sequence[int]] = (),
        *,
        session: str | None = None,
        think_s: float | None = None,
        follows: bool = False,
    ) -> None:
        """Add one request; `runs` are (first id, number of ids). Raises BadInput, see above."""
        if len(self) >= REQUESTS_MAX:
            raise BadInput(
                f"more than {REQUESTS_MAX:,} requests",
                where,
                "take the first requests, with a limit",
            )
        if not 0 <= arrival_s < _ARRIVAL_S_MAX:  # NaN compares false
            fix = f"give a time from 0 to below {_ARRIVAL_S_MAX:,.0f} s"
            raise BadInput(f"arrival at {arrival_s:,} s", where, fix)
        if self._ordered and self._arrival_s and arrival_s < self._arrival_s[-1]:
            raise BadInput(
                f"arrival at {arrival_s:g} s is before the previous one, {self._arrival_s[-1]:g} s",
                where,
                "sort the trace by arrival",
            )
        if min(input_tokens, output_tokens) < 0 or max(input_tokens, output_tokens) > TOKENS_MAX:
            raise BadInput(
                f"{input_tokens} input and {output_tokens} output tokens",
                where,
                f"give 0 to {TOKENS_MAX:,}",
            )
        blocks = 0
        for first, count in runs:
            if count < 1 or first < 0 or first + count > BLOCK_ID_MAX:
                raise BadInput(
                    f"run of {count} ids from {first}", where, "ids are 0 to 2^63 - 2, counts 1 up"
                )
            self._first.append(first)
            self._count.append(count)
            blocks += count
        self._check_blocks(where, blocks, input_tokens)
        self._accesses += blocks
        if self._accesses > ACCESSES_MAX:
            raise BadInput(
                f"more than {ACCESSES_MAX:,} blocks in all requests",
                where,
                "take the first requests, with a limit",
            )
        self._arrival_s.append(arrival_s)
        if think_s is not None and not 0 <= think_s < _ARRIVAL_S_MAX:
            raise BadInput(f"a delay of {think_s} s", where, "give 0 s or more")
        if follows and session not in self._numbers:
            raise BadInput("follows a turn, and is its session's first", where, "give its arrival")
        self._think_s.append(math.nan if think_s is None else think_s)
        self._follows.append(follows)
        self._input.append(input_tokens)
        self._output.append(output_tokens)
        self._run_total.append(len(self._first))
        names = self._numbers
        self._session.append(-1 if session is None else names.setdefault(session, len(names)))

    def _check_blocks(self, where: str, blocks: int, input_tokens: int) -> None:
        """A tail may lack a block; lengths computed as bytes / 4 may be one block short."""
        tokens = self.block_tokens
        if tokens is None:
            assert blocks == 0
        elif not input_tokens // tokens <= blocks <= input_tokens // tokens + 1:
            raise BadInput(
                f"{blocks} blocks for {input_tokens} input tokens",
                where,
                f"expected {-(-input_tokens // tokens)}, one for each {tokens} tokens",
            )

    def finish(self, origin: Origin, limit: int | None = None) -> Trace:
        """The trace, sorted by arrival unless `ordered`, with at most `limit` requests."""
        trace = Trace(
            origin=origin,
            block_tokens=self.block_tokens,
            arrival_s=np.array(self._arrival_s, np.float64),
            think_s=np.array(self._think_s, np.float64),
            follows=np.array(self._follows, np.bool_),
            session=np.array(self._session, np.int64),
            session_names=tuple(self._numbers),
            input_tokens=np.array(self._input, np.int64),
            output_tokens=np.array(self._output, np.int64),
            offsets=np.array(self._run_total, np.int64),
            run_first=np.array(self._first, np.uint64),
            run_count=np.array(self._count, np.int64),
        )
        if not self._ordered:
            trace = trace.select(np.argsort(trace.arrival_s, kind="stable")[:limit])
        return trace


def runs_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first id, count) of consecutive ids, in order."""
    if not len(ids):
        return []
    values: npt.NDArray[np.int64] = np.asarray(ids, np.int64)
    starts = np.r_[0, np.flatnonzero(np.diff(values) != 1) + 1]
    counts = np.diff(np.r_[starts, len(values)])
    return list(zip(values[starts].tolist(), counts.tolist(), strict=True))
