"""The reference for the tier: the same kernel over the same blocks, all of them in memory.

There is no pool, selection or fetch: a block's place is its ordinal, and every layer reads all
blocks, those of its window, or the tokens of the model's own indexer; a window and the entries
beside it are in one memory. Outputs equal the tier's bit for bit when the tier selects every block,
or as that indexer says. Where the tier's blocks are quantized, these are what the same code leaves
of them, each from when it is full.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.arrays import Arrays
from offstage.host.attention import kernel
from offstage.host.decode.attended import Attended, of_tokens, readable, slots_of, together
from offstage.host.model.entries import packed, vectors_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.quantized_rows import Quantizer
from offstage.host.transformer.index_keys import NewKeys, keys_in

__all__ = ["ResidentAttention"]


class ResidentAttention:
    """One session that starts with `blocks` blocks of context, with room for `tokens_max` tokens.

    `content(layer)` gives the context's blocks, uint8 `[blocks, block_bytes]`. With a `quantizer`
    they are quantized, and `arrays` takes such blocks. `sink_logits`: as `Decoder` has them;
    `begun`: as `TieredAttention` does."""

    def __init__(
        self,
        arrays: Arrays,
        kernel_name: str,
        geometry: KvGeometry,
        content: Callable[[int], NDArray[np.uint8]],
        tokens_max: int,
        quantizer: Quantizer | None = None,
        sink_logits: Mapping[int, NDArray[np.float32]] | None = None,
        begun: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> None:
        self._quantizer, self._sinks = quantizer, sink_logits or {}
        self._arrays, self._geometry, self._kernel = arrays, geometry, kernel(kernel_name)
        self._memories, self._rooms = [], []
        size = max(map(geometry.block_bytes, range(geometry.layer_count)))
        for parts in geometry.parts:
            rooms = [geometry.block_count(tokens_max, part) for part in parts]
            memory = arrays.memory(max(1, sum(rooms)), size, 1)
            for part, base in zip(parts, (0, *rooms), strict=False):
                blocks = content(part)
                memory.write(np.arange(base, base + len(blocks), dtype=np.int32), blocks)
                if geometry.chunks_per_block(part) == 1:
                    self._tokens = len(blocks) * geometry.block_tokens
                if (
                    begun is not None
                    and geometry.entries(part, self._tokens) % geometry.block_tokens
                ):
                    memory.write(np.array([base + len(blocks)], np.int32), begun(part))
            self._memories.append(memory)
            self._rooms.append(sum(rooms[:1]))
        self._new_keys = NewKeys(geometry)

    def begin_token(self) -> None:
        """One more token; its layers follow."""
        self._tokens += 1

    def attend(
        self,
        layer: int,
        query: Any,
        entry: Any,
        tokens: NDArray[np.int32] | None = None,
        closed: Any = None,
    ) -> Any:
        """See `LayerAttention`."""
        import torch

        geometry, storage = self._geometry, self._memories[layer].storage
        base, (layer, *entries) = self._rooms[layer], geometry.parts[layer]
        self._write(storage, 0, layer, entry.float().cpu().numpy())
        read = self._read(layer, None if entries else tokens)
        if entries:
            if closed.shape[2]:
                self._write(storage, base, entries[0], closed[:, :, 0].float().cpu().numpy())
            read = together(read, self._read(entries[0], tokens), base)
        given = read.entries[None].astype(np.int32), read.counts[None]
        queries = self._arrays.from_host(query.float().cpu().numpy()[None])
        more = slots_of([read]), self._sinks.get(layer)
        found = self._kernel(queries, storage, *given, geometry, layer, *more)[0]
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(query.device)

    def _write(self, storage: Any, base: int, layer: int, entry: NDArray[np.float32]) -> None:
        """Put a layer's newest entry into its place, of blocks that begin at `base`."""
        geometry = self._geometry
        newest = geometry.entries(layer, self._tokens) - 1
        block, slot = divmod(newest, geometry.block_tokens)
        vector = self._arrays.from_host(packed(entry, geometry, layer))
        vectors_of(storage, geometry, layer)[base + block, :, :, slot] = vector

    def _read(self, layer: int, tokens: NDArray[np.int32] | None) -> Attended:
        """What a layer reads; its blocks are counted from the session's first."""
        geometry = self._geometry
        if tokens is not None:
            blocks = geometry.block_count(self._tokens, layer)
            return of_tokens(geometry, tokens, np.arange(blocks, dtype=np.int32))
        cut = geometry.first_token(layer, self._tokens) % geometry.block_tokens > 0
        found = readable(geometry, layer, self._tokens, alone=cut)
        first = geometry.first_block(layer, self._tokens)
        return replace(found, entries=first + found.entries)

    def index_keys(self, layer: int, key: Any) -> Any:
        """All keys of a layer's indexer, `[1, tokens, dim]`, with the newest token's `key`; of
        compressed entries, with those that the token completes."""
        number, _ = place = self._new_keys.places[layer]
        geometry = self._geometry
        storage = self._memories[geometry.parts.index((number,))].storage
        if key.shape[1]:
            self._write(storage, 0, number, self._new_keys.add(layer, key))
        blocks = np.arange(geometry.block_count(self._tokens, number), dtype=np.int32)
        there = geometry.entries(number, self._tokens)
        return keys_in(storage, blocks, geometry, place)[:, :there].to(key)

    def end_token(self) -> None:
        """All layers have run."""
        last, slots = divmod(self._tokens, self._geometry.block_tokens)
        if self._quantizer is None or slots:
            return
        where = np.array([last - 1], np.int32)
        for parts, memory in zip(self._geometry.parts, self._memories, strict=True):
            for layer in parts:  # one: entries beside a window are not quantized
                memory.write(where, self._quantizer.filled(layer, memory.read(where)))

    def close(self) -> None:
        """Nothing to close."""
