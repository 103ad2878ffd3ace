"""Sessions of one model that decode in step: a forward pass and a kernel call for all of them.

Each session has its context, tail block and names (`TieredAttention`); they share the HBM pool, and
in a layer the blocks that any of them lacks are in flight together, as in a batch of drawn sessions
(`host.decode.layer`). The stall of a token is that of its batch. One thread. Of models whose layers
select by a query, read a window or keep a state; nothing is predicted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.layer import Decoder
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import KvSource
from offstage.host.decode.tail_block import write_tokens
from offstage.host.model.geometry import KvGeometry
from offstage.host.transformer.tiered import TieredAttention

__all__ = ["ManyKv", "TieredBatch"]


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
        for one in sessions:
            one.record = self.record

    def begin_token(self) -> None:
        """One more token of each; their layers follow."""
        for one in self._sessions:
            one.begin_token()

    def attend_together(self, layer: int, queries: Sequence[Any], entries: Sequence[Any]) -> Any:
        """As `LayerAttention.attend` of each session, `[sessions, q_heads, value_dim]`."""
        import torch

        sessions, pool = self._sessions, self._decoder.pool
        new = [one.take(layer, *it) for one, *it in zip(sessions, queries, entries, strict=True)]
        (layer,) = pool.geometry.parts[layer]
        write_tokens(pool, new, layer)
        batch = [(one.session, one.token) for one in sessions]
        running = self._decoder.begin(batch, layer, self.record)
        found = self._decoder.attend(running, self.record)
        self._decoder.end_tick(self.record)
        for one in sessions:
            pool.release(one.session.number, layer)
        if isinstance(found, np.ndarray):
            found = torch.from_numpy(found)
        return found.to(queries[0].device)

    def end_token(self) -> None:
        """All layers have run; put what is full to the tier."""
        for one in self._sessions:
            one.end_token()

    def close(self) -> None:
        """End all sessions at the tier."""
        for one in self._sessions:
            one.close()
