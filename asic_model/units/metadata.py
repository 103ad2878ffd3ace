"""Metadata: where each block lies, in a table on the die over a larger one in DRAM.

What it does: answers (session, layer, head, prefix) with slot, generation and place on the medium,
and takes changes. Entries that are not on the die are fetched from the `spill` memory. A block has
an entry, with a key of its own, for each `heads_per_entry` of its `heads`: all in one, as in
today's directory, is a block's key without a head; at 1 each head is found, and thrown out, by
itself.

Pipeline: hash, read one set of a bank, compare the ways, answer; one key after the other.
Initiation interval: the SRAM's cycle over the banks, as hashed keys spread over them evenly, for
each entry.
State: `sram` bytes of entries in sets of `ways`, least recently used goes; all of it is a cache,
the table in DRAM is whole.
Changes go through a port of their own and never wait for lookups, so that what comes from the
drives always drains.
When full: a new entry takes the place of the oldest of its set. A command of which entries are
missing waits for the spill memory behind the pipeline, for all of them at once, and others pass it.
When too many wait, the commands behind them do.

The timing seam says how many blocks a command or a hit has, of which session and layer, and not
which: they are taken to be the first so many of that session's layer. So the table holds as many
entries as one command asks for, and not those of blocks that earlier steps asked for; a working set
that drifts misses more than is seen here.
"""

from offstage.asic_model.blocks import Memory, Metadata
from offstage.asic_model.units.cost import per_byte_ps
from offstage.bindings.network import Stage, Unit

__all__ = ["SETS_MAX", "keys_of_block", "look_up", "metadata_table", "set_count", "update"]

SETS_MAX = 1 << 18
"""Two million entries at 8 ways: a larger SRAM holds more blocks than a run here asks for."""


def set_count(table: Metadata) -> int:
    """Sets that the SRAM holds: a power of two."""
    sets = int(table.sram.base // (table.entry.base * table.ways.base))
    return min(SETS_MAX, 1 << max(0, sets.bit_length() - 1))


def keys_of_block(table: Metadata) -> int:
    """Entries, and lookups, of one block."""
    return -(-table.heads.whole // table.heads_per_entry.whole)


def update(table: Metadata) -> Stage:
    """All entries of a block that has come."""
    return Stage(
        "metadata_update", items="blocks", bytes_permille=0, join=True, keys=keys_of_block(table)
    )


def metadata_table(table: Metadata) -> tuple[Unit, ...]:
    """The table on the die: lookups, and changes."""
    interval_ps = round(table.cycle.base / table.banks.base)
    return (
        Unit("metadata_update", item_ps=interval_ps, latency_ps=table.latency.whole),
        Unit(
            "metadata",
            kind="tags",
            set_count=set_count(table),
            way_count=table.ways.whole,
            queue_max=table.queue.whole,
            fixed_ps=interval_ps,
            item_ps=interval_ps,
            latency_ps=table.latency.whole,
        ),
    )


def look_up(table: Metadata, spill: str, memory: Memory, found: str) -> tuple[Stage, ...]:
    """Every entry of every block; of those that are missing the sets are fetched from the spill
    memory. The route goes on at the stage labelled `found`."""
    set_bytes = table.entry.base * table.ways.base
    return (
        Stage(
            "metadata",
            items="blocks",
            keys=keys_of_block(table),
            bytes_permille=0,
            next=found,
            miss=f"{found}_spilled",
        ),
        Stage(
            spill,
            label=f"{found}_spilled",
            items="missed",
            bytes_permille=0,
            item_ps=per_byte_ps(memory.rate.base * memory.efficiency.base, set_bytes),
        ),
    )
