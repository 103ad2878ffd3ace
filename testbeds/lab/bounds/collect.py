"""Upper bounds on any policy's hits: collect a workload's demands once, then bound every point.

`Collector` reads the slabs of a run, session after session or interleaved, and owns their demands
(5 bytes each) and the counts per (session, step, layer). `bounds_at` computes the bounds of many
points from them. `BadInput`: a slab breaks its contract, or a buffer is smaller than one
selection. Everything is `modelled`; docs/reference/bounds.md has the definitions, the proofs and
the limits of each bound.

Demands are ordered as if all sessions decoded in lockstep: by step, then layer, then session. A run
whose sessions drift apart serves them in another order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.bindings.bounds import (
    BURST_BLOCKS,
    CREDIT_ONE,
    NONTRIVIAL,
    WRITTEN,
    Bound,
    Cap,
    Demands,
    belady,
    cap_limit,
    clairvoyant,
    compulsory,
)
from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.bounds.predictors import PREDICTORS, Asked, Foreseen, asked
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.selections.slab import Slab, Workload

__all__ = ["BOUNDS", "BOUND_ROW", "BoundPoint", "Collector", "PointBounds", "bounds_at"]

BOUNDS = ("compulsory", "belady", "clairvoyant", *PREDICTORS)
"""Their order in `hits` of `BOUND_ROW`; all after the first three are predictors."""

BOUND_ROW = np.dtype(
    [
        *(("session", "<u4"), ("step", "<u4"), ("layer", "<u2")),
        *(("demands", "<u2"), ("nontrivial", "<u2")),
        *(("hits", "<u2", (len(BOUNDS),)), ("nontrivial_hits", "<u2", (len(BOUNDS),))),
    ],
    align=True,
)
"""One (session, step, layer): `session` is the index in the workload, `hits` follow `BOUNDS`."""

NANOSECONDS = 1_000_000_000

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint16]
Served = Callable[[Slab], Bools | None]
"""Selected blocks in the HBM pool: bool, of the shape of `slab.selected`; None: no block."""


@dataclass(frozen=True)
class BoundPoint:
    """The point for which bounds are computed.

    buffer_blocks: per layer and session, for the predictors; one of the collector's. slots: blocks
    of the arena, which all sessions share. bytes_per_s: the prefetch cap; 0: no cap. layer_ns:
    time of a layer with all its blocks staged. lead_ns: time between the start of prefetch and the
    first step.
    """

    buffer_blocks: int
    slots: int
    bytes_per_s: int
    block_bytes: int
    layer_ns: int
    lead_ns: int = 0


@dataclass(frozen=True)
class PointBounds:
    """`rows`: `BOUND_ROW` `[rows]`. `reads`: blocks that each bound reads, by name; predictors are
    left out, because their reads are free. `limit_hits`: total hits that no policy can exceed
    under the cap; None without a cap."""

    point: BoundPoint
    rows: npt.NDArray[np.void]
    reads: dict[str, int]
    limit_hits: int | None


class Collector:
    """The demands of `sessions` (default: all), which decode together.

    `begins`: the nominal first step of each session, default 0. Pass every slab of every session to
    `add`, those of one session in order, then call `bounds_at`.
    """

    def __init__(
        self,
        workload: Workload,
        buffer_blocks: Sequence[int],
        sessions: Sequence[int] | None = None,
        begins: Sequence[int] | None = None,
    ) -> None:
        self.workload = workload
        self.buffer_blocks = tuple(buffer_blocks)
        self.sessions = tuple(range(len(workload.sessions)) if sessions is None else sessions)
        self.begins = dict(zip(self.sessions, begins or [0] * len(self.sessions), strict=True))
        self._predictors = [one(workload, self.buffer_blocks) for one in PREDICTORS.values()]
        self._chunks, self._chunk_count = _chunk_numbers(workload, self.sessions)
        steps = {number: workload.sessions[number].steps for number in self.sessions}
        self._expected = dict.fromkeys(self.sessions, 0)
        self._steps = steps
        row_count = sum(steps.values()) * workload.layer_count
        firsts = np.cumsum([0, *steps.values()]) * workload.layer_count
        self._first_row = dict(zip(steps, firsts.tolist(), strict=False))
        self._room = row_count * workload.select_blocks
        self._taken: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]] = {}
        self._count = self._row_count = 0
        self._rows = np.zeros(row_count, BOUND_ROW)
        shape = (len(PREDICTORS), 2, row_count, len(self.buffer_blocks))
        self._predicted = np.zeros(shape, np.uint16)

    def look(self, slab: Slab) -> list[list[Foreseen | None]]:
        """Each predictor's ranks for a slab, independent of demands: for `add` of this collector
        and of others over the same slabs and buffers."""
        return [one.look(slab) for one in self._predictors]

    def add(
        self,
        slab: Slab,
        served: Bools | None = None,
        foreseen: list[list[Foreseen | None]] | None = None,
    ) -> None:
        """Add the next steps of one session. `served`: as in `Served`. `foreseen`: the result of
        `look`, if the caller has it. BadInput for a slab out of order, an ordinal that is not
        written yet, or more blocks than `select_blocks`."""
        expected = self._expected.get(slab.session)
        steps, layers, width = slab.selected.shape
        if slab.first_step != expected or slab.first_step + steps > self._steps[slab.session]:
            raise BadInput(
                f"session {slab.session}: expected step {expected}, got {slab.first_step}",
                "bounds",
                "add each session's slabs in order",
            )
        self._expected[slab.session] = slab.first_step + steps
        asks = asked(self.workload, slab, served)
        layer, column = np.nonzero(asks.demanded.reshape(-1, width))
        chunks = self._chunks[slab.session][slab.selected.reshape(-1, width)[layer, column]]
        self._count += len(chunks)
        if self._count > self._room:
            raise BadInput(
                f"a layer selects more than {self.workload.select_blocks} blocks on average",
                "bounds",
                "set the workload's select_blocks to the most that one layer selects",
            )
        marks = asks.nontrivial * np.uint8(NONTRIVIAL) + asks.written * np.uint8(WRITTEN)
        first = self._first_row[slab.session] + slab.first_step * layers
        self._taken[first] = (
            (layer % layers).astype(np.uint32) * self._chunk_count + chunks,
            marks.reshape(-1, width)[layer, column],
        )
        self._add_rows(slab, asks, first, self.look(slab) if foreseen is None else foreseen)

    def _add_rows(
        self, slab: Slab, asks: Asked, first: int, foreseen: list[list[Foreseen | None]]
    ) -> None:
        steps, layers, _ = slab.selected.shape
        here = slice(first, first + steps * layers)
        self._row_count += steps * layers
        rows = self._rows[here].reshape(steps, layers)
        rows["session"], rows["layer"] = slab.session, np.arange(layers)
        rows["step"] = slab.first_step + np.arange(steps)[:, None]
        rows["demands"] = asks.demanded.sum(axis=-1)
        rows["nontrivial"] = (asks.demanded & asks.nontrivial).sum(axis=-1)
        for to, predictor, seen in zip(self._predicted, self._predictors, foreseen, strict=True):
            for kind, hits in zip(to, predictor.hits(slab, asks, seen), strict=True):
                kind[here] = hits.reshape(steps * layers, -1)

    def collect(self, served: Served = lambda _: None, progress: Progress | None = None) -> None:
        """Add all slabs of all sessions, one session after another."""
        progress = progress or Silent()
        progress.start("collect demands", sum(self._steps.values()), "steps")
        for session in self.sessions:
            for slab in self.workload.slabs(session):
                self.add(slab, served(slab))
                progress.advance(len(slab.selected))

    def demands(self) -> Demands:
        """All demands. A block's number is layer * chunks + chunk; sessions with a common prefix
        share its chunks. BadInput if slabs are missing."""
        if self._row_count < len(self._rows):
            raise BadInput(
                f"{self._row_count} of {len(self._rows)} rows were added", "bounds", "add all slabs"
            )
        offsets = np.zeros(len(self._rows) + 1, np.uint64)
        np.cumsum(self._rows["demands"], out=offsets[1:])
        taken = [self._taken[first] for first in sorted(self._taken)]
        return Demands(
            np.concatenate([demands for demands, _ in taken]),
            offsets,
            np.concatenate([marks for _, marks in taken]),
            self.workload.layer_count * self._chunk_count,
            self._order(),
        )

    def rows(self) -> npt.NDArray[np.void]:
        """`BOUND_ROW` of all sessions, session by session, with hits of 0."""
        return self._rows.copy()

    def _nominal(self) -> npt.NDArray[np.int64]:
        """The nominal step of each row."""
        begins = np.zeros(len(self.workload.sessions), np.int64)
        begins[list(self.begins)] = list(self.begins.values())
        nominal: npt.NDArray[np.int64] = begins[self._rows["session"]] + self._rows["step"]
        return nominal

    def _order(self) -> npt.NDArray[np.uint32]:
        keys = (self._rows["session"], self._rows["layer"], self._nominal())
        return np.lexsort(keys).astype(np.uint32)

    def cap(self, point: BoundPoint) -> Cap | None:
        """The point's cap as a credit per row: the transfer in `layer_ns`, divided by the sessions
        that decode in that nominal step. Rounded up, so that the limit remains an upper bound."""
        if point.bytes_per_s == 0:
            return None
        nominal = self._nominal()
        active = np.zeros(int(nominal.max(initial=0)) + 1, np.int64)
        for session, begin in self.begins.items():
            active[begin : begin + self._steps[session]] += 1
        shares = [_credit(point, point.layer_ns, count) for count in range(1, active.max() + 1)]
        lead = BURST_BLOCKS * CREDIT_ONE + _credit(point, point.lead_ns, 1)
        return Cap(np.array([0, *shares], np.uint64)[active[nominal]], lead)


def bounds_at(
    collector: Collector, points: Iterable[BoundPoint], progress: Progress | None = None
) -> list[PointBounds]:
    """The bounds of each point, in the order of `points`. BadInput if `slots` is less than one
    selection, or `buffer_blocks` is not one of the collector's."""
    points, progress = list(points), progress or Silent()
    demands = collector.demands()
    progress.start("bounds", len(points), "buffers")
    endless = compulsory(demands)
    alone: dict[int, Bound] = {}
    found = []
    for point in points:
        if point.buffer_blocks not in collector.buffer_blocks:
            raise BadInput(
                f"no scores were kept for a buffer of {point.buffer_blocks} blocks",
                "bounds",
                f"choose one of {', '.join(map(str, collector.buffer_blocks))}",
            )
        if point.slots not in alone:
            alone[point.slots] = belady(demands, point.slots)
        cap = collector.cap(point)
        ahead = clairvoyant(demands, point.slots, cap)
        limit = None if cap is None else cap_limit(demands, alone[point.slots], cap)
        found.append(_point_bounds(collector, point, (endless, alone[point.slots], ahead), limit))
        progress.advance(1)
    return found


def _point_bounds(
    collector: Collector, point: BoundPoint, bounds: Sequence[Bound], limit: int | None
) -> PointBounds:
    rows = collector.rows()
    for at, bound in enumerate(bounds):
        rows["hits"][:, at], rows["nontrivial_hits"][:, at] = bound.hits, bound.nontrivial_hits
    buffer = collector.buffer_blocks.index(point.buffer_blocks)
    for at, (hits, nontrivial) in enumerate(collector._predicted, len(bounds)):
        rows["hits"][:, at], rows["nontrivial_hits"][:, at] = hits[:, buffer], nontrivial[:, buffer]
    reads = {name: bound.reads for name, bound in zip(BOUNDS, bounds, strict=False)}
    return PointBounds(point, rows, reads, limit)


def _credit(point: BoundPoint, span_ns: int, sharers: int) -> int:
    """Credit of one of `sharers` sessions for `span_ns` at the cap, rounded up."""
    return -(
        -point.bytes_per_s * span_ns * CREDIT_ONE // (point.block_bytes * NANOSECONDS * sharers)
    )


def _chunk_numbers(
    workload: Workload, sessions: Sequence[int]
) -> tuple[dict[int, npt.NDArray[np.uint32]], int]:
    """The chunk of every ordinal of each session, and the number of chunks. Blocks with equal
    content after an equal prefix are one chunk; blocks that decode writes are never shared."""
    known: dict[tuple[int, int, int], int] = {}
    numbers: dict[int, npt.NDArray[np.uint32]] = {}
    count = 0
    for session in sessions:
        info, parent = workload.sessions[session], -1
        own = []
        for low, high in info.contents.tolist():
            parent = known.setdefault((parent, low, high), count)
            count += parent == count
            own.append(parent)
        written = max(info.steps - 1, 0) // workload.block_tokens
        own += range(count, count + written)
        count += written
        numbers[session] = np.array(own, np.uint32)
    return numbers, count
