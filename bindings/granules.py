"""Blocks that are read in part: a host that works in granules of the tier's blocks.

A driver that was `cut` takes requests in granules: each is a small block of the same layout, and
the granules that a host lacks of one block are one demand that names them. At the tier, the
granules of a block lie one after another, so each is contiguous. A block is written when its last
granule has arrived; until that write completes, its granules are kept here and served from here. A
failed write is reported to the caller that completed the block, and its granules are dropped.

One thread owns it, that of its driver. `host.link.granular` names the sessions' chunks.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as replaced

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.fabric import Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import checksums

__all__ = ["Chain", "Granules"]


@dataclass
class Chain:
    """A session's blocks at the tier: `keys` `[layers, blocks, 2]`. `kept`: bytes of granules that
    are not written yet, by layer and ordinal of the granule."""

    keys: NDArray[np.uint64]
    kept: dict[tuple[int, int], NDArray[np.uint8]] = field(default_factory=dict)

    def drop(self, layer: int, block: int, count: int) -> None:
        """Drop a block of one layer, of `count` granules."""
        for ordinal in range(block * count, (block + 1) * count):
            self.kept.pop((layer, ordinal), None)


@dataclass
class _Asked:
    """A fetch in granules. `places`: where those that the tier brings stand in the call, in the
    order of its blocks' granules; `block_of`: which demand each belongs to."""

    rcs: NDArray[np.int32]
    sums: NDArray[np.uint64]
    lengths: NDArray[np.uint32]
    places: NDArray[np.intp]
    block_of: NDArray[np.intp]


@dataclass
class _Written:
    """A put in granules: of each the place of its block in `blocks`, -1: it is kept for now.
    `blocks`: those that are written, of one layer of the chain."""

    number: NDArray[np.intp]
    chain: Chain
    layer: int
    blocks: list[int]


class Granules:
    """`count` granules of `size_bytes` in each block of a layer; all layers alike."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self.count, self.size_bytes = count, size_bytes
        self.chains: dict[int, Chain] = {}
        """The chain of each session."""

    def fetch_begin(self, request: FetchRequest, begin: Callable[[FetchRequest], Fetch]) -> Fetch:
        """Serve what is kept, and begin a fetch of the rest. Ordinals, scores and `selected_count`
        are of granules. A block's score is the best of its granules'. `keys` are not used: the
        chain knows its blocks' names."""
        chain, count, layer = self.chains[request.session], self.count, request.layer
        ordinals, rows, scores = request.ordinals, request.rows, request.scores
        asked = _Asked(
            np.zeros(len(ordinals), np.int32),
            np.zeros(len(ordinals), np.uint64),
            np.full(len(ordinals), self.size_bytes, np.uint32),
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
        fetch = begin(
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
        fetch.cut = asked
        return fetch

    def _serve_kept(
        self, chain: Chain, request: FetchRequest, rows: NDArray[np.uint32], asked: _Asked
    ) -> NDArray[np.intp]:
        """Copy what is kept here; the places of the rest, which the tier has to bring."""
        away = []
        for place, ordinal in enumerate(request.ordinals.tolist()):
            granule = chain.kept.get((request.layer, ordinal))
            if granule is not None:
                request.target[rows[place], : granule.size] = granule
                asked.sums[place] = checksums(granule[None])[0]
            elif ordinal // self.count < chain.keys.shape[1]:
                away.append(place)
            else:
                asked.rcs[place] = -errno.ENOENT
        return np.array(away, np.intp)

    def fetched(self, asked: _Asked, result: FetchResult) -> FetchResult:
        """`rcs`, `checksums` and `lengths` of granules; `ends` of the blocks that were demanded:
        those the tier's ledger counts."""
        asked.rcs[asked.places] = result.rcs[asked.block_of]
        asked.sums[asked.places] = result.checksums
        return replaced(result, rcs=asked.rcs, lengths=asked.lengths, checksums=asked.sums)

    def put_begin(self, request: PutRequest, begin: Callable[[PutRequest], Put]) -> Put:
        """Keep granules of one layer, and begin to write the blocks that are full now."""
        assert request.session is not None
        chain, count, layer = self.chains[request.session], self.count, request.layer
        ordinals = request.ordinals.tolist()
        for row, ordinal in enumerate(ordinals):
            chain.kept[layer, ordinal] = np.array(request.source[row, : self.size_bytes])
        full = [
            block
            for block in sorted({ordinal // count for ordinal in ordinals})
            if block < chain.keys.shape[1]
            and all((layer, block * count + i) in chain.kept for i in range(count))
        ]
        put = Put(replace(request, ordinals=request.ordinals[:0]))
        if full:
            blocks = np.stack(
                [
                    np.concatenate([chain.kept[layer, block * count + i] for i in range(count)])
                    for block in full
                ]
            )
            numbers = np.array(full, np.uint32)
            put = begin(replace(request, ordinals=numbers, source=blocks, length_bytes=None))
        number_of = {block: number for number, block in enumerate(full)}
        number = [number_of.get(one // count, -1) for one in ordinals]
        put.cut = _Written(np.array(number, np.intp), chain, layer, full)
        return put

    def put_end(self, put: Put, end: Callable[[Put], NDArray[np.int32]]) -> NDArray[np.int32]:
        """[n] 0 or -errno; 0 for a granule that is kept for now."""
        written: _Written = put.cut
        number = written.number
        rcs = np.zeros(number.size, np.int32)
        if written.blocks:
            rcs[number >= 0] = end(put)[number[number >= 0]]
        for block in written.blocks:
            written.chain.drop(written.layer, block, self.count)
        return rcs
