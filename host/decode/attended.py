"""What a layer's attention reads of the selected blocks: all of their tokens, the best of them, or
those of a window. Where a layer compresses, an entry counts as a token, and the window and the
entries beside it are read together.

A model that selects single tokens (DSA) reads at most `top_k` of them in a step, and the tier
brings blocks or granules. A real model's indexer says which. Of drawn sessions, the best tokens of
the blocks brought are attended and the others are not, if the selector can weigh tokens: `Mass`
keeps the keys for it. With any other selector, and in layers that select no tokens, whole blocks
are attended. A window that begins within a block is read token by token.

Pure functions of the sessions, the decode loop's thread. Nothing can fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.host.attention import block_tables
from offstage.host.decode.session import HostSession
from offstage.host.model.geometry import KvGeometry
from offstage.host.selection import Mass, best_tokens

__all__ = ["Attended", "attended", "of_tokens", "readable", "slots_of", "together"]

Selected = tuple[HostSession, NDArray[np.float32], NDArray[np.int32]]
"""A session, its query of the layer, and the ordinals of its selected blocks."""


@dataclass(frozen=True)
class Attended:
    """What is read of one session, an entry each. `entries`: which of the selected blocks;
    `counts`: tokens of each; `slots`: None for whole blocks, else where the one token of each
    entry is in its block."""

    entries: NDArray[np.intp] | NDArray[np.int32]
    counts: NDArray[np.int32]
    slots: NDArray[np.int32] | None = None


def readable(geometry: KvGeometry, layer: int, tokens: int, *, alone: bool) -> Attended:
    """What a layer can read for the last of `tokens` tokens, of the blocks from `first_block` on.
    `alone`: token by token, also where a window begins with a block."""
    first, begin = geometry.first_block(layer, tokens), geometry.first_token(layer, tokens)
    size = geometry.block_tokens
    if not alone:
        ordinals = np.arange(first, geometry.block_count(tokens, layer), dtype=np.int32)
        left = geometry.entries(layer, tokens) - ordinals * size
        return Attended(ordinals - np.int32(first), np.minimum(left, size).astype(np.int32))
    blocks, slots = np.divmod(np.arange(begin, tokens, dtype=np.int32), np.int32(size))
    return Attended(blocks - np.int32(first), np.ones_like(slots), slots)


def of_tokens(
    geometry: KvGeometry, tokens: NDArray[np.int32], ordinals: NDArray[np.int32]
) -> Attended:
    """Single tokens, which lie in the blocks of these ascending ordinals."""
    blocks, slots = np.divmod(tokens, np.int32(geometry.block_tokens))
    return Attended(np.searchsorted(ordinals, blocks), np.ones_like(slots), slots)


def together(own: Attended, other: Attended, offset: int) -> Attended:
    """What two layers read in one softmax, token by token: of a table that has the blocks of
    `other` from `offset` on."""
    own, other = _alone(own), _alone(other)
    assert own.slots is not None and other.slots is not None
    return Attended(
        np.concatenate([own.entries, other.entries + offset]),
        np.concatenate([own.counts, other.counts]),
        np.concatenate([own.slots, other.slots]),
    )


def _alone(read: Attended) -> Attended:
    """The same, an entry for each token."""
    if read.slots is not None:
        return read
    entries = np.repeat(read.entries.astype(np.intp), read.counts)
    starts = np.repeat(np.cumsum(read.counts) - read.counts, read.counts)
    slots = (np.arange(entries.size) - starts).astype(np.int32)
    return Attended(entries, np.ones_like(slots), slots)


def attended(geometry: KvGeometry, layer: int, batch: Sequence[Selected]) -> list[Attended]:
    """What a layer reads of each session. Single tokens are read of all sessions or of none: a
    batch is one call of the kernel."""
    if any(layer in session.tokens for session, *_ in batch):
        return [of_tokens(geometry, one.tokens[layer], ordinals) for one, _, ordinals in batch]
    if geometry.is_window(layer):
        lengths = [session.length_tokens for session, *_ in batch]
        cut = any(geometry.first_token(layer, one) % geometry.block_tokens for one in lengths)
        return [readable(geometry, layer, one, alone=cut) for one in lengths]
    counts = [session.token_counts(geometry, layer, ordinals) for session, _, ordinals in batch]
    top_k = geometry.layers[layer].token_top_k
    scorers = [session.context.selectors[layer] for session, *_ in batch]
    weighing = [one for one in scorers if isinstance(one, Mass)]
    if len(weighing) < len(batch) or not top_k or all(own.sum() <= top_k for own in counts):
        return [Attended(np.arange(own.size), own) for own in counts]
    found = []
    for scorer, own, (_, query, ordinals) in zip(weighing, counts, batch, strict=True):
        entries, slots = best_tokens(scorer.weights(query, ordinals), own, top_k)
        found.append(Attended(entries, np.ones_like(slots), slots))
    return found


def slots_of(read: Sequence[Attended]) -> NDArray[np.int32] | None:
    """The slots of a batch's tokens, as a kernel takes them; None for whole blocks."""
    rows = [one.slots for one in read if one.slots is not None]
    return block_tables(rows) if rows else None
