"""How much of a request trace's reuse a place of limited size keeps: LRU, exact at every size.

Model: sizes are shares of the trace's distinct blocks, which stand for the contexts of all users;
hits are shares of those of an endless place, whose own are the trace's reuse. Times of the trace
are not used: the gap between turns stays that of the catalog.

What can fail: `BadInput` of the reader, and of a trace without blocks or reuse.
"""

from pathlib import Path

import msgspec
import numpy as np

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.bindings.prefix import distances
from offstage.testbeds.lab.bounds.prefix import PrefixTrace
from offstage.testbeds.plan.inputs import Inputs
from offstage.testbeds.plan.rivals.question import Asked
from offstage.testbeds.workloads.requests.importer import open_trace

__all__ = ["with_trace"]

POINTS = 64


def with_trace(
    asked: Asked, inputs: Inputs, path: Path, form: str | None, time_unit: str | None
) -> tuple[Asked, Inputs]:
    """The question with the trace's hits by size, and the inputs with its reuse."""
    trace = open_trace(path, form, time_unit=time_unit)
    runs = PrefixTrace(trace).runs
    hits = np.cumsum(distances(runs).astype(np.int64))
    if not hits[-1]:
        raise BadInput("no block is used twice", trace.origin.name, "give a trace with reuse")
    sizes = np.unique(np.linspace(1, len(hits), POINTS).astype(np.int64))
    kept = [(int(one) / len(hits), float(hits[one - 1] / hits[-1])) for one in sizes]
    share = float(hits[-1]) / runs.access_count
    reused = Number(
        value=share,
        unit="1",
        low=share,
        high=share,
        tag="measured",
        source=f"{trace.origin.name}: blocks that were used before, an endless place's hits",
    )
    found = inputs.set({"workload.prefix": reused}, "measured")
    return msgspec.structs.replace(asked, reuse=tuple(kept)), found
