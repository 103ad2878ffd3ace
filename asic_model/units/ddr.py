"""DDR controller: DIMMs of a card, for the arena of a DPU or the tables of the ASIC.

What it does: as HBM, with fewer and slower channels. It serves metadata lookups that miss on the
die and, without HBM, holds the arena.

Pipeline: queue, schedule for open rows, burst; latency from a table of Ramulator at a middle load.
Initiation interval: the piece's time at `rate` times `efficiency`, for each channel.
State: open rows, refresh.
When full: lookups that missed wait in the metadata's queue, pieces with their engines.
"""

from offstage.asic_model.blocks import Memory
from offstage.asic_model.units.memory import controller
from offstage.bindings.network import Unit

__all__ = ["ddr_channels"]


def ddr_channels(memory: Memory) -> tuple[Unit, ...]:
    """All channels."""
    return (controller("ddr", memory),)
