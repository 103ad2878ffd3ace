"""The tail block, which decoding fills; it stays in the HBM pool until it is full.

Every token adds its K and V to the last block of each layer. A full block is appended to the
session at the tier and put there; from then on it can be evicted from the HBM pool like any other.
A TailBlock belongs to one session and to the agent's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.keys import checksums
from offstage.host.decode.layer import Decoder
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.prefill import put_blocks
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import HostSession
from offstage.host.link.tier_sessions import Sessions, append_chunks
from offstage.host.model.values import stored

__all__ = ["NewToken", "TailBlock", "write_tokens"]


@dataclass(frozen=True, slots=True)
class NewToken:
    """Where one layer's K and V of a token go: block `index` of the pool, `slot` in the block."""

    index: int
    slot: int
    values: NDArray[Any]


class TailBlock:
    """Writes a session's new tokens, and its full blocks to the tier."""

    def __init__(self, control: Sessions, decoder: Decoder, identity: Callable[[int], int]) -> None:
        self._control = control
        self._decoder = decoder
        self._identity = identity
        self._ordinal = -1
        self._blocks: list[NDArray[np.uint8]] = []  # per layer: the block's bytes once full
        self._indices: list[int] = []  # per layer: its index in the HBM pool

    def begin_token(self, session: HostSession) -> None:
        """Make room for one more token; opens the next block of every layer where needed."""
        geometry = self._decoder.pool.geometry
        ordinal = session.length_tokens // geometry.block_tokens
        session.length_tokens += 1
        if ordinal == self._ordinal:
            return
        self._ordinal = ordinal
        self._indices.clear()
        for layer in range(geometry.layer_count):
            index = int(self._decoder.pool.allocate(session.number, layer, [ordinal])[0])
            self._decoder.pool.pin(session.number, layer, [ordinal])
            self._indices.append(index)
        self._open(ordinal)

    def newest_token(self, session: HostSession, layer: int) -> NewToken:
        """The newest token's K and V in one layer; the selector has seen its key."""
        slot = (session.length_tokens - 1) % self._decoder.pool.geometry.block_tokens
        values = self._values(layer, slot)
        session.context.selectors[layer].append(self._ordinal, values[0, :, None])
        return NewToken(self._indices[layer], slot, values)

    def _open(self, ordinal: int) -> None:
        """Open a block. Its tokens are known in advance, as they are drawn and not decoded."""
        where, chunk = np.array([ordinal], np.uint32), self._identity(ordinal)
        layers = range(self._decoder.pool.geometry.layer_count)
        self._blocks = [self._decoder.kv.blocks_at(layer, where, [chunk])[0] for layer in layers]

    def _values(self, layer: int, slot: int) -> NDArray[Any]:
        """K and V of the token in a slot, floats `[planes, kv_heads, head_dim]`."""
        geometry = self._decoder.pool.geometry
        block = stored(self._blocks[layer], geometry.value_type)
        values: NDArray[Any] = block.reshape(geometry.block_shape(layer))[:, :, slot]
        return values

    def _full(self, session: HostSession, layer: int, block: NDArray[Any]) -> NDArray[np.uint8]:
        """What the tier gets of a full block `[1, bytes]`."""
        return block

    def end_token(self, session: HostSession, record: AgentRecord) -> int:
        """Put the block of every layer to the tier, together, if it is full; returns the time that
        took in nanoseconds."""
        geometry = self._decoder.pool.geometry
        if session.length_tokens % geometry.block_tokens:
            return 0
        begun_ns = self._decoder.clock.now_ns()
        layers = geometry.layer_count
        chunk = self._identity(self._ordinal)
        appended = append_chunks(self._control, session.handle, [chunk], layers)
        sums = np.zeros((layers, 1), np.uint64)
        where = np.array([self._ordinal], np.uint32)
        full = []
        for layer in range(layers):
            block = self._decoder.pool.memory.read(np.array(self._indices[layer : layer + 1]))
            block = self._full(session, layer, block[:, : geometry.block_bytes(layer)])
            sums[layer] = checksums(block)
            full.append((layer, where, block))
            record.bytes_put += block.nbytes
        put_blocks(self._decoder.driver, session.handle, full)
        for layer in range(layers):
            self._decoder.pool.pin(session.number, layer, [])
        session.keys = np.concatenate([session.keys, appended.keys], axis=1)
        context = session.context
        context.identities.append(chunk)
        context.checksums = np.concatenate([context.checksums, sums], axis=1)
        return self._decoder.clock.now_ns() - begun_ns


def write_tokens(pool: HbmPool, batch: Sequence[tuple[HostSession, TailBlock]], layer: int) -> None:
    """Write every session's newest token of one layer into the pool, in one call."""
    new = [tail_block.newest_token(session, layer) for session, tail_block in batch]
    indices = np.array([token.index for token in new], np.int32)
    slots = np.array([token.slot for token in new], np.int32)
    pool.write_tokens(layer, indices, slots, np.stack([token.values for token in new]))
