"""A memory controller: what HBM, DDR and memory behind CXL have in common.

One server for each channel at the rate that is left of its peak after refresh and turnarounds, and
a latency behind it. Where the memory names its standard (`device`), how that latency spreads and
grows with load is the table's that Ramulator filled (`tables/dram.toml`), scaled so that its median
at a middle load is the preset's: the number that is varied. An access is a piece of a block,
striped over the channel's banks, so banks are not modelled one by one.
"""

from offstage.asic_model.parameters import Memory
from offstage.asic_model.tables.dram import LOAD_SPAN_PS, channel
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Load, Unit

__all__ = ["controller"]


MIDDLE_PERMILLE = 400


def controller(name: str, memory: Memory) -> Unit:
    """The channels of one memory behind one queue."""
    rows = _rows(memory.device, memory.latency.whole) if memory.device else ()
    return Unit(
        name, queue="priority", servers=memory.channels.whole, queue_max=memory.queue.whole,
        mib_ps=per_mib_ps(memory.rate.base * memory.efficiency.base),
        latency_ps=memory.latency.whole, load_rows=rows, load_span_ps=LOAD_SPAN_PS if rows else 0,
    )  # fmt: skip


def _rows(device: str, latency_ps: int) -> tuple[Load, ...]:
    """The table's rows, every time of them scaled alike."""
    rows = channel(device).rows
    middle = min(rows, key=lambda row: abs(row.load_permille - MIDDLE_PERMILLE))
    over = latency_ps / middle.p50_ps
    times = ("min_ps", "p50_ps", "p90_ps", "p99_ps", "max_ps")
    return tuple(
        Load(row.load_permille, *(round(getattr(row, name) * over) for name in times))
        for row in rows
    )
