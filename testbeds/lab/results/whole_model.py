"""What a run over the layers that select says of the whole model, and of what serves it.

Model: a sum over the layers that were drawn stands for as many times itself as the model has
layers that select; shares need no factor. Bytes of a session are those of the model's cache groups.
A drive is full when the resource that is asked most has no idle time (`nvme_cost`), and a link when
the entries that GPUs demand fill it. What sessions do to each other's waits is not in these
quotients: they are the most that a drive or a link can serve, not what it serves without a stall.
Pure.
"""

from collections.abc import Sequence

from offstage.bindings.storage import nvme_cost, preset
from offstage.bindings.units import parse_time
from offstage.host.model.models import geometry
from offstage.testbeds.lab.results.ledger import RunTotals
from offstage.testbeds.lab.results.summary import PointInfo, WholeModel
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import numbers_of

__all__ = ["whole_model"]

DPU = "bluefield3"
"""Whose link stands for a DPU's, as in `offstage plan`."""
NS_PER_S = 1e9


def whole_model(spec: Spec, info: PointInfo, runs: Sequence[RunTotals]) -> WholeModel | None:
    """The figures of a point; None where all layers of the geometry are staged. `runs`: one per
    seed."""
    found = spec.staged
    if found is None:
        return None
    shape = geometry(spec.geometry.model)
    drawn, work = len(found.layers), spec.workload
    totals = {
        name: sum(int(run.columns[name].sum()) for run in runs)
        for name in ("tokens", "demands", "demand_reads", "prefetch_reads")
    }
    tokens = max(1, totals["tokens"])
    each = found.of / drawn / tokens
    reads = (totals["demand_reads"] + totals["prefetch_reads"]) * each
    demanded = totals["demands"] * info.block_bytes * each
    stall_ns = sum(int(run.stall_ns.sum()) for run in runs)
    token_ns = parse_time(spec.tier.time_per_token, "[tier] time_per_token")
    cost = nvme_cost(preset(spec.tier.storage).params, [(0, info.block_bytes)])
    link = numbers_of(spec).numbers(DPU)["link"].value * 1e9
    per_drive = token_ns / (reads * cost.ns) if reads else None
    per_link = link * token_ns / NS_PER_S / demanded if demanded else None
    length = work.context_tokens + work.steps
    return WholeModel(
        layers=found.of,
        drawn_layers=drawn,
        cache_bytes=shape.session_bytes(length),
        resident_bytes=shape.resident_bytes(length),
        buffer_bytes=info.slot_count // spec.concurrent // drawn * found.of * info.block_bytes,
        reads_per_token=reads,
        read_bytes_per_token=reads * info.block_bytes,
        demanded_bytes_per_token=demanded,
        stall_share=stall_ns / (stall_ns + tokens * spec.time_per_token_ns),
        sessions_per_drive=per_drive,
        drive_bound=cost.bound,
        sessions_per_link=per_link,
    )
