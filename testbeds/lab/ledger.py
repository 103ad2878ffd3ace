"""The ledger of a lab run: one row for every (session, step, layer), and what is computed from it.

The C engine writes the rows; `ledger.parquet` keeps them with the seed and the point beside them.
Every figure of a report is computed from these rows and the core's counters of the run.
"""

import numpy as np

from offstage.bindings.core import ENDS

__all__ = ["ROW"]

ROW = np.dtype(
    [
        *(("session", "<u4"), ("step", "<u4"), ("layer", "<u2"), ("flags", "<u2")),
        *(("selected", "<u2"), ("pool_hits", "<u2"), ("demands", "<u2"), ("nontrivial", "<u2")),
        ("nontrivial_selected", "<u2"),
        ("nontrivial_pool_hits", "<u2"),
        ("ends", "<u2", (len(ENDS),)),
        ("nontrivial_ends", "<u2", (len(ENDS),)),
        ("shadow_misses", "<u2"),
        ("pollution", "<u2"),
        *(("demand_reads", "<u4"), ("prefetch_reads", "<u4"), ("stall_ns", "<u4")),
    ],
    align=True,
)
"""`session`: place in the workload. `pool_hits`: selected blocks that the HBM pool served; the
rest are `demands`. `ends`: how they ended, by `ENDS`; the first five are on-time hits, `late` is
not. `shadow_misses`: what a demand-only LRU of the same size would have missed. `pollution`:
misses of blocks that a prefetch had evicted. Reads are counted in the row of the session, its step
at hand and the block's layer that caused them. `stall_ns`: waited beyond compute."""
