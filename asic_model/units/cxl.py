"""CXL controller: memory behind a CXL.mem port, larger and farther than DDR.

What it does: loads and stores to an expander; the link's flits and the device's own controller are
in `efficiency` and `latency`, as cited of real cards.

Pipeline: request queue of the port, flight, the device's DRAM, flight.
Initiation interval: the piece's time at `rate` times `efficiency`, for each port.
State: the entries of the request queue, 48 in the card that was measured.
When full: the port stalls, and with it everything that shares the chip's path to memory.
"""

from offstage.asic_model.blocks import Memory
from offstage.asic_model.units.memory import controller
from offstage.bindings.network import Unit

__all__ = ["cxl_ports"]


def cxl_ports(memory: Memory) -> tuple[Unit, ...]:
    """All ports."""
    return (controller("cxl", memory),)
