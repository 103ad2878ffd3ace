"""One pass over a workload for several engines: each slab is made once and dropped when all had it.

Model: engines run one after another, each until it asks for a slab that does not exist yet; when
all of them wait, what they wait for is made. Sessions of one engine drift apart by a few steps at
most, so a few slabs of each session exist at once. Making a slab includes what the HBM pool of the
GPU serves, which depends on the selections alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.bindings.sim import HbmPool
from offstage.testbeds.lab.coarse import coarsen
from offstage.testbeds.lab.slab import Slab, Workload

__all__ = ["Feed", "Served", "grain_of"]


@dataclass(frozen=True)
class Served:
    """A slab, and which of its selected blocks the HBM pool has: bool `[steps, layers, width]`,
    None without a pool."""

    slab: Slab
    served: npt.NDArray[np.bool_] | None
    last: bool


@dataclass
class _Source:
    """One session's slabs to come, and the pools of its layers by grain."""

    slabs: Iterator[Slab]
    ahead: Slab | None
    pools: dict[int, HbmPool | None]
    made: int = 0


SLAB_STEPS_MAX = 16
SLAB_BYTES_MAX = 32 << 20


def _steps_that_fit(workload: Workload) -> int:
    """Steps of a slab, so that the scores of one session's stay small at any length."""
    units = max(one.blocks + one.steps // workload.block_tokens for one in workload.sessions)
    step_bytes = 2 * workload.layer_count * units
    return max(1, min(SLAB_STEPS_MAX, SLAB_BYTES_MAX // step_bytes))


class Feed:
    """Slabs by (session, number) and grain, the staged units of one block: 1 or `granules`."""

    def __init__(
        self, workload: Workload, pool_over_k: float, granules: int, readers: Sequence[int],
        slab_steps: int = 0,
    ) -> None:  # fmt: skip
        self._workload = workload
        self._granules = granules
        self._pool_over_k = pool_over_k
        self._readers = set(readers)
        self._slab_steps = slab_steps or _steps_that_fit(workload)
        self._sources: dict[int, _Source] = {}
        self._held: dict[tuple[int, int], dict[int, Served]] = {}
        self._unread: dict[tuple[int, int], set[int]] = {}
        self._wanted: dict[tuple[int, int], None] = {}

    def get(self, reader: int, session: int, number: int, grain: int) -> Served | None:
        """The slab, which the reader does not ask for again; None: it has to wait."""
        key = session, number
        if key not in self._held:
            self._wanted[key] = None
            return None
        found = self._held[key][grain]
        self._unread[key].discard(reader)
        if not self._unread[key]:
            del self._held[key], self._unread[key]
        return found

    def leave(self, reader: int) -> None:
        """The reader will ask for nothing more."""
        self._readers.discard(reader)
        for key in list(self._unread):
            self._unread[key].discard(reader)
            if not self._unread[key]:
                del self._held[key], self._unread[key]

    def make(self) -> int:
        """Make what was asked for; gives the number of steps made, of all sessions."""
        steps = 0
        for session, number in self._wanted:
            source = self._source(session)
            assert number == source.made, "slabs of a session are asked for in order"
            slab = source.ahead
            assert slab is not None, "no slab is asked for behind the last"
            source.ahead = next(source.slabs, None)
            source.made += 1
            self._held[session, number] = {
                grain: self._served(source, grain, slab) for grain in {1, self._granules}
            }
            self._unread[session, number] = set(self._readers)
            steps += len(slab.selected)
        self._wanted.clear()
        return steps

    def _source(self, session: int) -> _Source:
        if session not in self._sources:
            slabs = self._workload.slabs(session, self._slab_steps)
            pools = {grain: self._pool(session, grain) for grain in {1, self._granules}}
            self._sources[session] = _Source(slabs, next(slabs, None), pools)
        return self._sources[session]

    def _pool(self, session: int, grain: int) -> HbmPool | None:
        if not self._pool_over_k:
            return None
        info = self._workload.sessions[session]
        blocks = info.blocks + info.steps // self._workload.block_tokens + 1
        factor = self._granules // grain
        size = round(self._pool_over_k * self._workload.select_blocks / factor)
        return HbmPool(self._workload.layer_count, -(-blocks // factor), size)

    def _served(self, source: _Source, grain: int, slab: Slab) -> Served:
        slab = grain_of(slab, self._granules // grain)
        pool = source.pools[grain]
        served = None if pool is None else pool.served(slab.selected)
        return Served(slab, served, source.ahead is None)


def grain_of(slab: Slab, factor: int) -> Slab:
    """The slab in units of `factor` of its own."""
    return slab if factor == 1 else coarsen(slab, factor)
