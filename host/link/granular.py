"""Sessions in granules of the tier's blocks, over a driver that reads blocks in part.

The decode loop works in units of its geometry's `block_tokens`. With this class and a driver in
granules (`bindings.granules`) it selects, keeps and attends to granules. A chunk of the tier is
named by all its granules, so its name is known only once it is full.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from offstage.bindings.driver import Driver
from offstage.bindings.granules import Chain, Granules
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol
from offstage.host.link.tier_sessions import Sessions

__all__ = ["GranularSessions"]

NO_KEY = bytes(16)


class GranularSessions:
    """The sessions of `tier`, in granules: `count` of each block, of `size_bytes` in each layer."""

    def __init__(
        self, tier: Sessions, driver: Driver, count: int, layer_count: int, size_bytes: int
    ) -> None:
        """Split the driver's blocks. BadInput if the daemon does not split them this way."""
        self._tier, self._layers = tier, layer_count
        self.granules = Granules(count, size_bytes)
        driver.cut(self.granules)
        self._waiting: dict[int, list[bytes]] = {}  # identities of granules behind the last chunk
        self.hints = tier.hints

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; counts are in granules, rounded up to whole blocks."""
        count = self.granules.count
        handle = self._tier.session_open(
            select_blocks=-(-select_blocks // count),
            sink_blocks=-(-sink_blocks // count),
            window_blocks=-(-window_blocks // count),
            step_ns=step_ns,
        )
        self.hints = self._tier.hints
        self.granules.chains[handle] = Chain(np.empty((self._layers, 0, 2), np.uint64))
        self._waiting[handle] = []
        return handle

    def append(self, session: int, contents: list[bytes]) -> protocol.Appended:
        """Append granules. Each has the name of its chunk, known once the chunk is full."""
        chain, waiting = self.granules.chains[session], self._waiting[session]
        count, before = self.granules.count, len(waiting)
        waiting += contents
        full = len(waiting) // count * count
        named = [_joined(waiting[first : first + count]) for first in range(0, full, count)]
        keys: list[bytes] = []
        stored: list[int] = []
        if named:
            reply = self._tier.append(session, named)
            keys, stored = list(reply.keys), list(reply.stored_layers)
            for block, layers in enumerate(stored, chain.keys.shape[1]):
                for layer in range(self._layers if layers == self._layers else 0):
                    chain.drop(layer, block, count)  # a session before this one wrote it
            chain.keys = np.concatenate([chain.keys, block_keys(keys, self._layers)], axis=1)
        left = len(waiting) - full
        del waiting[:full]
        each_key = [key for key in keys for _ in range(count)] + [NO_KEY] * left
        each_stored = [layers for layers in stored for _ in range(count)] + [0] * left
        return protocol.Appended(
            keys=each_key[before:], store_keys=[], stored_layers=each_stored[before:]
        )

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks."""
        self._tier.set_generating(session, generating)

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session; the unwritten part of its last chunk is dropped."""
        del self.granules.chains[session], self._waiting[session]
        self._tier.session_close(session, keep=keep)


def _joined(identities: Sequence[bytes]) -> bytes:
    """The identity of a chunk, from those of its granules in order."""
    return hashlib.blake2b(b"".join(identities), digest_size=16).digest()
