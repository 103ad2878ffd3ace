"""Is the codec lossless on any input and equal in C and numpy, and is damaged input refused?"""

import heapq
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.asic_model.codec import reference
from offstage.bindings import codec
from offstage.bindings.errors import BadInput, Corrupt

ROOT = Path(__file__).resolve().parents[3]
DTYPES = tuple(reference.SHAPES)
LENGTH_MAX = 3 * reference.PIECE_BYTES


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Bytes of any length around piece borders: noise, one value, few values, KV-like, mixed."""
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    near = draw(st.sampled_from([0, 1, 2, 100, 4096, 8192, LENGTH_MAX]))
    length = min(max(near + draw(st.integers(-3, 3)), 0), LENGTH_MAX)
    kind = draw(st.sampled_from(["noise", "same", "few", "normal", "shifted", "mixed"]))
    if kind == "noise":
        return random.bytes(length)
    if kind == "same":
        return (random.bytes(2) * length)[:length]
    if kind == "few":
        values = random.integers(0, 2**16, draw(st.integers(1, 9)), np.uint16)
        weights = 2.0 ** -np.arange(len(values))
        chosen = random.choice(values, length // 2 + 1, p=weights / weights.sum())
        return bytes(chosen.tobytes()[:length])
    scale = float(2.0 ** random.integers(-12, 12))
    normal = (random.normal(size=length // 2 + 1) * scale).astype(np.float32).view(np.uint32)
    kv = (normal >> 16).astype(np.uint16)
    if kind == "shifted":
        kv = (kv & 0xFFF0).astype(np.uint16)  # as if from a narrower type: low bits are zero
    made = bytearray(kv.tobytes()[:length])
    if kind == "mixed":
        made[: length // 2] = random.bytes(length // 2)
    return bytes(made)


@given(dtype=st.sampled_from(DTYPES), data=payloads())
def test_nothing_is_lost_and_both_write_the_same(dtype: str, data: bytes) -> None:
    """C and numpy give the same bytes, decode them back, and stay within the promised length."""
    coded = codec.encode(dtype, data)
    assert coded == reference.encode(dtype, data)
    assert codec.decode(coded, len(data)) == data
    pieces = -(-len(data) // reference.PIECE_BYTES)
    assert len(coded) <= 8 + 2 * pieces + len(data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_longest_codes_follow_each_other(dtype: str) -> None:
    """Each exponent is half as frequent as the one before, with runs of the rarest. In float16
    three codes and rests are 57 bits; with 7 left over, the writer's buffer is exactly full."""
    shape = reference.SHAPES[dtype]
    random = np.random.default_rng(57)
    count = 64 * reference.PIECE_BYTES // (shape.value_bits // 8)
    exponents = np.minimum(random.geometric(0.5, count) - 1, 7)
    rare = (random.random(count) < 0.005).nonzero()[0][:, None] - np.arange(3)
    exponents[rare] = random.integers(8, 15, rare.shape)
    mantissa_bits = shape.rest_bits - 1
    values = exponents << mantissa_bits | random.integers(0, 2**mantissa_bits, count)
    values |= random.integers(0, 2, count) << shape.value_bits - 1
    data = values.astype(f"<u{shape.value_bits // 8}").tobytes()
    coded = codec.encode(dtype, data)
    assert len(coded) < len(data)
    assert coded == reference.encode(dtype, data)
    assert codec.decode(coded, len(data)) == data


@given(dtype=st.sampled_from(DTYPES), data=payloads())
def test_the_reference_decodes_what_it_wrote(dtype: str, data: bytes) -> None:
    """The reference alone round-trips. It is slow, so only two pieces of each payload are tried."""
    data = data[: 2 * reference.PIECE_BYTES]
    assert reference.decode(reference.encode(dtype, data)) == data


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_comes_back(dtype: str) -> None:
    """NaN of any payload, infinities, denormals and both zeros come back: in order, and drawn so
    that some are rare and pieces are coded."""
    bits = reference.SHAPES[dtype].value_bits
    patterns = np.arange(2**bits).astype(f"<u{bits // 8}")
    random = np.random.default_rng(1)
    rare = np.where(random.random(2**16) < 0.9, 0x3C, random.choice(patterns, 2**16))
    for data in (np.tile(patterns, 2).tobytes(), rare.astype(patterns.dtype).tobytes()):
        coded = codec.encode(dtype, data)
        assert codec.decode(coded, len(data)) == data
    assert len(coded) < len(data)


@given(dtype=st.sampled_from(DTYPES), data=payloads(), draw=st.data())
def test_what_is_damaged_is_refused_alike(dtype: str, data: bytes, draw: st.DataObject) -> None:
    """Cut, extended or flipped bytes give an error or other bytes of the header's length; C and the
    reference always agree."""
    coded = bytearray(codec.encode(dtype, data[: reference.PIECE_BYTES + 50]))
    how = draw.draw(st.sampled_from(["cut", "longer", "flip", "header"]))
    if how == "cut":
        del coded[draw.draw(st.integers(0, len(coded))) :]
    elif how == "longer":
        coded += bytes(draw.draw(st.integers(1, 9)))
    else:
        last = len(coded) if how == "flip" else min(len(coded), 40)
        for _ in range(draw.draw(st.integers(1, 3))):
            coded[draw.draw(st.integers(0, last - 1))] ^= draw.draw(st.integers(1, 255))
    assert outcome(codec.decode, bytes(coded), LENGTH_MAX) == outcome(
        reference.decode, bytes(coded)
    )


def normal(seed: int, count: int) -> bytes:
    """Return normal values in bfloat16, little-endian."""
    drawn = np.random.default_rng(seed).normal(size=count).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype("<u2").tobytes()


def test_codes_of_equal_weight_have_one_order() -> None:
    """With few values of many exponents, counts are often equal; both codecs still agree."""
    for seed in range(60):
        data = normal(seed, 60 + 20 * seed)
        assert codec.encode("bfloat16", data) == reference.encode("bfloat16", data)


def test_values_end_where_their_piece_does() -> None:
    """Both refuse a piece with its last byte removed, or one added, and its size adjusted."""
    coded = bytearray(codec.encode("bfloat16", normal(1, 2048)))
    size = int.from_bytes(coded[8:10], "little")
    assert size == len(coded) - 10 < 4096
    for changed, wrong in ((coded[:-1], size - 1), (coded + b"\0", size + 1)):
        changed[8:10] = wrong.to_bytes(2, "little")
        assert outcome(codec.decode, bytes(changed), LENGTH_MAX) is None
        assert outcome(reference.decode, bytes(changed)) is None


def outcome(decode: Any, coded: bytes, *rest: int) -> bytes | None:
    """Return the decoded bytes; None if refused, or longer than any payload here."""
    if len(coded) >= 8 and int.from_bytes(coded[4:8], "little") > LENGTH_MAX:
        coded = b""
    try:
        found: bytes = decode(coded, *rest)
        return found
    except Corrupt:
        return None


def test_the_format_does_not_change() -> None:
    """Both write the example of docs/reference/codec.md, which is computed by hand there."""
    page = (ROOT / "docs/reference/codec.md").read_text(encoding="utf-8")
    shown = page.partition("## An example")[2].partition("```text\n")[2].partition("```")[0]
    example = bytes.fromhex(" ".join(line.partition("|")[0] for line in shown.splitlines()))
    values = np.array([1.0] * 16 + [-0.5] * 8 + [0.25] * 8, np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    assert codec.encode("bfloat16", data) == example == reference.encode("bfloat16", data)
    assert codec.decode(example, 64) == data == reference.decode(example)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_zeros_is_its_headers(dtype: str) -> None:
    """Codes take no bits: 8 bytes, and 2 + 13 for each piece."""
    assert len(codec.encode(dtype, bytes(32768))) == 8 + 8 * (2 + 13)


def plain_huffman(weights: list[int]) -> tuple[int, int]:
    """Return the cost and the longest code of an unbounded Huffman code."""
    heap = [(weight, 0, number) for number, weight in enumerate(weights)]
    heapq.heapify(heap)
    cost = 0
    longest = 0
    while len(heap) > 1:
        a, deep_a, _ = heapq.heappop(heap)
        b, deep_b, number = heapq.heappop(heap)
        longest = max(deep_a, deep_b) + 1
        cost += a + b
        heapq.heappush(heap, (a + b, longest, number))
    return cost, longest


@given(st.lists(st.integers(1, 4096), min_size=2, max_size=256))
def test_codes_are_as_short_as_they_can_be(weights: list[int]) -> None:
    """The code is complete. Its cost is never below Huffman's, and equal if no Huffman code is
    longer than 8."""
    lengths = reference.code_lengths(np.array(weights))
    assert sum(2 ** (8 - length) for length in lengths.values()) == 256
    cost = sum(weights[symbol] * length for symbol, length in lengths.items())
    best, longest = plain_huffman(weights)
    assert cost >= best
    if longest <= reference.CODE_BITS_MAX:
        assert cost == best


def test_exponents_of_normal_values_cost_what_their_entropy_says() -> None:
    """Coding is within 3 % of the entropy of the exponents, tables included."""
    values = np.frombuffer(normal(2, 2**17), "<u2")
    counts = np.unique(values >> 7 & 0xFF, return_counts=True)[1] / len(values)
    entropy = -sum(float(share) * math.log2(share) for share in counts)
    bits = len(codec.encode("bfloat16", values.tobytes())) * 8 / len(values)
    assert 8 + entropy < bits < 1.03 * (8 + entropy)


def test_an_unknown_dtype_is_one_line() -> None:
    """Both refuse an unknown dtype."""
    for encode in (codec.encode, reference.encode):
        with pytest.raises(BadInput, match="bfloat16"):
            encode("int4", b"")
