"""Index keys of a model's indexers: where a decode step gets them.

transformers' module scores all of its keys in each step. They are resident, in one tensor for each
layer, or lie in the tier's blocks behind the model's layers (`model.index_blocks`). torch is
imported where it is used. One thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.model.entries import vectors_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.index_blocks import index_places
from offstage.host.transformer.dense import DenseKv
from offstage.host.transformer.quantized import QuantizedKv

__all__ = ["IndexKeys", "IndexedKv", "NewKeys", "index_tensors", "keys_in", "resident_keys"]

IndexKeys = Callable[[int, Any], Any]
"""All keys of a layer's indexer, `[sessions, tokens, dim]`, from the newest token's, `[sessions, 1,
dim]`; of compressed entries, `[sessions, entries, dim]`, from those that the token completes, one
or none."""


def resident_keys(context: Mapping[int, Any]) -> IndexKeys:
    """Keys in memory, that of each token added to the contexts', `[sessions, tokens, dim]` by
    layer."""
    kept = dict(context)

    def grown(layer: int, key: Any) -> Any:
        import torch

        kept[layer] = torch.cat([kept[layer], key], dim=1)
        return kept[layer]

    return grown


def keys_in(
    storage: Any, indices: NDArray[np.int32], geometry: KvGeometry, place: tuple[int, int]
) -> Any:
    """The keys in these blocks of a pool, numpy or torch: floats `[1, tokens, dim]`, of whole
    blocks, on the pool's device."""
    import torch

    from offstage.host.arrays.torch_arrays import to_device
    from offstage.host.arrays.torch_rows import unpack

    layer, head = place
    if isinstance(storage, np.ndarray):
        storage = torch.from_numpy(storage)
    where = to_device(indices.astype(np.int64), storage.device)
    vectors = vectors_of(storage, geometry, layer)[where, 0, head]
    row = geometry.row(layer)
    if row is not None:
        return unpack(row, vectors).flatten(0, 1)[None]
    return vectors.view(getattr(torch, geometry.value_type)).flatten(0, 1)[None]


def index_tensors(blocks: NDArray[np.uint8], geometry: KvGeometry, layer: int) -> dict[str, Any]:
    """What `DenseKv.restore` takes of a layer of index keys of compressed entries, from its first
    blocks in order."""
    every = np.arange(len(blocks), dtype=np.int32)
    places = index_places(geometry).items()
    return {
        f"{number}.indexer.entries": keys_in(blocks, every, geometry, place)
        for number, place in places
        if place[0] == layer
    }


class NewKeys:
    """The newest token's keys, as blocks of index keys take them; those of layers that have not run
    are the last token's, until they have."""

    def __init__(self, geometry: KvGeometry) -> None:
        self.places = index_places(geometry)
        layers = enumerate(geometry.layers)
        self._vectors = {
            number: np.zeros((1, one.kv_heads, one.head_dim), np.float32)
            for number, one in layers
            if one.form == "index"
        }

    def add(self, layer: int, key: Any) -> NDArray[np.float32]:
        """With a layer's key `[1, 1, dim]`: what its block gets, `[1, heads, dim]`."""
        number, head = self.places[layer]
        found = self._vectors[number]
        found[0, head] = key[0, -1].float().cpu().numpy()
        return found


class IndexedKv:
    """The blocks of `kv`, and behind them those of its index keys: a `ContextSource`. `geometry`:
    of both; `payload_bytes`: of every block."""

    def __init__(
        self, kv: DenseKv | QuantizedKv, own: DenseKv, geometry: KvGeometry, payload_bytes: int
    ) -> None:
        self._kv, self._own, self.geometry = kv, own, geometry
        self._payload_bytes = payload_bytes
        self._quantizer = kv.quantizer if isinstance(kv, QuantizedKv) else None

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, payload]`."""
        if self.geometry.layers[layer].form != "index":
            return self._kv.blocks(layer, first_ordinal, identities)
        ordinals = np.arange(first_ordinal, first_ordinal + len(identities))
        return self.blocks_at(layer, ordinals, identities)

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Full blocks of the context at any ordinals, uint8 `[blocks, payload]`. Raises `RunFailed`
        for one beyond it, which decoding wrote."""
        if self.geometry.layers[layer].form != "index":
            return self._kv.blocks_at(layer, ordinals, identities)
        self._own.check_has(layer, ordinals, self.geometry.chunks_per_block(layer))
        return self._packed(layer, ordinals)

    def open_block(self, layer: int) -> NDArray[np.uint8]:
        """As `DenseKv.open_block`."""
        if self.geometry.layers[layer].form != "index":
            return self._own.open_block(layer)
        full = self.geometry.entries(layer, self._own.tokens) // self.geometry.block_tokens
        return self._packed(layer, np.array([full]))

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float32]:
        """The keys that attention reads inside blocks of a layer of the model."""
        return self._kv.keys_of(blocks, layer)

    def _packed(self, layer: int, ordinals: NDArray[np.integer]) -> NDArray[np.uint8]:
        import torch
        from torch.nn.functional import pad

        geometry, where = self.geometry, torch.from_numpy(ordinals.astype(np.int64))
        _, heads, size, dim = geometry.block_shape(layer)
        kind = getattr(torch, geometry.value_type)
        numbers = torch.zeros((len(ordinals), heads, size, dim), dtype=kind)
        for source, (number, head) in index_places(geometry).items():
            if number == layer:
                keys = self._own.index_keys[source][0]
                keys = pad(keys, (0, 0, 0, -len(keys) % size)).unflatten(0, (-1, size))
                numbers[:, head] = keys[where.to(keys.device)].to(numbers)
        plain = numbers.flatten(1).view(torch.uint8).numpy()
        if self._quantizer is not None:
            return self._quantizer.quantize(layer, plain)
        found = np.zeros((len(ordinals), self._payload_bytes), np.uint8)
        found[:, : plain.shape[1]] = plain
        return found
