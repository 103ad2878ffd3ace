"""One pass over a workload for several engines: each slab is made once and dropped after all reads.

Model: engines run one after another, each until it requests a slab that does not exist yet; when
all of them wait, the requested slabs are made. Sessions of one engine drift apart by a few steps at
most, so only a few slabs of each session exist at a time. A slab includes the hits of the GPU's HBM
pool, which depend on the selections alone; readers may have pools of several sizes.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.sim import HbmPool
from offstage.testbeds.workloads.selections.coarse import coarsen
from offstage.testbeds.workloads.selections.slab import Slab, Workload

__all__ = ["SLAB_STEPS_MAX", "Feed", "Kind", "Served", "grain_of", "over_k"]


class Kind(NamedTuple):
    """The kind of a reader's slabs. grain: separately staged units of a block, 1 or the spec's
    granules. pool_over_k: the HBM pool in multiples of k; 0: none."""

    grain: int
    pool_over_k: float


@dataclass(frozen=True)
class Served:
    """A slab, and its blocks in the HBM pool; None without a pool.

    served: bool `[steps, layers, width]`, the selected blocks in the pool. held: uint32
    `[steps + 1, layers, pool]`, the pool's ordinals before each step and after the last, padded
    with `ABSENT`.
    """

    slab: Slab
    served: npt.NDArray[np.bool_] | None
    held: npt.NDArray[np.uint32] | None
    last: bool

    @property
    def widest(self) -> int:
        """Most blocks that one layer of one step demands."""
        demanded = self.slab.selected != ABSENT
        if self.served is not None:
            demanded &= ~self.served
        return int(demanded.sum(axis=2).max(initial=0))


@dataclass
class _Source:
    """The remaining slabs of one session, and the pools of its layers by kind."""

    slabs: Iterator[Slab]
    ahead: Slab | None
    pools: dict[Kind, HbmPool | None]
    made: int = 0


SLAB_STEPS_MAX = 16
SLAB_BYTES_MAX = 32 << 20


def _steps_that_fit(workload: Workload) -> int:
    """Steps per slab: at most `SLAB_BYTES_MAX` of scores, but at least one step."""
    units = max(one.blocks + one.steps // workload.block_tokens for one in workload.sessions)
    step_bytes = 2 * workload.layer_count * units
    return max(1, min(SLAB_STEPS_MAX, SLAB_BYTES_MAX // step_bytes))


class Feed:
    """Slabs by (session, number), for each reader in its kind."""

    def __init__(
        self,
        workload: Workload,
        granules: int,
        readers: Mapping[Hashable, Kind],
        slab_steps: int = 0,
    ) -> None:
        """`granules`: units per block; the workload counts units."""
        self._workload = workload
        self._granules = granules
        self._kind_of = dict(readers)
        self._kinds = sorted(set(readers.values()))
        self._readers = set(readers)
        self._slab_steps = slab_steps or _steps_that_fit(workload)
        self._sources: dict[int, _Source] = {}
        self._held: dict[tuple[int, int], dict[Kind, Served | BadInput]] = {}
        self._unread: dict[tuple[int, int], set[Hashable]] = {}
        self._wanted: dict[tuple[int, int], None] = {}

    def get(
        self, reader: Hashable, session: int, number: int, *, wanted: bool = True
    ) -> Served | None:
        """The slab; a reader gets each slab once. None: it does not exist yet; it is requested if
        `wanted`, else only when another reader requests it. BadInput if the HBM pool cannot hold a
        selection."""
        key = session, number
        if key not in self._held:
            if wanted:
                self._wanted[key] = None
            return None
        found = self._held[key][self._kind_of[reader]]
        self._unread[key].discard(reader)
        if not self._unread[key]:
            del self._held[key], self._unread[key]
        if isinstance(found, BadInput):
            raise found
        return found

    def leave(self, reader: Hashable) -> None:
        """Remove the reader: it reads no further slabs."""
        self._readers.discard(reader)
        for key in list(self._unread):
            self._unread[key].discard(reader)
            if not self._unread[key]:
                del self._held[key], self._unread[key]

    def make(self) -> int:
        """Make the requested slabs; returns the number of steps made, over all sessions."""
        steps = 0
        for session, number in self._wanted:
            source = self._source(session)
            assert number == source.made, "slabs of a session are requested in order"
            slab = source.ahead
            assert slab is not None, "no slab is requested after the last"
            source.ahead = next(source.slabs, None)
            source.made += 1
            coarse = {
                grain: grain_of(slab, self._granules // grain)
                for grain in {kind.grain for kind in self._kinds}
            }
            self._held[session, number] = {
                kind: self._served(source, kind, coarse[kind.grain]) for kind in self._kinds
            }
            self._unread[session, number] = set(self._readers)
            steps += len(slab.selected)
        self._wanted.clear()
        return steps

    def _source(self, session: int) -> _Source:
        if session not in self._sources:
            slabs = self._workload.slabs(session, self._slab_steps)
            pools = {kind: self._pool(session, kind) for kind in self._kinds}
            self._sources[session] = _Source(slabs, next(slabs, None), pools)
        return self._sources[session]

    def _pool(self, session: int, kind: Kind) -> HbmPool | None:
        if not kind.pool_over_k:
            return None
        info = self._workload.sessions[session]
        blocks = info.blocks + info.steps // self._workload.block_tokens + 1
        factor = self._granules // kind.grain
        size = round(kind.pool_over_k * self._workload.select_blocks / factor)
        return HbmPool(self._workload.layer_count, -(-blocks // factor), size)

    def _served(self, source: _Source, kind: Kind, slab: Slab) -> Served | BadInput:
        pool, width = source.pools[kind], slab.selected.shape[2]
        last = source.ahead is None
        if pool is None:
            return Served(slab, None, None, last)
        if width > pool.pool_blocks:
            fix = over_k(width, pool.pool_blocks, kind.pool_over_k)
            return BadInput(
                f"a selection of {width} blocks does not fit a pool of {pool.pool_blocks}",
                "[tier] hbm_pool_over_k",
                fix,
            )
        served, held = [], [pool.held()]
        for step in slab.selected:
            served.append(pool.served(step[None])[0])
            held.append(pool.held())
        return Served(slab, np.stack(served), np.stack(held), last)


def over_k(width: int, blocks: int, multiple: float) -> str:
    """The fix: the least whole multiple of k for `width` blocks, if `multiple` is `blocks`."""
    return f"give {-(-width * multiple // blocks):g} or more"


def grain_of(slab: Slab, factor: int) -> Slab:
    """The slab in units that are `factor` times larger."""
    return slab if factor == 1 else coarsen(slab, factor)
