"""Does a tier in a spec match its catalog, and is a bad one refused in one line?"""

import re
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings import tradeoffs as at
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import preset
from offstage.testbeds.lab.run.plan import Task, points_of
from offstage.testbeds.lab.spec.load import load
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import presets_of_tiers, said, tiers_of
from offstage.testbeds.prices import catalog

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/lab-spec.md"
GOOD = """
[workload]
context_tokens = 4096
steps = 8
layers = 2
[tier]
buffer_over_k = [2]
"""
CHAIN = """
[[tier.below]]
use = "host-dram"
capacity = "1GiB"
[[tier.below]]
use = "cxl"
capacity = "2GiB"
[[tier.below]]
use = "nvme"
capacity = "40TB"
[[tier.below]]
use = "dpu"
capacity = "40TB"
[[tier.below]]
use = "object"
capacity = "100TB"
"""


def loaded(folder: Path, text: str, **changes: Any) -> Spec:
    path = folder / "s.toml"
    path.write_text(text)
    return load(path, changes)


def test_the_threshold_is_the_five_minute_rule_of_the_plan(tmp_path: Path) -> None:
    """Worked out by hand from the catalog, in whole ns: a CXL module of 256 GB at $18.2 and 36
    GB/s, and two drives of 30.72 TB at $0.365 and 14 GB/s behind a DPU of $2,500."""
    spec = loaded(tmp_path, GOOD + CHAIN)
    blocks = 256 * 1024
    found = {one.name: one.promote_ns for one in tiers_of(spec, blocks)}
    by_hand = {
        "host-dram": 256 * 18.2 / 36 / 14,
        "cxl": 30_720 * 0.365 / 14 / 18.2,
        "nvme": (2 * 30_720 * 0.365 + 2_500) / 28 / 0.365,
    }
    for name, seconds in by_hand.items():
        assert found[name] == pytest.approx(seconds * 1e9, rel=1e-9)
    assert found["dpu"] == 2**64 - 1  # an object store has no price for an access
    numbers = catalog().numbers("tlc")
    usd = numbers["price"].base * numbers["capacity"].base / 1e9
    rule = at.break_even_s(blocks, usd, numbers["read"].base, numbers["iops"].base, 18.2)
    assert found["cxl"] == round(rule * 1e9)


def test_times_are_integers_of_the_catalog(tmp_path: Path) -> None:
    """One block of 256 KiB takes its zero-load time at each tier, at each end of its range."""
    block = 256 * 1024
    dram, cxl, nvme, dpu, store = tiers_of(loaded(tmp_path, GOOD + CHAIN), block)
    assert (dram.latency_ps, dram.read_ps) == (100_000, round(block / 40e9 * 1e12 + 0.5))
    assert cxl.latency_ps == 400_000
    assert (nvme.latency_ps, nvme.drive, nvme.devices) == (0, "gen5-tlc", 2)
    assert (dpu.latency_ps, dpu.drive) == (30_000_000, "gen5-tlc")
    assert (store.latency_ps, store.read_ps, store.concurrency) == (
        30_000_000_000,
        block * 1000,
        64,
    )
    cited = preset("gen5-tlc").cited["read_bytes_per_s"]
    assert nvme.read_bytes_per_s == min(2 * cited, 50 * 10**9)
    slow, fast = (
        tiers_of(loaded(tmp_path, GOOD + CHAIN, **{"tier.timing": one}), block)[1]
        for one in ("slow", "fast")
    )
    assert (slow.latency_ps, fast.latency_ps) == (600_000, 200_000)
    assert slow.read_ps > cxl.read_ps > fast.read_ps
    assert [one.promote_ns for one in (slow, fast)] == 2 * [cxl.promote_ns]


def test_more_devices_are_faster_up_to_the_link_before_them(tmp_path: Path) -> None:
    each = [
        tiers_of(
            loaded(
                tmp_path,
                GOOD
                + f"""
[[tier.below]]
use = "host-dram"
capacity = "1TiB"
devices = {count}
""",
            ),
            1 << 20,
        )[0].read_bytes_per_s
        for count in (1, 2, 0)
    ]
    assert each == [40 * 10**9, 50 * 10**9, 50 * 10**9]


def test_a_file_of_prices_takes_the_place_of_single_numbers(tmp_path: Path) -> None:
    """A part's name depends on the file's contents, since other prices give other thresholds."""
    prices = tmp_path / "mine.toml"
    number = 'unit = "$/GB", low = 1, high = 9, date = 2026-01-01, tag = "guess", source = "mine"'
    names = []
    for value in (3, 4):
        prices.write_text(f"[ddr5]\nprice = {{ value = {value}, {number} }}\n")
        spec = loaded(tmp_path, GOOD + CHAIN, **{"tier.prices": str(prices)})
        dram = tiers_of(spec, 1 << 20)[0]
        assert dram.usd[0] == pytest.approx(value * 1.073741824)
        names += Task(spec, 1, tuple(points_of(spec, 0, 0))).parts("code")[:1]
    assert names[0] != names[1]


def test_a_stated_threshold_is_taken_as_it_is(tmp_path: Path) -> None:
    for text, within in (("5s", 5 * 10**9), ("never", 0), ("always", 2**64 - 1)):
        chain = CHAIN.replace('"1GiB"', f'"1GiB"\npromote_within = "{text}"')
        first = tiers_of(loaded(tmp_path, GOOD + chain), 1 << 20)[0]
        assert first.promote_ns == within
        again = CHAIN.replace('"1GiB"', f'"1GiB"\npromote_within = "{first.promote_within}"')
        assert tiers_of(loaded(tmp_path, GOOD + again), 1 << 20)[0].promote_ns == within


def test_a_spec_says_its_tiers_in_a_few_words(tmp_path: Path) -> None:
    assert said(loaded(tmp_path, GOOD)) == "gen5-tlc"
    found = said(loaded(tmp_path, GOOD + CHAIN, **{"tier.copies": "exclusive"}))
    assert found.startswith("host-dram 1 GiB + cxl 2 GiB + nvme") and found.endswith("(exclusive)")


ONE = '[[tier.below]]\nuse = "nvme"\ncapacity = "1TB"\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[[tier.below]]\nuse = "host-drum"\ncapacity = "1GB"', "did you mean 'host-dram'"),
        ('[[tier.below]]\ncapacity = "1GB"', "use"),
        ('[[tier.below]]\nuse = "cxl"', "cxl has no capacity"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "64"', "64 has no unit"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = 64', "64 has no unit"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "64GX"', "64GX"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "-64GB"', "-64GB"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "4KiB"', "holds no block"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "0GB"', "holds no block"),
        (ONE + '[[tier.below]]\nuse = "object"\ncapacity = "1GB"', "fastest first"),
        (ONE + 'promote_within = "5s"', "is the last"),
        (ONE.replace("1TB", "40MiB"), "cannot hold all"),
        ('[[tier.below]]\nuse = "cxl"\ncapacity = "1GB"\npromote_within = "5"\n' + ONE, "5"),
        (ONE + "promote_wihtin = 1", "did you mean 'promote_within'"),
        (ONE + "devices = 5000", "5000 drives"),
        (ONE * 9, "9 tiers"),
        ('storage = "qlc"\n' + ONE, "[tier] storage"),
        ('device = "bluefield3"\n' + ONE, "[tier] device"),
        ('copies = "both"\n' + ONE, "both"),
        ('copies = "exclusive"', "no tiers below"),
        ('prices = "nowhere.toml"\n' + ONE, "nowhere.toml"),
    ],
)
def test_a_bad_tier_is_one_line(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, GOOD + text)
    line = str(caught.value)
    assert what in line and "\n" not in line and "s.toml" in line


def test_requests_have_no_tiers(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no tiers below"):
        loaded(tmp_path, f'[workload]\nkind = "requests"\nfile = "t.jsonl"\n{ONE}')


def test_the_page_has_every_preset() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What a tier can be")[2]
    section = section.partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    assert re.findall(r"`([a-z0-9-]+)`", " ".join(cells)) == list(presets_of_tiers())
