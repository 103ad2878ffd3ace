"""Does the closed form of a PCIe link equal pcie-model's result, and is an invalid link refused?"""

import csv
from pathlib import Path

import pytest

from offstage.asic_model.parameters import read_preset
from offstage.asic_model.tables.links import coded_bytes_per_s, flit_share, payload_share, published
from offstage.bindings.errors import BadInput

FIGURES = Path(__file__).parent / "figures/pcie_model.csv"


def figures() -> list[dict[str, str]]:
    lines = FIGURES.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("direction", ["write", "read"])
def test_payload_is_within_one_percent_of_pcie_model(direction: str) -> None:
    """Generations 3 to 6, 4 to 16 lanes, three payload sizes, 64 B and 64 KiB transfers."""
    rows = figures()
    assert len(rows) == 72
    for row in rows:
        generation, lanes = int(row["generation"]), int(row["lanes"])
        share = payload_share(
            generation,
            lanes,
            payload_max=int(row["payload_max"]),
            size_bytes=int(row["size_bytes"]),
            write=direction == "write",
        )
        ours = coded_bytes_per_s(generation, lanes) * share / 1e9
        assert ours == pytest.approx(float(row[f"{direction}_gb_per_s"]), rel=0.01), row


def test_flits_leave_what_the_count_of_their_bytes_says() -> None:
    """By glennklockwood.com/garden/PCIe-Gen6, TLPs get 118 GB/s of a generation 6 link with 16
    lanes; a long write of 256 bytes takes 16 more for its header."""
    assert 128 * flit_share(payload_max=256) == pytest.approx(118 * 256 / 272, rel=0.01)


@pytest.mark.parametrize(
    ("generation", "lanes", "payload", "what"),
    [(2, 16, 256, "generation"), (5, 12, 256, "lanes"), (5, 16, 300, "payload")],
)
def test_what_is_no_link_is_refused(generation: int, lanes: int, payload: int, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        payload_share(generation, lanes, payload_max=payload)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("nvlink5", 900), ("nvlink_c2c", 450), ("cxl_mem", 31.5), ("rdma_400g", 50)],
)
def test_a_published_link_comes_out_at_its_headline(name: str, gb_per_s: float) -> None:
    """Lanes times their rate, one way: an aggregator's 900 each way for C2C is twice that."""
    link = published(name)
    assert link["lane_rate"].value * link["lanes"].value == pytest.approx(gb_per_s, rel=0.01)
    assert set(link) == {"lane_rate", "lanes", "efficiency", "latency"}


def test_an_unpublished_link_is_refused() -> None:
    with pytest.raises(BadInput, match="did you mean 'nvlink5'"):
        published("nvlink4")


@pytest.mark.parametrize(
    ("name", "link", "ways"),
    [
        ("asic_7nm_cxl", "cxl_mem", 2),
        ("asic_5nm_c2c", "nvlink_c2c", 1),
        ("gh200", "nvlink_c2c", 1),
    ],
)
def test_front_ends_have_the_links_of_the_tables(name: str, link: str, ways: int) -> None:
    """Rate, efficiency and latency are the table's; a load's latency there and back is halved."""
    end, table = read_preset(name).front_end, published(link)
    for key in ("lane_rate", "efficiency"):
        ours, theirs = getattr(end, key), table[key]
        found = (ours.value, ours.low, ours.high, ours.unit)
        assert found == (theirs.value, theirs.low, theirs.high, theirs.unit), key
    for bound in ("value", "low", "high"):
        assert ways * getattr(end.latency, bound) == getattr(table["latency"], bound), bound


@pytest.mark.parametrize(
    ("name", "generation"),
    [("asic_7nm_pcie4", 4), ("asic_7nm", 5), ("host_cxl", 5), ("asic_7nm_pcie6", 6)],
)
def test_a_preset_s_lane_is_that_of_its_pcie_generation(name: str, generation: int) -> None:
    """And its share of payload is between those of packets of 128 and of 512 bytes."""
    link = read_preset(name).front_end
    assert link.lane_rate.base == pytest.approx(coded_bytes_per_s(generation, 1), rel=0.001)
    least, most = (payload_share(generation, 16, payload_max=size) for size in (128, 512))
    assert least < link.efficiency.value < most * 1.01


@pytest.mark.parametrize("name", ["asic_7nm", "asic_5nm_hbm4"])
def test_presets_have_the_links_of_the_tables(name: str) -> None:
    """Presets repeat the numbers: memory behind CXL has the table's, and a PCIe lane has the rate
    that its generation's coding leaves."""
    preset, cxl = read_preset(name), published("cxl_mem")
    assert preset.cxl is not None
    for key in ("efficiency", "latency"):
        ours, table = getattr(preset.cxl, key), cxl[key]
        found = (ours.value, ours.low, ours.high, ours.unit)
        assert found == (table.value, table.low, table.high, table.unit), key
    rate = cxl["lane_rate"].value * cxl["lanes"].value
    assert preset.cxl.rate.value == pytest.approx(rate, rel=0.001)
    generation = {"asic_7nm": 5, "asic_5nm_hbm4": 6}[name]
    lane = coded_bytes_per_s(generation, 1)
    assert preset.front_end.lane_rate.base == pytest.approx(lane, rel=0.001)
