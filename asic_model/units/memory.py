"""A memory controller: what HBM, DDR and memory behind CXL have in common.

One server for each channel at the rate that is left of its peak after refresh and turnarounds, and
a latency behind it. An access is a piece of a block, striped over the channel's banks, so banks are
not modelled one by one.
"""

from offstage.asic_model.parameters import Memory
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["controller"]


def controller(name: str, memory: Memory) -> Unit:
    """The channels of one memory behind one queue."""
    return Unit(
        name, queue="priority", servers=memory.channels.whole, queue_max=memory.queue.whole,
        mib_ps=per_mib_ps(memory.rate.base * memory.efficiency.base),
        latency_ps=memory.latency.whole,
    )  # fmt: skip
