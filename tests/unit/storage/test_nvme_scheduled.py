"""Does a drive whose channels have schedulers do in its order what it says, to the picosecond?

One channel, few planes and round numbers, so that each time is a sum by hand. Whether the sums of
many are right is asked of another simulator (tests/validation/test_tables_nvme.py).
"""

import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import LATER, NvmeModel

PAGE = 4096
US = 1_000_000
TINY = {
    "channel_count": 1,
    "dies_per_channel": 2,
    "planes_per_die": 1,
    "page_size_bytes": PAGE,
    "queue_depth_max": 64,
    "read_ps": 50 * US,
    "program_ps": 500 * US,
    "firmware_ps": 10 * US,
    "command_interval_ps": 1,
    "channel_bytes_per_s": PAGE * 10**5,  # a page takes 10 us
    "link_bytes_per_s": PAGE * 10**6,  # and 1 us
    "write_buffer_bytes": 0,
    "retry_factor": 1,
    "scheduled": 1,
    "layout_fixed": 1,
    "read_command_ps": 2 * US,
    "program_command_ps": 3 * US,
}
READ, COMMAND, LEAVE, LINK = 50 * US, 2 * US, 10 * US, US
BEGIN = 10 * US


def ends(params: dict[str, int], *ios: tuple[int, int, bool]) -> list[int]:
    """The end of each I/O of a page: (when, page, whether it writes)."""
    model, found = NvmeModel(params), [0] * len(ios)
    for tag, (now_ps, page, write) in enumerate(ios):
        assert model.submit(now_ps, page * PAGE, PAGE, write, tag) == LATER
    for tag, end_ps in model.poll(LATER - 1):
        found[tag] = end_ps
    return found


def test_alone_an_io_takes_the_sum_of_its_parts() -> None:
    """A read: command, tR, channel, link. A write: link, command, channel, program."""
    assert ends(TINY, (0, 0, False)) == [BEGIN + COMMAND + READ + LEAVE + LINK]
    assert ends(TINY, (0, 0, True)) == [BEGIN + LINK + 3 * US + LEAVE + 500 * US]


def test_a_die_is_busy_until_its_data_have_left() -> None:
    """The second read of a die gets its command when the first page is out of the register."""
    left = BEGIN + COMMAND + READ + LEAVE
    assert ends(TINY, (0, 0, False), (0, 2, False))[1] == left + COMMAND + READ + LEAVE + LINK


def test_data_leave_before_commands_go_in() -> None:
    """A die that is free again waits while the channel carries the other die's page."""
    first, second, third = ends(TINY, (0, 0, False), (0, 1, False), (1, 2, False))
    left = BEGIN + COMMAND + READ + LEAVE  # of die 0; that of die 1 has waited
    assert (first, second) == (left + LINK, left + LEAVE + LINK)
    assert third == left + LEAVE + COMMAND + READ + LEAVE + LINK


def test_reads_go_before_writes_that_came_first() -> None:
    """Of one die; a program that runs is not interrupted where a drive cannot suspend."""
    first, second, read = ends(TINY, (0, 0, True), (1, 2, True), (20 * US, 4, False))
    assert first == BEGIN + LINK + 3 * US + LEAVE + 500 * US
    assert read == first + COMMAND + READ + LEAVE + LINK
    assert second == read - LINK + 3 * US + LEAVE + 500 * US


@pytest.mark.parametrize(("suspend", "waits"), [(0, True), (5 * US, False)])
def test_a_read_waits_for_a_program_or_suspends_it(suspend: int, waits: bool) -> None:
    """A read that comes in the middle of a program: until its end, or until it is suspended, and
    then the program goes on with what was left of it."""
    at = 200 * US
    write, read = ends(TINY | {"suspend_ps": suspend}, (0, 0, True), (at, 2, False))
    programmed = BEGIN + LINK + 3 * US + LEAVE + 500 * US
    if waits:
        assert write == programmed
        assert read == programmed + COMMAND + READ + LEAVE + LINK
    else:
        away = suspend + COMMAND + READ + LEAVE
        assert read == at + BEGIN + away + LINK
        assert write == programmed + away


def test_a_burst_runs_at_link_speed_while_the_buffer_has_room() -> None:
    """Then a write waits until a page is programmed."""
    found = ends(TINY | {"write_buffer_bytes": 2 * PAGE}, *[(0, 2 * i, True) for i in range(3)])
    assert found[1] - found[0] == LINK - 1 or found[1] - found[0] == LINK
    assert found[1] < 20 * US
    assert found[2] == BEGIN + LINK + 3 * US + LEAVE + 500 * US


def test_a_read_of_many_pages_crosses_the_link_when_all_are_in() -> None:
    """Two pages on two dies: the second leaves after the first, then both cross."""
    model = NvmeModel(TINY)
    model.submit(0, 0, 2 * PAGE)
    (_, end_ps), *rest = model.poll(LATER - 1)
    assert not rest and end_ps == BEGIN + COMMAND + READ + 2 * LEAVE + 2 * LINK


BLOCKS = TINY | {
    "dies_per_channel": 1,
    "blocks_per_plane": 8,
    "pages_per_block": 4,
    "spare_permille": 500,  # it keeps 16 pages
    "collect_blocks": 2,
    "erase_ps": 4000 * US,
}
PROGRAM = 3 * US + LEAVE + 500 * US
MOVE = COMMAND + READ + LEAVE + PROGRAM
ERASE = COMMAND + 4000 * US


def written_over(pages: list[int]) -> NvmeModel:
    """Pages of the drive with blocks that were written one after another, each alone."""
    model = NvmeModel(BLOCKS)
    for at, page in enumerate(pages):
        model.submit(at * 10**12, page * PAGE, PAGE, write=True)
        model.poll((at + 1) * 10**12 - 1)
    return model


def test_a_victim_is_the_block_with_the_fewest_valid_pages() -> None:
    """The seventh of eight blocks is opened. The first and the third have one valid page each,
    which moves; the collector opens the last block, so one victim is not enough."""
    model = written_over([*range(16), 8, 9, 10, 0, 4, 5, 1, 2])
    kept = {"valid_pages": 16, "retired_blocks": 0, "read_only": 0}
    assert model.wear() == kept | {
        "written_pages": 24,
        "moved_pages": 0,
        "erased_blocks": 0,
        "erases_least": 0,
        "erases_most": 0,
    }
    now = 100 * 10**12
    model.submit(now, 12 * PAGE, PAGE, write=True)
    ((_, end_ps),) = model.poll(now + 10**12)
    assert end_ps == now + BEGIN + LINK + PROGRAM  # what it began comes after it
    assert model.wear() == kept | {
        "written_pages": 25,
        "moved_pages": 2,
        "erased_blocks": 2,
        "erases_least": 0,
        "erases_most": 1,
    }


def test_a_write_waits_for_the_collection_and_a_read_does_not() -> None:
    """A write behind it waits for two moves and erases; a read for the program that runs."""
    model = written_over([*range(16), 8, 9, 10, 0, 4, 5, 1, 2])
    now = 100 * 10**12
    for tag, write in enumerate((True, True)):
        model.submit(now, (12 + tag) * PAGE, PAGE, write, tag)
    programmed = now + BEGIN + LINK + PROGRAM
    read_at = programmed + COMMAND + READ + LEAVE  # then the page that moves is programmed
    found = dict(model.poll(read_at))
    model.submit(read_at, 3 * PAGE, PAGE, False, 2)
    found |= dict(model.poll(LATER - 1))
    read = COMMAND + READ + LEAVE
    assert found[0] == programmed
    assert found[2] == programmed + MOVE + read + LINK
    assert found[1] == programmed + 2 * MOVE + read + 2 * ERASE + PROGRAM


def read_after(params: dict[str, int], age_ps: int, write: tuple[int, ...]) -> int:
    """How long a read of page 0 takes, that long after the first of the pages was written."""
    model = NvmeModel(params)
    for page in write:
        model.submit(0, page * PAGE, PAGE, write=True)
        model.poll(10**12)
    opened = BEGIN + LINK  # when the block's first page got its place
    now = opened + age_ps - BEGIN - COMMAND  # so that its command is in at that age
    model.submit(now, 0, PAGE)
    ((_, end_ps),) = model.poll(LATER - 1)
    return end_ps - now - (BEGIN + COMMAND + LEAVE + LINK)


def test_each_age_of_a_block_adds_a_read() -> None:
    """Up to the largest number of reads; of a page that is not written none."""
    day = 86400 * 10**12
    aging = BLOCKS | {"retry_age_ps": day, "retry_factor": 3}
    for age_ps, reads in ((day - 1, 1), (day, 2), (2 * day - 1, 2), (2 * day, 3), (3 * day, 3)):
        assert read_after(aging, age_ps, write=(0,)) == reads * READ
        assert read_after(aging, age_ps, write=()) == READ
        assert read_after(BLOCKS, age_ps, write=(0,)) == READ


def test_an_old_block_is_refreshed_by_a_write_to_its_plane() -> None:
    """All four valid pages of the oldest block move, which makes them young, and it is erased; of
    two old ones the second waits for the next write."""
    day = 86400 * 10**12
    model = NvmeModel(BLOCKS | {"refresh_ps": day, "retry_age_ps": day, "retry_factor": 9})
    for page in range(8):
        model.submit(page, page * PAGE, PAGE, write=True)
        model.poll(10**12)
    for at, page in enumerate((8, 9)):
        model.submit((2 + at) * day, page * PAGE, PAGE, write=True)
        model.poll((3 + at) * day - 1)
        model.submit((3 + at) * day - 1, 0, PAGE)
        ((_, end_ps),) = model.poll((3 + at) * day - 1 + US * 1000)
        wear = model.wear()
        assert (wear["moved_pages"], wear["erased_blocks"]) == (4 * (at + 1), at + 1)
        reads = (end_ps - (3 + at) * day + 1 - (BEGIN + COMMAND + LEAVE + LINK)) // READ
        assert reads == 1 + at
    assert model.wear()["valid_pages"] == 10


def test_age_and_erases_need_blocks() -> None:
    """One line says what to give."""
    for drive in (TINY, TINY | {"scheduled": 0, "write_buffer_bytes": PAGE}):
        for name in ("retry_age_ps", "refresh_ps", "erase_limit", "level_erases"):
            with pytest.raises(BadInput, match=r"are of a block.*give scheduled and blocks_per"):
                NvmeModel(drive | {name: 1})


def test_a_drive_that_keeps_nothing_is_refused() -> None:
    """The other end of over-provisioning."""
    with pytest.raises(BadInput, match=r"keeps nothing.*lower spare_permille"):
        NvmeModel(BLOCKS | {"spare_permille": 1000})


@pytest.mark.parametrize("spare", [0, 100, 468])
def test_a_drive_without_over_provisioning_is_refused(spare: int) -> None:
    """One line says what is missing and what to raise."""
    with pytest.raises(BadInput, match=r"over-provisioning cannot collect.*raise spare_permille"):
        NvmeModel(BLOCKS | {"spare_permille": spare})


@pytest.mark.parametrize(
    "wrong",
    [
        {"dies_per_channel": 65},
        {"read_command_ps": 0},
        {"program_command_ps": 0},
        {"write_buffer_bytes": 1},
        {"write_buffer_bytes": 1 << 31},
        {"blocks_per_plane": 1 << 17},
        {"blocks_per_plane": 8, "pages_per_block": 4, "spare_permille": 600, "collect_blocks": 1},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """What a scheduler needs is there, and its tables have a bound."""
    with pytest.raises(BadInput):
        NvmeModel(TINY | wrong)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("buffer", [0, 8 * PAGE])
def test_an_io_of_any_size_takes_as_long_as_its_pages(write: bool, buffer: int) -> None:
    """Of 1 MiB all pages are begun at once; of more, each that is done begins another, and no more
    time goes by than for as many pages of a short one."""
    took = []
    for pages in (100, 200, 5000, 10000):
        model = NvmeModel(TINY | {"write_buffer_bytes": buffer})
        assert model.submit(0, 0, pages * PAGE, write) == LATER
        ((_, end_ps),) = model.poll(LATER - 1)
        took.append(end_ps)
    short = (took[1] - took[0]) / 100
    assert (took[3] - took[2]) / 5000 == pytest.approx(short, rel=1e-3)
    assert took[2] == pytest.approx(took[1] + 4800 * short, rel=1e-3)


@pytest.mark.parametrize(
    ("offset", "size"), [(-512, 512), (0, -1), (0, 1 << 32), (100, 512), (0, 513)]
)
def test_an_io_that_is_none_is_refused(offset: int, size: int) -> None:
    """One line, before it reaches the drive."""
    with pytest.raises(BadInput, match=r"of a drive.*give multiples of 512 bytes, at most 4 GiB"):
        NvmeModel(TINY).submit(0, offset, size)
