"""Prefill: compute the KV of a context and write what the tier does not have yet.

A real prefill computes a layer for all tokens, then the next; so does this one, and the blocks
reach the store layer by layer, each layer one sequential range. The host keeps only the summaries
and the checksums. A refused write fails the run: the error names the cause and the fix.
"""

import errno
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed, StoreFull
from offstage.bindings.fabric import Put, PutRequest
from offstage.bindings.keys import checksums
from offstage.host.decode.session import Context, KvSource
from offstage.host.fabrics import Fabric
from offstage.host.selection import MakeSelector, selector

__all__ = [
    "BlockWriter",
    "ContextSource",
    "LayerBlocks",
    "MissingWriter",
    "compute_context",
    "put_blocks",
]

BlockWriter = Callable[[int, int, NDArray[np.uint8]], None]
"""Gets layer, first ordinal, and consecutive blocks uint8 `[blocks, block_bytes]`."""

LayerBlocks = tuple[int, NDArray[np.uint32], NDArray[np.uint8]]
"""A layer, ordinals `[blocks]` and the blocks uint8 `[blocks, block_bytes]`."""

BATCH_BLOCKS = 64
"""Blocks computed and written at once: 2 MiB of 32 KiB blocks, well inside the caches."""


class ContextSource(KvSource, Protocol):
    """A model that has read a context: its blocks in order, and the keys inside them."""

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, block_bytes]`."""
        ...

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[Any]:
        """The keys inside blocks, floats `[blocks, kv_heads, block_tokens, head_dim]`."""
        ...


def compute_context(
    source: ContextSource,
    identities: Sequence[int],
    selector_name: str,
    write: BlockWriter | None = None,
    make: MakeSelector = selector,
) -> Context:
    """Summaries (by selectors from `make`) and checksums of a chain of full chunks.

    The bytes are made once, passed to `write` batch by batch, and dropped. A block of compressed
    entries needs several chunks; those that fill none are left to the source's `open_block`."""
    geometry = source.geometry
    layers = geometry.layer_count
    attended = [n for n, one in enumerate(geometry.layers) if one.form != "index"]
    context = Context(
        list(identities),
        np.zeros((layers, len(identities)), np.uint64),
        [make(selector_name, geometry, layer) for layer in attended],
    )
    for layer in range(layers):
        names = context.names_of(geometry, layer)
        for first in range(0, len(names), BATCH_BLOCKS):
            blocks = source.blocks(layer, first, names[first : first + BATCH_BLOCKS])
            chunks = geometry.chunks_of(layer, first + np.arange(len(blocks)))
            context.checksums[layer, chunks] = checksums(blocks)
            if geometry.is_scored(layer):
                context.selectors[layer].write(first, source.keys_of(blocks, layer))
            if write is not None:
                write(layer, first, blocks)
    return context


@dataclass
class MissingWriter:
    """Writes the blocks of one session's context that the tier lacks: a `BlockWriter`.

    `stored_layers` uint32 `[chunks]`: how many layers of each chunk the store has; a chunk with
    fewer than it needs is written whole. `kept_from`: by layer, the first chunk that is ever read;
    none before it is written, and windows are nested, so that a count says which layers are there.
    `spans`: by layer, how many chunks a block spans, the last of which names it; or one for all.
    `bytes_written` and `blocks_written` count what was put."""

    driver: Fabric
    handle: int
    stored_layers: NDArray[np.uint32]
    kept_from: Sequence[int]
    spans: Sequence[int] = (1,)
    bytes_written: int = 0
    blocks_written: int = 0

    def __call__(self, layer: int, first: int, blocks: NDArray[np.uint8]) -> None:
        """Put the missing ones among consecutive blocks of one layer."""
        kept_from, spans = np.broadcast_arrays(self.kept_from, self.spans)
        chunks = (first + np.arange(len(blocks)) + 1) * spans[layer] - 1
        read = (chunks[:, None] >= kept_from) & ((chunks[:, None] + 1) % spans == 0)
        stored = self.stored_layers[chunks]
        missing = np.flatnonzero((stored < read.sum(axis=1)) & read[:, layer])
        if missing.size == 0:
            return
        chosen = blocks if missing.size == len(blocks) else blocks[missing]
        put_blocks(self.driver, self.handle, [(layer, chunks[missing].astype(np.uint32), chosen)])
        self.bytes_written += chosen.nbytes
        self.blocks_written += len(chosen)


def put_blocks(driver: Fabric, handle: int, puts: Iterable[LayerBlocks]) -> None:
    """Write blocks of any layers, with as many puts in flight as the fabric takes, and wait for
    their acknowledgement. StoreFull, RunFailed: the message has the cause; none is in flight."""
    flying: deque[tuple[int, Put]] = deque()
    failed: list[tuple[int, NDArray[np.int32]]] = []

    def end_oldest() -> None:
        layer, put = flying.popleft()
        rcs = driver.put_end(put)
        if rcs.any():
            failed.append((layer, rcs))

    for layer, ordinals, blocks in puts:
        if len(flying) == driver.calls_max:
            end_oldest()
        flying.append((layer, driver.put_begin(PutRequest(handle, layer, ordinals, blocks))))
    while flying:
        end_oldest()
    if failed:
        raise _refused(*failed[0])


def _refused(layer: int, rcs: NDArray[np.int32]) -> StoreFull | RunFailed:
    worst = -int(rcs[rcs != 0][0])
    failed = int(np.count_nonzero(rcs))
    if worst == errno.ENOSPC:
        return StoreFull(
            f"the store is full: {failed} of {rcs.size} blocks were refused",
            f"layer {layer}",
            "give the store more room ([storage] size) or a shorter TTL",
        )
    if worst == errno.EDQUOT:
        return StoreFull(
            f"the tenant has its maximum of the store, or the write budget admits nothing new: "
            f"{failed} of {rcs.size} blocks were refused",
            f"layer {layer}",
            "raise store_max of its [[tenant]] or policy.write_budget; "
            "see `offstage dpu status --all`",
        )
    if worst == errno.EEXIST:
        return RunFailed(
            f"{failed} of {rcs.size} blocks are in the tier with different bytes",
            f"layer {layer}",
            "a chunk's identity must determine its bytes: use another, or delete the blocks",
        )
    return RunFailed(
        f"{failed} of {rcs.size} blocks could not be written: {errno.errorcode[worst]}",
        f"layer {layer}",
        "see the daemon's log; `offstage dpu status` counts the errors of its storage",
        errno=worst,
    )
