"""Prefill: compute the KV of a context and write what the tier does not have yet.

A real prefill computes a layer for all tokens, then the next; so does this one, and the blocks
reach the store layer by layer, each layer one sequential range. The host keeps the summaries and
the checksums; nothing else of the bytes stays. A block whose write is refused is a failed run,
never a silent hole: the error names the cause and the mend.
"""

import errno
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.driver import Driver
from offstage.bindings.errors import RunFailed, StoreFull
from offstage.host.material import Material
from offstage.host.session import Context

__all__ = ["compute_context", "put_blocks", "write_context"]

BATCH_BLOCKS = 64
"""Blocks computed and written at once: 2 MiB of 32 KiB blocks, well inside the caches."""


def compute_context(
    material: Material,
    identities: Sequence[int],
    selector_name: str,
    advance: Callable[[int], None] = lambda count: None,
) -> Context:
    """Summaries and checksums of a chain of full chunks; the bytes are made and dropped.

    `advance` is told the number of blocks done, batch by batch."""
    layers = material.geometry.layer_count
    context = Context(
        list(identities),
        np.zeros((layers, len(identities)), np.uint64),
        [material.selector(selector_name, layer) for layer in range(layers)],
    )
    for layer in range(layers):
        for first in range(0, len(identities), BATCH_BLOCKS):
            batch = identities[first : first + BATCH_BLOCKS]
            blocks = material.blocks(layer, first, batch)
            context.checksums[layer, first : first + len(batch)] = material.checksums(blocks)
            context.selectors[layer].write(first, material.keys_of(blocks, layer))
            advance(len(batch))
    return context


def write_context(
    driver: Driver,
    material: Material,
    handle: int,
    identities: Sequence[int],
    stored_layers: NDArray[np.uint32],
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Put every chunk of session `handle` that lacks a layer in the store; returns bytes written.

    `stored_layers` [chunks]: how many layers of each chunk the store has."""
    layers = material.geometry.layer_count
    missing = np.flatnonzero(stored_layers < layers).astype(np.uint32)
    written = 0
    for layer in range(layers):
        for first in range(0, missing.size, BATCH_BLOCKS):
            ordinals = missing[first : first + BATCH_BLOCKS]
            blocks = material.blocks_at(layer, ordinals, [identities[o] for o in ordinals])
            put_blocks(driver, handle, layer, ordinals, blocks)
            written += blocks.nbytes
            advance(ordinals.size)
    return written


def put_blocks(
    driver: Driver,
    handle: int,
    layer: int,
    ordinals: NDArray[np.uint32],
    blocks: NDArray[np.uint8],
) -> None:
    """Write blocks and wait for their acknowledgement. StoreFull, RunFailed: see the message."""
    rcs = driver.put(handle, layer, ordinals, blocks)
    if not rcs.any():
        return
    worst = -int(rcs[rcs != 0][0])
    failed = int(np.count_nonzero(rcs))
    if worst == errno.ENOSPC:
        raise StoreFull(
            f"the store is full: {failed} of {ordinals.size} blocks were refused",
            f"layer {layer}",
            "give the store more room ([storage] size) or a shorter TTL",
        )
    raise RunFailed(
        f"{failed} of {ordinals.size} blocks could not be written: {errno.errorcode[worst]}",
        f"layer {layer}",
        "see the daemon's log; `offstage dpu status` counts the errors of its storage",
    )
