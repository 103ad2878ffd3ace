"""Dedup: what hosts write is hashed, and a prefix that is known is referenced, not written again.

What it does: a keyed hash over the bytes of a block, chained with that of its prefix, names it. A
table of hashes and reference counts says whether it is there; if so the count goes up and nothing
is written.

Pipeline: `instances` side by side, 64 B or so a cycle, then one lookup in the table of metadata.
Initiation interval: the block's bytes at the pipeline's rate.
State: a hash state for each block at hand; counts lie in the entries of the metadata table.
When full: blocks wait before the pipelines, and the link takes no more writes.

Collisions: the table compares `key_bits` of the hash. Where those agree and the whole key in DRAM
does not, the block is looked up again under its second hash; it is never taken for the other. How
often that happens follows from the bits and the number of entries, and its cost, one access to the
spill memory each time, is part of the pipeline's latency.

Which blocks are equal the decision core decides, from the same keys: here it only takes time.
"""

from offstage.asic_model.blocks import Dedup, Memory
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["collision_share", "hash_pipelines"]


def collision_share(dedup: Dedup) -> float:
    """How many of the lookups meet another key with the same bits."""
    return float(min(1.0, dedup.entries.base * 2.0**-dedup.key_bits.base))


def hash_pipelines(dedup: Dedup, spill: Memory) -> tuple[Unit, ...]:
    """All pipelines behind one queue."""
    again_ps = round(collision_share(dedup) * spill.latency.base)
    return (
        Unit(
            "hash",
            servers=dedup.instances.whole,
            queue_max=dedup.queue.whole,
            mib_ps=per_mib_ps(dedup.rate.base),
            latency_ps=dedup.latency.whole + again_ps,
        ),
    )
