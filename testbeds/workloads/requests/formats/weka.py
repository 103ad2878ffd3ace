"""WEKA: sessions of Claude Code (callanjfox/kv-cache-tester, traces/trace_NNNN.json).

Two forms. Upstream: a file is one session, `{"id", "block_size", "hash_id_scope", "requests":
[{"t": s, "in", "out", "hash_ids", "think_time", ...}]}`; a sub-agent is an entry with nested
`requests`, whose times are relative to that entry. Re-encoded: a session is one line, with `runs`
instead of `hash_ids`, `think`, and sub-agents already merged.

Sessions have no common clock. Session k, in the given order, starts at 8 h x frac(k x 0.618...),
which spreads any number of sessions evenly, and keeps its recorded pace. Ids are local to a session
unless the file says "global", so each session gets a separate range.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.containers import opened
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import decoded, lines

__all__ = ["FORMAT"]

WINDOW_S = 8 * 3600.0
GOLDEN_RATIO = 0.6180339887498949
NESTING_MAX = 8
FILE_BYTES_MAX = 1 << 28

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_EXPECTED = (
    'a session with "block_size" and "requests" of "t" (s), "in", "out" and "hash_ids" '
    '(or "runs") is expected'
)


class _Entry(msgspec.Struct, gc=False):
    t: _Seconds
    input: _Count = msgspec.field(name="in", default=0)
    output: _Count = msgspec.field(name="out", default=0)
    hash_ids: list[_Count] | None = None
    runs: list[tuple[_Count, _Count]] | None = None
    think: float | None = None
    think_time: float | None = None
    requests: list["_Entry"] | None = None


class _Session(msgspec.Struct, gc=False):
    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    requests: list[_Entry]
    hash_id_scope: str = "local"


def _knows(head: Head) -> bool:
    return head.json is not None and {"block_size", "requests"} <= head.json.keys()


def _sessions(source: Source) -> Iterator[tuple[str, _Session]]:
    decoder = msgspec.json.Decoder(_Session)
    for path in source.paths:
        with opened(path) as file:
            first = file.readline(FILE_BYTES_MAX)
            if first.strip() == b"{":  # indented: the whole file is one object
                whole = first + file.read(FILE_BYTES_MAX)
                yield str(path), decoded(decoder, whole, str(path), _EXPECTED, source.unread)
                continue
        for number, raw in lines(path, source.counted):
            where = f"{path}:{number}"
            yield where, decoded(decoder, raw, where, _EXPECTED, source.unread)


def _flat(
    entries: list[_Entry], where: str, start_s: float = 0.0, depth: int = 0
) -> Iterator[tuple[float, _Entry]]:
    """Requests with their time since the session began, sub-agents merged at their call."""
    if depth > NESTING_MAX:
        raise BadInput(f"sub-agents nested deeper than {NESTING_MAX}", where, _EXPECTED)
    for entry in entries:
        if entry.requests is not None:
            yield from _flat(entry.requests, where, start_s + entry.t, depth + 1)
        elif entry.hash_ids is None and entry.runs is None:
            raise BadInput('a request has neither "hash_ids" nor "runs"', where, _EXPECTED)
        else:
            yield start_s + entry.t, entry


def _read(source: Source) -> Trace:
    columns: Columns | None = None
    base = 1 << 20
    per_s = source.per_second("s")
    for ordinal, (where, session) in enumerate(_sessions(source)):
        if columns is None:
            columns = Columns(session.block_size, ordered=False)
        if session.block_size != columns.block_tokens:
            raise BadInput(
                f"blocks of {session.block_size} tokens, of {columns.block_tokens} before",
                where,
                "one trace has one block size",
            )
        shift = 0 if session.hash_id_scope == "global" else base
        start_s = WINDOW_S * ((ordinal * GOLDEN_RATIO) % 1.0)
        end = 0
        for time_s, entry in _flat(session.requests, where):
            runs = entry.runs if entry.runs is not None else runs_of(entry.hash_ids or [])
            think = entry.think if entry.think is not None else entry.think_time
            end = max(end, max((first + count for first, count in runs), default=0))
            columns.add(
                where,
                start_s + time_s / per_s,
                entry.input,
                entry.output,
                [(first + shift, count) for first, count in runs],
                session=session.id,
                think_s=None if think is None else think / per_s,
            )
        base += end
    if columns is None or not len(columns):
        raise BadInput("the files hold no request", str(source.paths[0]), _EXPECTED)
    notes = ("no common clock: session k starts at 8 h x frac(k x 0.618...), recorded pace kept",)
    return columns.finish(source.origin(FORMAT, *notes), source.limit)


FORMAT = Format(
    "weka",
    "WEKA kv-cache-tester: sessions of Claude Code, a file or a line for a session",
    "Apache-2.0 (callanjfox/kv-cache-tester)",
    _knows,
    _read,
    "s",
)
