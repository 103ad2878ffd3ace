"""Blocks of KV in fewer bits: what a host writes to the tier in place of the model's own numbers.

A quantized block has a byte for each KV head that names its type, then each head's K and V with
their scales, then zeros up to the payload. So it says by itself how to read it, and heads of one
layer may be of several types. FP8 has one float32 scale for each K and V of a head, its largest
value over the format's, as vLLM's scales per head; integers have a lowest value and a step in
float16 for each channel of K and each token of V (KIVI, arXiv:2402.02750). Bytes that are no
quantized block, which is what a failed fetch leaves behind, are read as zeros.

Pure functions of immutable objects, any thread. A block that does not fit its payload raises
`BadInput`.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.lossy import FP8, Levels, from_fp8, to_fp8_lossy, to_levels_lossy
from offstage.host.model.values import narrowed, stored, widen

__all__ = ["HEAD_TYPES", "BlockQuantizer", "HeadType", "Part", "head_bytes", "padded", "uniform"]

HeadType = Literal["model", "fp8-e4m3", "fp8-e5m2", "int8", "int4"]

HEAD_TYPES: tuple[HeadType, ...] = ("model", "fp8-e4m3", "fp8-e5m2", "int8", "int4")
"""Types of a head's K and V: the model's own, and those that lose. Their codes start at 1."""

_FORMATS: dict[str, str] = {"fp8-e4m3": "fp8_e4m3", "fp8-e5m2": "fp8_e5m2"}
_BITS: dict[str, int] = {"int8": 8, "int4": 4}
_EVERY = {name: from_fp8(np.arange(256).astype(np.uint8), name) for name in FP8}
_PER = "channel", "token"  # what shares a scale: of K, of V

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def head_bytes(geometry: KvGeometry, kind: HeadType, layer: int = 0) -> int:
    """Bytes of K and V, or of the latent, of one head of a block, scales included."""
    planes = range(geometry.layers[layer].planes)
    return sum(_plane_bytes(geometry, kind, layer, plane) for plane in planes)


def _plane_bytes(geometry: KvGeometry, kind: HeadType, layer: int, plane: int) -> int:
    _, _, tokens, width = geometry.block_shape(layer)
    count = tokens * width
    if kind == "model":
        return count * geometry.value_bytes
    if kind in _FORMATS:
        return count + 4
    return count * _BITS[kind] // 8 + 4 * (width, tokens)[plane]


@dataclass(frozen=True)
class Part:
    """`count` heads of one type in a block: bytes `begin` to `end`, as many of each head, in which
    `planes` are K and V with their scales."""

    kind: HeadType
    heads: slice
    count: int
    begin: int
    end: int
    planes: tuple[slice, slice]


@dataclass(frozen=True)
class BlockQuantizer:
    """How the blocks of a model are written: `kinds[layer][head]`, in blocks of `payload_bytes`."""

    geometry: KvGeometry
    kinds: tuple[tuple[HeadType, ...], ...]
    payload_bytes: int

    def __post_init__(self) -> None:
        for layer, kinds in enumerate(self.kinds):
            planes, _, _, width = self.geometry.block_shape(layer)
            if planes != 2 or width % 2:
                raise BadInput(
                    f"layer {layer} has {planes} x {width} numbers a token",
                    "--kv-dtype",
                    "use a model with K and V apart and an even head_dim, or --kv-dtype fp8, "
                    "whose rows hold latents too",
                )
            if self.block_bytes(layer) > self.payload_bytes:
                raise BadInput(
                    f"layer {layer} needs {self.block_bytes(layer):,} B a block for {kinds}, of "
                    f"{self.payload_bytes:,} B",
                    "--kv-dtype",
                    "choose smaller types",
                )

    def block_bytes(self, layer: int) -> int:
        """Bytes of a quantized block of a layer, scales included, without the zeros at its end."""
        heads = (head_bytes(self.geometry, kind, layer) for kind in self.kinds[layer])
        return len(self.kinds[layer]) + sum(heads)

    def quantize(self, layer: int, blocks: Bytes) -> Bytes:
        """Blocks of the model's own numbers `[n, bytes]` as they are written `[n, payload]`."""
        geometry, kinds = self.geometry, self.kinds[layer]
        shape = geometry.block_shape(layer)
        numbers = stored(np.ascontiguousarray(blocks), geometry.value_type)
        numbers = numbers.reshape(len(blocks), *shape)
        found = np.zeros((len(blocks), self.payload_bytes), np.uint8)
        found[:, : len(kinds)] = [HEAD_TYPES.index(kind) + 1 for kind in kinds]
        at = len(kinds)
        for head, kind in enumerate(kinds):
            for plane in range(2):
                written = self._written(numbers[:, plane, head], kind, plane)
                found[:, at : at + written.shape[1]] = written
                at += written.shape[1]
        return found

    filled = quantize
    """Blocks that decoding has filled in the model's own numbers, the same way."""

    def dequantize(self, blocks: Bytes) -> Bytes:
        """The model's own numbers of quantized blocks of any layers of one shape, `[n, bytes]`."""
        geometry = self.geometry
        _, heads, tokens, width = shape = geometry.block_shape(0)
        found = np.zeros((len(blocks), *shape), stored(blocks[:0, :0], geometry.value_type).dtype)
        for rows, parts in self.parts(blocks[:, :heads]):
            content = blocks[rows]
            for part in parts:
                planes = content[:, part.begin : part.end].reshape(len(rows) * part.count, -1)
                for plane, span in enumerate(part.planes):
                    own = np.ascontiguousarray(planes[:, span])
                    numbers = self._read(own, part.kind, plane, (tokens, width))
                    found[rows, plane, part.heads] = numbers.reshape(len(rows), -1, tokens, width)
        return _bytes(found)

    def parts(self, codes: Bytes) -> Iterator[tuple[npt.NDArray[np.intp], list["Part"]]]:
        """Where the heads lie in blocks that begin with these bytes, `[n, kv_heads]`: the rows of
        equal ones, and their runs of heads. Rows that are no quantized block are left out."""
        names, group = np.unique(codes, axis=0, return_inverse=True)
        for number, own in enumerate(names):
            if ((own > 0) & (own <= len(HEAD_TYPES))).all():
                kinds = [HEAD_TYPES[code - 1] for code in own]
                yield np.flatnonzero(group.reshape(-1) == number), self._runs(kinds)

    def _runs(self, kinds: Sequence[HeadType]) -> list["Part"]:
        """Neighbours of one type together."""
        found, head, begin = [], 0, len(kinds)
        for kind, some in itertools.groupby(kinds):
            count = len(list(some))
            first = _plane_bytes(self.geometry, kind, 0, 0)
            size = head_bytes(self.geometry, kind)
            planes = slice(0, first), slice(first, size)
            end = begin + count * size
            found.append(Part(kind, slice(head, head + count), count, begin, end, planes))
            head, begin = head + count, end
        return found

    def keys(self, blocks: Bytes) -> Floats:
        """The keys in quantized blocks, as attention reads them: float32
        `[n, kv_heads, tokens, head_dim]`."""
        value_type = self.geometry.value_type
        numbers = stored(self.dequantize(blocks), value_type)
        keys = numbers.reshape(len(blocks), *self.geometry.block_shape(0))[:, 0]
        found = np.empty(keys.shape, np.float32)
        widen(found, keys, value_type)
        return found

    def _written(self, numbers: npt.NDArray[Any], kind: HeadType, plane: int) -> Bytes:
        """One plane of one head, `[n, tokens, width]`, as bytes `[n, bytes]`."""
        if kind == "model":
            return _bytes(numbers)
        values = np.empty(numbers.shape, np.float32)
        widen(values, numbers, self.geometry.value_type)
        if kind in _FORMATS:
            name = _FORMATS[kind]
            most = np.abs(values).max(axis=(1, 2), keepdims=True)
            scale = np.where(most > 0, most / np.float32(FP8[name].largest), 1).astype(np.float32)
            return np.concatenate([_bytes(to_fp8_lossy(values / scale, name)), _bytes(scale)], 1)
        quantized = to_levels_lossy(values, _PER[plane], _BITS[kind])
        levels = quantized.levels
        if kind == "int4":
            levels = levels[..., 0::2] | levels[..., 1::2] << np.uint8(4)
        return np.concatenate([_bytes(levels), _bytes(quantized.low), _bytes(quantized.step)], 1)

    def _read(
        self, part: Bytes, kind: HeadType, plane: int, shape: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """The reverse of `_written`."""
        tokens, width = shape
        value_type, count = self.geometry.value_type, len(part)
        if kind == "model":
            return stored(part, value_type).reshape(count, tokens, width)
        if kind in _FORMATS:
            scale = np.ascontiguousarray(part[:, -4:]).view(np.float32)
            values = _EVERY[_FORMATS[kind]][part[:, :-4]] * scale
            return narrowed(values.reshape(count, tokens, width), value_type)
        shared = (width, tokens)[plane]
        scales = np.ascontiguousarray(part[:, -4 * shared :]).view(np.float16)
        low, step = (
            half.reshape((count, 1, width) if plane == 0 else (count, tokens, 1))
            for half in (scales[:, :shared], scales[:, shared:])
        )
        levels = part[:, : -4 * shared].reshape(count, tokens, -1)
        if kind == "int4":
            levels = np.stack([levels & 15, levels >> 4], axis=-1).reshape(count, tokens, width)
        return narrowed(Levels(levels, low, step).values(), value_type)


def uniform(geometry: KvGeometry, kind: HeadType, lba_bytes: int) -> BlockQuantizer:
    """Every head in one type, in whole logical blocks of the drive."""
    kinds = tuple((kind,) * layer.kv_heads for layer in geometry.layers)
    return padded(geometry, kinds, lba_bytes)


def padded(
    geometry: KvGeometry, kinds: Sequence[tuple[HeadType, ...]], lba_bytes: int
) -> BlockQuantizer:
    """Blocks of these types, padded to whole logical blocks; one size for all layers."""
    largest = max(
        len(own) + sum(head_bytes(geometry, kind, layer) for kind in own)
        for layer, own in enumerate(kinds)
    )
    return BlockQuantizer(geometry, tuple(kinds), -(-largest // lba_bytes) * lba_bytes)


def _bytes(numbers: npt.NDArray[Any]) -> Bytes:
    flat = np.ascontiguousarray(numbers).reshape(len(numbers), math.prod(numbers.shape[1:]))
    found: Bytes = flat.view(np.uint8)
    return found
