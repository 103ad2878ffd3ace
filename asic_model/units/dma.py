"""DMA engines: they move blocks between memory, codec, link and drives, piece by piece.

What it does: a descriptor names source, target and length; an engine fetches it, then streams the
piece. Blocks are cut into pieces so that memory, codec and link work on one block in parallel, and
so that one block cannot occupy an engine for long.

Pipeline: descriptor (`setup`), then the datapath at `rate`; engines work in parallel.
Initiation interval: of one engine, setup and the piece's time.
State: a descriptor for each waiting piece, and one in each engine.
When full: the descriptor queue accepts no more, and the piece stays in the unit before it.

`rtl/dma_engines.v` cuts one piece in a cycle and starts one. Here all engines that are free start
at once: earlier by as many cycles as there are engines, at most, beside a `setup` of a hundred.
"""

from offstage.asic_model.blocks import Dma
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["dma_engines"]


def dma_engines(dma: Dma) -> tuple[Unit, ...]:
    """All engines of each direction: to the arena, and out of it. Two queues, so that a full arena
    never blocks the transfers that would empty it."""
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
