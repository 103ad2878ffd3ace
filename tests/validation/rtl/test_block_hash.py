"""Does the Verilog hash give the firmware's checksums, a stripe a cycle, in the model's cycles?"""

import ctypes
import ctypes.util
import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests
from offstage.bindings.keys import checksum

CYCLE_PS = 1_000
BLOCKS_COUNT = 150
STRIPE_BYTES = 64
LEAST, TURN = 8, 16  # stripes of a block at least; stripes between two turns of the lanes

Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]


class Halves(ctypes.Structure):
    """XXH128_hash_t."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


@pytest.fixture(scope="module")
def xxhash() -> ctypes.CDLL:
    """The library, which building Offstage needs; the firmware has no call for the high half."""
    name = ctypes.util.find_library("xxhash")
    if name is None:
        pytest.skip("libxxhash missing; install Debian's package libxxhash-dev")
    library = ctypes.CDLL(name)
    library.XXH3_128bits.restype = Halves
    library.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    return library


def draw_blocks(seed: int) -> list[tuple[int, bytes]]:
    """When each block is due, and its bytes: of few and many stripes, around whole turns; at
    random, all zeros or all ones."""
    draw = random.Random(seed)
    blocks, cycle = [], 0
    for _ in range(BLOCKS_COUNT):
        stripes = draw.choice([LEAST, 15, 16, 17, 32, 33, 64, draw.randint(LEAST, 70)])
        cycle += draw.choice([0, 0, draw.randint(1, 60), draw.randint(30, 150)])
        data = draw.randbytes(stripes * STRIPE_BYTES)
        kind = draw.random()
        if kind < 0.1:
            data = bytes([draw.choice([0, 255])]) * len(data)
        blocks.append((cycle, data))
    return blocks


def make_stimulus(blocks: list[tuple[int, bytes]]) -> dict[str, Any]:
    """The blocks in stripes, as numbers in hexadecimal whose lowest byte is the first."""
    rows = []
    for cycle, data in blocks:
        cuts = range(0, len(data), STRIPE_BYTES)
        rows.append(
            {"cycle": cycle, "stripes": [data[i : i + STRIPE_BYTES][::-1].hex() for i in cuts]}
        )
    return {"blocks": rows, "pauses": [False]}


def run_model(blocks: list[tuple[int, bytes]]) -> list[int]:
    """When the chip's engine gives each digest: a server, an item for each of its cycles."""
    latency_ps = (BLOCKS["block_hash"].cycles - 1) * CYCLE_PS
    unit = Unit("hash", item_ps=CYCLE_PS, latency_ps=latency_ps)
    chip = Chip(Network((unit,), {"block": (Stage("hash", items="blocks"),)}))
    stripes = [len(data) // STRIPE_BYTES for _, data in blocks]
    ends = chip.run(
        make_requests(
            len(blocks),
            at_ps=[cycle * CYCLE_PS for cycle, _ in blocks],
            count=[count + (count - 1) // TURN for count in stripes],
        )
    )
    ends.sort(order="tag")
    return (ends["end_ps"] // CYCLE_PS).tolist()


def check_digests(
    xxhash: ctypes.CDLL, rtl: dict[str, Any], blocks: list[tuple[int, bytes]]
) -> None:
    """The low halves are the firmware's, whole digests the library's."""
    found = [divmod(int(one, 16), 1 << 64) for one in rtl["digests"]]
    assert [low for _, low in found] == [checksum(data) for _, data in blocks]
    assert [high for high, _ in found] == [
        xxhash.XXH3_128bits(data, len(data)).high for _, data in blocks
    ]


def test_digests_and_cycles(simulate: Simulate, xxhash: ctypes.CDLL) -> None:
    """Every digest is right, and comes in the model's cycle."""
    blocks = draw_blocks(1)
    rtl = simulate("block_hash", {}, make_stimulus(blocks))
    check_digests(xxhash, rtl, blocks)
    assert rtl["ended"] == run_model(blocks)
    # Coverage of the stimulus: blocks that follow at once, and that wait.
    due = [cycle for cycle, _ in blocks]
    assert sum(a > b for a, b in zip(rtl["begun"], due, strict=True)) > 50
    assert sum(a == b for a, b in zip(rtl["begun"], due, strict=True)) > 10


def test_pauses(simulate: Simulate, xxhash: ctypes.CDLL) -> None:
    """Stripes that come with gaps give the same digests."""
    blocks, draw = draw_blocks(2), random.Random(3)
    stimulus = make_stimulus(blocks)
    stimulus["pauses"] = [draw.random() < 0.4 for _ in range(4001)]
    check_digests(xxhash, simulate("block_hash", {}, stimulus), blocks)
