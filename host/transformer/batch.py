"""Sessions of one model that decode in step: a forward pass and a kernel call for all of them.

Each session has its context, tail block and names (`TieredAttention`); they share the HBM pool, and
in a layer the blocks that any of them lacks are in flight together, as in a batch of drawn sessions
(`host.decode.layer`). The stall of a token is that of its batch. One thread. No query is predicted;
what layers share of an indexer's selection is known, and used ahead.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.layer import Coming, Decoder
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import KvSource
from offstage.host.decode.tail_block import write_tokens
from offstage.host.model.geometry import KvGeometry
from offstage.host.transformer.compressed import SessionLayer, joined
from offstage.host.transformer.dense import DenseKv
from offstage.host.transformer.index_keys import IndexKeys, resident_keys
from offstage.host.transformer.recurrent import together
from offstage.host.transformer.tiered import TieredAttention, fetched_ahead, index_keys

__all__ = ["ManyKv", "TieredBatch", "going_on"]


class ManyKv:
    """The contexts of several sessions as one `KvSource`. `sources`: by the name of a block."""

    def __init__(self, sources: Mapping[int, KvSource], geometry: KvGeometry) -> None:
        self._sources, self.geometry = sources, geometry

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Full blocks of the one context that these name. RunFailed for those that decoding wrote,
        as its source says."""
        known = (self._sources[one] for one in identities if one in self._sources)
        source = next(known, next(iter(self._sources.values())))
        return source.blocks_at(layer, ordinals, identities)


class TieredBatch:
    """`sessions` over one decoder, each with a number of its own there."""

    def __init__(self, sessions: Sequence[TieredAttention], decoder: Decoder) -> None:
        self._sessions, self._decoder = sessions, decoder
        self.record = AgentRecord()
        """Of all of them."""
        self.predicted = sessions[0].predicted
        self._coming: Coming | None = None
        for one in sessions:
            one.record = self.record

    def begin_token(self) -> None:
        """One more token of each; their layers follow."""
        for one in self._sessions:
            one.begin_token()

    def attend_together(
        self,
        layer: int,
        queries: Sequence[Any],
        entries: Sequence[Any],
        tokens: Sequence[NDArray[np.int32]] | None = None,
        closed: Sequence[Any] | None = None,
    ) -> Any:
        """As `LayerAttention.attend` of each session, `[sessions, q_heads, value_dim]`."""
        import torch

        sessions, decoder, pool = self._sessions, self._decoder, self._decoder.pool
        picked: Sequence[NDArray[np.int32] | None] = tokens or [None] * len(sessions)
        given = zip(sessions, queries, entries, picked, strict=True)
        new = [one.take(layer, *it) for one, *it in given]
        parts = pool.geometry.parts[layer]
        layer, last = parts[0], parts[-1]  # the same, unless entries lie beside a window
        write_tokens(pool, new, layer)
        if closed is not None and closed[0].shape[2]:
            each = zip(sessions, closed, strict=True)
            write_tokens(pool, [one.hold(own[:, :, 0]) for one, own in each], last)
        if self._coming is not None:
            decoder.end_predicted(self._coming, self.record)
            self._coming = None
        batch = [(one.session, one.token) for one in sessions]
        running = decoder.begin(batch, layer, self.record)
        ahead = [] if tokens is None else [one.share(last) for one in sessions]
        if any(one.size for one in ahead):
            self._coming = fetched_ahead(sessions, layer + 1, ahead, running)
        found = decoder.attend(running, self.record)
        decoder.end_tick(self.record)
        for one in sessions:
            for part in parts:
                pool.release(one.session.number, part)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(queries[0].device)

    def index_keys(self, layer: int, keys: Any) -> Any:
        """As `tiered.index_keys`, of all sessions."""
        return index_keys(self._sessions, layer, keys)

    def end_token(self) -> None:
        """All layers have run; put what is full to the tier."""
        for one in self._sessions:
            one.end_token()

    def close(self) -> None:
        """End all sessions at the tier."""
        for one in self._sessions:
            one.close()


def going_on(
    contexts: Sequence[DenseKv], keys_in_tier: IndexKeys | None
) -> tuple[IndexKeys | None, dict[int, Any]]:
    """What the model goes on with after contexts of as many tokens, a row of its batch each, as
    `installed` takes it: index keys, and what compressors and recurrent layers keep.
    `keys_in_tier`: gives index keys that are not resident."""
    import torch

    each, keys = [one.session_layers() for one in contexts], [one.index_keys for one in contexts]
    layers: dict[int, Any] = {}
    for number in each[0]:
        own = [one[number] for one in each]
        layers[number] = joined(own) if isinstance(own[0], SessionLayer) else together(own)
    compresses = any(isinstance(one, SessionLayer) for one in layers.values())
    if not keys[0] or (compresses and keys_in_tier is None):
        return None, layers
    if keys_in_tier is None:
        rows = {number: torch.cat([one[number] for one in keys]) for number in keys[0]}
        return resident_keys(rows), layers
    if not compresses:
        return keys_in_tier, layers
    for number in keys[0]:
        layers[number].keys_elsewhere(partial(keys_in_tier, number))
    return None, layers
