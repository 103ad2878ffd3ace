"""A first look at a file of scores: how much of a selection the next step selects again.

The figure that most papers on sparse attention give, so that a capture can be held against theirs
before any experiment is made with it. It owns nothing, and reads one slab at a time.
"""

from pathlib import Path

import numpy as np

from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.slab import ABSENT

__all__ = ["OVERLAP_STEPS", "overlap"]

OVERLAP_STEPS = 64


def overlap(path: str | Path, steps: int = OVERLAP_STEPS) -> dict[str, object]:
    """Blocks of a selection that the step before selected too, over all selected blocks.

    By mass, maximum over groups, without sinks and window; k is a quarter of the context's blocks,
    at most 32. Mean over the first `steps` steps and all layers of the first session, and the
    layer where it is least; None with one step only.
    """
    first = CapturedWorkload(path, 1, sink_blocks=0, window_blocks=0)
    k = max(1, min(32, first.sessions[0].blocks // 4))
    workload = CapturedWorkload(path, k, sink_blocks=0, window_blocks=0)
    shared = np.zeros(workload.layer_count)
    count = 0
    before: np.ndarray | None = None
    for slab in workload.slabs(0):
        for selected in slab.selected:
            if before is not None and count < steps:
                count += 1
                for layer, (now, then) in enumerate(zip(selected, before, strict=True)):
                    chosen = now[now != ABSENT]
                    shared[layer] += np.isin(chosen, then).sum() / max(1, chosen.size)
            before = selected
        if count >= steps:
            break
    if count == 0:
        return {"k_blocks": k, "steps": 0, "mean": None, "least": None, "least_layer": None}
    rates = shared / count
    return {
        "k_blocks": k,
        "steps": count,
        "mean": round(float(rates.mean()), 4),
        "least": round(float(rates.min()), 4),
        "least_layer": int(rates.argmin()),
    }
