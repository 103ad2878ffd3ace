"""The lossless KV codec in numpy, written from docs/reference/codec.md and sharing no code with C.

`encode` gives the same bytes as the firmware's; `decode` reverses it or raises `Corrupt`. Each turn
of the loop in `decode_piece` does what a codec lane of the chip does in a cycle. All functions are
pure.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, Corrupt

__all__ = ["PIECE_BYTES", "SHAPES", "Shape", "decode", "decode_piece", "encode", "encode_piece"]

PIECE_BYTES = 4096
CODE_BITS_MAX = 8
HEADER = struct.Struct("<2sBBI")
MAGIC, VERSION = b"KC", 1
PIECE_HEADER = struct.Struct("<8BHH")

Words = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Shape:
    """A dtype: its number in the header, and how its bits divide."""

    number: int
    value_bits: int
    exponent_bits: int

    @property
    def rest_bits(self) -> int:
        """Mantissa and sign."""
        return self.value_bits - self.exponent_bits


SHAPES = {
    "bfloat16": Shape(1, 16, 8),
    "float16": Shape(2, 16, 5),
    "fp8_e4m3": Shape(3, 8, 4),
    "fp8_e5m2": Shape(4, 8, 5),
}


def encode(dtype: str, data: bytes) -> bytes:
    """The coded form of `data`, values of `dtype`; longer than it by at most 8 bytes and 2 per
    piece. `BadInput` for an unknown dtype."""
    if dtype not in SHAPES:
        raise BadInput(f"no dtype {dtype!r}", "codec", f"choose one of {', '.join(SHAPES)}")
    shape = SHAPES[dtype]
    pieces = [
        encode_piece(shape, data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)
    ]
    sizes = np.array([len(piece) for piece in pieces], "<u2").tobytes()
    return b"".join([HEADER.pack(MAGIC, VERSION, shape.number, len(data)), sizes, *pieces])


def decode(coded: bytes) -> bytes:
    """The original bytes. `Corrupt` for bytes that no encoder wrote."""
    if len(coded) < HEADER.size:
        raise _corrupt("its header is cut short")
    magic, version, number, length = HEADER.unpack_from(coded)
    shapes = [shape for shape in SHAPES.values() if shape.number == number]
    if magic != MAGIC or version != VERSION or not shapes:
        raise _corrupt("it has no codec header")
    count = -(-length // PIECE_BYTES)
    at = HEADER.size + 2 * count
    if at > len(coded):
        raise _corrupt("the sizes of its pieces are cut short")
    sizes = np.frombuffer(coded, "<u2", count, HEADER.size).tolist()
    if at + sum(sizes) != len(coded):
        raise _corrupt("its pieces do not add up to its size")
    out = []
    for index, size in enumerate(sizes):
        raw = min(PIECE_BYTES, length - index * PIECE_BYTES)
        piece = coded[at : at + size]
        out.append(piece if size == raw else decode_piece(shapes[0], piece, raw))
        at += size
    return b"".join(out)


def encode_piece(shape: Shape, piece: bytes) -> bytes:
    """A piece as stored: coded, or raw where coding does not shorten it."""
    if not piece or len(piece) * 8 % shape.value_bits:
        return piece
    values = _rotated(shape, piece)
    symbols, rest = values >> shape.rest_bits, values & np.uint32((1 << shape.rest_bits) - 1)
    every, some = int(np.bitwise_and.reduce(rest)), int(np.bitwise_or.reduce(rest))
    vary, fixed = every ^ some, every
    lengths = code_lengths(np.bincount(symbols, minlength=1 << shape.exponent_bits))
    counts = [list(lengths.values()).count(length) for length in range(1, CODE_BITS_MAX + 1)]
    if counts[-1] > 255:
        return piece
    kept = _gather(rest, vary)
    kept_bits = vary.bit_count()
    codes = code_words(lengths)
    table = np.zeros((1 << shape.exponent_bits, 2), np.uint32)
    for symbol, (word, length) in codes.items():
        table[symbol] = word, length
    words = table[symbols, 0] << kept_bits | kept
    bits = _packed(words, table[symbols, 1] + kept_bits)
    coded = PIECE_HEADER.pack(*counts, fixed, vary) + bytes(codes) + bits
    return coded if len(coded) < len(piece) else piece


def decode_piece(shape: Shape, coded: bytes, length: int) -> bytes:
    """The `length` bytes of one coded piece. `Corrupt` for bytes that no encoder wrote."""
    if len(coded) < PIECE_HEADER.size + 1 or length * 8 % shape.value_bits:
        raise _corrupt("a piece is cut short")
    *counts, fixed, vary = PIECE_HEADER.unpack_from(coded)
    symbol_count = sum(counts) or 1
    begin = PIECE_HEADER.size + symbol_count
    symbols = coded[PIECE_HEADER.size : begin]
    space = sum(count << (CODE_BITS_MAX - n) for n, count in enumerate(counts, 1))
    if (
        len(symbols) < symbol_count
        or max(symbols) >> shape.exponent_bits
        or fixed & vary
        or (fixed | vary) >> shape.rest_bits
        or space not in (0, 1 << CODE_BITS_MAX)
    ):
        raise _corrupt("the header of a piece contradicts itself")
    # limits[n]: the first 8 bits that begin a code longer than n; first[n]: codes up to that.
    limits, first = [0], [0]
    for n, count in enumerate(counts, 1):
        limits.append(limits[-1] + (count << (CODE_BITS_MAX - n)))
        first.append(first[-1] + count)
    kept_bits = vary.bit_count()
    bits = coded[begin:] + bytes(PIECE_BYTES)
    out = np.zeros(length * 8 // shape.value_bits, np.uint32)
    kept = np.zeros_like(out)
    at = 0
    for index in range(len(out)):
        window = int.from_bytes(bits[at >> 3 : (at >> 3) + 4], "big") << (at & 7) & 0xFFFFFFFF
        n, symbol = 0, symbols[0]
        if space:
            n = next(n for n in range(1, 9) if window >> 24 < limits[n])
            symbol = symbols[first[n - 1] + ((window >> 24) - limits[n - 1] >> (8 - n))]
        out[index] = symbol
        kept[index] = (window << n & 0xFFFFFFFF) >> (32 - kept_bits)
        at += n + kept_bits
    if -(-at // 8) != len(coded) - begin:
        raise _corrupt("the values of a piece do not end at its end")
    return _unrotated(shape, out << shape.rest_bits | fixed | _scatter(kept, vary))


def code_lengths(weights: npt.NDArray[np.integer]) -> dict[int, int]:
    """The length of each symbol's code, in the order of the table: by length, then by symbol.
    Package-merge: the shortest code of at most 8 bits; a single symbol has 0 bits."""
    used = sorted((int(weights[symbol]), int(symbol)) for symbol in np.flatnonzero(weights))
    if len(used) == 1:
        return {used[0][1]: 0}
    single: list[tuple[int, tuple[int, ...]]] = [(weight, (symbol,)) for weight, symbol in used]
    pairs: list[tuple[int, tuple[int, ...]]] = []
    merged = single
    for _ in range(CODE_BITS_MAX):
        # Stable: among equal weights a symbol sorts before a pair.
        merged = sorted(single + pairs, key=lambda one: one[0])
        pairs = [
            (a[0] + b[0], a[1] + b[1]) for a, b in zip(merged[::2], merged[1::2], strict=False)
        ]
    lengths = dict.fromkeys((symbol for _, symbol in used), 0)
    for _, symbols in merged[: 2 * len(used) - 2]:
        for symbol in symbols:
            lengths[symbol] += 1
    return dict(sorted(lengths.items(), key=lambda one: (one[1], one[0])))


def code_words(lengths: dict[int, int]) -> dict[int, tuple[int, int]]:
    """`(word, length)` by symbol, canonical, for lengths in the order of the table."""
    found = {}
    word = before = 0
    for symbol, length in lengths.items():
        word <<= length - before
        found[symbol] = word, length
        word, before = word + 1, length
    return found


def _rotated(shape: Shape, piece: bytes) -> Words:
    """Values with their sign moved from the highest to the lowest bit, uint32."""
    values = np.frombuffer(piece, f"<u{shape.value_bits // 8}").astype(np.uint32)
    one, back = np.uint32(1), np.uint32(shape.value_bits - 1)
    turned: Words = values << one | values >> back
    return turned & np.uint32((1 << shape.value_bits) - 1)


def _unrotated(shape: Shape, values: Words) -> bytes:
    back = values >> 1 | values << (shape.value_bits - 1)
    return back.astype(f"<u{shape.value_bits // 8}").tobytes()


def _gather(values: Words, mask: int) -> Words:
    """The bits of each value under `mask`, compacted."""
    positions = [bit for bit in range(16) if mask >> bit & 1]
    out = np.zeros_like(values)
    for to, bit in enumerate(positions):
        out |= (values >> bit & 1) << to
    return out


def _scatter(values: Words, mask: int) -> Words:
    """The inverse of `_gather`."""
    positions = [bit for bit in range(16) if mask >> bit & 1]
    out = np.zeros_like(values)
    for start, bit in enumerate(positions):
        out |= (values >> start & 1) << bit
    return out


def _packed(words: Words, lengths: npt.NDArray[np.integer]) -> bytes:
    """The lowest `lengths` bits of each word, concatenated, highest first."""
    shifts = np.arange(31, -1, -1, dtype=np.uint32)
    bits = (words[:, None] >> shifts & 1).astype(np.uint8)
    return np.packbits(bits[shifts < lengths[:, None]]).tobytes()


def _corrupt(what: str) -> Corrupt:
    return Corrupt(what, "codec", "the bytes were damaged, or coded by something else")
