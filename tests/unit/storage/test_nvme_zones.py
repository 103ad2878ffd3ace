"""Do a drive's zones keep their write pointers and limits, and does it move nothing of them?"""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.drives import preset
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import DISCARD as DISCARD_OP
from offstage.bindings.storage import (
    READ,
    WRITE,
    Buffer,
    Clock,
    Io,
    NvmeModel,
    Storage,
    StorageConfig,
)

PAGE, S_PS, PLANES, BLOCKS_EACH, PAGES = 4096, 10**12, 2, 2, 4
ZONE = PLANES * BLOCKS_EACH * PAGES * PAGE
CAPACITY, COUNT, OPEN, ACTIVE = ZONE - 2 * PAGE, 5, 2, 3
ZONED = preset("micron-9650").params | {
    "channel_count": PLANES,
    "dies_per_channel": 1,
    "planes_per_die": 1,
    "page_size_bytes": PAGE,
    "write_buffer_bytes": 0,
    "blocks_per_plane": COUNT * BLOCKS_EACH + 8,
    "pages_per_block": PAGES,
    "zone_size_bytes": ZONE,
    "zone_capacity_bytes": CAPACITY,
    "zone_count": COUNT,
    "zone_open_max": OPEN,
    "zone_active_max": ACTIVE,
}
NO_ZONE, FULL, POINTER, CUT, MANY, START = (
    "no such zone",
    "the zone is full",
    "write pointer",
    "within its capacity",
    "as many zones are active",
    "the start of a zone",
)


@dataclass
class Plain:
    """The rules again, in the fewest words: bytes written of each zone, and the open ones in the
    order in which they were opened."""

    written: list[int] = field(default_factory=lambda: [0] * COUNT)
    opened: list[int] = field(default_factory=list)
    pages: int = 0
    erased: int = 0

    def state(self, zone: int) -> str:
        if zone in self.opened:
            return "open"
        if self.written[zone] in (0, CAPACITY):
            return "full" if self.written[zone] else "empty"
        return "closed"

    def write(self, offset: int, size: int) -> str:
        """Why it is refused, or nothing."""
        zone, at = divmod(offset, ZONE)
        if zone >= COUNT:
            return NO_ZONE
        if self.state(zone) == "full":
            return FULL
        if at != self.written[zone]:
            return POINTER
        if at + size > CAPACITY or size % PAGE:
            return CUT
        active = [one for one in range(COUNT) if self.state(one) in ("open", "closed")]
        if zone not in active and len(active) == ACTIVE:
            return MANY
        if zone not in self.opened:
            self.opened = [*self.opened, zone][-OPEN:]
        self.written[zone] += size
        self.pages += size // PAGE
        if self.written[zone] == CAPACITY:
            self.opened.remove(zone)
        return ""

    def reset(self, offset: int) -> str:
        zone, at = divmod(offset, ZONE)
        if zone >= COUNT or at:
            return START
        if self.written[zone]:
            self.erased += PLANES * BLOCKS_EACH
        self.written[zone] = 0
        self.opened = [one for one in self.opened if one != zone]
        return ""


class Drive:
    """One command after another; `said` is why it was refused."""

    def __init__(self, params: dict[str, int] = ZONED) -> None:
        self.model, self.now_ps = NvmeModel(params), 0

    def said(self, offset: int, size: int, *, reset: bool = False, zone: bool = True) -> str:
        try:
            self.model.submit(self.now_ps, offset, size, not reset, discard=reset, zone=zone)
        except BadInput as refused:
            assert "\n" not in str(refused) and refused.fix
            return refused.what
        self.now_ps += S_PS
        assert len(self.model.poll(self.now_ps - 1)) == 1
        return ""


COMMANDS = st.tuples(
    st.sampled_from(["next", "next", "next", "write", "reset"]),
    st.integers(0, COUNT),
    st.integers(0, ZONE // PAGE),
    st.sampled_from([1, 2, 5, 14]),
)


@given(st.lists(COMMANDS, max_size=60))
def test_zones_are_what_a_plain_model_says(commands: list[tuple[str, int, int, int]]) -> None:
    """Any writes and resets, at the pointer and elsewhere: the same are refused for the same
    reason, the same zones are open, closed and full; flash has what was written, and erased what
    was reset."""
    drive, plain = Drive(), Plain()
    for kind, zone, page, pages in commands:
        at = plain.written[zone] if kind == "next" and zone < COUNT else page * PAGE
        offset = zone * ZONE + at
        if kind == "reset":
            offset = zone * ZONE + (page // 12) * PAGE
            why, said = plain.reset(offset), drive.said(offset, 0, reset=True)
        else:
            why, said = plain.write(offset, pages * PAGE), drive.said(offset, pages * PAGE)
        assert (why in said) if why else not said, (why, said)
        for number in range(COUNT):
            assert drive.model.zone(number) == (plain.state(number), plain.written[number])
    wear = drive.model.wear()
    assert (wear["written_pages"], wear["moved_pages"]) == (plain.pages, 0)
    assert (wear["erased_blocks"], wear["valid_pages"]) == (
        plain.erased,
        sum(plain.written) // PAGE,
    )


def test_a_reset_is_erased_before_the_next_write_and_after_none() -> None:
    """A zone of two blocks of each plane: a write behind its reset waits for two erases, one to
    another zone's planes too, and the reset of an empty zone costs nothing."""
    params = ZONED | {"command_interval_ps": 1}
    took = []
    for filled, reset in ((False, False), (False, True), (True, False), (True, True)):
        drive = Drive(params)
        if filled:
            assert not drive.said(0, PAGE)
        if reset:
            assert not drive.model.submit(drive.now_ps, 0, 0, discard=True, zone=True) < S_PS
        drive.model.submit(drive.now_ps, ZONE, PAGE, True, tag=1, zone=True)
        took.append(dict(drive.model.poll(drive.now_ps + S_PS))[1] - drive.now_ps)
    fresh, empty, written, erased = took
    assert fresh == written and empty - fresh <= 2
    waited = erased - fresh
    assert 2 * params["erase_ps"] <= waited < 2 * params["erase_ps"] + params["program_ps"]


def test_the_conventional_namespace_is_written_in_place_beside_zones() -> None:
    """Its pages are overwritten and collected; the zones keep theirs and none of them moves."""
    drive = Drive()
    assert not drive.said(0, CAPACITY)
    kept = 4 * PAGES * PLANES  # of 8 blocks, what collection leaves
    for number in range(40 * kept):
        assert not drive.said(number * 7 % kept * PAGE, PAGE, zone=False)
    wear = drive.model.wear()
    assert wear["valid_pages"] == kept + CAPACITY // PAGE
    assert wear["written_pages"] == 40 * kept + CAPACITY // PAGE and wear["erased_blocks"] > 40
    assert drive.model.zone(0) == ("full", CAPACITY)


def test_a_simulated_drive_ends_what_its_zones_refuse_with_an_error() -> None:
    """Writes by lifetime: what is rewritten in place is taken anywhere, what is not only at the
    pointer; a discard resets the zone that begins with it, and bytes are what was written."""
    clock, base, eio = Clock(simulated=True), 3 * PAGE, -5
    config = StorageConfig(
        backend="sim",
        size_bytes=base + COUNT * ZONE,
        lba_size_bytes=PAGE,
        discard=True,
        nvme=ZONED,
        zones_offset_bytes=base,
    )
    with Storage(config, clock) as storage:
        buffer = Buffer(2 * PAGE)
        storage.register(buffer)
        buffer.view[:PAGE] = bytes([7]) * PAGE

        def ended(op: int, offset: int, lifetime: int = 0, at: int = 0) -> int:
            io = Io(
                op, 0, offset, PAGE, buffer if op != DISCARD_OP else None, at, lifetime=lifetime
            )
            (done,) = storage.run([io])
            return done.result

        assert ended(WRITE, base, 1) == ended(WRITE, base + PAGE, 1) == PAGE
        assert ended(WRITE, base, 1) == eio
        assert ended(WRITE, base) == ended(WRITE, base) == ended(WRITE, 0) == PAGE
        assert ended(READ, base + PAGE, at=PAGE) == PAGE
        assert buffer.view[:PAGE] == buffer.view[PAGE:]
        assert ended(DISCARD_OP, base + PAGE) == eio
        assert ended(DISCARD_OP, base) == ended(WRITE, base, 1) == PAGE
        assert storage.wear()["erased_blocks"] == PLANES * BLOCKS_EACH


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"zone_size_bytes": ZONE + PAGE}, "not a multiple of the erase block of every plane"),
        ({"zone_capacity_bytes": ZONE + PAGE}, "what can be written of a zone"),
        ({"zone_capacity_bytes": 0}, "what can be written of a zone"),
        ({"zone_open_max": 0}, "at least one zone open"),
        ({"zone_active_max": 1}, "what is open is active"),
        ({"zone_count": COUNT + 3}, "no blocks for a conventional namespace"),
        ({"zone_count": 0}, "or there are none"),
        ({"handle_count": 2}, "a zoned drive has no placement handles"),
        ({"refresh_ps": S_PS}, "keeps neither age nor erases of its blocks"),
        ({"erase_limit": 9}, "keeps neither age nor erases of its blocks"),
        ({"level_erases": 9}, "keeps neither age nor erases of its blocks"),
        ({"blocks_per_plane": 0}, "zones are made of blocks"),
    ],
)
def test_zones_that_cannot_be_are_one_line(changed: dict[str, int], said: str) -> None:
    """What is wrong with a zoned drive, and what to change."""
    with pytest.raises(BadInput, match=said) as caught:
        NvmeModel(ZONED | changed)
    assert "\n" not in str(caught.value) and caught.value.fix


def test_a_drive_without_zones_takes_no_write_to_one() -> None:
    """One line too."""
    with pytest.raises(BadInput, match="the drive has no zones; give zone_count"):
        NvmeModel(preset("micron-9650").params).submit(0, 0, PAGE, True, zone=True)
