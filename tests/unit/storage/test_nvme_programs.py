"""Do programs that the write buffer gathers, stripes, pieces and small reads take what they say, to
the picosecond?

One channel, few planes and round numbers, so that each time is a sum by hand. Whether the sums of
many are right is asked of another emulator (tests/validation/test_tables_nvmevirt.py).
"""

import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import LATER, NvmeModel
from tests.unit.storage.test_nvme_scheduled import BEGIN, COMMAND, LINK, READ, TINY, US

KIB = 1024
PAGE = 16 * KIB
LEAVE, CROSS, PROGRAM = 40 * US, 4 * US, 500 * US
GATHERS = TINY | {
    "page_size_bytes": PAGE,  # 40 us on the channel and 4 on the link
    "program_pages": 1,
    "write_buffer_bytes": 4 * PAGE,
}
PROGRAMMED = 3 * US + LEAVE + PROGRAM


def ends(params: dict[str, int], *ios: tuple[int, int, int, bool]) -> list[int]:
    """The end of each I/O: (when, offset, bytes, whether it writes)."""
    model, found = NvmeModel(params), [0] * len(ios)
    for tag, (now_ps, offset, size, write) in enumerate(ios):
        assert model.submit(now_ps, offset, size, write, tag) == LATER
    for tag, end_ps in model.poll(LATER - 1):
        found[tag] = end_ps
    return found


def busy(params: dict[str, int], writes: list[tuple[int, int]], plane: int) -> int:
    """When a read of that plane ends, submitted 100 us after the writes (offset, bytes)."""
    ios = [(0, offset, size, True) for offset, size in writes]
    return ends(params, *ios, (100 * US, plane * PAGE, 4 * KIB, False))[-1]


def test_writes_are_gathered_until_a_program_is_full() -> None:
    """Three of 4 KiB lie in the buffer and no plane is busy; the fourth, anywhere, begins one
    program, on the next plane in turn and not where its address says."""
    away = [(at * 5 * PAGE, 4 * KIB) for at in range(9)]
    idle = 100 * US + BEGIN + COMMAND + READ + 10 * US + LINK
    assert busy(GATHERS, away[:3], 0) == busy(GATHERS, away[:3], 1) == idle
    full = BEGIN + 4 * LINK + PROGRAMMED + COMMAND + READ + 10 * US + LINK
    assert busy(GATHERS, away[:4], 0) == full and busy(GATHERS, away[:4], 1) == idle
    assert busy(GATHERS, away[:8], 1) > idle


def test_three_pages_are_programmed_at_once() -> None:
    """They cross the channel together, and the buffer has all of them back when they are in."""
    params = GATHERS | {"program_pages": 3, "dies_per_channel": 1}
    found = ends(params, *[(0, at * PAGE, PAGE, True) for at in range(7)])
    programmed = BEGIN + 3 * CROSS + 3 * US + 3 * LEAVE + PROGRAM
    assert found[:4] == [BEGIN + (at + 1) * CROSS for at in range(4)]
    taken = [programmed + BEGIN + (at + 1) * CROSS for at in range(3)]
    assert found[4:] == taken  # only then do they cross


def test_pages_of_a_program_are_on_one_plane() -> None:
    """Pages 0 to 2 are read one after another, 2 and 3 at once."""
    params = GATHERS | {"program_pages": 3}
    one, two = COMMAND + READ + LEAVE, LEAVE
    assert ends(params, (0, PAGE, 2 * PAGE, False)) == [BEGIN + 2 * one + 2 * CROSS]
    assert ends(params, (0, 2 * PAGE, 2 * PAGE, False)) == [BEGIN + one + two + 2 * CROSS]


def test_a_stripe_is_filled_4_kib_in_turn() -> None:
    """12 KiB of two planes' stripe: 8 of the first and 4 of the second; without a stripe 12 of
    one. A range that begins and ends within 4 KiB moves its bytes and no more."""
    striped = GATHERS | {"stripe_pages": 2}
    begin = BEGIN + COMMAND + READ
    assert ends(GATHERS, (0, 0, 12 * KIB, False)) == [begin + 30 * US + 3 * LINK]
    assert ends(striped, (0, 0, 12 * KIB, False)) == [begin + 20 * US + 10 * US + 3 * LINK]
    assert ends(striped, (0, 4 * KIB, 4 * KIB, False), (0, 0, 4 * KIB, False)) == [
        begin + 10 * US + LINK,
        begin + 20 * US + LINK,
    ]
    ragged = ends(striped, (0, 3 * KIB, 6 * KIB, False))
    assert ragged == [begin + 15 * US + 6 * LINK // 4]
    apart = striped | {"channel_count": 2, "dies_per_channel": 1}  # 2 KiB beside 4
    assert ends(apart, (0, 3 * KIB, 6 * KIB, False)) == [begin + 10 * US + 6 * LINK // 4]


@pytest.mark.parametrize("pages", range(1, 9))
@pytest.mark.parametrize("first", range(0, 40, 7))
def test_a_stripe_moves_each_byte_once(first: int, pages: int) -> None:
    """However a read lies in stripes of three pages: alone on the channel, its data take as long as
    its bytes, behind the commands of the pages that it touches."""
    params = GATHERS | {"stripe_pages": 3, "dies_per_channel": 3, "read_ps": 1, "firmware_ps": 1}
    units = range(first, first + 5 * pages)
    touched = {(unit // 12, unit % 3) for unit in units}
    (end_ps,) = ends(params, (0, first * 4 * KIB, len(units) * 4 * KIB, False))
    data = len(units) * 11 * US + len(touched) * COMMAND
    assert end_ps == pytest.approx(data, abs=100)


def test_pieces_of_a_page_are_on_the_link_while_the_rest_leaves() -> None:
    """Only the last piece is left to cross when all have left."""
    whole, pieces = (
        ends(GATHERS | {"piece_bytes": size}, (0, 0, 2 * PAGE, False)) for size in (0, 4 * KIB)
    )
    left = BEGIN + COMMAND + READ + 2 * LEAVE
    assert whole == [left + 2 * CROSS] and pieces == [left + LINK]


def test_commands_go_before_data_where_a_drive_says_so() -> None:
    """The die that is free again gets its command while the other's page waits."""
    ios = [(0, 0, PAGE, False), (0, PAGE, PAGE, False), (1, 2 * PAGE, PAGE, False)]
    left = BEGIN + COMMAND + READ + LEAVE  # of die 0; that of die 1 has waited
    assert ends(GATHERS, *ios)[1:] == [
        left + LEAVE + CROSS,
        left + LEAVE + COMMAND + READ + LEAVE + CROSS,
    ]
    assert ends(GATHERS | {"commands_first": 1}, *ios)[1:] == [
        left + COMMAND + LEAVE + CROSS,
        left + COMMAND + READ + LEAVE + CROSS,
    ]


def test_small_reads_and_long_writes_have_times_of_their_own() -> None:
    """4 KiB are small and 4.5 are not; each 4 KiB of a write, begun or whole, adds to firmware."""
    small = GATHERS | {"small_read_ps": 30 * US, "small_firmware_ps": 7 * US}
    assert ends(small, (0, 0, 4 * KIB, False)) == [7 * US + COMMAND + 30 * US + 10 * US + LINK]
    (large,) = ends(small, (0, 0, 4 * KIB + 512, False))
    assert large == BEGIN + COMMAND + READ + 11_250_000 + 1_125_000
    each = GATHERS | {"write_each_ps": 5 * US}
    assert ends(each, (0, 0, 4 * KIB, True)) == [BEGIN + 5 * US + LINK]
    assert ends(each, (0, 0, 4 * KIB + 512, True)) == [BEGIN + 10 * US + 1_125_000]


ZONED = GATHERS | {
    "program_pages": 2,
    "write_buffer_bytes": 3 * PAGE,
    "blocks_per_plane": 12,
    "pages_per_block": 2,
    "collect_blocks": 2,
    "erase_ps": 1000 * US,
    "zone_size_bytes": 4 * PAGE,
    "zone_capacity_bytes": 4 * PAGE,
    "zone_count": 4,
    "zone_open_max": 2,
    "zone_active_max": 3,
}


def test_each_zone_has_a_buffer_and_takes_4_kib() -> None:
    """Eight writes of 4 KiB make a program; another zone's do not wait for it; a reset voids what
    was gathered."""
    model = NvmeModel(ZONED)
    for at in range(8):
        model.submit(0, at * 4 * KIB, 4 * KIB, True, at, zone=True)
    for at in range(12):
        model.submit(0, 4 * PAGE + at * 4 * KIB, 4 * KIB, True, 8 + at, zone=True)
    found = dict(model.poll(10**12))
    assert found[19] == BEGIN + 20 * LINK  # nobody has waited: 12 KiB and a program are in a buffer
    assert model.wear()["written_pages"] == 4
    model.submit(10**12, 4 * PAGE, 0, discard=True, zone=True)
    model.poll(2 * 10**12)
    for at in range(8):
        model.submit(2 * 10**12, 4 * PAGE + at * 4 * KIB, 4 * KIB, True, zone=True)
    model.poll(3 * 10**12)
    assert model.wear()["written_pages"] == 6 and model.wear()["erased_blocks"] == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scheduled": 0}, "of drives with schedulers.*give scheduled"),
        ({"stripe_pages": 2, "program_pages": 2}, "give program_pages = 1"),
        ({"stripe_pages": 2, "page_size_bytes": 4608}, "are whole 4 KiB"),
        ({"blocks_per_plane": 64}, "collects nothing in this model.*leave blocks_per_plane out"),
        ({"write_buffer_bytes": 2 * PAGE - 512}, "does not hold a program and a page"),
        ({"program_pages": 65}, "out of range"),
    ],
)
def test_programs_that_cannot_be_are_one_line(changed: dict[str, int], said: str) -> None:
    """What is wrong and what to change."""
    with pytest.raises(BadInput, match=said) as caught:
        NvmeModel(GATHERS | changed)
    assert "\n" not in str(caught.value) and caught.value.fix


@pytest.mark.parametrize(
    "changed", [{"zone_capacity_bytes": 3 * PAGE}, {"pages_per_block": 1, "program_pages": 2}]
)
def test_a_zone_of_half_a_program_is_one_line(changed: dict[str, int]) -> None:
    """Its last pages would never be programmed."""
    with pytest.raises(BadInput, match=r"not whole programs.*make pages_per_block"):
        NvmeModel(ZONED | changed)
