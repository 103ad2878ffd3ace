"""What stands in for the model: the KV of any chunk, and the queries of any session.

It is deterministic: the same seed, chunk and layer give the same bytes, so a block that the tier
has lost can be computed again, and every block that comes back can be compared with what was
written. One thread uses it. It owns no more than the pools of `KvPools`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offstage.host.geometry import KvGeometry
from offstage.host.keys import KvPools, QueryStream
from offstage.host.score_process import ProcessParams

__all__ = ["SyntheticKv"]


class SyntheticKv:
    """KV bytes and queries of one model. `processes`: the score process of each layer."""

    def __init__(self, seed: int, geometry: KvGeometry, processes: Sequence[ProcessParams]) -> None:
        assert len(processes) == geometry.layer_count, "one process per layer"
        self.geometry = geometry
        self._seed = seed
        self._processes = list(processes)
        self._kv = KvPools(seed, geometry)

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, block_bytes]`."""
        ordinals = np.arange(first_ordinal, first_ordinal + len(identities))
        return self.blocks_at(layer, ordinals, identities)

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Blocks at any ordinals of the context, uint8 `[blocks, block_bytes]`."""
        halves = self._kv.blocks(layer, identities, ordinals)
        return halves.reshape(len(identities), -1).view(np.uint8)

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float16]:
        """The keys inside blocks, a view: float16 `[blocks, kv_heads, block_tokens, head_dim]`."""
        shape = self.geometry.block_shape(layer)
        return blocks.view(np.float16).reshape(len(blocks), *shape)[:, 0]

    def windows(self, session: int, layer: int, count: int, blocks: int) -> NDArray[np.float32]:
        """The queries of one (session, layer) before step 0, as `QueryStream.windows`."""
        return self.queries(session, layer).windows(count, blocks)

    def queries(self, session: int, layer: int) -> QueryStream:
        """The queries of one (session, layer), from step 0 on."""
        return QueryStream(self._seed, session, layer, self._processes[layer], self.geometry)
