"""A memory controller: what HBM, DDR and memory behind CXL have in common.

One server for each channel at the rate that is left of its peak after refresh and turnarounds, and
a latency behind it. Where the memory names its standard (`device`), refreshes are pauses between
which it is faster by so much, and how the latency spreads and grows with load is the table's that
Ramulator filled (`tables/dram.toml`), shifted so that its mean at a middle load is the preset's:
the number that is varied. An access is a piece of a block, striped over the channel's banks, so
banks are not modelled one by one; and over all channels of a stack, which refresh together.
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
    """The table's rows, every time of them shifted alike; none below 0."""
    middle = min(table.rows, key=lambda row: abs(row.load_permille - MIDDLE_PERMILLE))
    later = latency_ps - mean_ps(middle)
    times = ("min_ps", "p50_ps", "p90_ps", "p99_ps", "max_ps")
    return tuple(
        Load(row.load_permille, *(max(0, round(getattr(row, name) + later)) for name in times))
        for row in table.rows
    )
