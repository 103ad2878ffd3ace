"""Qwen-Bailian: two hours of a service, with chats (alibaba-edu/qwen-bailian-usagetraces-anon).

One JSON object per line: `{"chat_id", "parent_chat_id", "timestamp": s, "input_length": tokens,
"output_length": tokens, "type", "turn", "hash_ids": [...]}`, with one id per 16 input tokens. A
request whose `parent_chat_id` is -1 begins a chat; the others belong to the chat of their parent,
which is named by its first request. A parent from before the trace names its chat alone. A prompt
is whole: it has the turns before it.
"""

from typing import Annotated

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import decoded

__all__ = ["FORMAT"]

BLOCK_TOKENS = 16

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_EXPECTED = (
    'one JSON object per line with "chat_id", "parent_chat_id", "timestamp" (s), "input_length", '
    '"output_length" and "hash_ids" is expected'
)


class _Row(msgspec.Struct, gc=False):
    chat_id: _Count
    parent_chat_id: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e19)]
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Count, ...]


class _Chats:
    """The first request of each chat, by every request of it."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._absent: set[int] = set()

    def of(self, row: _Row, where: str) -> int:
        """The chat of a request. BadInput: its id was there before, or its parent comes later."""
        if row.chat_id in self._first or row.chat_id in self._absent:
            what = "appears twice" if row.chat_id in self._first else "comes after an answer to it"
            raise BadInput(f"chat_id {row.chat_id} {what}", where, "sort the trace by timestamp")
        first = row.chat_id
        if row.parent_chat_id >= 0:
            if row.parent_chat_id not in self._first:
                self._absent.add(row.parent_chat_id)
            first = self._first.get(row.parent_chat_id, row.parent_chat_id)
        self._first[row.chat_id] = first
        return first


def _knows(head: Head) -> bool:
    return head.json is not None and {"chat_id", "parent_chat_id"} <= head.json.keys()


def _read(source: Source) -> Trace:
    decoder = msgspec.json.Decoder(_Row)
    columns = Columns(source.block_tokens or BLOCK_TOKENS, ordered=True)
    per_s, chats = source.per_second("s"), _Chats()
    for where, raw in source.lines():
        row = decoded(decoder, raw, where, _EXPECTED, source.unread)
        columns.add(
            where,
            row.timestamp / per_s,
            row.input_length,
            row.output_length,
            runs_of(row.hash_ids),
            session=str(chats.of(row, where)),
        )
        if source.full(len(columns)):
            break
    source.check_found(len(columns), _EXPECTED)
    return columns.finish(source.origin(FORMAT))


FORMAT = Format(
    "qwen",
    "Qwen-Bailian: one request a line with chats, ids of 16-token prefix blocks",
    "Apache-2.0 (alibaba-edu/qwen-bailian-usagetraces-anon)",
    _knows,
    _read,
    "s",
    block_tokens=BLOCK_TOKENS,
)
