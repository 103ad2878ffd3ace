"""The blocks in Verilog at a preset's sizes: how many of each a chip has, their area, their energy.

Model: a preset's queues, ways and engines say how large each file of `rtl/` would be built. Where
`tables/synth.toml` has that size, its area is taken, at most as dense as cells can be placed;
where it has other sizes only, the largest of them stands in for it, as a guess. The rows are of
ASAP7's cells, a predictive 7 nm, and are taken for a foundry's. What is not in Verilog is priced
in `area.toml`.

What can fail: `BadInput` where the table lacks a block.
"""

from collections.abc import Iterator

from offstage.asic_model.blocks import Number
from offstage.asic_model.hardware import size_text, synthesis
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import Range
from offstage.bindings.errors import BadInput

__all__ = ["arbiter_sram_bits", "control_area", "hash_pj_per_bit", "sizes"]

PER_MM2 = 1e6  # um2
PS_PER_S = 1e12
LANES_MAX = 1024  # of candidate_compare.v: more than any table of synthesis has
STRIPE_BITS, STRIPES, CYCLES = 512, 16, 17  # of block_hash.v: so many stripes in so many cycles

TIME_BITS, AGE_BITS, TAG_BITS, ROUND_BITS, USED_BITS = 32, 48, 32, 48, 32  # of qos_arbiter.v

Bounds = tuple[float, float, float]


def sizes(preset: Preset) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Of each block its file's name, how many a chip has, and the parameters of its size."""
    table, dma = preset.metadata, preset.dma
    assert table and dma and preset.dedup and preset.scheduler and preset.qos and preset.logic
    sets = table.sram.whole // (table.entry.whole * table.ways.whole)
    yield (
        "metadata_lookup",
        1,
        {
            "SET_BITS": _bits(sets),
            "WAY_BITS": _bits(table.ways.whole),
            "QUEUE_BITS": _bits(table.queue.whole),
            "CREDIT_BITS": 4,
        },
    )
    credits = preset.front_end.credits.whole
    yield (
        "channel_queue",
        2,  # a direction of the link each
        {
            "QUEUE_BITS": 6,
            "CREDITS": credits,
            "CREDIT_BITS": _bits(credits + 1),
            "CYCLES_BITS": 16,
        },
    )
    yield "block_hash", preset.dedup.instances.whole, {}
    waiting = preset.dedup.queue.whole
    yield "chunk_key", 1, {"ID_BITS": 20, "CREDITS": waiting, "CREDIT_BITS": _bits(waiting + 1)}
    candidates = preset.scheduler.candidates.whole
    yield "candidate_heap", 1, {"LEVELS": _bits(candidates), "QUEUE_BITS": 3}
    cycle_ps = PS_PER_S / preset.logic.clock.base
    lanes = round(cycle_ps / max(preset.scheduler.score.base, cycle_ps / LANES_MAX))
    yield "candidate_compare", 1, {"LANES": max(1, lanes), "CELLS": 16, "COUNT_BITS": 5}
    yield "qos_arbiter", 1, _arbiter(preset)
    yield (
        "dma_engines",
        2,  # into the arena, and out of it
        {
            "ENGINE_BITS": _bits(dma.engines.whole),
            "SLOT_BITS": 5,
            "QUEUE_BITS": _bits(dma.queue.whole),
            "PIECE_BITS": _bits(dma.piece.whole),
            "WIDTH_BITS": 5,
            "SETUP": round(dma.setup.base / cycle_ps),
        },
    )


def arbiter_sram_bits(preset: Preset) -> int:
    """Bits of the memories of `qos_arbiter.v`: rows of its heaps, free places, records of sessions,
    and the trees, whose inner nodes each tenant has for itself."""
    size = _arbiter(preset)
    tenants, sessions = 1 << size["TENANT_BITS"], 1 << size["SESSION_BITS"]
    places = (tenants << size["DEPTH_BITS"]) + 2
    place, count = size["TENANT_BITS"] + size["DEPTH_BITS"] + 1, size["DEPTH_BITS"] + 1
    entry = TIME_BITS + AGE_BITS + size["COST_BITS"] + TAG_BITS
    node = 2 + entry + size["SESSION_BITS"]
    record = size["TENANT_BITS"] + count + ROUND_BITS + USED_BITS + place + entry
    return (
        places * (2 * (count + place + entry) + place)
        + sessions * (record + size["TENANT_BITS"] + node)
        + tenants * (sessions - 2) * node
    )


def control_area(preset: Preset, placed: Number, other: Number, node: Bounds) -> Iterator[Range]:
    """Square millimetres of each block, with all of its copies. `placed`: a block over its cells;
    `other`: a size without a row over the one that stands in for it; `node`: this one over 7 nm."""
    table = synthesis()
    for block, count, parameters in sizes(preset):
        rows = {row.size: row for row in table.rows if row.block == block}
        if not rows:
            raise BadInput(f"no row of {block}", "synth.toml", "run make synth for all blocks")
        exact = rows.get(size_text(parameters))
        row = exact or max(rows.values(), key=lambda one: one.area_um2)
        cells = count * row.area_um2 / PER_MM2
        value, low, high = (
            cells * one * scale
            for one, scale in zip((placed.value, placed.low, placed.high), node, strict=True)
        )
        source = f"synthesized: {block}.v at this size in {table.node_nm} nm, {placed.source}"
        if exact is None:
            low, high = low * other.low, high * other.high
            source = f"a guess by {block}.v at another size: {other.source}"
        name = block.replace("_", " ")
        yield Range(name=name, unit="mm2", value=value, low=low, high=high, source=source)


def hash_pj_per_bit() -> float:
    """Picojoules for a bit of a block by the toggles of `block_hash.v`, at least."""
    for row in synthesis().rows:
        if row.block == "block_hash" and row.cycle_pj is not None:
            return row.cycle_pj * CYCLES / (STRIPES * STRIPE_BITS)
    fix = "run make synth LIB=... ARGS='--block block_hash --write'"
    raise BadInput("block_hash has no energy of a cycle", "synth.toml", fix)


def _arbiter(preset: Preset) -> dict[str, int]:
    """The arbiter's parameters, with queues for four tenants."""
    assert preset.qos
    sessions = _bits(preset.qos.sessions.whole)
    return {
        "TENANT_BITS": 2,
        "DEPTH_BITS": _bits(preset.qos.queue.whole),
        "SESSION_BITS": sessions,
        "COST_BITS": _bits(preset.qos.quantum.whole + 1),
        "INTERVAL": 5 + (sessions + 1) // 2 | 1,
    }


def _bits(count: int) -> int:
    """The bits that number so many."""
    return max(1, (count - 1).bit_length())
