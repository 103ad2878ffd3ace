"""A memory controller: the common part of HBM, DDR and memory behind CXL.

One server per channel at its peak rate less refresh and turnarounds, followed by a latency. If the
memory names its standard (`device`), refreshes are pauses, and the rate between them is higher by
that share. The spread of latency and its growth with load come from the Ramulator table
(`tables/dram.toml`), shifted so that the mean at a middle load is the preset's number, which is the
one that is varied. An access is a piece of a block, striped over the channel's banks, so banks are
not modelled individually; it is also striped over all channels of a stack, which refresh together.
"""

from dataclasses import replace

from offstage.asic_model.blocks import Memory
from offstage.asic_model.tables.dram import LOAD_SPAN_PS, Channel, channel, mean_ps
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Load, Unit

__all__ = ["controller"]

MIDDLE_PERMILLE = 400


def controller(name: str, memory: Memory) -> Unit:
    """The channels of one memory behind one queue."""
    rate = memory.rate.base * memory.efficiency.base
    plain = Unit(
        name,
        queue="priority",
        servers=memory.channels.whole,
        queue_max=memory.queue.whole,
        mib_ps=per_mib_ps(rate),
        latency_ps=memory.latency.whole,
    )
    if not memory.device:
        return plain
    table = channel(memory.device)
    paused = table.pause_ps / table.pause_every_ps
    return replace(
        plain,
        mib_ps=per_mib_ps(rate / (1 - paused)),
        pause_every_ps=table.pause_every_ps,
        pause_ps=table.pause_ps,
        load_rows=_rows(table, memory.latency.whole),
        load_span_ps=LOAD_SPAN_PS,
    )


def _rows(table: Channel, latency_ps: int) -> tuple[Load, ...]:
    """The table's rows, with every time shifted by the same amount; none below 0."""
    middle = min(table.rows, key=lambda row: abs(row.load_permille - MIDDLE_PERMILLE))
    later = latency_ps - mean_ps(middle)
    times = ("min_ps", "p50_ps", "p90_ps", "p99_ps", "max_ps")
    return tuple(
        Load(row.load_permille, *(max(0, round(getattr(row, name) + later)) for name in times))
        for row in table.rows
    )
