"""What a layer's attention reads of the selected blocks: all of their tokens, or the best of them.

A model that selects single tokens (DSA) reads at most `top_k` of them in a step, and the tier
brings blocks or granules. Of those brought, the best tokens are attended and the others are not, if
the selector can weigh tokens: `Mass` keeps the keys for it. With any other selector, and in layers
that select no tokens, whole blocks are attended.

Pure functions of the sessions, the decode loop's thread. Nothing can fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.session import HostSession
from offstage.host.model.geometry import KvGeometry
from offstage.host.selection import Mass, best_tokens

__all__ = ["Attended", "attended"]

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


def attended(geometry: KvGeometry, layer: int, batch: Sequence[Selected]) -> list[Attended]:
    """What a layer reads of each session. Single tokens are read of all sessions or of none: a
    batch is one call of the kernel."""
    counts = [session.token_counts(geometry, ordinals) for session, _, ordinals in batch]
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
