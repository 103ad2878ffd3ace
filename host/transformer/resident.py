"""The reference for the tier: the same kernel over the same blocks, all of them in memory.

There is no pool, selection or fetch: a block's place is its ordinal, and every layer reads all
blocks, those of its window, or the tokens of the model's own indexer. Outputs equal the tier's bit
for bit when the tier selects every block, or as that indexer says. Where the tier's blocks are
quantized, these are what the same code leaves of them, each from when it is full.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.arrays import Arrays
from offstage.host.attention import kernel
from offstage.host.decode.attended import of_tokens, readable, slots_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.quantized import BlockQuantizer

__all__ = ["ResidentAttention"]


class ResidentAttention:
    """One session that starts with `blocks` blocks of context, with room for `tokens_max` tokens.

    `content(layer)` gives the context's blocks, uint8 `[blocks, block_bytes]`. With a `quantizer`
    they are quantized, and `arrays` takes such blocks. `sink_logits`: as `Decoder` has them."""

    def __init__(
        self,
        arrays: Arrays,
        kernel_name: str,
        geometry: KvGeometry,
        content: Callable[[int], NDArray[np.uint8]],
        tokens_max: int,
        quantizer: BlockQuantizer | None = None,
        sink_logits: Mapping[int, NDArray[np.float32]] | None = None,
    ) -> None:
        self._quantizer, self._sinks = quantizer, sink_logits or {}
        self._arrays, self._geometry, self._kernel = arrays, geometry, kernel(kernel_name)
        self._memories = []
        for layer in range(geometry.layer_count):
            blocks = content(layer)
            room = geometry.block_count(tokens_max)
            memory = arrays.memory(room, geometry.block_bytes(layer), 1)
            memory.write(np.arange(len(blocks), dtype=np.int32), blocks)
            self._memories.append(memory)
        self._tokens = len(blocks) * geometry.block_tokens

    def begin_token(self) -> None:
        """One more token; its layers follow."""
        self._tokens += 1

    def attend(
        self, layer: int, query: Any, entry: Any, tokens: NDArray[np.int32] | None = None
    ) -> Any:
        """See `LayerAttention`."""
        import torch

        geometry, storage = self._geometry, self._memories[layer].storage
        block, slot = divmod(self._tokens - 1, geometry.block_tokens)
        shape = geometry.block_shape(layer)
        paged = self._arrays.paged(storage, shape, geometry.value_type)
        paged[block, :, :, slot] = self._arrays.from_host(entry.float().cpu().numpy())
        cut = geometry.first_token(layer, self._tokens) % geometry.block_tokens > 0
        read = readable(geometry, layer, self._tokens, alone=cut)
        if tokens is not None:
            read = of_tokens(geometry, tokens, np.arange(block + 1, dtype=np.int32))
        first = geometry.first_block(layer, self._tokens)
        given = (first + read.entries)[None].astype(np.int32), read.counts[None]
        queries = self._arrays.from_host(query.float().cpu().numpy()[None])
        more = slots_of([read]), self._sinks.get(layer)
        found = self._kernel(queries, storage, *given, geometry, layer, *more)[0]
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(query.device)

    def end_token(self) -> None:
        """All layers have run."""
        last, slots = divmod(self._tokens, self._geometry.block_tokens)
        if self._quantizer is None or slots:
            return
        where = np.array([last - 1], np.int32)
        for layer, memory in enumerate(self._memories):
            memory.write(where, self._quantizer.quantize(layer, memory.read(where)))

    def close(self) -> None:
        """Nothing to close."""
