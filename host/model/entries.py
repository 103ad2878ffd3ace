"""Entries where they lie in blocks: a vector of each head and token, as numbers or as FP8 rows.

A block is `[planes, kv_heads, block_tokens]` vectors, whatever a vector is stored as. numpy has no
type for an FP8 row, so rows stay bytes here. Pure functions, nothing can fail.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.model.geometry import KvGeometry
from offstage.host.model.values import narrowed, stored, widen

__all__ = ["numbers_of", "packed", "unpacked", "vectors_of"]


def vectors_of(storage: Any, geometry: KvGeometry, layer: int) -> Any:
    """The front of each row of `storage`, uint8 `[blocks, bytes]` of numpy or torch, as `[blocks,
    planes, kv_heads, block_tokens, vector_bytes]`: a view."""
    planes, kv_heads, tokens, _ = geometry.block_shape(layer)
    used = storage[:, : geometry.block_bytes(layer)]
    return used.reshape(len(storage), planes, kv_heads, tokens, geometry.vector_bytes(layer))


def numbers_of(storage: npt.NDArray[np.uint8], geometry: KvGeometry, layer: int) -> Any:
    """The same as the numbers that are stored, `[..., head_dim]`; rows as their bytes."""
    vectors = vectors_of(storage, geometry, layer)
    return vectors if geometry.scaled else stored(vectors, geometry.value_type)


def unpacked(out: npt.NDArray[Any], numbers: Any, geometry: KvGeometry, layer: int) -> None:
    """Write vectors of `numbers_of`, any of them, into `out`, float32 or wider `[..., head_dim]`:
    each number exactly, or of a row the product with its scale in float32."""
    row = geometry.row(layer)
    if row is None:
        widen(out, numbers, geometry.value_type)
    else:
        row.unpack(out, numbers)


def packed(values: npt.NDArray[Any], geometry: KvGeometry, layer: int) -> npt.NDArray[np.uint8]:
    """Vectors as they are stored, `[..., vector_bytes]`, of floats `[..., head_dim]`, which are
    rounded, or of numbers of the geometry's type."""
    row = geometry.row(layer)
    if row is not None:
        return row.pack(values.astype(np.float32))
    if values.itemsize != geometry.value_bytes:
        values = narrowed(values.astype(np.float32), geometry.value_type)
    return np.ascontiguousarray(values).view(np.uint8)
