"""Blocks of FP8 rows, as the tier holds them: in the place of a `BlockQuantizer`.

What lands goes into the HBM pool as it is, and kernels read it there, so that the pool holds as few
bytes as drive and link. The block that decoding fills is made of rows from its first token on.

Pure functions of immutable objects, any thread. A block beyond its payload raises `BadInput`, and
so does a layer without FP8 rows.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.model.entries import packed, unpacked, vectors_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.index_blocks import with_index_blocks
from offstage.host.model.quantized import BlockQuantizer
from offstage.host.model.values import stored, widen

__all__ = ["ROWS", "Quantizer", "RowQuantizer", "rows_of"]

ROWS: Final = "fp8"
"""What the type is called where others are."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowQuantizer:
    """How the blocks of a model are written, in `payload_bytes`; `geometry`: the model's, scaled.
    `kinds`: as a `BlockQuantizer` has them, for identities and reports."""

    geometry: KvGeometry
    payload_bytes: int
    kinds: tuple[tuple[str, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        layers = self.geometry.layers
        kinds = tuple((ROWS,) * one.kv_heads for one in layers if one.has_entries)
        object.__setattr__(self, "kinds", kinds)
        largest = max(map(self.block_bytes, range(len(layers))))
        if largest > self.payload_bytes:
            raise BadInput(
                f"FP8 rows need {largest:,} B a block, of {self.payload_bytes:,} B",
                "--kv-dtype",
                "give the daemon's blocks as many bytes",
            )

    def block_bytes(self, layer: int) -> int:
        """Bytes of a block of a layer, scales included, without the zeros at its end."""
        return self.geometry.block_bytes(layer)

    @property
    def head_bytes(self) -> int:
        """Bytes of K and V, or of the latent, of one head of a block, scales included."""
        return self.block_bytes(0) // self.geometry.layers[0].kv_heads

    def quantize(self, layer: int, blocks: Bytes) -> Bytes:
        """Blocks of the model's own numbers `[n, bytes]` as they are written `[n, payload]`."""
        geometry = self.geometry
        numbers = stored(np.ascontiguousarray(blocks), geometry.value_type)
        values = np.empty((len(blocks), *geometry.block_shape(layer)), np.float32)
        widen(values, numbers.reshape(values.shape), geometry.value_type)
        return self.filled(layer, packed(values, geometry, layer).reshape(len(blocks), -1))

    def filled(self, layer: int, blocks: Bytes) -> Bytes:
        """Blocks that decoding has filled, `[n, bytes]`, as they are written `[n, payload]`."""
        found = np.zeros((len(blocks), self.payload_bytes), np.uint8)
        used = self.block_bytes(layer)
        found[:, :used] = blocks[:, :used]
        return found

    def keys(self, blocks: Bytes) -> npt.NDArray[np.float32]:
        """The keys in written blocks, as attention reads them: float32
        `[n, kv_heads, tokens, head_dim]`."""
        vectors = vectors_of(blocks, self.geometry, 0)[:, 0]
        found = np.empty((*vectors.shape[:3], self.geometry.block_shape(0)[3]), np.float32)
        unpacked(found, vectors, self.geometry, 0)
        return found


Quantizer = BlockQuantizer | RowQuantizer


def rows_of(geometry: KvGeometry, lba_bytes: int) -> RowQuantizer:
    """FP8 rows in whole logical blocks of the drive, as many for all layers. BadInput for a layer
    without such rows."""
    scaled = dataclasses.replace(geometry, scaled=True)
    if geometry.layers[-1].form == "index":
        scaled = with_index_blocks(scaled)
    largest = max(map(scaled.block_bytes, range(scaled.layer_count)))
    return RowQuantizer(scaled, -(-largest // lba_bytes) * lba_bytes)
