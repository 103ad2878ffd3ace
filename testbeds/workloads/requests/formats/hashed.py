"""Hashed prompts: one request a line, `hash_runs` of prefix blocks in place of the text.

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_runs": [[id, n], ...]}`:
ids are run-length coded. Two data sets use this form: LMCache agent traces, with a `session` and
blocks of 64 tokens (256 bytes of the prompt), and ShareGPT as LLMServingSim published it, without
sessions and with blocks of 16 tokens.
"""

from typing import Annotated

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import decoded

__all__ = ["LMCACHE_BLOCK_TOKENS", "SHAREGPT", "read_hashed"]

LMCACHE_BLOCK_TOKENS = 64
SHAREGPT_BLOCK_TOKENS = 16

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_EXPECTED = (
    'one JSON object per line with "timestamp" (ms), "input_length", "output_length" and '
    '"hash_runs" ([[first id, number of ids], ...]) is expected'
)


class _Row(msgspec.Struct, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e19)]
    input_length: _Count
    output_length: _Count
    hash_runs: list[tuple[_Count, _Count]]
    session: _Count | str | None = None


def read_hashed(source: Source, found: Format, block_tokens: int) -> Trace:
    """The trace of a file of hashed prompts; either all lines have a session or none."""
    decoder = msgspec.json.Decoder(_Row)
    columns = Columns(block_tokens, ordered=True)
    with_sessions: bool | None = None
    per_s = source.per_second("ms")
    for where, raw in source.lines():
        row = decoded(decoder, raw, where, _EXPECTED, source.unread)
        if with_sessions is None:
            with_sessions = row.session is not None
        elif with_sessions != (row.session is not None):
            raise BadInput(
                'only some lines have "session"', where, "give it in all lines or in none"
            )
        columns.add(
            where,
            row.timestamp / per_s,
            row.input_length,
            row.output_length,
            row.hash_runs,
            session=None if row.session is None else str(row.session),
        )
        if source.full(len(columns)):
            break
    source.check_found(len(columns), _EXPECTED)
    return columns.finish(source.origin(found))


def _knows(head: Head) -> bool:
    return head.json is not None and "hash_runs" in head.json and "session" not in head.json


def _read(source: Source) -> Trace:
    return read_hashed(source, SHAREGPT, source.block_tokens or SHAREGPT_BLOCK_TOKENS)


SHAREGPT = Format(
    "sharegpt",
    "ShareGPT with hashed prompts, blocks of 16 tokens, arrivals drawn (casys-kaist/LLMServingSim)",
    "MIT (casys-kaist/LLMServingSim; text: ShareGPT)",
    _knows,
    _read,
    "ms",
    block_tokens=SHAREGPT_BLOCK_TOKENS,
)
