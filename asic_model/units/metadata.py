"""Metadata: where each block lies, in a table on the die over a larger one in DRAM.

What it does: answers (session, layer, head, prefix) with slot, generation and place on the medium,
and takes changes. Entries that are not on the die are fetched from the `spill` memory.

Pipeline: hash, read one set of a bank, compare the ways, answer.
Initiation interval: the SRAM's cycle over the banks, as hashed keys spread over them evenly.
State: `sram` bytes of entries in sets of `ways`, least recently used goes; all of it is a cache,
the table in DRAM is whole.
Changes go through a port of their own and never wait for lookups, so that what comes from the
drives always drains.
When full: a new entry takes the place of the oldest of its set. A miss waits for the spill memory
behind the pipeline, and hits pass it. When too many wait, the commands behind them do.

Through the timing seam one key stands for all blocks of a command, whose other lookups count as
hits of the pipeline; a replayed log gives every block its own key.
"""

from offstage.asic_model.parameters import Memory, Metadata
from offstage.asic_model.units.cost import per_byte_ps
from offstage.bindings.network import Stage, Unit

__all__ = ["SETS_MAX", "look_up", "metadata_table", "set_count"]

SETS_MAX = 1 << 18
"""Two million entries at 8 ways: a larger SRAM holds more blocks than a run here asks for."""


def set_count(table: Metadata) -> int:
    """Sets that the SRAM holds: a power of two."""
    sets = int(table.sram.base // (table.entry.base * table.ways.base))
    return min(SETS_MAX, 1 << max(0, sets.bit_length() - 1))


def metadata_table(table: Metadata) -> tuple[Unit, ...]:
    """The table on the die: lookups, and changes."""
    interval_ps = round(table.cycle.base / table.banks.base)
    update = Unit("metadata_update", fixed_ps=interval_ps, latency_ps=table.latency.whole)
    return (
        update,
        Unit("metadata", kind="tags", set_count=set_count(table), way_count=table.ways.whole,
             queue_max=table.queue.whole, fixed_ps=interval_ps, item_ps=interval_ps,
             latency_ps=table.latency.whole),
    )  # fmt: skip


def look_up(
    table: Metadata, spill: str, memory: Memory, found: str, *, items: str = "none"
) -> tuple[Stage, ...]:
    """One lookup, or one for each block; on a miss the set is fetched from the spill memory. The
    route goes on at the stage labelled `found`."""
    set_bytes = table.entry.base * table.ways.base
    return (
        Stage("metadata", items=items, bytes_permille=0, next=found, miss=f"{found}_spilled"),
        Stage(spill, label=f"{found}_spilled", bytes_permille=0,
              fixed_ps=per_byte_ps(memory.rate.base * memory.efficiency.base, set_bytes)),
    )  # fmt: skip
