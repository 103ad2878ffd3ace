"""One decode session on the host: the names and summaries of its blocks, and its progress.

Owned by the agent's thread. The KV bytes are elsewhere: in the HBM pool, the arena or the store.
The host keeps what a GPU node keeps in HBM for a sparse model anyway, a summary of the keys of
every block (the selector), and, to check the tier, the checksum of every written block.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.host.model.geometry import KvGeometry
from offstage.host.selection import ScoreQuantizer, Selector

__all__ = ["Context", "HostSession", "KvSource", "Queries"]


class KvSource(Protocol):
    """Computes KV, and recomputes blocks that the tier has lost, byte for byte."""

    @property
    def geometry(self) -> KvGeometry:
        """The shape of its blocks."""
        ...

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Full blocks at any ordinals of the context, uint8 `[blocks, block_bytes]`. Raises
        `RunFailed` if it cannot."""
        ...


class Queries(Protocol):
    """The queries of one layer of one session."""

    def next(self, step: int, length_blocks: int) -> NDArray[np.float32]:
        """The queries of `step`, float32 `[q_heads, head_dim]`, over `length_blocks` blocks;
        called once for each step, in order."""
        ...


@dataclass(slots=True)
class Context:
    """The full blocks of one chain of chunks, as prefill computed them.

    `identities` [chunks] 128-bit; `checksums` uint64 `[layers, chunks]`, XXH3-64 of each block's
    payload; one selector per layer that has seen their keys, but of the layers of index keys, which
    are the last.
    """

    identities: list[int]
    checksums: NDArray[np.uint64]
    selectors: list[Selector]

    def names_of(self, geometry: KvGeometry, layer: int) -> list[int]:
        """The identities that name the whole blocks of a layer, in order."""
        span = geometry.chunks_per_block(layer)
        return self.identities[span - 1 :: span]

    def fork(self) -> "Context":
        """A context that may grow without changing this one."""
        return Context(list(self.identities), self.checksums.copy(), copy.deepcopy(self.selectors))


@dataclass(slots=True)
class HostSession:
    """A session that decodes: `number` in the plan, `handle` at the DPU."""

    number: int
    name: str
    handle: int
    context: Context
    keys: NDArray[np.uint64]
    """Block keys, uint64 `[layers, chunks, 2]`: the directory's names."""
    length_tokens: int
    step_count: int
    queries: Sequence[Queries]
    quantizers: list[ScoreQuantizer] = field(default_factory=list)
    step: int = 0
    tokens: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    """By layer, those that the model's own indexer selected in this step, ascending; the layer has
    no selection of ours then. Of a layer that compresses: entries."""

    def block_count(self, geometry: KvGeometry, layer: int | None = None) -> int:
        """Blocks of `layer` as `KvGeometry.block_count`, the one being filled included."""
        return geometry.block_count(self.length_tokens, layer)

    def stored_blocks(self, geometry: KvGeometry, layer: int) -> int:
        """Blocks of `layer` that the tier has been given."""
        return int(self.keys.shape[1]) // geometry.chunks_per_block(layer)

    def token_counts(
        self, geometry: KvGeometry, layer: int, ordinals: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Tokens in each of the blocks, entries where `layer` compresses; only the last may be
        partly filled."""
        entries = geometry.entries(layer, self.length_tokens)
        left = entries - ordinals.astype(np.int64) * geometry.block_tokens
        return np.minimum(left, geometry.block_tokens).astype(np.int32)

    @property
    def done(self) -> bool:
        """Whether it has decoded all its tokens."""
        return self.step >= self.step_count
