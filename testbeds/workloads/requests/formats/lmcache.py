"""LMCache agent traces: the calls of agents, as text or with hashed prompts.

Upstream (LMCache/lmcache-agent-trace) has a file for each session and a line for each call,
`{"timestamp": us, "input": text, "output": text, "session_id": name}`. Its lines are in the order
in which calls ended, so they are sorted by time here, over all files. A prompt becomes a chain of
blocks of 256 bytes of UTF-8, about 64 tokens; a length is its bytes / 4, at least 1. The text is
not kept. The re-encoded form is that of `hashed`.
"""

from array import array
from hashlib import blake2b
from typing import Annotated

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import BLOCK_ID_MAX, Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.formats.hashed import LMCACHE_BLOCK_TOKENS, read_hashed
from offstage.testbeds.workloads.requests.trace import decoded, lines

__all__ = ["FORMAT", "chained_ids"]

BYTES_PER_TOKEN = 4
BLOCK_BYTES = LMCACHE_BLOCK_TOKENS * BYTES_PER_TOKEN

_EXPECTED = (
    'one JSON object per line with "timestamp" (us), "input", "output" and "session_id" is expected'
)


class _Call(msgspec.Struct, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e19)]
    input: str
    output: str
    session_id: str


def chained_ids(text: bytes) -> list[int]:
    """Ids of a prompt's blocks, each for the whole prefix up to its end, the tail included."""
    ids = []
    parent = b""
    for start in range(0, len(text), BLOCK_BYTES):
        digest = blake2b(parent + text[start : start + BLOCK_BYTES], digest_size=16)
        parent = digest.digest()
        ids.append(int.from_bytes(parent[:8], "little") % BLOCK_ID_MAX)
    return ids


def _without_text(call: _Call) -> tuple[float, int, int, "array[int]", str]:
    """Time, tokens in and out, ids and session; drops the text, the bulk of a large trace."""
    text, answer = call.input.encode(), call.output.encode()
    return (
        call.timestamp,
        max(1, len(text) // BYTES_PER_TOKEN) if text else 0,
        max(1, len(answer) // BYTES_PER_TOKEN) if answer else 0,
        array("q", chained_ids(text)),
        call.session_id,
    )


def _knows(head: Head) -> bool:
    if head.json is None:
        return False
    return {"hash_runs", "session"} <= head.json.keys() or {
        "input",
        "output",
        "session_id",
    } <= head.json.keys()


def _read(source: Source) -> Trace:
    for _, raw in lines(source.paths[0]):
        if b'"hash_runs"' in raw:
            return read_hashed(source, FORMAT, LMCACHE_BLOCK_TOKENS)
        break
    decoder = msgspec.json.Decoder(_Call)
    columns = Columns(LMCACHE_BLOCK_TOKENS, ordered=False)
    calls = [
        (where, *_without_text(decoded(decoder, raw, where, _EXPECTED, source.unread)))
        for path in source.paths
        for number, raw in lines(path, source.counted)
        for where in [f"{path}:{number}"]
    ]
    if not calls:
        raise BadInput("the files hold no call", str(source.paths[0]), _EXPECTED)
    per_s = source.per_second("us")
    begin = min(call[1] for call in calls)
    for where, timestamp, inputs, outputs, ids, session in calls:
        columns.add(
            where, (timestamp - begin) / per_s, inputs, outputs, runs_of(ids), session=session
        )
    notes = (
        "calls sorted by time: upstream's lines stand in the order in which calls ended",
        f"blocks are {BLOCK_BYTES} bytes of the prompt, lengths its bytes / {BYTES_PER_TOKEN}",
    )
    return columns.finish(source.origin(FORMAT, *notes), source.limit)


FORMAT = Format(
    "lmcache",
    "LMCache agent traces: upstream's text, a file for a session, or hashed prompts",
    "Apache-2.0 (LMCache/lmcache-agent-trace)",
    _knows,
    _read,
    "us",
)
