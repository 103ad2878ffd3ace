"""The requests of any trace in the blocks of a live run: 512 tokens, as in Mooncake.

A block of 512 tokens takes the id of the trace's block that covers its last token, which identifies
the whole prefix up to there. So with other block sizes, two requests share what they share in the
trace, rounded down to 512 tokens. A tail without an id belongs to its request alone, and so does
every block of a trace without blocks. Pure; nothing can fail.
"""

from collections.abc import Iterator

import numpy as np

from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request

__all__ = ["requests_in_blocks"]


def requests_in_blocks(trace: Trace) -> Iterator[Request]:
    """All requests, one at a time, with ids of blocks of `TRACE_BLOCK_TOKENS`; a trace in such
    blocks keeps its ids."""
    own = trace.block_tokens == TRACE_BLOCK_TOKENS
    numbers: dict[tuple[int, int], int] = {}  # of blocks without an id of the trace
    fresh = -1  # downwards, for blocks that are not shared
    for index in range(len(trace)):
        tokens = int(trace.input_tokens[index])
        ids = trace.block_ids(index)
        ends = np.minimum(
            np.arange(1, -(-tokens // TRACE_BLOCK_TOKENS) + 1) * TRACE_BLOCK_TOKENS, tokens
        )
        # The number of the trace's blocks that cover each of ours.
        theirs = -(-ends // trace.block_tokens) if trace.block_tokens else np.zeros_like(ends)
        found = []
        for block, count in enumerate(theirs.tolist()):
            if not 0 < count <= len(ids):
                found.append(fresh)
                fresh -= 1
            elif own:
                found.append(int(ids[count - 1]))
            else:
                found.append(numbers.setdefault((int(ids[count - 1]), block), len(numbers)))
        yield Request(
            index=index,
            timestamp_ms=round(float(trace.arrival_s[index]) * 1e3, 6),
            input_tokens=tokens,
            output_tokens=int(trace.output_tokens[index]),
            block_ids=tuple(found),
        )
