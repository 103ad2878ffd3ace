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
        layers = decoder.pool.geometry.layer_count
        self._blocks: list[NDArray[np.uint8]] = []  # per layer: the block's bytes once full
        self._ordinals = [-1] * layers  # per layer: which block it is
        self._indices = [-1] * layers  # per layer: its index in the HBM pool

    def resume(self, session: HostSession, content: Callable[[int], NDArray[np.uint8]]) -> None:
        """Go on with blocks that the context has begun. `content(layer)`: uint8 `[1, bytes]`."""
        geometry = self._decoder.pool.geometry
        for layer in range(geometry.layer_count):
            full, begun = divmod(
                geometry.entries(layer, session.length_tokens), geometry.block_tokens
            )
            if begun:
                self._take(session, layer, full)
                where = np.array(self._indices[layer : layer + 1], np.int32)
                self._decoder.pool.memory.write(where, content(layer))

    def begin_token(self, session: HostSession) -> None:
        """Make room for one more token; opens the next block of every layer where needed."""
        geometry = self._decoder.pool.geometry
        before, size = session.length_tokens, geometry.block_tokens
        session.length_tokens += 1
        opened = False
        for layer in range(geometry.layer_count):
            made, after = (geometry.entries(layer, before + one) for one in (0, 1))
            if after > made and made // size != self._ordinals[layer]:
                self._take(session, layer, made // size)
                opened = True
        if opened:
            self._open(before // size)

    def _take(self, session: HostSession, layer: int, ordinal: int) -> None:
        """A place in the pool that stays until the block is full."""
        pool = self._decoder.pool
        self._ordinals[layer] = ordinal
        self._indices[layer] = int(pool.allocate(session.number, layer, [ordinal])[0])
        pool.pin(session.number, layer, [ordinal])

    def newest_token(self, session: HostSession, layer: int) -> NewToken:
        """The newest token's K and V in one layer, whose selector has seen its key; or the newest
        entry, of which there is no selector."""
        geometry = self._decoder.pool.geometry
        slot = (geometry.entries(layer, session.length_tokens) - 1) % geometry.block_tokens
        values = self._values(layer, slot)
        if geometry.is_scored(layer):
            session.context.selectors[layer].append(self._ordinals[layer], values[0, :, None])
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
        """Put the blocks that are full to the tier, together, once a chunk is complete; returns the
        time that took in nanoseconds."""
        geometry = self._decoder.pool.geometry
        if session.length_tokens % geometry.block_tokens:
            return 0
        begun_ns = self._decoder.clock.now_ns()
        layers = geometry.layer_count
        ordinal = session.length_tokens // geometry.block_tokens - 1
        chunk = self._identity(ordinal)
        appended = append_chunks(self._control, session.handle, [chunk], layers)
        sums = np.zeros((layers, 1), np.uint64)
        where = np.array([ordinal], np.uint32)
        ended = [one for one in range(layers) if not (ordinal + 1) % geometry.chunks_per_block(one)]
        full = []
        for layer in ended:
            block = self._decoder.pool.memory.read(np.array(self._indices[layer : layer + 1]))
            block = self._full(session, layer, block[:, : geometry.block_bytes(layer)])
            sums[layer] = checksums(block)
            full.append((layer, where, block))
            record.bytes_put += block.nbytes
        put_blocks(self._decoder.driver, session.handle, full)
        for layer in ended:
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
