"""Blocks that are read in part: a tier of blocks, seen as one of *granules*.

The decode loop works in units of its geometry's `block_tokens`. Over these two it does so with
granules of the tier's blocks: it selects, keeps and attends to granules, each of which is a small
block of the same layout, and what it lacks of one block is one demand that names the granules. A
block at the tier is its granules one behind the other, so that each is contiguous there. A chunk is
written when its last granule is full; until that has ended its granules are kept here and served
from here. A write that fails is told to who completed the block, and its granules are kept no more.

One thread owns both. Can fail as what they are over; BadInput where the tier has no such granules.
"""

import errno
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import block_keys, checksums
from offstage.dpu import protocol
from offstage.host.sessions import Sessions

__all__ = ["GranularFabric", "GranularSessions"]

NO_KEY = bytes(16)


@dataclass
class _Chain:
    """A session's chunks at the tier. `waiting`: identities of the granules behind the last chunk;
    `kept`: bytes of granules that are not written yet, by layer and ordinal of the granule;
    `drop` is told of a block of one layer that is, of `count` granules."""

    keys: NDArray[np.uint64]
    waiting: list[bytes] = field(default_factory=list)
    kept: dict[tuple[int, int], NDArray[np.uint8]] = field(default_factory=dict)

    def drop(self, layer: int, block: int, count: int) -> None:
        for ordinal in range(block * count, (block + 1) * count):
            self.kept.pop((layer, ordinal), None)


class GranularSessions:
    """The calls of `Sessions`, in granules: `granules` of each block of the tier under `tier`."""

    def __init__(self, tier: Sessions, granules: int, layer_count: int) -> None:
        self._tier, self.granules, self._layers = tier, granules, layer_count
        self.chains: dict[int, _Chain] = {}
        self.hints = tier.hints

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; counts in granules, of which a block that is touched counts whole."""
        handle = self._tier.session_open(
            select_blocks=-(-select_blocks // self.granules),
            sink_blocks=-(-sink_blocks // self.granules),
            window_blocks=-(-window_blocks // self.granules),
            step_ns=step_ns,
        )
        self.hints = self._tier.hints
        self.chains[handle] = _Chain(np.empty((self._layers, 0, 2), np.uint64))
        return handle

    def append(self, session: int, contents: list[bytes]) -> protocol.Appended:
        """Append granules. Each has the name of its chunk, which is known when that is full."""
        chain, count = self.chains[session], self.granules
        before = len(chain.waiting)
        chain.waiting += contents
        full = len(chain.waiting) // count * count
        named = [_joined(chain.waiting[first : first + count]) for first in range(0, full, count)]
        keys: list[bytes] = []
        stored: list[int] = []
        if named:
            reply = self._tier.append(session, named)
            keys, stored = list(reply.keys), list(reply.stored_layers)
            for block, layers in enumerate(stored, chain.keys.shape[1]):
                for layer in range(self._layers if layers == self._layers else 0):
                    chain.drop(layer, block, count)  # a session before this one wrote it
            chain.keys = np.concatenate([chain.keys, block_keys(keys, self._layers)], axis=1)
        left = len(chain.waiting) - full
        del chain.waiting[:full]
        each_key = [key for key in keys for _ in range(count)] + [NO_KEY] * left
        each_stored = [layers for layers in stored for _ in range(count)] + [0] * left
        return protocol.Appended(
            keys=each_key[before:], store_keys=[], stored_layers=each_stored[before:]
        )

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks."""
        self._tier.set_generating(session, generating)

    def session_close(self, session: int, *, archive: bool = True) -> None:
        """Close a session; what was not written of its last chunk goes."""
        del self.chains[session]
        self._tier.session_close(session, archive=archive)


def _joined(identities: Sequence[bytes]) -> bytes:
    """The identity of a chunk, of those of its granules in order."""
    return hashlib.blake2b(b"".join(identities), digest_size=16).digest()


@dataclass
class _Written:
    """A put in granules: of each the place of its block in `blocks`, -1: it is kept for now.
    `blocks`: those that are written, of one layer of the chain."""

    number: NDArray[np.intp]
    chain: _Chain
    layer: int
    blocks: list[int]


@dataclass
class _Asked:
    """A fetch in granules. `places`: where those that the tier brings stand in the call, in the
    order of its blocks' granules; `block_of`: which demand each belongs to."""

    rcs: NDArray[np.int32]
    sums: NDArray[np.uint64]
    lengths: NDArray[np.uint32]
    places: NDArray[np.intp]
    block_of: NDArray[np.intp]


class GranularFabric(Fabric):
    """In granules, over a driver whose daemon has as many of each block."""

    def __init__(self, driver: Driver, sessions: GranularSessions, granule_bytes: int) -> None:
        """`granule_bytes`: of one granule of a layer; all layers alike."""
        super().__init__()
        self.granules = sessions.granules
        if driver.granule_count != self.granules:
            raise BadInput(
                f"blocks in {self.granules} granules, and the daemon cuts them into "
                f"{max(driver.granule_count, 1)}",
                "granule_tokens",
                "give the host the daemon's arena.granule_tokens",
            )
        self._driver, self._sessions, self._granule_bytes = driver, sessions, granule_bytes
        self.payload_size_bytes = granule_bytes
        self.demand_max, self.calls_max = driver.demand_max, driver.calls_max
        self.dilation = driver.dilation
        self._asked: dict[Fetch, _Asked] = {}
        self._put: dict[Put, _Written] = {}

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Ordinals, scores and `selected_count` are of granules. A block's score is the best of its
        granules'. `keys` are not used: the chain knows its chunks' names."""
        chain, count, layer = self._sessions.chains[request.session], self.granules, request.layer
        ordinals, rows, scores = request.ordinals, request.rows, request.scores
        asked = _Asked(
            np.zeros(len(ordinals), np.int32),
            np.zeros(len(ordinals), np.uint64),
            np.full(len(ordinals), self._granule_bytes, np.uint32),
            np.empty(0, np.intp),
            np.empty(0, np.intp),
        )
        away = self._serve_kept(chain, request, rows, asked)
        places = away[np.argsort(ordinals[away], kind="stable")]
        blocks, block_of = np.unique(ordinals[places] // count, return_inverse=True)
        masks = np.zeros(blocks.size, np.uint32)
        np.bitwise_or.at(masks, block_of, np.uint32(1) << (ordinals[places] % count))
        hint = None
        if scores is not None:
            known = chain.keys.shape[1]
            hint = np.ascontiguousarray(scores[: known * count].reshape(known, count).max(axis=1))
        fetch = self._driver.fetch_begin(
            replace(
                request,
                ordinals=blocks.astype(np.uint32),
                keys=np.ascontiguousarray(chain.keys[layer, blocks]),
                target_index=np.ascontiguousarray(rows[places]),
                selected_count=blocks.size + -(-request.resident // count),
                scores=hint,
                granules=masks,
            )
        )
        asked.places, asked.block_of = places, block_of
        self._asked[fetch] = asked
        return fetch

    def _serve_kept(
        self, chain: _Chain, request: FetchRequest, rows: NDArray[np.uint32], asked: _Asked
    ) -> NDArray[np.intp]:
        """Copy what is kept here; the places of the rest, which the tier has to bring."""
        away = []
        for place, ordinal in enumerate(request.ordinals.tolist()):
            granule = chain.kept.get((request.layer, ordinal))
            if granule is not None:
                request.target[rows[place], : granule.size] = granule
                asked.sums[place] = checksums(granule[None])[0]
            elif ordinal // self.granules < chain.keys.shape[1]:
                away.append(place)
            else:
                asked.rcs[place] = -errno.ENOENT
        return np.array(away, np.intp)

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """`rcs`, `checksums` and `lengths` are of granules, `ends` of the blocks that
        were demanded: those the tier's ledger counts."""
        asked = self._asked.pop(fetch)
        result = self._driver.fetch_end(fetch)
        asked.rcs[asked.places] = result.rcs[asked.block_of]
        asked.sums[asked.places] = result.checksums
        return FetchResult(
            result.ends,
            asked.rcs,
            asked.lengths,
            asked.sums,
            result.hit_count,
            result.failed_count,
            result.retry_count,
            result.torn_count,
            result.stall_ns,
            result.copy_ns,
        )

    def put_begin(self, request: PutRequest) -> Put:
        """Keep granules of one layer, and begin to write the blocks that are full now."""
        assert request.session is not None
        chain, count, layer = self._sessions.chains[request.session], self.granules, request.layer
        ordinals, source = request.ordinals, request.source
        for row, ordinal in enumerate(ordinals.tolist()):
            chain.kept[layer, ordinal] = np.array(source[row, : self._granule_bytes])
        touched = sorted({ordinal // count for ordinal in ordinals.tolist()})
        full = [
            block
            for block in touched
            if block < chain.keys.shape[1]
            and all((layer, block * count + i) in chain.kept for i in range(count))
        ]
        put = Put(replace(request, ordinals=ordinals[:0]))
        if full:
            blocks = np.stack(
                [
                    np.concatenate([chain.kept[layer, block * count + i] for i in range(count)])
                    for block in full
                ]
            )
            ordinals_of = np.array(full, np.uint32)
            put = self._driver.put_begin(
                replace(request, ordinals=ordinals_of, source=blocks, length_bytes=None)
            )
        number_of = {block: number for number, block in enumerate(full)}
        number = [number_of.get(one // count, -1) for one in ordinals.tolist()]
        self._put[put] = _Written(np.array(number, np.intp), chain, layer, full)
        return put

    def put_end(self, put: Put) -> NDArray[np.int32]:
        """Wait for this put: [n] 0 or -errno; 0 for a granule that is kept for now."""
        written = self._put.pop(put)
        number = written.number
        rcs = np.zeros(number.size, np.int32)
        if written.blocks:
            ended = self._driver.put_end(put)
            rcs[number >= 0] = ended[number[number >= 0]]
        for block in written.blocks:
            written.chain.drop(written.layer, block, self.granules)
        return rcs

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """A put that only keeps has ended from its beginning on."""
        return self._driver.poll(timeout_ns)

    def register(self, array: NDArray[Any]) -> None:
        """As the driver."""
        self._driver.register(array)

    def unregister(self, array: NDArray[Any]) -> None:
        """As the driver."""
        self._driver.unregister(array)

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Guesses name granules; the tier is told of the blocks, which it brings whole."""
        named = guesses.copy()
        named["ordinal"] //= self.granules
        return self._driver.hint(session, named)

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """As the driver."""
        self._driver.limit_scores(scores_max, every_steps, score_bits)

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._driver.release(session)

    def stats(self) -> dict[str, int]:
        """As the driver."""
        return self._driver.stats()

    def stages(self) -> dict[str, dict[str, Any]]:
        """As the driver."""
        return self._driver.stages()

    def close(self) -> None:
        """As the driver."""
        self._driver.close()
