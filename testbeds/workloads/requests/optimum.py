"""The most block hits that any cache can have on a trace of requests.

OPT is Belady's choice with bypass, which may also decline to keep a block: an upper bound on block
hits for every eviction and admission of that capacity. It knows the future, no policy attains it.
"""

from functools import cached_property

import numpy as np

from offstage.bindings.bounds import Demands, belady
from offstage.testbeds.workloads.requests.requests import Trace

__all__ = ["Optimum"]


class Optimum:
    """OPT of one trace at any capacity; holds 17 bytes for each access once it is asked."""

    def __init__(self, trace: Trace) -> None:
        trace.need_blocks("OPT")
        self._trace = trace

    @cached_property
    def _demands(self) -> Demands:
        accesses = self._trace.accesses()
        return Demands(
            accesses,
            np.arange(len(accesses) + 1, dtype=np.uint64),
            np.zeros(len(accesses), np.uint8),
            self._trace.runs.block_count,
        )

    def block_hit_rate(self, capacity_blocks: int) -> float:
        """Hits over accesses with a buffer of `capacity_blocks`; 0 where nothing is accessed."""
        if not self._trace.runs.access_count:
            return 0.0
        hits = belady(self._demands, capacity_blocks, bypass=True).hits
        return int(hits.sum(dtype=np.int64)) / len(hits)
