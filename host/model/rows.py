"""FP8 rows: a vector of the cache in 8 bits with its own scales, as published kernels store it.

| a row of | FP8 (E4M3) values | scales, float32 | in bfloat16 |
|---|---|---|---|
| K or V of a head | `head_dim` | one | none |
| a latent (MLA), as FlashMLA has it | its rank | one for 128 values | its rotary values |

In this order and nothing between. A scale is the largest value over the format's, 448. Every token
has scales of its own, so that a block may grow token by token. Rounds to nearest, ties to even.

Pure functions of immutable objects, any thread. A layer without such a row raises `BadInput`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.model.layer_kv import LayerKv
from offstage.host.model.lossy import FP8, from_fp8, to_bfloat16_lossy, to_fp8_lossy

__all__ = ["Row", "row_of"]

LATENT_VALUES = 128
"""Values of a latent that share a scale (FlashMLA's FP8 rows of DeepSeek-V3.2)."""
_FORMAT = "fp8_e4m3"
_EVERY = from_fp8(np.arange(256).astype(np.uint8), _FORMAT)

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """`values` in FP8, `scale_values` of them with each scale, and `rotary` ones behind."""

    values: int
    scale_values: int
    rotary: int = 0

    @property
    def scales(self) -> int:
        """How many."""
        return -(-self.values // self.scale_values)

    @property
    def size_bytes(self) -> int:
        """Of one row."""
        return self.values + 4 * self.scales + 2 * self.rotary

    @property
    def parts(self) -> tuple[int, int, int]:
        """Bytes of values, scales and rotary values."""
        return self.values, 4 * self.scales, 2 * self.rotary

    def pack(self, vectors: Floats) -> Bytes:
        """Rows `[..., size_bytes]` of vectors, finite, `[..., values + rotary]`."""
        lead = vectors.shape[:-1]
        grouped = np.zeros((*lead, self.scales * self.scale_values), np.float32)
        grouped[..., : self.values] = vectors[..., : self.values]
        grouped = grouped.reshape(*lead, self.scales, self.scale_values)
        most = np.abs(grouped).max(axis=-1)
        scale = np.where(most > 0, most / np.float32(FP8[_FORMAT].largest), 1).astype(np.float32)
        divided: Floats = np.divide(grouped, scale[..., None], dtype=np.float32)
        bits = to_fp8_lossy(divided, _FORMAT).reshape(*lead, -1)
        rotary = to_bfloat16_lossy(vectors[..., self.values :])
        parts = bits[..., : self.values], scale.view(np.uint8), rotary.view(np.uint8)
        return np.concatenate(parts, axis=-1)

    def unpack(self, out: Floats, rows: Bytes) -> None:
        """Write the vectors of rows `[..., size_bytes]` into `out`, float32 or wider."""
        values, scales = self.values, 4 * self.scales
        scale = np.ascontiguousarray(rows[..., values : values + scales]).view(np.float32)
        each = scale.repeat(self.scale_values, axis=-1)[..., :values]
        np.multiply(_EVERY[rows[..., :values]], each, out=out[..., :values])
        rotary = np.ascontiguousarray(rows[..., values + scales :]).view(np.uint16)
        out[..., values:] = (rotary.astype(np.uint32) << 16).view(np.float32)


def row_of(layer: LayerKv, number: int, where: str) -> Row:
    """The row of a layer's vectors. BadInput, which calls it layer `number`, for one that no kernel
    here reads: compressed entries, and vectors whose scales would not lie at whole words."""
    own = layer.head_dim - layer.rotary_dim
    if layer.layout == "compressed":
        raise BadInput(
            f"layer {number} keeps {layer.form} entries, for which no FP8 row is built",
            where,
            "use a model of full, sliding and indexed attention alone",
        )
    if own % 4 or layer.rotary_dim % 2:
        raise BadInput(
            f"layer {number} has {own} values to a scale and {layer.rotary_dim} rotary ones, and "
            "scales of FP8 lie at multiples of 4 B",
            where,
            "use another type of KV, or a model whose head_dim is a multiple of 4",
        )
    if layer.layout == "latent":
        if layer.value_dim not in (0, own):
            raise BadInput(
                f"layer {number} reads {layer.value_dim} of its {own} values in FP8",
                where,
                "give a latent's value_dim and rotary_dim, which are its head_dim together",
            )
        return Row(own, LATENT_VALUES, layer.rotary_dim)
    return Row(own, own)
