"""Mooncake: one request a line, ids of 512-token prefix blocks (kvcache-ai/Mooncake, FAST '25).

One JSON object per line (kvcache-ai/Mooncake, FAST25-release/traces):
`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`, with one
hash id per 512 input tokens. Other keys, as in derived traces, have no effect. The reader streams:
it holds one line at a time, and every defect is a `BadInput` with file and line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import (
    TRACE_BLOCK_TOKENS,
    Request,
    Unread,
    decoded,
    lines,
)

__all__ = ["FORMAT", "iterate"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e19)]

_FORMAT = (
    'one JSON object per line with "timestamp" (ms), "input_length", "output_length" and '
    '"hash_ids" is expected'
)


class _Row(msgspec.Struct, gc=False):
    timestamp: _Milliseconds
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Count, ...]


def iterate(
    path: str | Path, limit: int | None = None, unread: Unread | None = None
) -> Iterator[Request]:
    """Yield requests in file order, which is order of arrival; lines after the limit are not read.
    Keys that are not part of a request are counted in `unread`.

    Raises BadInput (with file and line) for a missing or empty file, bad gzip, a torn last line,
    invalid JSON, a missing key, a wrong type, a negative number, a number of ids other than
    ceil(input_length / 512), and a timestamp before the one above it.
    """
    path, unread = Path(path), Unread() if unread is None else unread
    if limit is not None and limit < 1:
        raise BadInput(f"limit of {limit} requests", str(path), "give a limit of 1 or more")
    decoder = msgspec.json.Decoder(_Row)
    count = 0
    timestamp_ms = 0.0
    for number, raw in lines(path):
        where = f"{path}:{number}"
        row = decoded(decoder, raw, where, _FORMAT, unread)
        _check(row, timestamp_ms, where)
        timestamp_ms = row.timestamp
        yield Request(count, row.timestamp, row.input_length, row.output_length, row.hash_ids)
        count += 1
        if count == limit:
            return
    if count == 0:
        raise BadInput("the file holds no request", str(path), _FORMAT)


def _check(row: _Row, timestamp_ms: float, where: str) -> None:
    block_count = -(-row.input_length // TRACE_BLOCK_TOKENS)
    if len(row.hash_ids) != block_count:
        raise BadInput(
            f"{len(row.hash_ids)} hash_ids for {row.input_length} input tokens",
            where,
            f"expected {block_count}, one per {TRACE_BLOCK_TOKENS} tokens; "
            "a trace with another block size cannot be read",
        )
    if row.timestamp < timestamp_ms:
        raise BadInput(
            f"timestamp {row.timestamp:.0f} ms is before {timestamp_ms:.0f} ms of the line above",
            where,
            "sort the trace by timestamp",
        )


def _knows(head: Head) -> bool:
    return head.json is not None and "hash_ids" in head.json and "timestamp" in head.json


def _read(source: Source) -> Trace:
    columns = Columns(TRACE_BLOCK_TOKENS, ordered=True)
    path, per_s = source.path, source.per_second("ms")
    for row in iterate(path, source.limit, source.unread):
        columns.add(
            f"{path}:{row.index + 1}",
            row.timestamp_ms / per_s,
            row.input_tokens,
            row.output_tokens,
            runs_of(row.block_ids),
        )
    return columns.finish(source.origin(FORMAT))


FORMAT = Format(
    "mooncake",
    "Mooncake: one request a line, ids of 512-token prefix blocks (kvcache-ai/Mooncake, FAST '25).",
    "Apache-2.0 (kvcache-ai/Mooncake)",
    _knows,
    _read,
    "ms",
)
