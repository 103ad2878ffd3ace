"""The HBM pool (G1): a fixed number of blocks of equal size, and the table of their contents.

Owns the blocks, one array `[pool_blocks, block_bytes]` of the library and on the device that its
`Arrays` names, and one block table per (session, layer) from ordinal (index of the block in the
session) to pool index. The tables and all bookkeeping are numpy on the CPU. Belongs to one thread.

A fetch reads into host memory, rows of `memory.landing`, and then commits the rows to their blocks.
If the host can address the blocks, both are the same memory and a commit does nothing.

A resident block is *pinned* while it is in its layer's selection of the current step (`hold`) or
in its lasting set, sinks and window (`pin`). All others are evicted in the order in which they were
last pinned. A block's recency is thus set when its last pin ends, so the eviction queue is
append-only, a batch costs a few numpy calls, and a block costs O(1) amortised.

With `layer_blocks` each (session, layer) has a quota, as in the laboratory: beyond it the layer's
coldest blocks are evicted first, and only pinned blocks may exceed it. With 0 only the lasting set
stays from one step to the next.

Can fail: `PoolFull`, before anything changed, when the pinned blocks leave too little room.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, RunFailed
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.model.entries import packed, vectors_of
from offstage.host.model.geometry import KvGeometry

__all__ = ["HbmPool", "PoolFull", "SessionId"]

SessionId = int | str
Indices = npt.NDArray[np.int32]

_NOBODY = -1
# Capacity of the queue in pools. It is compacted when full and has at most one pool of valid
# entries, so a compaction comes after at least (this - 1) pools of appends.
_QUEUE_POOLS = 4


class PoolFull(RunFailed):
    """The blocks of one step do not fit next to the pinned ones."""


@dataclass
class _Table:
    """One (session, layer): pool index by ordinal, -1 where absent, and its pinned blocks."""

    blocks: Indices
    held: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    lasting: Indices = field(default_factory=lambda: np.empty(0, np.int32))


class HbmPool:
    """`pool_blocks` blocks of `geometry`; where layers differ in size, each has the largest.

    `layer_blocks`: quota of one layer of a session; None: no quota. `arrays`: array library and
    device (numpy by default); `landing_rows`: how many blocks can be in flight if the blocks are
    not in host memory. Attributes: `memory`, the blocks and landing rows; `evictions`, blocks
    evicted so far. Raises `BadInput` when `pool_blocks` is below 1.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        pool_blocks: int,
        arrays: Arrays | None = None,
        landing_rows: int | None = None,
        layer_blocks: int | None = None,
    ) -> None:
        if pool_blocks < 1:
            raise BadInput(f"an HBM pool of {pool_blocks} blocks", "hbm pool", "use at least 1")
        self.geometry = geometry
        self.pool_blocks = pool_blocks
        self.layer_blocks = pool_blocks if layer_blocks is None else layer_blocks
        self.block_bytes = max(map(geometry.block_bytes, range(geometry.layer_count)))
        self.arrays = arrays or open_arrays()
        rows = pool_blocks if landing_rows is None else min(landing_rows, pool_blocks)
        self.memory = self.arrays.memory(pool_blocks, self.block_bytes, rows)
        self.evictions = 0
        self._tables: dict[tuple[SessionId, int], _Table] = {}
        self._owner = np.full(pool_blocks, None, dtype=object)
        self._ordinal = np.full(pool_blocks, _NOBODY, np.int32)
        self._held = np.zeros(pool_blocks, np.bool_)
        self._lasting = np.zeros(pool_blocks, np.bool_)
        # Lowest index on top, so that a young pool fills from the front.
        self._free = np.arange(pool_blocks - 1, -1, -1, dtype=np.int32)
        self._free_count = pool_blocks
        # A block is evictable exactly while its stamp is that of one entry of the queue.
        self._stamp = np.zeros(pool_blocks, np.int64)
        self._queue = np.empty(_QUEUE_POOLS * pool_blocks, np.int32)
        self._queue_stamp = np.empty(_QUEUE_POOLS * pool_blocks, np.int64)
        self._head = 0
        self._tail = 0
        self._clock = 0
        self._evictable_count = 0

    @property
    def free_count(self) -> int:
        """Free blocks."""
        return self._free_count

    @property
    def pinned_count(self) -> int:
        """Resident blocks that cannot be evicted now."""
        return self.pool_blocks - self._free_count - self._evictable_count

    def blocks(self, layer: int = 0) -> Any:
        """The storage as `[pool_blocks, planes, kv_heads, block_tokens, head_dim]`, in place.

        Raises `BadInput` for a layer whose entries are of several tokens."""
        shape = self.geometry.block_shape(layer)
        return self.arrays.paged(self.memory.storage, shape, self.geometry.value_type)

    def write_tokens(
        self, layer: int, indices: Indices, slots: Indices, values: npt.NDArray[Any]
    ) -> None:
        """Put one token's K and V into slot `slots[i]` of block `indices[i]`, for all i: floats
        `[n, planes, kv_heads, head_dim]`, rounded to the pool's type, or numbers of that type."""
        give = self.arrays.from_host
        where = give(indices.astype(np.int64)), give(slots.astype(np.int64))
        vectors = vectors_of(self.memory.storage, self.geometry, layer)
        vectors[where[0], :, :, where[1]] = give(packed(values, self.geometry, layer))

    def lookup(self, session: SessionId, layer: int, ordinals: npt.ArrayLike) -> Indices:
        """Pool index of each ordinal, -1 where it is not resident. Changes nothing.

        Here and below the ordinals of one call are all different."""
        wanted = np.asarray(ordinals, np.int64)
        assert wanted.size == np.unique(wanted).size, "ordinals must differ"
        found = np.full(wanted.shape, _NOBODY, np.int32)
        table = self._tables.get((session, layer))
        if table is not None:
            known = (wanted >= 0) & (wanted < table.blocks.size)
            found[known] = table.blocks[wanted[known]]
        return found

    def hold(self, session: SessionId, layer: int, ordinals: npt.ArrayLike) -> Indices:
        """Make `ordinals` the layer's selection of this step, in place of the last one.

        Pins the resident ones. Returns the pool index of each, -1 for those that must get a block
        with `allocate` and be fetched."""
        table = self._table(session, layer)
        if self.layer_blocks == 0:
            self._free_blocks(table.held[~self._lasting[table.held]])
            table.held = table.held[self._lasting[table.held]]
        found = self.lookup(session, layer, ordinals)
        resident = found[found >= 0]
        before, table.held = table.held, resident
        self._held[before] = False
        self._held[resident] = True
        self._claim(resident)
        self._rest(before)
        self._trim(table)
        return found

    def allocate(self, session: SessionId, layer: int, ordinals: npt.ArrayLike) -> Indices:
        """Add `ordinals` to the layer's selection and give each a block.

        Returns their pool indices. Resident ordinals keep their blocks; a new block has its former
        bytes until the caller writes it. Raises `PoolFull`, with nothing changed, when there are
        too few free and evictable blocks."""
        wanted = np.asarray(ordinals, np.int64)
        found = self.lookup(session, layer, wanted)
        missing = np.flatnonzero(found < 0)
        new_ordinals = wanted[missing]
        assert new_ordinals.size == 0 or new_ordinals.min() >= 0, "an ordinal is negative"
        resident = found[found >= 0]
        idle_count = int(np.count_nonzero(~(self._held[resident] | self._lasting[resident])))
        if missing.size > self._free_count + self._evictable_count - idle_count:
            raise PoolFull(
                f"{missing.size} more blocks do not fit: {self.pinned_count + idle_count} of "
                f"{self.pool_blocks} are pinned",
                f"hbm pool, session {session!r}, layer {layer}",
                "enlarge the pool, or lower k, the window or the number of sessions",
            )
        table = self._table(session, layer)
        added = resident[~self._held[resident]]
        self._held[added] = True
        self._claim(added)
        self._trim(table, missing.size)
        taken = self._take(missing.size)
        found[missing] = taken
        if missing.size:
            self._grow(table, int(new_ordinals.max()) + 1)
            table.blocks[new_ordinals] = taken
            self._ordinal[taken] = new_ordinals
            self._owner[taken] = table
            self._held[taken] = True
        table.held = np.concatenate([table.held, added, taken])
        return found

    def release(self, session: SessionId, layer: int) -> None:
        """End the layer's step: its selection stays resident, and may now be evicted."""
        self.hold(session, layer, np.empty(0, np.int32))

    def pin(self, session: SessionId, layer: int, ordinals: npt.ArrayLike) -> Indices:
        """Make `ordinals`, sinks and window, the layer's lasting set, in place of the last one.

        Pins the resident ones. Returns the pool index of each, -1 if it is not resident."""
        found = self.lookup(session, layer, ordinals)
        resident = found[found >= 0]
        table = self._table(session, layer)
        before, table.lasting = table.lasting, resident
        self._lasting[before] = False
        self._lasting[resident] = True
        self._claim(resident)
        self._rest(before)
        return found

    def drop(self, session: SessionId, layer: int, ordinals: npt.ArrayLike) -> None:
        """Free the resident ones among `ordinals`, pinned or not."""
        found = self.lookup(session, layer, ordinals)
        resident = np.unique(found[found >= 0])
        if resident.size == 0:
            return
        table = self._tables[session, layer]
        self._held[resident] = False
        self._lasting[resident] = False
        table.held = table.held[self._held[table.held]]
        table.lasting = table.lasting[self._lasting[table.lasting]]
        self._free_blocks(resident)

    def close(self, session: SessionId) -> None:
        """Free every block of `session` and forget its tables."""
        for key in [key for key in self._tables if key[0] == session]:
            self.drop(*key, np.arange(self._tables[key].blocks.size))
            del self._tables[key]

    def resident(self, session: SessionId, layer: int) -> Indices:
        """Ordinals of the layer that are resident, ascending."""
        table = self._tables.get((session, layer))
        if table is None:
            return np.empty(0, np.int32)
        return np.flatnonzero(table.blocks >= 0).astype(np.int32)

    def _table(self, session: SessionId, layer: int) -> _Table:
        key = session, layer
        if key not in self._tables:
            self._tables[key] = _Table(np.full(64, _NOBODY, np.int32))
        return self._tables[key]

    @staticmethod
    def _grow(table: _Table, size: int) -> None:
        """Room for `size` ordinals, doubling, so that growth is O(1) amortised."""
        if size > table.blocks.size:
            wider = np.full(max(size, 2 * table.blocks.size), _NOBODY, np.int32)
            wider[: table.blocks.size] = table.blocks
            table.blocks = wider

    def _trim(self, table: _Table, coming: int = 0) -> None:
        """Evict the table's coldest blocks until it has room for `coming` more."""
        if self.layer_blocks in (0, self.pool_blocks):
            return
        resident = table.blocks[table.blocks >= 0]
        over = resident.size + coming - self.layer_blocks
        if over > 0:
            idle = resident[self._stamp[resident] > 0]
            victims = idle[np.argsort(self._stamp[idle])][:over]
            self._free_blocks(victims)
            self.evictions += victims.size

    def _free_blocks(self, blocks: Indices) -> None:
        """Free `blocks`, pinned or not."""
        self._held[blocks] = False
        self._lasting[blocks] = False
        self._claim(blocks)
        self._vacate(blocks)
        self._free[self._free_count : self._free_count + blocks.size] = blocks[::-1]
        self._free_count += blocks.size

    def _claim(self, blocks: Indices) -> None:
        """Take `blocks` out of the queue: the entries stay and no longer match their stamps."""
        self._evictable_count -= int(np.count_nonzero(self._stamp[blocks]))
        self._stamp[blocks] = 0

    def _rest(self, blocks: Indices) -> None:
        """Append those of `blocks` that are no longer pinned to the queue, in the given order."""
        idle = blocks[~(self._held[blocks] | self._lasting[blocks])]
        if self._tail + idle.size > self._queue.size:
            self._compact()
        stamps = np.arange(self._clock + 1, self._clock + 1 + idle.size)
        self._stamp[idle] = stamps
        self._queue[self._tail : self._tail + idle.size] = idle
        self._queue_stamp[self._tail : self._tail + idle.size] = stamps
        self._clock += idle.size
        self._tail += idle.size
        self._evictable_count += idle.size

    def _compact(self) -> None:
        """Move the valid entries of the queue to its front."""
        queue = self._queue[self._head : self._tail]
        stamps = self._queue_stamp[self._head : self._tail]
        valid = self._stamp[queue] == stamps
        queue, stamps = queue[valid], stamps[valid]
        self._queue[: queue.size] = queue
        self._queue_stamp[: queue.size] = stamps
        self._head, self._tail = 0, queue.size

    def _take(self, count: int) -> Indices:
        """`count` blocks: free ones first, then the ones unpinned longest. The caller has checked
        that there are enough."""
        from_free = min(count, self._free_count)
        taken = self._free[self._free_count - from_free : self._free_count][::-1].copy()
        self._free_count -= from_free
        runs = [taken]
        missing = count - from_free
        while missing:
            end = min(self._head + missing, self._tail)
            assert end > self._head, "the queue holds fewer blocks than it counted"
            queue = self._queue[self._head : end]
            victims = queue[self._stamp[queue] == self._queue_stamp[self._head : end]]
            self._head = end
            self._claim(victims)
            self._vacate(victims)
            self.evictions += victims.size
            missing -= victims.size
            runs.append(victims)
        return np.concatenate(runs)

    def _vacate(self, blocks: Indices) -> None:
        """Remove `blocks` from their tables."""
        owners: npt.NDArray[Any] = self._owner[blocks]
        for block, owner in zip(blocks, owners, strict=True):
            owner.blocks[self._ordinal[block]] = _NOBODY
        self._owner[blocks] = None
        self._ordinal[blocks] = _NOBODY
