"""HBM controller: the staging arena next to the die.

What it does: reads and writes pieces of blocks; a stack has 16 or more channels, over which a piece
is striped.

Pipeline: queue, schedule for open rows, burst; latency from a table of Ramulator at a middle load.
Initiation interval: the piece's time at `rate` times `efficiency`, for each stack.
State: open rows, refresh.
When full: DMA engines and codec lanes hold their pieces.
"""

from offstage.asic_model.blocks import Memory
from offstage.asic_model.units.memory import controller
from offstage.bindings.network import Unit

__all__ = ["hbm_stacks"]


def hbm_stacks(memory: Memory) -> tuple[Unit, ...]:
    """All stacks."""
    return (controller("hbm", memory),)
