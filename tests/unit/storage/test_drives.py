"""Does every drive say what it knows and from where, and does the model come near what was
published of it?"""

import datetime
from pathlib import Path

import pytest

from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests
from offstage.bindings.drives import FOLDER, PUBLISHED, TAGS, preset, presets, read_drive
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import LATER, NvmeModel
from offstage.testbeds.cli import run
from offstage.testbeds.drives import card

GEOMETRIES = ("blocks_per_plane", "pages_per_block", "spare_permille", "page_size_bytes")
COLLECT = [name for name in presets() if preset(name).collects]
NVMEVIRT = {
    "samsung-970-pro": {
        "read_bytes_per_s": 0.03,
        "write_bytes_per_s": 0.03,
        "read_iops": 0.08,
        "write_iops": 0.16,
        "read_latency_ps": 0.08,
    },
    "wd-zn540": {"read_bytes_per_s": 0.03, "write_bytes_per_s": 0.1},
}
"""Drives with numbers of NVMeVirt, none of them fitted here, and how far their figures are off."""
ROOT = Path(__file__).resolve().parents[3]
GOOD = (FOLDER / "micron-9550.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", presets())
def test_every_number_has_tag_date_and_source(name: str) -> None:
    """None is without, and none is of a day to come."""
    drive = preset(name)
    for told in (*drive.numbers.values(), *drive.published.values(), *drive.geometry.values()):
        assert told.tag in TAGS and told.source
        assert told.date <= datetime.date.today()
    assert set(drive.published) <= set(PUBLISHED)


@pytest.mark.parametrize("name", presets())
def test_capacity_follows_from_geometry(name: str) -> None:
    """Planes, blocks, pages and over-provisioning of the page's table keep what it says, which is
    the published capacity where there is one, to a percent; and no block fewer would."""
    drive = preset(name)
    whole, kept = drive.whole, drive.kept_bytes
    planes = whole["channel_count"] * whole["dies_per_channel"] * whole["planes_per_die"]
    blocks, pages, spare, page = (whole[key] for key in GEOMETRIES)
    flash = planes * blocks * pages * page
    assert kept == flash * (1000 - spare) // 1000 and drive.unit_bytes * blocks == flash
    capacity = drive.cited.get("capacity_bytes", 0)
    if capacity:
        assert capacity <= kept <= 1.01 * capacity
        assert (flash - drive.unit_bytes) * (1000 - spare) // 1000 < capacity
    assert drive.params["blocks_per_plane"] == 0  # a model with all of them would not fit
    text = (ROOT / "docs/reference/drives.md").read_text(encoding="utf-8")
    shape = f"{planes:,} | {blocks:,} | {pages:,} | {page // 1024} KiB"
    figures = f"{flash / 1e12:.2f} TB | {spare / 10:.1f} % | {kept / 1e12:.2f} TB"
    (row,) = [line for line in text.splitlines() if f"`{name}`" in line and line.count("|") == 9]
    assert f"| {shape} | {figures} |" in row


@pytest.mark.parametrize("name", COLLECT)
def test_a_card_is_near_what_was_published(name: str) -> None:
    """What was fitted within 3 %; random writes, whose spare flash is a guess, within a factor.
    Latency grows with load, and writes fall to a steady state."""
    found = card(preset(name))
    for one in found.figures:
        assert one.difference is not None
        assert abs(one.difference) < (0.6 if one.figure == "write_iops" else 0.03), one
    means = [one.latency_ps_mean for one in found.load]
    assert means == sorted(means)
    rates = [one.per_second for one in found.cliff]
    assert rates[-1] < 0.8 * rates[0] and found.cliff[0].amplification == 1
    assert rates[-1] == pytest.approx(rates[-8], rel=0.15)
    assert len(found.sizes) == 9 and not found.cliff_absent


@pytest.mark.parametrize("name", NVMEVIRT)
def test_a_card_of_numbers_from_elsewhere_is_as_near_as_the_page_says(name: str) -> None:
    """Nothing of them is fitted to these figures. A write of 4 KiB alone has the host's time in it,
    which the model leaves out."""
    found = card(preset(name))
    assert not found.cliff and "gathers programs" in found.cliff_absent
    off = {one.figure: one.difference for one in found.figures}
    assert set(off) - {"write_latency_ps"} == set(NVMEVIRT[name])
    for figure, most in NVMEVIRT[name].items():
        assert abs(off[figure] or 0) < most, (figure, off[figure])


def test_a_zoned_drive_has_as_many_zones_as_blocks() -> None:
    """A write anywhere but at a zone's pointer is refused; the parameters alone take it."""
    drive = preset("wd-zn540")
    assert drive.zoned is not None and preset("samsung-970-pro").zoned is None
    assert drive.zoned["zone_count"] * drive.zoned["zone_capacity_bytes"] == drive.kept_bytes
    assert NvmeModel(drive.params).submit(0, 1 << 30, 4096, True) == LATER
    with pytest.raises(BadInput, match="write pointer"):
        NvmeModel(drive.zoned).submit(0, 1 << 30, 4096, True, zone=True)


@pytest.mark.parametrize("left_out", ["zone_open_max = 14\n", "zone_active_max = 14\n"])
def test_a_zoned_file_without_a_limit_is_one_line(left_out: str, tmp_path: Path) -> None:
    """How many zones may be open is asked for where zones are given."""
    path = tmp_path / "mine.toml"
    text = (FOLDER / "wd-zn540.toml").read_text(encoding="utf-8")
    path.write_text(text.replace(left_out, ""), encoding="utf-8")
    with pytest.raises(BadInput, match=r"raise zone_open_max or zone_active_max") as caught:
        read_drive(path)
    assert "\n" not in str(caught.value)


def test_a_drive_without_schedulers_has_no_cliff_and_says_why() -> None:
    """An absent figure has a reason."""
    found = card(preset("qlc"))
    assert not found.cliff and "nothing is collected" in found.cliff_absent


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('source = "25.6 of 32.8 TB of flash"\n', "", "spare_permille: no source; say where"),
        ('tag = "guess"\ndate', 'tag = "hope"\ndate', "'hope' is not a tag; choose one of"),
        ("date = 2026-11-01\n", "", "no date; give the day"),
        ("spare_permille = 220", "spare = 220", "spare"),
        ("spare_permille = 220", "", "a group: no|has no spare_permille"),
        ("spare_permille = 220", "spare_permille = 0.2", "0.2 is not a count from 0"),
        ("spare_permille = 220", "channel_count = 220", "channel_count is given twice"),
        ("channel_count = 16", "channel_count = 1_600", "out of range"),
        ('about = "', 'abut = "', "abut"),
        (
            "blocks_per_plane = 3_821",
            "blocks_per_plane = 3_700",
            "keeps 24.79 TB, and its capacity is 25.60 TB; with 3,821 blocks_per_plane",
        ),
        ("blocks_per_plane = 3_821", "blocks_per_plane = 3_900", "keeps 26.13 TB, and its capac"),
        ("spare_permille = 220", "spare_permille = 180", "keeps 26.91 TB"),
        ("[[geometry]]", "[[geography]]", "geography"),
    ],
)
def test_what_is_wrong_with_a_drive_is_one_line(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    """A preset without a source is refused, and so is every other mistake in a file."""
    assert old in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput, match=said) as caught:
        read_drive(path)
    assert "mine.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_drive_that_is_like_another_has_its_numbers_as_guesses(tmp_path: Path) -> None:
    """A chain of them is refused."""
    found, other = preset("kioxia-cm9"), preset("micron-9550")
    assert found.params == other.params and {one.tag for one in found.numbers.values()} == {"guess"}
    path = tmp_path / "mine.toml"
    text = (FOLDER / "kioxia-cm9.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("micron-9550", "kioxia-cm9"), encoding="utf-8")
    with pytest.raises(BadInput, match="not a drive with numbers of its own"):
        read_drive(path)


def test_an_unknown_drive_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It names those there are."""
    assert run(["drive", "presets", "floppy"]) == 2
    said = capsys.readouterr().err
    assert "micron-9550" in said and said.count("\n") == 1


def test_the_chips_drive_ends_when_the_model_does() -> None:
    """A chip that is only a drive with schedulers: every read ends as in the model alone."""
    params, size = preset("micron-9550").params, 4096
    at_ps = [number * 290_000 for number in range(2000)]
    offsets = [number * 7919 * size % (1 << 34) for number in range(2000)]
    model = NvmeModel(params | {"retry_per_million": 0})
    alone = {}
    for tag, (now_ps, offset) in enumerate(zip(at_ps, offsets, strict=True)):
        alone |= dict(model.poll(now_ps))
        assert model.submit(now_ps, offset, size, tag=tag) == LATER
    alone |= dict(model.poll(LATER - 1))
    unit = Unit(
        "drive",
        "drive",
        in_flight_max=1024,
        queue_max=1024,
        drive=params | {"retry_per_million": 0},
    )
    chip = Chip(Network((unit,), {"read": [Stage("drive")]}))
    trace = make_requests(2000, at_ps=at_ps, offset_bytes=offsets, size_bytes=[size] * 2000)
    assert {int(one["tag"]): int(one["end_ps"]) for one in chip.run(trace)} == alone
