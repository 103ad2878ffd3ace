"""Dedup: hashes written blocks; a known prefix is referenced instead of written again.

What it does: identifies a block by a keyed hash over its bytes, chained with its prefix's hash. A
table of hashes and reference counts says whether the block exists; if so the count is incremented
and nothing is written.

Pipeline: `instances` in parallel, each of which takes 64 B a cycle: `rtl/block_hash.v`, whose rate
and cycles `rate` and `latency` are at a preset's clock. Then the digest is chained, with the cycles
of `rtl/chunk_key.v`, and one lookup follows in the metadata table.
Initiation interval: the block's bytes at the pipeline's rate; a key in each cycle behind it.
State: a hash state for each block in progress; counts are in the entries of the metadata table.
When full: blocks wait before the pipelines, and the link accepts no more writes.

Collisions: the table compares `key_bits` of the hash. If those match and the whole key in DRAM does
not, the block is looked up again under its second hash; it is never taken for the other. The
collision rate follows from the bits and the number of entries, and its cost, one access to the
spill memory each time, is part of the pipeline's latency.

The decision core decides which blocks are equal, from the same keys; this unit only adds time. In
a closed loop `entries` bounds which prefixes are found (`asic_model/known.py`).
"""

from offstage.asic_model.blocks import Dedup, Logic, Memory
from offstage.asic_model.units.cost import per_mib_ps, pipeline_ps
from offstage.bindings.network import Unit

__all__ = ["collision_share", "hash_pipelines"]


def collision_share(dedup: Dedup) -> float:
    """The share of lookups that meet another key with the same bits."""
    return float(min(1.0, dedup.entries.base * 2.0**-dedup.key_bits.base))


def hash_pipelines(dedup: Dedup, spill: Memory, logic: Logic) -> tuple[Unit, ...]:
    """All pipelines behind one queue."""
    again_ps = round(collision_share(dedup) * spill.latency.base)
    return (
        Unit(
            "hash",
            servers=dedup.instances.whole,
            queue_max=dedup.queue.whole,
            mib_ps=per_mib_ps(dedup.rate.base),
            latency_ps=dedup.latency.whole + pipeline_ps("chunk_key", logic) + again_ps,
        ),
    )
