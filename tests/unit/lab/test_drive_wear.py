"""Does a drive keep placement handles apart without losing a page, and is what wears it counted?"""

import json
import random
from pathlib import Path

import pytest
from against_schema import checked

from offstage.bindings.drives import preset
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import NvmeModel
from offstage.testbeds.cli import run
from offstage.testbeds.document import as_line
from offstage.testbeds.lab.run.wear import drive_wear
from offstage.testbeds.lab.run.wear_runs import WearOptions
from offstage.testbeds.lab.run.wear_tier import Cold
from offstage.testbeds.progress import Silent
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.importer import open_trace

PAGE, S_PS = 4096, 10**12
BLOCKS, PAGES, SPARE = 32, 16, 400
KEPT = BLOCKS * PAGES * (1000 - SPARE) // 1000
SMALL = preset("micron-9650").params | {
    "channel_count": 1,
    "dies_per_channel": 1,
    "planes_per_die": 1,
    "page_size_bytes": PAGE,
    "blocks_per_plane": BLOCKS,
    "pages_per_block": PAGES,
    "spare_permille": SPARE,
}


class Drive:
    """One command after another."""

    def __init__(self, handles: int) -> None:
        self.model, self._at = NvmeModel(SMALL | {"handle_count": handles}), 0

    def write(self, page: int, handle: int = 0) -> None:
        self.model.submit(self._at, page * PAGE, PAGE, write=True, handle=handle)
        self._end()

    def discard(self, page: int, count: int = 1) -> None:
        self.model.submit(self._at, page * PAGE, count * PAGE, discard=True)
        self._end()

    def _end(self) -> None:
        self._at += S_PS
        self.model.poll(self._at - 1)


@pytest.mark.parametrize("handles", [0, 1, 3])
def test_every_live_page_lies_in_one_place(handles: int) -> None:
    """Random writes and discards while the drive collects: as many valid pages as are alive; the
    model asserts that each is where its map says."""
    drive, drawn, live = Drive(handles), random.Random(handles), set()
    for number in range(6000):
        page = drawn.randrange(KEPT)
        if drawn.random() < 0.1:
            drive.discard(page)
            live.discard(page)
        else:
            drive.write(page, page % max(1, handles))
            live.add(page)
        if number % 500 == 499:
            assert drive.model.wear()["valid_pages"] == len(live)
    assert drive.model.wear()["moved_pages"] > 0


def test_a_discard_reaches_pages_that_are_in_the_write_buffer() -> None:
    """It comes at once behind the writes, before any of them is programmed."""
    model = NvmeModel(SMALL)
    model.submit(0, 0, 8 * PAGE, write=True)
    model.submit(SMALL["write_firmware_ps"], 0, 7 * PAGE, discard=True)
    model.poll(S_PS)
    wear = model.wear()
    assert wear["written_pages"] == 8 and wear["valid_pages"] == 1


@pytest.mark.parametrize("handles", [0, 2])
def test_what_dies_together_is_never_moved(handles: int) -> None:
    """A stream that is overwritten in turn beside one that stays: with a handle each, amplification
    is 1.0; without, their pages share blocks and move."""
    drive, stays = Drive(handles), KEPT // 2 // PAGES * PAGES
    turns = KEPT - stays - 2 * PAGES
    for page in range(stays):
        drive.write(page, min(1, handles))
        drive.write(stays + 2 * page % turns)
        drive.write(stays + (2 * page + 1) % turns)
    for number in range(10 * turns):
        drive.write(stays + (stays + number) % turns)
    moved = drive.model.wear()["moved_pages"]
    assert moved == 0 if handles else moved > 0


def test_a_handle_that_the_drive_lacks_is_one_line() -> None:
    """Also where it has no placement at all."""
    with pytest.raises(BadInput, match="no placement handle 2; give 0 to 1, or raise handle_count"):
        Drive(2).write(0, 2)
    with pytest.raises(BadInput, match="no placement handle 1"):
        Drive(0).write(0, 1)
    with pytest.raises(BadInput, match="at most 64 placement handles"):
        Drive(65)


def test_the_coldest_go_first() -> None:
    """Named least, then unnamed longest; and when all were named, every count falls by one."""
    cold = Cold()
    for key in range(6):
        cold.put(key)
    for key in (1, 1, 3):
        cold.name(key)
    assert cold.take(4) == [0, 2, 4, 5]
    cold.put(6, named=1)
    assert cold.take(1) == [3]  # and 1 was named once now, 6 never
    cold.put(7)
    assert cold.take(3) == [6, 7, 1] and not len(cold)


def trace(path: Path, requests: int = 160) -> Trace:
    """Prompts of 16 blocks; a third of the requests goes on with an earlier one."""
    drawn, prompts, lines, fresh = random.Random(7), [[0]], [], 1
    for number in range(requests):
        old = drawn.choice(prompts[-60:]) if drawn.random() < 0.3 else [0]
        ids = [*old, *range(fresh, fresh + 16)]
        fresh += 16
        prompts.append(ids)
        lines.append(
            {
                "timestamp": 1000 * number,
                "input_length": 512 * len(ids),
                "output_length": 1,
                "hash_ids": ids,
            }
        )
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return open_trace(path)


def test_wear_counts_what_store_and_flash_wrote(tmp_path: Path) -> None:
    """Exact bytes: they change where the store, the purge or the collection decides otherwise."""
    options = WearOptions(("one", "lifetime"), admit=(1,), room_percent=0)
    found = drive_wear(preset("micron-9650"), trace(tmp_path / "t.jsonl"), options, Silent())
    assert [(one.streams, one.handles, one.admit) for one in found.rows] == [
        ("one", 0, 0),
        ("one", 2, 0),
        ("lifetime", 0, 0),
        ("lifetime", 3, 0),
        ("lifetime", 3, 1),
    ]
    assert [(one.object_bytes, one.flash_bytes) for one in found.rows] == GOLDEN
    for one in found.rows[:4]:
        assert one.store_amplification and one.drive_amplification and one.years
        assert one.amplification == one.store_amplification * one.drive_amplification
        assert one.store_amplification > 1 and one.drive_amplification >= 1
    checked("drive wear", as_line(found))
    last = found.rows[-1]
    assert last.amplification is None and "did not fill" in found.absent["amplification"]
    assert last.saved == 1 - last.flash_bytes / found.rows[-2].flash_bytes


def test_a_store_with_room_writes_each_byte_about_once(tmp_path: Path) -> None:
    """The daemon's default room, against none: store and drive move almost nothing, and few hits
    are lost."""
    requests = trace(tmp_path / "t.jsonl")
    full, roomy = (
        drive_wear(preset("micron-9650"), requests, options, Silent()).rows[0]
        for options in (
            WearOptions(("one",), 0, admit=(), room_percent=0),
            WearOptions(("one",), 0, admit=()),
        )
    )
    assert full.amplification and roomy.amplification
    assert roomy.amplification < 1.2 < 2 < full.amplification
    assert full.hit - 0.02 < roomy.hit <= full.hit


def test_a_drive_is_written_until_its_blocks_do_not_suffice(tmp_path: Path) -> None:
    """What it took is the stated share of the erases of all blocks over its amplification; blocks
    that are levelled are further through their lives when the first do not suffice."""
    options = WearOptions(("lifetime",), admit=(), level=1, erase_limit=5)
    found = drive_wear(preset("micron-9650"), trace(tmp_path / "t.jsonl"), options, Silent())
    assert [(one.handles, one.level) for one in found.rows] == [(0, 0), (3, 0), (3, 1)]
    assert all(0 <= one.erases_least < one.erases_most for one in found.rows)
    flash_bytes = found.reclaim_unit_bytes * 256
    for one in found.ends:
        assert one.endurance_bytes * one.drive_amplification == pytest.approx(5 * flash_bytes)
        assert one.written_bytes == pytest.approx(one.share * one.endurance_bytes)
        assert one.retired_blocks > 0 and one.erases_most >= 5
        programmed = one.written_bytes * one.drive_amplification / flash_bytes
        assert one.erases_mean <= programmed <= one.erases_mean + 1
    plain, levelled = found.ends
    assert (plain.level, levelled.level) == (0, 1)
    assert levelled.erases_most - levelled.erases_least <= plain.erases_most - plain.erases_least
    checked("drive wear", as_line(found))


GOLDEN = [
    (48677376, 88704000),
    (48677376, 89385472),
    (48677376, 88280064),
    (48677376, 82403328),
    (9208320, 13186048),
]


def test_a_zoned_drive_moves_nothing_and_the_store_what_it_must(tmp_path: Path) -> None:
    """The same flash with zones of ten records, a full store: the drive's amplification is 1.0, and
    what the cleaner moves in larger segments is the store's, by exact bytes."""
    options = WearOptions(("one", "tenant"), 0, admit=(), room_percent=0, zone_bytes=64 << 30)
    found = drive_wear(preset("micron-9650"), trace(tmp_path / "t.jsonl"), options, Silent())
    whole, zoned, tenants, split = found.rows
    assert (whole.zones, zoned.zones, tenants.zones, split.zones) == (0, 62, 0, 62)
    assert zoned.drive_amplification == split.drive_amplification == 1
    assert [(one.object_bytes, one.flash_bytes) for one in (zoned, split)] == [
        (48677376, 95480832),
        (48677376, 95479296),
    ]
    for one in (zoned, split):
        assert one.store_amplification and whole.store_amplification and one.bytes_per_s
        assert one.amplification == one.store_amplification > whole.store_amplification
        assert one.years and one.hit > 0.9 * whole.hit
    checked("drive wear", as_line(found))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--handles", "4"], "streams by 'tenant' need 5 placement handles"),
        (["--streams", "two"], "no streams 'two'"),
        (
            ["--zone", "1GiB"],
            "not a multiple of the erase block of every plane, 16 GiB; give 16 GiB",
        ),
        (["--zone", "16GiB", "--zones-open", "3"], "need 4 open zones, and the drive has 3; give"),
        (["--zone", "2TiB"], "blocks are 1, and a store of 1 streams needs 6; give smaller"),
        (["--spare", "0"], "--spare: 0 % of over-provisioning cannot collect with 0 handles; give"),
        (["--spare", "3"], "--spare: 3 % of over-provisioning cannot collect with 5 handles; give"),
        (["--zones-open", "3"], "--zones-open: a drive without zones; give --zone SIZE"),
        (["--spare", "100"], "all over-provisioning"),
        (
            ["--level", "9", "--erase-limit", "9"],
            "no block is erased 9 times more than another before it was erased 9 times",
        ),
        (["--admit", "none"], "'none' is not a list of numbers"),
        (["--limit", "9"], "write no store 4 times"),
    ],
)
def test_bad_input_is_one_line(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is wrong before anything is run."""
    trace(tmp_path / "t.jsonl")
    given = ["drive", "wear", "micron-9650", "--trace", str(tmp_path / "t.jsonl")]
    assert run([*given, *asked]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


def test_a_drive_that_does_not_collect_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its writes wear nothing in the model."""
    trace(tmp_path / "t.jsonl")
    assert run(["drive", "wear", "gen5-tlc", "--trace", str(tmp_path / "t.jsonl")]) == 2
    assert "gen5-tlc does not collect" in capsys.readouterr().err
