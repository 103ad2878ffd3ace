"""A model's KV as it comes back from a tier that holds it in fewer bits: a `ContextSource`.

Only full blocks are quantized, unless they are FP8 rows. The tail block grows in the model's own
type and is quantized once its last token is there (`tiered`); from then on attention reads what
that kept, whether the block has left the HBM pool or not. A row has scales of its own, so that a
tail block is rows from its first token on.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offstage.host.model.geometry import KvGeometry
from offstage.host.model.quantized_rows import Quantizer
from offstage.host.transformer.dense import DenseKv

__all__ = ["QuantizedKv"]


class QuantizedKv:
    """The blocks of `kv` in the types of `quantizer`."""

    def __init__(self, kv: DenseKv, quantizer: Quantizer) -> None:
        self._kv, self.quantizer = kv, quantizer

    @property
    def geometry(self) -> KvGeometry:
        """The shape of the blocks that are attended to."""
        return self.quantizer.geometry

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, payload]`."""
        return self.quantizer.quantize(layer, self._kv.blocks(layer, first_ordinal, identities))

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Full blocks of the context at any ordinals, uint8 `[blocks, payload]`."""
        return self.quantizer.quantize(layer, self._kv.blocks_at(layer, ordinals, identities))

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float32]:
        """The keys inside quantized blocks as attention reads them."""
        return self.quantizer.keys(blocks)
