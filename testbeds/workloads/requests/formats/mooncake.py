"""Mooncake: one request a line, ids of 512-token prefix blocks (kvcache-ai/Mooncake, FAST '25)."""

from offstage.testbeds.workloads.requests.columns import Columns, runs_of
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.mooncake import iterate
from offstage.testbeds.workloads.requests.requests import Trace
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["FORMAT"]


def _knows(head: Head) -> bool:
    return head.json is not None and "hash_ids" in head.json and "timestamp" in head.json


def _read(source: Source) -> Trace:
    columns = Columns(TRACE_BLOCK_TOKENS, ordered=True)
    path = source.path
    for row in iterate(path, source.limit):
        columns.add(
            f"{path}:{row.index + 1}",
            row.timestamp_ms / 1e3,
            row.input_tokens,
            row.output_tokens,
            runs_of(row.block_ids),
        )
    return columns.finish(source.origin(FORMAT))


FORMAT = Format("mooncake", __doc__, "Apache-2.0 (kvcache-ai/Mooncake)", _knows, _read)
