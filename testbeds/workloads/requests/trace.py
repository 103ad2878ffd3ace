"""A request trace on disk: the record of one request, and its lines.

Owns only the open file of one iterator. Every defect of a file is a `BadInput` that names the file
and the line, because a trace is user input; nothing is skipped or repaired silently, since a
missing request changes every hit rate after it.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from offstage.bindings.errors import BadInput, printable
from offstage.bindings.outside import json_line
from offstage.testbeds.workloads.requests.containers import opened

__all__ = ["LINE_BYTES_MAX", "TRACE_BLOCK_TOKENS", "Request", "Unread", "decoded", "lines"]


Row = TypeVar("Row")

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one hash id in the Mooncake format (kvcache-ai/Mooncake, FAST25-release)."""

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused before it is held in memory; 16 MiB is about a billion tokens."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request: its arrival, its lengths, and its prefix blocks.

    `index` counts requests from 0 in order of arrival. `block_ids` has one id per
    `trace_block_tokens` input tokens, in some formats one more for the rest; an id identifies the
    whole prefix up to and including its block, so two requests share a prefix exactly as long as
    their ids agree from the front. `session` names the conversation and `turn` counts its requests
    from 0; None where the format has no sessions. `gap_s` is the time since the session's last
    request, `think_s` the client's part of it; None where not known.
    """

    index: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str | None = None
    turn: int | None = None
    gap_s: float | None = None
    think_s: float | None = None
    trace_block_tokens: int = TRACE_BLOCK_TOKENS

    def block_tokens(self, ordinal: int) -> int:
        """Tokens in block `ordinal` (0-based): a whole block, or the rest in the last one."""
        assert 0 <= ordinal < len(self.block_ids)
        left = self.input_tokens - self.trace_block_tokens * ordinal
        return max(0, min(self.trace_block_tokens, left))


def lines(path: Path, counted: Callable[[int], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, raw line with its end) of a file, packed or not; `counted` gets
    the number of bytes of each read from disk.

    Raises BadInput as `opened` does, and for an endless line.
    """
    number = 0

    def where() -> str:
        return f"{path}:{number + 1}"

    with opened(path, where, counted) as file:
        while raw := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX:
                raise BadInput(
                    f"line longer than {LINE_BYTES_MAX >> 20} MiB",
                    f"{path}:{number}",
                    "a trace has one JSON object per line",
                )
            yield number, raw


class Unread:
    """Keys of a trace's objects, or columns of its table, that its reader does not use, with their
    counts: they have no effect, and a note says so."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.called = "keys"

    def count(self, raw: bytes | msgspec.Raw, kind: Any) -> None:
        """Count the unused keys of one object that `kind` was read from, nested ones included."""
        known = _keys_of(kind)
        for key, value in _OBJECT.decode(raw).items():
            if key not in known:
                name = key if key in self.times or len(self.times) < KEYS_MAX else OTHERS
                self.times[name] = self.times.get(name, 0) + 1
            elif (inner := known[key]) is not None and bytes(value) != b"null":
                for one in _LIST.decode(value):
                    self.count(one, inner)

    def __str__(self) -> str:
        """The most frequent first; empty if there are none."""
        most = sorted(self.times.items(), key=lambda one: (-one[1], one[0]))
        shown = [
            f"{_shown(key)} ({f'{count:,} times' if count > 1 else 'once'})"
            for key, count in most[:KEYS_SHOWN]
        ]
        more = [f"and {len(most) - KEYS_SHOWN:,} more"] if len(most) > KEYS_SHOWN else []
        return ", ".join([*shown, *more])


KEYS_MAX, KEYS_SHOWN, KEY_LENGTH_MAX = 256, 12, 40
"""Maximum distinct keys counted, and named; maximum characters shown of one."""
OTHERS = "any other"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@cache
def _keys_of(kind: Any) -> dict[str, type[msgspec.Struct] | None]:
    """The keys that a struct reads, with the struct that each has a list of, or None."""
    return {one.encode_name: _struct_in(one.type) for one in msgspec.structs.fields(kind)}


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for one in get_args(kind) if (found := _struct_in(one))), None)


def _shown(key: str) -> str:
    shown = printable(key) or '""'
    return shown if len(shown) <= KEY_LENGTH_MAX else shown[:KEY_LENGTH_MAX] + "..."


def decoded(
    decoder: msgspec.json.Decoder[Row], raw: bytes, where: str, expected: str, unread: Unread
) -> Row:
    """One line of a trace; unknown keys are counted in `unread`. BadInput distinguishes blank,
    torn, foreign and wrong lines."""
    try:
        row = json_line(decoder, raw, where, expected)
    except BadInput as bad:
        if not raw.strip():
            raise BadInput("blank line", where, "remove it") from None
        if bad.what.startswith("not JSON") and not raw.endswith(b"\n"):
            raise BadInput(
                "the last line is torn", where, "copy the file again, or delete that line"
            ) from None
        raise
    unread.count(raw, decoder.type)
    return row
