"""Does the Verilog encoder write the reference's bytes, and take the model's cycles?"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from offstage.asic_model.codec.reference import (
    PIECE_BYTES,
    SHAPES,
    Shape,
    code_lengths,
    encode_piece,
)
from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Network, Stage, Unit, make_requests

CYCLE_PS = 1_000
LISTS = 8
BACK = 16
HEADER_BYTES = 12
PIECES = 40

Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]


def draw_piece(draw: random.Random) -> tuple[Shape, bytes]:
    """Of any dtype: values around a few sizes, all alike, of steep frequencies, of all symbols."""
    shape = draw.choice(list(SHAPES.values()))
    whole = PIECE_BYTES * 8 // shape.value_bits
    count = whole if draw.random() < 0.15 else draw.randint(1, 300)
    generator = np.random.default_rng(draw.getrandbits(32))
    among = 1 << shape.exponent_bits
    kind = draw.randrange(5)
    if kind == 0:
        symbols = np.full(count, draw.randrange(among))
    elif kind == 1:
        symbols = np.floor(-np.log2(generator.random(count) + 1e-9)) * draw.choice([1, 2, 3])
    elif kind == 2:
        symbols = np.arange(count)
    else:
        symbols = generator.normal(among // 2, draw.choice([0.5, 2, 6, 40]), count)
    rests = generator.integers(0, 1 << shape.rest_bits, count, np.uint32)
    rests &= draw.choice([0xFFFF, 0, draw.getrandbits(16)])
    rests |= draw.getrandbits(shape.rest_bits) if draw.random() < 0.3 else 0
    turned = (symbols.astype(np.uint32) % among) << shape.rest_bits | rests
    values = turned >> 1 | (turned & 1) << (shape.value_bits - 1)
    return shape, values.astype(f"<u{shape.value_bits // 8}").tobytes()


def full_piece() -> tuple[Shape, bytes]:
    """All 256 exponents, equally often: codes of 8 bits are more than the header can count."""
    values = np.arange(PIECE_BYTES // 2, dtype="<u2") % 256 << 7
    return SHAPES["bfloat16"], values.astype("<u2").tobytes()


def make_stimulus(pieces: list[tuple[Shape, bytes]], draw: random.Random) -> dict[str, Any]:
    """The pieces in values, announced in bursts and with gaps; nothing pauses."""
    rows, cycle = [], 0
    for shape, plain in pieces:
        cycle += draw.choice([0, 0, draw.randint(1, 3000)])
        values = np.frombuffer(plain, f"<u{shape.value_bits // 8}").tolist()
        rows.append({"cycle": cycle, "dtype": shape.number, "values": values})
    return {"pieces": rows, "pauses": [False], "stalls": [False]}


def cycles_of(shape: Shape, plain: bytes) -> int:
    """The cycles of a piece but for the fixed ones, as the head of encode_lane.v counts them."""
    values = np.frombuffer(plain, f"<u{shape.value_bits // 8}").astype(np.uint32)
    among = 1 << shape.exponent_bits
    symbols = values >> (shape.rest_bits - 1) & among - 1
    used = len(np.unique(symbols))
    most, items, merged = 2 * used - 2, used, used + 1
    for _ in range(LISTS - 1 if used > 1 else 0):
        items = min(most, used + items // 2)
        merged += items + 1
    coded = encode_piece(shape, plain)
    bits, sent = 8 * len(plain), len(values)
    if len(coded) < len(plain):
        weights = np.bincount(symbols)
        lengths = code_lengths(weights)
        varying = int.from_bytes(coded[10:12], "little").bit_count()
        bits = 8 * (HEADER_BYTES + used) + varying * len(values)
        bits += sum(int(weights[one]) * length for one, length in lengths.items())
        sent += 3 + used
    back = BACK if used > 1 else 0  # a single symbol has no code to look for
    left_over = bits % 32 != 0
    return len(values) + 2 * among + merged + back + used + sent + left_over


def run_model(pieces: list[tuple[Shape, bytes]], stimulus: dict[str, Any]) -> list[int]:
    """When the chip's engine emits the last word of each piece: a server and its items."""
    cycles = [cycles_of(shape, plain) for shape, plain in pieces]
    fixed_ps = BLOCKS["encode_lane"].cycles * CYCLE_PS
    lane = Unit("lane", fixed_ps=fixed_ps, item_ps=CYCLE_PS)
    chip = Chip(Network((lane,), {"piece": (Stage("lane", items="blocks"),)}))
    at_ps = [row["cycle"] * CYCLE_PS for row in stimulus["pieces"]]
    ends = chip.run(make_requests(len(cycles), at_ps=at_ps, count=cycles))
    ends.sort(order="tag")
    return (ends["end_ps"] // CYCLE_PS).tolist()


def found_bytes(rtl: dict[str, Any]) -> list[bytes]:
    """The bytes of each piece that came out."""
    return [
        np.array(words, "<u4").tobytes()[:size]
        for words, size in zip(rtl["words"], rtl["bytes"], strict=True)
    ]


def test_bytes_and_cycles(simulate: Simulate) -> None:
    """Every piece has the reference's bytes, and its last word comes in the predicted cycle."""
    draw = random.Random(1)
    pieces = [full_piece(), *(draw_piece(draw) for _ in range(PIECES - 1))]
    stimulus = make_stimulus(pieces, draw)
    rtl = simulate("encode_lane", {}, stimulus)
    expected = [encode_piece(*piece) for piece in pieces]
    assert found_bytes(rtl) == expected
    shorter = [len(a) < len(b) for a, (_, b) in zip(expected, pieces, strict=True)]
    assert rtl["coded"] == shorter
    assert rtl["ended"] == run_model(pieces, stimulus)
    # Coverage of the stimulus: pieces of all kinds.
    coded = [
        (shape, one) for (shape, _), one, ok in zip(pieces, expected, shorter, strict=True) if ok
    ]
    assert 5 < sum(shorter) < PIECES - 5
    assert {shape.number for shape, _ in coded} == {1, 2, 3, 4}
    assert any(sum(one[:8]) == 0 for _, one in coded) and any(one[7] for _, one in coded)
    assert {len(one) % 4 for one in expected} == {0, 1, 2, 3}


def test_pauses(simulate: Simulate) -> None:
    """Paused values and a stalling receiver change no byte."""
    draw = random.Random(2)
    pieces = [full_piece(), *(draw_piece(draw) for _ in range(PIECES - 1))]
    stimulus = make_stimulus(pieces, draw)
    stimulus["pauses"] = [draw.random() < 0.3 for _ in range(4001)]
    stimulus["stalls"] = [draw.random() < 0.3 for _ in range(3001)]
    assert found_bytes(simulate("encode_lane", {}, stimulus)) == [
        encode_piece(*piece) for piece in pieces
    ]
