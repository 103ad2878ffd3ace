"""Mooncake: one request a line, ids of prefix blocks, and AIPerf's sessions in the same form.

One JSON object per line (kvcache-ai/Mooncake, FAST25-release/traces):
`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`, with one
hash id per 512 input tokens. AIPerf's `mooncake_trace` (ai-dynamo/aiperf, `MooncakeTrace` in
dataset/loader/models.py) is the same with `session_id`, `delay` (ms) and `context_mode`, and
`hash_ids` and `timestamp` may be left out:

- a turn with a `delay` and no `timestamp` begins that long after its session's turn before ends;
- in a session, `input_length` and `hash_ids` are of what is new in a turn: its prompt is all turns
  and answers before it, and then that. With the `context_mode` `message_array_with_responses` they
  are of the whole prompt, and also where the ids begin as those of the turn before.

The reader streams: it holds one line and the state of every session.
"""

from dataclasses import dataclass, field
from typing import Annotated, NoReturn

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import BLOCK_ID_MAX, Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source, numbered
from offstage.testbeds.workloads.requests.trace import (
    TRACE_BLOCK_TOKENS,
    Unread,
    decoded,
    lines,
)

__all__ = ["FORMAT", "WHOLE_PROMPTS"]

WHOLE_PROMPTS = "message_array_with_responses"
"""AIPerf's `context_mode` of turns that have their whole prompt."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e19)]

_FORMAT = (
    'one JSON object per line with "timestamp" (ms), "input_length", "output_length" and '
    '"hash_ids" is expected'
)
_ALL_OR_NONE = "give it in all lines or in none"

DETECTED_LINES, DETECTED_MIN = 1_000, 8
"""Lines of a file that a block size is detected from, and how many of them must narrow it down."""
POWERS = range(2, 17)
"""Of two: the block sizes that are detected, in tokens."""


class _Row(msgspec.Struct, gc=False):
    input_length: _Count
    output_length: _Count
    timestamp: _Milliseconds | None = None
    hash_ids: tuple[_Count, ...] | None = None
    session_id: str | _Count | None = None
    delay: _Milliseconds | None = None
    context_mode: str | None = None


@dataclass
class _Session:
    """What the turns of a session so far leave for the next one."""

    arrival_s: float
    has_time: bool
    turns: int = 0
    later_have_time: bool = False
    tokens: int = 0
    """Of the last prompt and its answer."""
    first_id: int = -1
    whole_blocks: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Of the whole blocks of `tokens`."""


class _Reader:
    """Reads the lines of one file into columns."""

    def __init__(self, source: Source, block_tokens: int, grouped: bool, with_ids: bool) -> None:
        self._block, self._grouped = block_tokens, grouped
        self._with_ids = with_ids
        self.columns = Columns(block_tokens if with_ids else None, ordered=not grouped)
        self._per_s = source.per_second("ms")
        self._sessions: dict[str, _Session] = {}
        self._timed: bool | None = None
        self._largest, self._own = -1, BLOCK_ID_MAX - 1
        self.followed = self.continued = 0

    def add(self, row: _Row, where: str) -> None:
        """Add one request. BadInput: it does not fit its session, or the lines before it."""
        if (row.session_id is not None) != self._grouped:
            raise BadInput('only some lines have "session_id"', where, _ALL_OR_NONE)
        ids = row.hash_ids or ()
        if (row.hash_ids is not None) != self._with_ids:
            raise BadInput('only some lines have "hash_ids"', where, _ALL_OR_NONE)
        if self._with_ids and len(ids) != -(-row.input_length // self._block):
            _misfit(row, self._block, where, "")
        name = None if row.session_id is None else str(row.session_id)
        session = self._sessions.get(name) if name is not None else None
        arrival_s = self._arrival_s(row, session, where)
        tokens, runs = row.input_length, runs_of(ids)
        if session and not _is_whole(row, session):
            tokens, runs = session.tokens + row.input_length, self._continued(session, row)
            self.continued += 1
        follows = row.timestamp is None and session is not None
        self.followed += follows
        self.columns.add(
            where,
            arrival_s,
            tokens,
            row.output_length,
            runs if self._with_ids else (),
            session=name,
            think_s=None if row.delay is None else row.delay / self._per_s,
            follows=follows,
        )
        if name is not None:
            session = session or _Session(arrival_s, row.timestamp is not None)
            self._sessions[name] = session
            self._turned(session, row, arrival_s, tokens, runs)

    def _arrival_s(self, row: _Row, session: _Session | None, where: str) -> float:
        if session is None:
            self._timed = (row.timestamp is not None) if self._timed is None else self._timed
            if (row.timestamp is not None) != self._timed:
                what = "first turns" if self._grouped else "lines"
                raise BadInput(f'only some {what} have "timestamp"', where, _ALL_OR_NONE)
            return 0.0 if row.timestamp is None else row.timestamp / self._per_s
        has_time = row.timestamp is not None
        if session.turns > 1 and has_time != session.later_have_time:
            raise BadInput(
                'only some later turns of a session have "timestamp"',
                where,
                "give it in all of them or in none",
            )
        if row.timestamp is None:
            return session.arrival_s + (row.delay or 0.0) / self._per_s
        if not session.has_time:
            raise BadInput('the first turn of the session has no "timestamp"', where, _ALL_OR_NONE)
        arrival_s = row.timestamp / self._per_s
        if arrival_s < session.arrival_s:
            raise BadInput(
                f"arrival at {arrival_s:g} s is before its session's last, {session.arrival_s:g} s",
                where,
                "give the turns of a session in their order",
            )
        return arrival_s

    def _continued(self, session: _Session, row: _Row) -> list[tuple[int, int]]:
        """The runs of a prompt that continues a session: what was whole before, then blocks of its
        own, since what is new begins inside a block."""
        whole, rest = divmod(session.tokens + row.input_length, self._block)
        self._keep(session, whole)
        return [*session.runs, *([self._own_run(1)] if rest else [])]

    def _keep(self, session: _Session, whole: int) -> None:
        """Let the session have `whole` whole blocks, those that it lacks with ids of its own."""
        if whole > session.whole_blocks:
            session.runs.append(self._own_run(whole - session.whole_blocks))
            session.whole_blocks = whole

    def _own_run(self, count: int) -> tuple[int, int]:
        self._own -= count
        return self._own, count

    def _turned(
        self,
        session: _Session,
        row: _Row,
        arrival_s: float,
        tokens: int,
        runs: list[tuple[int, int]],
    ) -> None:
        """Note a turn that was added, with its answer."""
        ids = row.hash_ids or ()
        self._largest = max(self._largest, max(ids, default=-1))
        session.later_have_time = row.timestamp is not None
        session.turns += 1
        session.arrival_s = arrival_s
        if session.turns == 1 or _is_whole(row, session):
            whole = row.input_length // self._block
            session.runs, session.whole_blocks = runs_of(ids[:whole]), whole
        session.first_id = ids[0] if ids else -1
        session.tokens = tokens + row.output_length

    def finish(self, source: Source, *notes: str) -> Trace:
        """The trace, with notes on what was assumed."""
        if self.continued and self._with_ids and self._largest >= self._own:
            raise BadInput(
                f"hash id {self._largest:,} leaves no room for the blocks of continued prompts",
                str(source.path),
                f"number its ids below {self._own:,}",
            )
        told = list(notes)
        if self._timed is False:
            what = "sessions" if self._grouped else "requests"
            told.append(f"no timestamps: all {what} begin together at 0 s")
        if self.followed:
            told.append(
                f"{numbered(self.followed, 'turn')} with a delay in place of a timestamp: where "
                "nothing says when the turn before ends, as if it had taken no time"
            )
        if self.continued:
            told.append(
                f"{numbered(self.continued, 'turn')} of what is new alone: put behind all turns "
                "and recorded answers before, as AIPerf does"
            )
        return self.columns.finish(source.origin(FORMAT, *told), source.limit)


def _is_whole(row: _Row, session: _Session) -> bool:
    """Whether a later turn has its whole prompt."""
    if row.context_mode is not None:
        return row.context_mode == WHOLE_PROMPTS
    return row.hash_ids[:1] == (session.first_id,) if row.hash_ids else False


def _misfit(row: _Row, block_tokens: int, where: str, others: str) -> NoReturn:
    raise BadInput(
        f"{len(row.hash_ids or ())} hash_ids for {row.input_length} input tokens",
        where,
        f"expected {-(-row.input_length // block_tokens)}, one per {block_tokens} tokens; for "
        f"blocks of another size give --block-tokens{others}",
    )


def _block_tokens(source: Source) -> int:
    """Tokens of a block: 512, or the one power of two that all lines fit. BadInput: there is none,
    or too few lines to tell."""
    low, high, narrow = 1, 1 << 62, 0
    misfit: tuple[_Row, str] | None = None
    decoder = msgspec.json.Decoder(_Row)
    for number, raw in lines(source.path):
        where = f"{source.path}:{number}"
        row = decoded(decoder, raw, where, _FORMAT, Unread())
        ids = len(row.hash_ids or ())
        if ids:
            # ids = ceil(tokens / block), so tokens / ids <= block < tokens / (ids - 1).
            low = max(low, -(-row.input_length // ids))
            high = min(high, (row.input_length - 1) // (ids - 1)) if ids > 1 else high
            narrow += ids > 1
        if row.hash_ids is not None and ids != -(-row.input_length // TRACE_BLOCK_TOKENS):
            misfit = misfit or (row, where)
        if number >= min(DETECTED_LINES, source.limit or DETECTED_LINES):
            break
    if misfit is None:
        return TRACE_BLOCK_TOKENS
    sizes = [1 << power for power in POWERS if low <= 1 << power <= high]
    if len(sizes) != 1 or narrow < DETECTED_MIN:
        others = f": {low} to {high} fit the first lines" if 1 < low <= high < 1 << 62 else ""
        _misfit(misfit[0], TRACE_BLOCK_TOKENS, misfit[1], others)
    return sizes[0]


def _knows(head: Head) -> bool:
    keys = set() if head.json is None else head.json.keys()
    return "hash_runs" not in keys and ("input_length" in keys or {"hash_ids", "timestamp"} <= keys)


def _read(source: Source) -> Trace:
    decoder = msgspec.json.Decoder(_Row)
    block_tokens = source.block_tokens or _block_tokens(source)
    reader: _Reader | None = None
    for where, raw in source.lines():
        row = decoded(decoder, raw, where, _FORMAT, source.unread)
        if reader is None:
            grouped, with_ids = row.session_id is not None, row.hash_ids is not None
            reader = _Reader(source, block_tokens, grouped, with_ids)
        reader.add(row, where)
        if not grouped and source.full(len(reader.columns)):
            break
    source.check_found(reader is not None, _FORMAT)
    assert reader is not None
    detected = source.block_tokens is None and block_tokens != TRACE_BLOCK_TOKENS
    note = f"blocks read as {block_tokens} tokens: its ids fit no other power of two"
    return reader.finish(source, *([note] if detected else []))


FORMAT = Format(
    "mooncake",
    "Mooncake and AIPerf: one request a line, ids of 512-token prefix blocks, sessions with delays",
    "Apache-2.0 (kvcache-ai/Mooncake)",
    _knows,
    _read,
    "ms",
    block_tokens=TRACE_BLOCK_TOKENS,
)
