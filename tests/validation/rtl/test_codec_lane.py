"""Does the Verilog codec lane restore bytes, refuse damaged ones, and take the model's cycles?"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offstage.asic_model.codec.reference import (
    PIECE_BYTES,
    SHAPES,
    Shape,
    decode_piece,
    encode_piece,
)
from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests
from offstage.bindings.errors import Corrupt

CYCLE_PS = 1_000
OVERHEAD_CYCLES = 5  # announcement, first word, three words of header
HEADER_BYTES = 12
PIECES = 70

Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]


def draw_piece(draw: random.Random) -> tuple[Shape, bytes, bytes]:
    """A compressible piece of any dtype: values around a few sizes, most pieces short."""
    while True:
        shape = draw.choice(list(SHAPES.values()))
        whole = PIECE_BYTES * 8 // shape.value_bits
        count = whole if draw.random() < 0.08 else draw.randint(8, 200)
        generator = np.random.default_rng(draw.getrandbits(32))
        spread = draw.choice([0, 1, 3, 6])
        symbols = generator.normal(1 << (shape.exponent_bits - 1), spread, count).astype(np.uint32)
        rests = generator.integers(0, 1 << shape.rest_bits, count, np.uint32)
        rests &= draw.choice([0xFFFF, 0, draw.getrandbits(16)])
        rests |= draw.getrandbits(shape.rest_bits) if draw.random() < 0.3 else 0
        turned = (symbols % (1 << shape.exponent_bits)) << shape.rest_bits | rests
        values = turned >> 1 | (turned & 1) << (shape.value_bits - 1)
        plain = values.astype(f"<u{shape.value_bits // 8}").tobytes()
        coded = encode_piece(shape, plain)
        if len(coded) < len(plain):
            return shape, plain, coded


def make_stimulus(pieces: list[tuple[Shape, bytes, bytes]], draw: random.Random) -> dict[str, Any]:
    """The pieces in words, announced in bursts and with gaps; nothing pauses."""
    rows, cycle = [], 0
    for shape, plain, coded in pieces:
        cycle += draw.choice([0, 0, draw.randint(1, 400)])
        padded = coded + bytes(-len(coded) % 4)
        rows.append(
            {
                "cycle": cycle,
                "dtype": shape.number,
                "bytes": len(coded),
                "values": len(plain) * 8 // shape.value_bits,
                "words": np.frombuffer(padded, "<u4").tolist(),
            }
        )
    return {"pieces": rows, "pauses": [False], "stalls": [False]}


def damaged(draw: random.Random, coded: bytes) -> bytes:
    """Flip a bit, in the header or anywhere, change the length, or add one symbol too many."""
    kind = draw.randrange(4)
    if kind < 2:
        where = draw.randrange(HEADER_BYTES if kind else len(coded))
        return coded[:where] + bytes([coded[where] ^ 1 << draw.randrange(8)]) + coded[where + 1 :]
    if kind == 2:
        return coded[: draw.randint(1, len(coded))] + bytes(draw.randint(0, 9))
    # All else is consistent: only the sum of the counts shows that no encoder wrote it.
    end = HEADER_BYTES + sum(coded[:8])
    return coded[:7] + bytes([coded[7] + 1]) + coded[8:end] + b"\0" + coded[end:]


def plain_bytes(shape: Shape, values: list[int]) -> bytes:
    return np.array(values, f"<u{shape.value_bits // 8}").tobytes()


def run_model(stimulus: dict[str, Any]) -> list[int]:
    """When the chip's engine emits the last value of each piece: a server and its items."""
    cycles = [
        -(-max(sum(np.array(row["words"][:2], "<u4").tobytes()), 1) // 4) + row["values"]
        for row in stimulus["pieces"]
    ]
    lane = Unit("lane", fixed_ps=OVERHEAD_CYCLES * CYCLE_PS, item_ps=CYCLE_PS, latency_ps=CYCLE_PS)
    chip = Chip(Network((lane,), {"piece": (Stage("lane", items="blocks"),)}))
    at_ps = [row["cycle"] * CYCLE_PS for row in stimulus["pieces"]]
    ends = chip.run(make_requests(len(cycles), at_ps=at_ps, count=cycles))
    ends.sort(order="tag")
    return (ends["end_ps"] // CYCLE_PS).tolist()


def test_bytes_and_cycles(simulate: Simulate) -> None:
    """Every value of every piece is right, and the last one leaves in the predicted cycle."""
    draw = random.Random(1)
    pieces = [draw_piece(draw) for _ in range(PIECES)]
    stimulus = make_stimulus(pieces, draw)
    rtl = simulate("codec_lane", {}, stimulus)
    assert not any(rtl["bad"])
    for (shape, plain, _), values in zip(pieces, rtl["values"], strict=True):
        assert plain_bytes(shape, values) == plain
    assert rtl["ended"] == run_model(stimulus)
    assert len({(shape.number, coded[:8]) for shape, _, coded in pieces}) > 40
    assert {shape.number for shape, _, _ in pieces} == {1, 2, 3, 4}


@pytest.mark.parametrize("seed", [2, 3])
def test_pauses_and_damage(seed: int, simulate: Simulate) -> None:
    """Paused words and a stalling receiver change no value; invalid pieces are `bad`.

    A damaged piece that is still valid decodes to the reference's result.
    """
    draw = random.Random(seed)
    pieces = []
    for shape, plain, coded in (draw_piece(draw) for _ in range(PIECES)):
        pieces.append((shape, plain, damaged(draw, coded) if draw.random() < 0.7 else coded))
    stimulus = make_stimulus(pieces, draw)
    stimulus["pauses"] = [draw.random() < 0.3 for _ in range(4001)]
    stimulus["stalls"] = [draw.random() < 0.3 for _ in range(3001)]
    rtl = simulate("codec_lane", {}, stimulus)
    refused = 0
    for (shape, plain, coded), values, bad in zip(pieces, rtl["values"], rtl["bad"], strict=True):
        try:
            expected = decode_piece(shape, coded, len(plain))
        except Corrupt:
            refused += 1
            assert bad
        else:
            assert not bad and plain_bytes(shape, values) == expected
    assert 20 < refused < PIECES - 10
