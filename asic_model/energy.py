"""The energy of a run in joules, and the area and power of a chip, each between two bounds.

The engine counts actions; after the run they are multiplied by tables/energy.toml and area.toml.
So one run can be priced with several tables, and the reader refuses a number without source and
tag. Energy is the device's: its side of the links, its memories and drives, its die; not the
hosts'. A bound is the sum of the bounds of the parts, as if all erred in the same direction.
A chip without a node (`node_nm` 0) is a limit, not a design: its logic is free and has no area.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from offstage.asic_model.blocks import Number
from offstage.asic_model.control import arbiter_sram_bits, control_area, hash_pj_per_bit
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import ChipRun, Range
from offstage.asic_model.tables.numbers import read_numbers
from offstage.asic_model.tables.sram import Sram, sram
from offstage.asic_model.units.metadata import keys_of_block
from offstage.bindings.errors import BadInput

__all__ = ["area", "energy", "power"]

TABLES = Path(__file__).resolve().parent / "tables"
PICO = 1e-12
ENERGY_UNITS = ("pJ/bit", "pJ", "1", "W", "W/mm2")
AREA_UNITS = ("Mb/mm2", "mm2 s/TB", "mm2", "1")
LINKS = {"pcie": "pcie", "cxl": "cxl_link", "nvlink": "nvlink", "memory": "memory_link"}
"""The carrier of a link's bits, by the front end's protocol."""
BY_BIT = {
    "hbm": "hbm",
    "ddr": "ddr",
    "cxl": "cxl",
    "drive": "drive",
    "dma_in": "wire",
    "dma_out": "wire",
    "decode": "codec",
    "encode": "codec",
}
BY_VISIT = ("nvme_command", "nvme_done", "qos", "scheduler")
CORES = ("reactor", "codec_core")
LOGIC = (
    "dma_in",
    "dma_out",
    "decode",
    "encode",
    "hash",
    "qos",
    "scheduler",
    "metadata",
    "metadata_update",
)
MEMORIES = ("hbm", "ddr", "cxl")
MIB = 1 << 20

Bounds = tuple[float, float, float]


@lru_cache(maxsize=1)
def _energies() -> dict[str, dict[str, Number]]:
    return read_numbers(TABLES / "energy.toml", ENERGY_UNITS)


@lru_cache(maxsize=1)
def _areas() -> dict[str, dict[str, Number]]:
    return read_numbers(TABLES / "area.toml", AREA_UNITS)


def energy(run: ChipRun, preset: Preset) -> list[Range]:
    """Joules of the run by consumer: one part per unit that acted, and one for what is always on.

    `BadInput`: the run has a unit without a price."""
    table = _energies()
    parts = []
    for unit in run.units:
        name, bits = unit.name, unit.bytes * 8 * PICO
        if preset.kind == "asic" and not preset.node_nm and name in LOGIC:
            continue
        if name.startswith("link_"):
            price = table[LINKS[preset.front_end.protocol]]["per_bit"]
            parts.append(_range(name, "J", price, bits))
        elif name in BY_BIT:
            parts.append(_range(name, "J", table[BY_BIT[name]]["per_bit"], bits))
        elif name == "hash":
            price = table["gates"]["whole"]
            each = hash_pj_per_bit()
            source = f"synthesized: toggles of block_hash.v, {price.source}"
            parts.append(_sum(name, "J", [(_bounds(price), each * bits)], source))
        elif name in BY_VISIT:
            price = table["control"]["per_visit"]
            parts.append(_range(name, "J", price, unit.arrivals * PICO))
        elif name in ("metadata", "metadata_update"):
            reads = _product(_bounds(table["metadata"]["reads"]), _array(preset).read_pj)
            assert preset.metadata is not None
            each = keys_of_block(preset.metadata)
            entries = unit.hits + unit.misses if name == "metadata" else unit.arrivals * each
            parts.append(_sum(name, "J", [(reads, entries * PICO)], "CACTI 7, scaled"))
        elif name not in CORES:
            raise BadInput(f"no price for unit {name!r}", "energy.toml", "add a table for it")
    return parts + list(_always_on(run.seconds, preset))


def _always_on(seconds: float, preset: Preset) -> Iterator[Range]:
    """Power drawn regardless of activity."""
    table = _energies()
    for name in MEMORIES:
        memory = getattr(preset, name)
        if memory is not None and name in (preset.staging, preset.spill):
            yield _range(f"{name} idle", "J", table[name]["each"], memory.channels.value * seconds)
    yield _range("drive idle", "J", table["drive"]["each"], preset.nvme.drives.value * seconds)
    if preset.cores is not None:
        price = table["core_x86" if preset.name.startswith(("dpu_x86", "host_")) else "core_arm"][
            "each"
        ]
        yield _range("cores", "J", price, preset.cores.cores.value * seconds)
    if preset.kind == "asic" and preset.node_nm:
        price = table["die"]["static"]
        die = _total(area(preset))
        leak = _product(_bounds(price), die)
        yield _sum(
            "die idle",
            "J",
            [(leak, seconds), (_array(preset).leakage_w, seconds)],
            f"{price.source}; the SRAM's leakage by CACTI 7, scaled",
        )


def power(run: ChipRun, preset: Preset) -> list[Range]:
    """Mean watts over the run, by the same parts."""
    if run.seconds <= 0:
        return []
    return [
        Range(
            name=one.name,
            unit="W",
            value=one.value / run.seconds,
            low=one.low / run.seconds,
            high=one.high / run.seconds,
            source=one.source,
        )
        for one in energy(run, preset)
    ]


def area(preset: Preset) -> list[Range]:
    """Square millimetres of the die by part; empty for a DPU, which is bought whole."""
    if preset.kind != "asic" or not preset.node_nm:
        return []
    table = _areas()
    if preset.node_nm not in (7, 5):
        raise BadInput(f"node_nm = {preset.node_nm}", f"preset {preset.name}", "give 7 or 5")
    assert preset.dma and preset.codec and preset.metadata
    node = f"n{preset.node_nm}"
    logic = (1.0, 1.0, 1.0) if node == "n7" else _bounds(table["node"][node])
    density = table["sram"][node]
    codec = preset.codec
    rate = codec.lanes.value * (codec.decode_rate.base + codec.encode_rate.base) / 2 / 1e12
    parts = [
        _macros("metadata SRAM", preset.metadata.sram.base * 8, density),
        _macros("qos SRAM", arbiter_sram_bits(preset), density),
        _scaled("codec", table["codec"]["rate"], rate, logic),
        _range("link", "mm2", table["lane"]["each"], preset.front_end.lanes_max.value),
        _range("drive lanes", "mm2", table["lane"]["each"], 4 * preset.nvme.drives.value),
        _scaled("dma", table["dma"]["each"], preset.dma.engines.value, logic),
        _scaled("control", table["control"]["each"], 1, logic),
        *control_area(preset, table["cells"]["placed"], table["cells"]["other_size"], logic),
    ]
    for name in MEMORIES:
        memory = getattr(preset, name)
        if memory is not None and name in (preset.staging, preset.spill):
            parts.append(_range(name, "mm2", table[name]["each"], memory.channels.value))
    share = table["glue"]["share"]
    parts.append(_sum("glue", "mm2", [(_product(_bounds(share), _total(parts)), 1)], share.source))
    return parts


def _macros(name: str, bits: float, density: Number) -> Range:
    """Square millimetres of so much SRAM."""
    value, low, high = (bits / 1e6 / one for one in (density.value, density.high, density.low))
    return Range(name=name, unit="mm2", value=value, low=low, high=high, source=density.source)


def _array(preset: Preset) -> Sram:
    """The metadata's SRAM."""
    assert preset.metadata is not None
    table = preset.metadata
    try:
        return sram(table.sram.whole, banks=table.banks.whole, node_nm=preset.node_nm)
    except BadInput as error:
        where = f"preset {preset.name}: [metadata] sram"
        raise BadInput(error.what, where, error.fix) from None


def _bounds(number: Number) -> Bounds:
    return number.value, number.low, number.high


def _product(one: Bounds, other: Bounds) -> Bounds:
    """Low times low, high times high: no factor here is negative."""
    return one[0] * other[0], one[1] * other[1], one[2] * other[2]


def _total(parts: list[Range]) -> Bounds:
    return (
        sum(one.value for one in parts),
        sum(one.low for one in parts),
        sum(one.high for one in parts),
    )


def _range(name: str, unit: str, number: Number, times: float) -> Range:
    return _sum(name, unit, [(_bounds(number), times)], number.source)


def _scaled(name: str, number: Number, times: float, node: Bounds) -> Range:
    return _sum(name, "mm2", [(_product(_bounds(number), node), times)], number.source)


def _sum(name: str, unit: str, terms: list[tuple[Bounds, float]], source: str) -> Range:
    value, low, high = (sum(bounds[index] * times for bounds, times in terms) for index in range(3))
    return Range(name=name, unit=unit, value=value, low=low, high=high, source=source)
