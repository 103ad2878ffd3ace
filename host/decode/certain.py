"""What a layer reads where no selection of ours decides: all it keeps, or what an indexer picked.

Pure functions of a session, the decode loop's thread: the hint for the tier, by chunk, and the
ordinals of the blocks, ascending. Nothing can fail.
"""

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.session import HostSession
from offstage.host.model.geometry import KvGeometry

__all__ = ["CERTAIN", "indexed", "whole"]

CERTAIN = 65535
"""The score of a block that is read for certain; 0 is that of one never read."""

Chosen = tuple[NDArray[np.uint16], NDArray[np.int32]]


def whole(geometry: KvGeometry, session: HostSession, layer: int) -> Chosen:
    """The blocks of a window, or all entries. The hint says that those behind a window are never
    read again."""
    first = geometry.first_block(layer, session.length_tokens)
    hint = np.zeros(session.stored_blocks(geometry, layer), np.uint16)
    hint[first:] = CERTAIN
    ordinals = np.arange(first, session.block_count(geometry, layer), dtype=np.int32)
    return _by_chunk(geometry, session, layer, hint), ordinals


def indexed(geometry: KvGeometry, session: HostSession, layer: int) -> Chosen:
    """The blocks of the tokens that the model's indexer selected. The hint is how many tokens of
    each block: an indexer passes on what it selects, and no scores."""
    blocks = session.tokens[layer] // geometry.block_tokens
    counts = np.bincount(blocks, minlength=session.block_count(geometry, layer))
    stored = counts[: session.stored_blocks(geometry, layer)].astype(np.float32)
    hint = session.quantizers[layer](stored) if stored.size else stored.astype(np.uint16)
    ordinals = np.flatnonzero(counts).astype(np.int32)
    return _by_chunk(geometry, session, layer, hint), ordinals


def _by_chunk(
    geometry: KvGeometry, session: HostSession, layer: int, hint: NDArray[np.uint16]
) -> NDArray[np.uint16]:
    """Scores of a layer's stored blocks as the tier takes them, one for each chunk: 0 for a chunk
    that ends no block."""
    chunks = session.keys.shape[1]
    if hint.size == chunks:
        return hint
    found = np.zeros(chunks, np.uint16)
    found[geometry.chunks_of(layer, np.arange(hint.size))] = hint
    return found
