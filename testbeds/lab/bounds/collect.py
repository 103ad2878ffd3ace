"""What any policy could hit on a workload: its demands collected once, then bounds at every point.

`Collector` reads the slabs that a run is fed with, a session at a time or in turns, and owns the
demands of all of them in 5 bytes each, with what is counted per (session, step, layer). `bounds_at`
computes the bounds of many points from them. It fails with `BadInput` where a slab breaks its
contract or a buffer is smaller than one selection. Everything is `modelled`; definitions, proofs
and what a bound does not say stand in docs/reference/bounds.md.

The order of time is that of sessions that decode in step: step by step, in each layer by layer,
there session by session. A run whose sessions drift apart serves them in another order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.selections.slab import ABSENT, Slab, Workload

__all__ = ["BOUNDS", "BOUND_ROW", "BoundPoint", "Collector", "LastStep", "PointBounds", "bounds_at"]

BOUNDS = ("compulsory", "belady", "clairvoyant", "last_step")
"""Their order in `hits` of `BOUND_ROW`."""

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
Keys = npt.NDArray[Any]  # uint32, or uint64 where a layer has more than 65,536 blocks
Served = Callable[[Slab], Bools | None]
"""Which selected blocks the HBM pool has: bool, the shape of `slab.selected`; None: it has none."""


@dataclass(frozen=True)
class BoundPoint:
    """Where bounds are wanted.

    buffer_blocks: per layer and session, for `last_step`; one of those the collector was given.
    slots: blocks of the arena that all share. bytes_per_s: the cap of prefetch, 0 is none.
    layer_ns: how long a layer takes with all its blocks at hand. lead_ns: how long before the first
    step prefetch may begin.
    """

    buffer_blocks: int
    slots: int
    bytes_per_s: int
    block_bytes: int
    layer_ns: int
    lead_ns: int = 0


@dataclass(frozen=True)
class PointBounds:
    """`rows`: `BOUND_ROW` `[rows]`. `reads`: blocks that a bound reads, by name; `last_step`, whose
    bandwidth is free, has none. `limit_hits`: hits in all that no policy can exceed under the cap;
    None without one."""

    point: BoundPoint
    rows: npt.NDArray[np.void]
    reads: dict[str, int]
    limit_hits: int | None


@dataclass(frozen=True)
class _Asked:
    """What a slab demands, `[steps, layers, width]`; `written`: decode wrote the block."""

    demanded: Bools
    nontrivial: Bools
    written: Bools
    counts: npt.NDArray[np.int64]
    """`[steps]`: blocks per layer that are written when the step begins."""


class LastStep:
    """What the scores of the step before know: a buffer that holds the best by them.

    A demand hits where its score of the step before is among the `buffer_blocks` best of its layer
    (of equal scores the lower ordinal is better, and 0 is none), or where decode wrote the block
    with this step. Nothing is known at a session's first step. It is no bound for a policy that has
    other information, such as a draft token or longer history.
    """

    def __init__(self, workload: Workload, buffer_blocks: Sequence[int]) -> None:
        self._workload = workload
        self._buffers = tuple(buffer_blocks)
        if not self._buffers or min(self._buffers) < 1:
            raise BadInput(
                f"buffers of {self._buffers} blocks", "last step", "give one or more, each above 0"
            )
        self._keys: dict[int, Keys] = {}  # of each session's last step

    def take(self, slab: Slab, served: Bools | None = None) -> tuple[Counts, Counts]:
        """Hits and non-trivial hits, uint16 `[steps, layers, buffers]`; slabs of one session in
        order. BadInput where a slab does not follow the one before."""
        return self._take(slab, _asked(self._workload, slab, served))

    def _take(self, slab: Slab, asked: _Asked) -> tuple[Counts, Counts]:
        steps, layers, _ = slab.selected.shape
        hits = np.zeros((2, steps, layers, len(self._buffers)), np.uint16)
        before = self._keys.pop(slab.session, None)
        if (before is None) != (slab.first_step == 0):
            raise BadInput(
                f"step {slab.first_step} of session {slab.session} does not follow",
                "last step",
                "give each session's slabs in order",
            )
        for step in range(steps):
            if before is not None:
                ordinals = np.where(asked.demanded[step], slab.selected[step], 0)
                mine = np.take_along_axis(before, ordinals.astype(np.int64), axis=-1)
                # Rare: only where the step before knew fewer blocks.
                new = asked.written[step] & (slab.selected[step] >= self._known(slab, asked, step))
                for at, limit in enumerate(_limits(before, self._buffers)):
                    hit = asked.demanded[step] & ((mine >= limit[:, None]) | new)
                    hits[0, step, :, at] = hit.sum(axis=-1)
                    hits[1, step, :, at] = (hit & asked.nontrivial[step]).sum(axis=-1)
            before = _keys(slab.scores[step])
        assert before is not None, "a slab has a step"
        if slab.first_step + steps < self._workload.sessions[slab.session].steps:
            self._keys[slab.session] = before
        return hits[0], hits[1]

    def _known(self, slab: Slab, asked: _Asked, step: int) -> int:
        """Blocks that were written when the step before began."""
        if step:
            return int(asked.counts[step - 1])
        return _written_count(self._workload, slab.session, slab.first_step - 1)


class Collector:
    """The demands of `sessions` (default: all), which decode together.

    `begins`: for each of them the nominal step at which it begins, default 0. Give every slab of
    every session to `add`, those of one session in order, then ask for `bounds_at`.
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
        self._last = LastStep(workload, self.buffer_blocks)
        self._chunks, self._chunk_count = _chunk_numbers(workload, self.sessions)
        steps = {number: workload.sessions[number].steps for number in self.sessions}
        self._expected = dict.fromkeys(self.sessions, 0)
        self._steps = steps
        row_count = sum(steps.values()) * workload.layer_count
        # Memory that is never written is never taken: room for what every selection could demand.
        room = row_count * workload.select_blocks
        self._demands, self._marks = np.empty(room, np.uint32), np.empty(room, np.uint8)
        self._count = self._row_count = 0
        self._rows = np.zeros(row_count, BOUND_ROW)
        self._last_hits = np.zeros((2, row_count, len(self.buffer_blocks)), np.uint16)

    def add(self, slab: Slab, served: Bools | None = None) -> None:
        """The next steps of one session; `served` as `Served` says. BadInput for a slab that does
        not follow, an ordinal that is not written yet, or more blocks than `select_blocks`."""
        expected = self._expected.get(slab.session)
        steps, layers, width = slab.selected.shape
        if slab.first_step != expected or slab.first_step + steps > self._steps[slab.session]:
            raise BadInput(
                f"steps from {slab.first_step} of session {slab.session}, {expected} is next",
                "bounds",
                "give each session's slabs in order",
            )
        self._expected[slab.session] = slab.first_step + steps
        asked = _asked(self.workload, slab, served)
        layer, column = np.nonzero(asked.demanded.reshape(-1, width))
        chunks = self._chunks[slab.session][slab.selected.reshape(-1, width)[layer, column]]
        end = self._count + len(chunks)
        if end > len(self._demands):
            raise BadInput(
                f"more than {self.workload.select_blocks} blocks are selected on average",
                "bounds",
                "a workload's select_blocks is the most that one layer selects",
            )
        new = slice(self._count, end)
        self._demands[new] = (layer % layers).astype(np.uint32) * self._chunk_count + chunks
        marks = asked.nontrivial * np.uint8(NONTRIVIAL) + asked.written * np.uint8(WRITTEN)
        self._marks[new] = marks.reshape(-1, width)[layer, column]
        self._count = end
        self._add_rows(slab, asked)

    def _add_rows(self, slab: Slab, asked: _Asked) -> None:
        steps, layers, _ = slab.selected.shape
        here = slice(self._row_count, self._row_count + steps * layers)
        self._row_count = here.stop
        rows = self._rows[here].reshape(steps, layers)
        rows["session"], rows["layer"] = slab.session, np.arange(layers)
        rows["step"] = slab.first_step + np.arange(steps)[:, None]
        rows["demands"] = asked.demanded.sum(axis=-1)
        rows["nontrivial"] = (asked.demanded & asked.nontrivial).sum(axis=-1)
        for to, hits in zip(self._last_hits, self._last._take(slab, asked), strict=True):
            to[here] = hits.reshape(steps * layers, -1)

    def collect(self, served: Served = lambda _: None, progress: Progress | None = None) -> None:
        """All slabs of all sessions, one session after another."""
        progress = progress or Silent()
        progress.start("collect demands", sum(self._steps.values()))
        for session in self.sessions:
            for slab in self.workload.slabs(session):
                self.add(slab, served(slab))
                progress.advance(len(slab.selected))

    def demands(self) -> Demands:
        """Everything that was demanded, block numbers being layer * chunks + chunk; sessions share
        the chunks of a prefix they share. BadInput where slabs are missing."""
        if self._row_count < len(self._rows):
            raise BadInput(
                f"{self._row_count} of {len(self._rows)} rows are there", "bounds", "give all slabs"
            )
        offsets = np.zeros(len(self._rows) + 1, np.uint64)
        np.cumsum(self._rows["demands"], out=offsets[1:])
        return Demands(
            self._demands[: self._count],
            offsets,
            self._marks[: self._count],
            self.workload.layer_count * self._chunk_count,
            self._order(),
        )

    def rows(self) -> npt.NDArray[np.void]:
        """`BOUND_ROW` of all that was added, in that order, without hits."""
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
        """The point's cap as credit of each row: what passes in `layer_ns`, shared by the sessions
        that decode in that nominal step. Rounded up, so that a limit stays one."""
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
    """The bounds of each point, in their order; BadInput where `slots` is below one selection, or
    `buffer_blocks` is not one of the collector's."""
    points, progress = list(points), progress or Silent()
    demands = collector.demands()
    progress.start("bounds", len(points))
    endless = compulsory(demands)
    alone: dict[int, Bound] = {}
    found = []
    for point in points:
        if point.buffer_blocks not in collector.buffer_blocks:
            raise BadInput(
                f"no scores were kept for a buffer of {point.buffer_blocks} blocks",
                "bounds",
                f"collected are {', '.join(map(str, collector.buffer_blocks))}",
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
    rows["hits"][:, -1] = collector._last_hits[0, :, buffer]
    rows["nontrivial_hits"][:, -1] = collector._last_hits[1, :, buffer]
    reads = {name: bound.reads for name, bound in zip(BOUNDS, bounds, strict=False)}
    return PointBounds(point, rows, reads, limit)


def _credit(point: BoundPoint, span_ns: int, sharers: int) -> int:
    """Credit of `span_ns` at the cap, for one of `sharers`; rounded up."""
    return -(
        -point.bytes_per_s * span_ns * CREDIT_ONE // (point.block_bytes * NANOSECONDS * sharers)
    )


def _written_count(workload: Workload, session: int, step: int) -> int:
    """Blocks per layer that are written when the step begins: decode adds one every
    `block_tokens` steps."""
    return workload.sessions[session].blocks + step // workload.block_tokens


def _asked(workload: Workload, slab: Slab, served: Bools | None) -> _Asked:
    selected = slab.selected
    steps = range(slab.first_step, slab.first_step + len(selected))
    counts = np.array([_written_count(workload, slab.session, step) for step in steps], np.int64)
    present = selected != ABSENT
    if (present & (selected >= counts[:, None, None])).any():
        raise BadInput(
            f"session {slab.session} selects a block that is not written yet",
            f"steps from {slab.first_step}",
            f"after its context a block is written every {workload.block_tokens} steps",
        )
    ends = np.maximum(counts - workload.window_blocks, 0)[:, None, None]
    return _Asked(
        present if served is None else present & ~served,
        (selected >= workload.sink_blocks) & (selected < ends),
        present & (selected >= workload.sessions[slab.session].blocks),
        counts,
    )


def _chunk_numbers(
    workload: Workload, sessions: Sequence[int]
) -> tuple[dict[int, npt.NDArray[np.uint32]], int]:
    """The chunk of every ordinal of each session, and how many chunks there are. A chunk is what
    stands behind one and the same prefix; what decode writes is the session's own."""
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


def _keys(scores: npt.NDArray[np.uint16]) -> Keys:
    """Scores `[layers, blocks]` made unique: the lower ordinal first; 0 stays below all others."""
    blocks = scores.shape[-1]
    keys: Keys
    if blocks <= 1 << 16:
        keys = scores.astype(np.uint32) << np.uint32(16)
    else:
        keys = scores.astype(np.uint64) << np.uint64(32)
    keys |= np.arange(blocks - 1, -1, -1, dtype=keys.dtype)
    keys[scores == 0] = 0
    return keys


def _limits(keys: Keys, buffers: Sequence[int]) -> list[Keys]:
    """For each buffer the least key `[layers]` that is among its best, never 0."""
    found: dict[int, Keys] = {}
    # From the largest buffer on: what is not among its best need not be looked at for the others.
    for buffer in sorted(set(buffers), reverse=True):
        if buffer < keys.shape[-1]:
            keys = np.partition(keys, -buffer, axis=-1)[:, -buffer:]
            found[buffer] = np.maximum(keys[:, 0], 1)
        else:
            found[buffer] = np.ones(len(keys), keys.dtype)
    return [found[buffer] for buffer in buffers]
