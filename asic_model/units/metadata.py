"""Metadata: the location of each block, in a table on the die over a larger one in DRAM.

What it does: maps (session, layer, head, prefix) to slot, generation and place on the medium, and
takes updates. Entries that are not on the die are fetched from the `spill` memory. A block has one
entry, with its own key, for each `heads_per_entry` of its `heads`. All heads in one entry, as in
today's directory, makes a block's key without a head; at 1 each head is found and evicted
separately.

Pipeline: hash, read one set of a bank, compare the ways, answer; one key after the other. Its
cycles beside the SRAM's access are those of `rtl/metadata_lookup.v`.
Initiation interval: the SRAM's cycle over the banks, as hashed keys spread over them evenly, per
entry.
State: `sram` bytes of entries in sets of `ways`, evicted least recently used. The SRAM is only a
cache; the table in DRAM is complete.
Updates use a separate port and never wait for lookups, so completions of the drives always drain.
When full: a new entry replaces the oldest of its set. A command with missing entries waits for the
spill memory behind the pipeline, for all of them together, and others pass it. When too many wait,
the commands behind them wait as well.

Three working sets share the SRAM. *Entries*: of the blocks that commands name; a caller of the
timing seam that names none gets the first so many of the session's layer, which never drift. A hit
looks up what its command has just found. *Averages*: the prefetch scheduler keeps one of
`AVERAGE_BYTES` for each block of a session's layer, and a command's scores update all of them; they
lie in lines of an entry's size. *Hashes* of written blocks: a new block's is never there, so every
write looks into the spill memory and takes an entry, whatever the SRAM's size.
"""

from dataclasses import replace

from offstage.asic_model.blocks import Logic, Memory, Metadata
from offstage.asic_model.units.cost import per_byte_ps, pipeline_ps
from offstage.bindings.network import Stage, Unit

__all__ = [
    "AVERAGE_BYTES",
    "SETS_MAX",
    "averages",
    "keys_of_block",
    "look_up",
    "metadata_table",
    "set_count",
    "update",
]

AVERAGE_BYTES = 2
"""Of a block's score, as in the decision core (dpu/firmware/src/core/tables.h)."""

SETS_MAX = 1 << 18
"""Two million entries at 8 ways: a larger SRAM holds more blocks than a run here requests."""


def set_count(table: Metadata) -> int:
    """Number of sets in the SRAM, rounded to a power of two."""
    sets = int(table.sram.base // (table.entry.base * table.ways.base))
    return min(SETS_MAX, 1 << max(0, sets.bit_length() - 1))


def keys_of_block(table: Metadata) -> int:
    """Entries, and so lookups, of one block."""
    return -(-table.heads.whole // table.heads_per_entry.whole)


def update(table: Metadata) -> Stage:
    """Update all entries of a block that has arrived."""
    return Stage(
        "metadata_update", items="blocks", bytes_permille=0, join=True, keys=keys_of_block(table)
    )


def metadata_table(table: Metadata, logic: Logic) -> tuple[Unit, ...]:
    """The table on the die: lookups and updates."""
    interval_ps = round(table.cycle.base / table.banks.base)
    # The SRAM's own latency stands for one of the cycles.
    latency_ps = table.latency.whole + pipeline_ps("metadata_lookup", logic, less=1)
    return (
        Unit("metadata_update", item_ps=interval_ps, latency_ps=latency_ps),
        Unit(
            "metadata",
            kind="tags",
            set_count=set_count(table),
            way_count=table.ways.whole,
            queue_max=table.queue.whole,
            fixed_ps=interval_ps,
            item_ps=interval_ps,
            latency_ps=latency_ps,
        ),
    )


def look_up(table: Metadata, spill: str, memory: Memory, found: str) -> tuple[Stage, ...]:
    """Look up every entry of every block, and fetch the sets of missing ones from the spill memory.
    The route continues at the stage labelled `found`."""
    keys, set_bytes = keys_of_block(table), table.entry.base * table.ways.base
    looked_up = Stage("metadata", items="blocks", keys=keys, bytes_permille=0)
    return _or_spilled(looked_up, spill, memory, set_bytes, found)


def averages(
    table: Metadata, spill: str, memory: Memory, label: str, found: str
) -> tuple[Stage, ...]:
    """Look up the averages that a command's scores update. Missing lines are fetched from the
    spill memory, and those that they replace go there."""
    line_bytes = table.entry.base
    in_line = max(1, int(line_bytes // AVERAGE_BYTES))
    looked_up = Stage(
        "metadata", label=label, items="scores", keys=1, per_key=in_line, bytes_permille=0
    )
    return _or_spilled(looked_up, spill, memory, 2 * line_bytes, found)


def _or_spilled(
    looked_up: Stage, spill: str, memory: Memory, missed_bytes: float, found: str
) -> tuple[Stage, ...]:
    """A look-up, and behind it the spill memory, which moves `missed_bytes` for each miss."""
    label = f"{found}_spilled"
    each_ps = per_byte_ps(memory.rate.base * memory.efficiency.base, missed_bytes)
    return (
        replace(looked_up, next=found, miss=label),
        Stage(spill, label=label, items="missed", bytes_permille=0, item_ps=each_ps),
    )
