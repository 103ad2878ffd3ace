"""Does a drive wear as a plain model says, and lose nothing when its blocks are worn out?"""

import errno
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.drives import preset
from offstage.bindings.errors import BadInput
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

PAGE, S_PS = 512, 10**12
DRIVE = preset("micron-9650").params | {
    "channel_count": 1,
    "dies_per_channel": 1,
    "planes_per_die": 1,
    "page_size_bytes": PAGE,
    "write_buffer_bytes": 0,
    "blocks_per_plane": 16,
    "pages_per_block": 4,
    "spare_permille": 500,
    "collect_blocks": 2,
}
BLOCKS, PAGES, KEPT, COLLECT = 16, 4, 32, 2


@dataclass
class Block:
    """`pages`: what was written to it in order, None where it is void."""

    state: str = "free"
    handle: int = 0
    erases: int = 0
    pages: list[int | None] = field(default_factory=list)

    @property
    def valid(self) -> int:
        return sum(page is not None for page in self.pages)


class Plain:
    """One plane of nvme_blocks.h, as lists."""

    def __init__(self, limit: int, level: int, handles: int) -> None:
        self.limit, self.level = limit, level
        self.blocks = [Block() for _ in range(BLOCKS)]
        self.fronts: dict[tuple[bool, int], Block] = {}
        self.needs = COLLECT + 2 * max(1, handles) + KEPT // PAGES
        self.written = self.moved = self.retired = 0
        self.read_only = False

    def write(self, page: int, handle: int) -> None:
        self.written += 1
        self.place(page, handle, False)
        while len(self.free) < COLLECT:
            closed = [one for one in self.blocks if one.state == "closed" and one.valid < PAGES]
            self.empty(min(closed, key=lambda one: one.valid))
            most = max(one.erases for one in self.blocks)
            closed = [one for one in self.blocks if one.state == "closed"]
            least = min(closed, key=lambda one: one.erases)
            if len(self.free) < COLLECT or not self.level or self.read_only:
                continue
            if most - least.erases >= self.level:
                self.empty(least)

    def discard(self, page: int) -> None:
        for block in self.blocks:
            block.pages = [None if one == page else one for one in block.pages]

    @property
    def free(self) -> list[Block]:
        return [one for one in self.blocks if one.state == "free"]

    def place(self, page: int, handle: int, collector: bool) -> None:
        front = self.fronts.get((collector, handle))
        if front is None or len(front.pages) == PAGES:
            if front is not None:
                front.state = "closed"
            front = self.free[0]
            if self.level:
                front = min(self.free, key=lambda one: one.erases)
            front.state, front.handle, front.pages = "open", handle, []
            self.fronts[collector, handle] = front
        self.discard(page)
        front.pages.append(page)

    def empty(self, victim: Block) -> None:
        for page in [one for one in victim.pages if one is not None]:
            self.place(page, victim.handle, True)
            self.moved += 1
        victim.pages, victim.state = [], "free"
        victim.erases += 1
        for worn in [one for one in self.free if self.limit and one.erases >= self.limit]:
            self.read_only |= BLOCKS - self.retired == self.needs
            if not self.read_only and len(self.free) > 1:
                worn.state = "retired"
                self.retired += 1

    def wear(self) -> dict[str, int]:
        erases = [one.erases for one in self.blocks]
        return {
            "written_pages": self.written,
            "moved_pages": self.moved,
            "erased_blocks": sum(erases),
            "valid_pages": sum(one.valid for one in self.blocks),
            "erases_least": min(erases),
            "erases_most": max(erases),
            "retired_blocks": self.retired,
            "read_only": int(self.read_only),
        }


class Drive:
    """One command after another."""

    def __init__(self, **changed: int) -> None:
        self.model, self._at = NvmeModel(DRIVE | changed), 0

    def write(self, page: int, handle: int = 0) -> None:
        self.model.submit(self._at, page * PAGE, PAGE, write=True, handle=handle)
        self.end()

    def discard(self, page: int) -> None:
        self.model.submit(self._at, page * PAGE, PAGE, discard=True)
        self.end()

    def read(self, page: int) -> int:
        self.model.submit(self._at, page * PAGE, PAGE)
        return self.end()

    def end(self) -> int:
        self._at += S_PS
        return len(self.model.poll(self._at - 1))


@given(
    limit=st.integers(0, 12),
    level=st.integers(0, 5),
    handles=st.sampled_from([0, 2]),
    hot=st.sampled_from([4, 16, KEPT]),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=60)
def test_blocks_wear_as_a_plain_model_says(
    limit: int, level: int, handles: int, hot: int, seed: int
) -> None:
    """Random writes and discards, of all pages or mostly of a few: each count is the model's, and
    no page is lost, until the drive takes no write; then it still ends every read."""
    drive = Drive(erase_limit=limit, level_erases=level, handle_count=handles)
    plain, drawn, live = Plain(limit, level, handles), random.Random(seed), set[int]()
    for number in range(700):
        page = drawn.randrange(hot if drawn.random() < 0.9 else KEPT)
        if plain.read_only:
            break
        if drawn.random() < 0.05:
            drive.discard(page)
            plain.discard(page)
            live.discard(page)
        else:
            drive.write(page, page % max(1, handles))
            plain.write(page, page % max(1, handles))
            live.add(page)
        if number % 50 == 0:
            assert drive.model.wear() == plain.wear()
    wear = drive.model.wear()
    assert wear == plain.wear() and wear["valid_pages"] == len(live)
    if plain.read_only:
        for change in (drive.write, drive.discard):
            with pytest.raises(BadInput, match=r"end of its life.*182h.*; read what it has"):
                change(0)
        assert all(drive.read(page) == 1 for page in range(KEPT))
        assert drive.model.wear() == wear


def until_worn(limit: int, level: int) -> tuple[dict[str, int], int]:
    """Writes to a tenth of the pages, nine of ten times, until none is taken."""
    blocks, pages = 64, 16
    kept = blocks * pages * 4 // 5
    drive = Drive(
        blocks_per_plane=blocks,
        pages_per_block=pages,
        spare_permille=200,
        erase_limit=limit,
        level_erases=level,
    )
    drawn = random.Random(1)
    for page in range(kept):
        drive.write(page)
    while True:
        try:
            drive.write(drawn.randrange(kept // 10 if drawn.random() < 0.9 else kept))
        except BadInput:
            return drive.model.wear(), blocks * pages


def test_levelled_blocks_take_what_their_erases_allow() -> None:
    """A drive takes at most `erase_limit` x its pages / its amplification, and half full of pages
    that are seldom written nearly as much where its blocks are levelled, and less where not."""
    reached = {}
    for level in (0, 2):
        wear, pages = until_worn(limit=20, level=level)
        programmed = wear["written_pages"] + wear["moved_pages"]
        endurance = 20 * pages / (programmed / wear["written_pages"])
        reached[level] = wear["written_pages"] / endurance
        # the last free block is used once more
        assert wear["erases_most"] <= 22 and wear["retired_blocks"] > 0
        # what was programmed was erased since, or lies in a block
        assert 0 <= programmed - 16 * wear["erased_blocks"] <= pages
    assert reached[0] < 0.9 < reached[2] <= 1.05


def test_a_simulated_drive_that_is_worn_out_gives_back_every_byte() -> None:
    """Writes end with what Linux says for that status, also after it has refused many, and each
    read has what was written last."""
    config = StorageConfig(
        backend="sim", size_bytes=KEPT * PAGE, lba_size_bytes=PAGE, nvme=DRIVE | {"erase_limit": 4}
    )
    drawn, has = random.Random(2), {}
    with Storage(config, Clock(simulated=True)) as storage:
        buffer = Buffer(PAGE)
        storage.register(buffer)

        def ended(op: int, page: int) -> int:
            (done,) = storage.run([Io(op, 0, page * PAGE, PAGE, buffer)])
            return done.result

        refused = 0
        for number in range(2000):
            page = drawn.randrange(KEPT)
            buffer.view[:] = bytes([number % 256]) * PAGE
            result = ended(WRITE, page)
            assert result == (-errno.ENODATA if refused else result) and result in (PAGE, -61)
            refused += result < 0
            if result == PAGE:
                has[page] = number % 256
        assert refused > 100 and storage.wear()["read_only"] == 1
        for page, value in has.items():
            assert ended(READ, page) == PAGE and set(buffer.view) == {value}
