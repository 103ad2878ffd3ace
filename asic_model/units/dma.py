"""DMA engines: they move blocks between memory, codec, link and drives, piece by piece.

What it does: a descriptor names source, target and length; an engine fetches it, then streams the
piece. Blocks are cut into pieces so that memory, codec and link work on one block at once, and so
that one block cannot hold an engine for long.

Pipeline: descriptor (`setup`), then the datapath at `rate`; engines work side by side.
Initiation interval: of one engine, setup and the piece's time.
State: a descriptor for each piece that waits, and one in each engine.
When full: the queue of descriptors takes no more, and whoever holds the piece keeps it.
"""

from offstage.asic_model.blocks import Dma
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["dma_engines"]


def dma_engines(dma: Dma) -> tuple[Unit, ...]:
    """All engines of each direction: to the arena, and out of it. Two queues, so that a full arena
    side never holds up what would empty it."""
    return tuple(
        Unit(
            name,
            queue="priority",
            servers=dma.engines.whole,
            queue_max=dma.queue.whole,
            fixed_ps=dma.setup.whole,
            mib_ps=per_mib_ps(dma.rate.base),
        )
        for name in ("dma_in", "dma_out")
    )
