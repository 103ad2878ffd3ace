"""The requests of any trace in the blocks that a live run takes: 512 tokens, as Mooncake's are.

A block of 512 tokens is named by the trace's own block that covers its last token, whose id stands
for the whole prefix up to there. So where the trace has other blocks, two requests share what they
share in the trace, rounded down to 512 tokens; a tail that the trace gives no id is the request's
own, and of a trace without blocks everything is. Pure; nothing can fail.
"""

from collections.abc import Iterator

import numpy as np

from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request

__all__ = ["requests_in_blocks"]


def requests_in_blocks(trace: Trace) -> Iterator[Request]:
    """All requests, one at a time, with ids of blocks of `TRACE_BLOCK_TOKENS`; of a trace in such
    blocks, its own ids."""
    own = trace.block_tokens == TRACE_BLOCK_TOKENS
    numbers: dict[tuple[int, int], int] = {}  # of those that are not the trace's own
    fresh = -1  # downwards, of those that nobody shares
    for index in range(len(trace)):
        tokens = int(trace.input_tokens[index])
        ids = trace.block_ids(index)
        ends = np.minimum(
            np.arange(1, -(-tokens // TRACE_BLOCK_TOKENS) + 1) * TRACE_BLOCK_TOKENS, tokens
        )
        # How many blocks of the trace it takes to cover each of ours.
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
