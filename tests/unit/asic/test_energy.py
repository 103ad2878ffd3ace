"""Is a run priced by its counts, with bounds, and a number of unknown origin refused?"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from offstage.asic_model.chip import network
from offstage.asic_model.control import sizes
from offstage.asic_model.energy import AREA_UNITS, ENERGY_UNITS, TABLES, area, energy, power
from offstage.asic_model.hardware import size_text, synthesis
from offstage.asic_model.parameters import names, read_preset
from offstage.asic_model.result import UnitRun
from offstage.asic_model.tables.numbers import read_numbers
from offstage.asic_model.tables.sram import sram
from offstage.bindings.errors import BadInput


@dataclass
class Run:
    """The two fields of a ChipRun that cost energy."""

    units: list[UnitRun]
    seconds: float = 2.0


def unit(name: str, count_bytes: int = 0, arrivals: int = 0, **counts: int) -> UnitRun:
    return UnitRun(
        name=name,
        kind="server",
        servers=1,
        arrivals=arrivals,
        bytes=count_bytes,
        utilisation=0,
        blocked_share=0,
        wait_ns_mean=0,
        wait_ns_p99=0,
        time_ns_mean=0,
        time_ns_p99=0,
        waiting_max=0,
        **counts,
    )


def test_every_guess_of_energy_and_area_is_a_range() -> None:
    """These values are not known, so a single number would be a claim."""
    found = [
        (name, key, one)
        for file, units in (("energy", ENERGY_UNITS), ("area", AREA_UNITS))
        for name, table in read_numbers(TABLES / f"{file}.toml", units).items()
        for key, one in table.items()
    ]
    assert sum(one.tag == "guess" for _, _, one in found) == 21
    for name, key, one in found:
        assert one.source and one.low <= one.value <= one.high, f"{name}.{key}"
        assert one.tag != "guess" or one.low < one.high, f"{name}.{key}: a sure guess"


def test_energy_is_counts_times_prices() -> None:
    """A GB over HBM at 6.0 pJ a bit is 48 mJ; each of 1000 lookups is 4 reads of the scaled
    SRAM."""
    preset = read_preset("asic_7nm")
    looked = unit("metadata", arrivals=10, hits=900, misses=100)
    run = Run([unit("hbm", 10**9), looked, unit("qos", arrivals=10**6)])
    found = {one.name: one for one in energy(run, preset)}
    assert found["hbm"].value == pytest.approx(0.048)
    assert (found["hbm"].low, found["hbm"].high) == pytest.approx((8 * 3.9e-3, 8 * 9.0e-3))
    read = sram(16 << 20, banks=8, node_nm=7).read_pj
    assert found["metadata"].value == pytest.approx(4e3 * read.value * 1e-12)
    assert found["qos"].value == pytest.approx(1e6 * 100e-12)
    assert found["hbm idle"].value == pytest.approx(2 * 3.0 * run.seconds)
    watts = {one.name: one.value for one in power(run, preset)}
    assert watts["hbm idle"] == pytest.approx(6.0) and watts["hbm"] == pytest.approx(0.024)


@pytest.mark.parametrize("name", names())
def test_every_unit_of_every_preset_has_a_price_with_bounds(name: str) -> None:
    preset = read_preset(name)
    run = Run([unit(one.name, 10**9, 10**6) for one in network(preset).units])
    for one in (*energy(run, preset), *area(preset)):
        assert 0 <= one.low <= one.value <= one.high and one.source, one
    assert energy(run, preset)


def test_a_unit_without_a_price_is_refused() -> None:
    with pytest.raises(BadInput, match="no price for unit 'router'"):
        energy(Run([unit("router")]), read_preset("asic_7nm"))


def test_area_is_that_of_what_the_preset_has() -> None:
    """16 MiB at 25 Mb/mm2; twice the SRAM takes twice its area, and glue grows with it."""
    preset = read_preset("asic_7nm")
    parts = {one.name: one.value for one in area(preset)}
    assert parts["metadata SRAM"] == pytest.approx((16 << 20) * 8 / 25e6)
    larger = {one.name: one.value for one in area(preset.with_({"metadata.sram": 32}))}
    assert larger["metadata SRAM"] == pytest.approx(2 * parts["metadata SRAM"])
    assert larger["glue"] > parts["glue"] and larger["codec"] == parts["codec"]
    assert area(read_preset("bluefield3")) == area(read_preset("ideal")) == []


@pytest.mark.parametrize("mib", [0.125, 512.0])
def test_an_sram_beyond_its_table_names_the_number(mib: float) -> None:
    preset = read_preset("asic_7nm").with_({"metadata.sram": mib})
    with pytest.raises(BadInput, match=r"an array of .*iB; give 256 KiB to 256 MiB") as caught:
        energy(Run([]), preset)
    assert caught.value.where == "preset asic_7nm: [metadata] sram"


def test_a_block_in_verilog_has_the_area_of_its_row() -> None:
    """At the size that was synthesized, for each copy; else a guess by another size."""
    preset = read_preset("asic_7nm")
    placed = read_numbers(TABLES / "area.toml", AREA_UNITS)["cells"]["placed"]
    rows = {(row.block, row.size): row.area_um2 / 1e6 for row in synthesis().rows}
    parts = {one.name: one for one in area(preset)}
    for block, count, parameters in sizes(preset):
        part, cells = parts[block.replace("_", " ")], count * rows[block, size_text(parameters)]
        assert part.source.startswith("synthesized")
        found = (part.value, part.low, part.high)
        assert found == pytest.approx([cells * x for x in (placed.value, placed.low, placed.high)])
    assert parts["block hash"].value == pytest.approx(2 * rows["block_hash", ""] * placed.value)
    other = {one.name: one for one in area(preset.with_({"dma.queue": 4096}))}["dma engines"]
    same = parts["dma engines"]
    assert other.source.startswith("a guess") and other.value == same.value
    assert other.low < same.low and other.high > same.high
    newer = {one.name: one for one in area(read_preset("asic_5nm_hbm4"))}["chunk key"]
    assert newer.value == pytest.approx(0.6 * parts["chunk key"].value)


def test_the_arbiters_memories_have_an_area() -> None:
    """Of `asic_7nm`: 4,098 places, each with a row of two nodes of 153 bits and its own number,
    1,024 records of 235 and leaves of 143, 1,022 inner nodes of 141 for each of four tenants."""
    preset = read_preset("asic_7nm")
    bits = 4098 * (2 * 153 + 13) + 1024 * (235 + 143) + 4 * 1022 * 141
    parts = {one.name: one.value for one in area(preset)}
    assert parts["qos SRAM"] == pytest.approx(bits / 25e6)
    assert dict((name, size) for name, _, size in sizes(preset))["qos_arbiter"]["INTERVAL"] == 11


def test_the_hash_is_priced_by_its_toggles() -> None:
    """1,024 B are sixteen stripes in seventeen cycles, each with the energy of the row."""
    factor = read_numbers(TABLES / "energy.toml", ENERGY_UNITS)["gates"]["whole"]
    (row,) = (row for row in synthesis().rows if row.block == "block_hash")
    assert row.cycle_pj is not None
    found = energy(Run([unit("hash", 1024)]), read_preset("asic_7nm"))[0]
    assert found.value == pytest.approx(17 * row.cycle_pj * factor.value * 1e-12)
    assert found.low == pytest.approx(17 * row.cycle_pj * factor.low * 1e-12)
    assert found.source.startswith("synthesized")


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ('{ value = 1, unit = "pJ", low = 0, high = 2, source = "x" }', "has no tag"),
        ('{ value = 1, unit = "pJ", low = 0, high = 2, tag = "cited" }', "has no source"),
        ('{ value = 1, unit = "pJ", low = 0, high = 2, source = "x", tag = "true" }', "true"),
        ('{ value = 1, unit = "J", low = 0, high = 2, source = "x", tag = "cited" }', "'J'"),
        ('{ value = 3, unit = "pJ", low = 0, high = 2, source = "x", tag = "cited" }', "between"),
        ('{ value = -1, unit = "pJ", low = 0, high = 2, source = "x", tag = "guess" }', "negative"),
        ("5.5", "5.5"),
    ],
)
def test_a_number_without_a_source_is_refused(entry: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(f"[hbm]\nper_bit = {entry}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=what):
        read_numbers(path, ("pJ",))
