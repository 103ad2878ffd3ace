"""The bounds of the points of specs that draw the same selections, in one pass over these.

Bounds depend on the selections, the staged unit, the HBM pool, the slots and the cap, never on a
policy; points with equal values of these share them. Without a cap the drive's bandwidth is the
cap: no policy reads faster. A predictor's ranks are the same for all pools, so they are computed
once.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from offstage.asic_model.parameters import read_preset
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.storage import preset
from offstage.bindings.units import parse_time
from offstage.testbeds.lab.bounds.collect import BOUNDS, BoundPoint, Collector, bounds_at
from offstage.testbeds.lab.bounds.predictors import Foreseen
from offstage.testbeds.lab.results.summary import SeedBounds
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.parts import BoundKey
from offstage.testbeds.lab.run.plan import Point, points_of
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import tiers_of
from offstage.testbeds.workloads.selections.coarse import grained
from offstage.testbeds.workloads.selections.slab import Workload

__all__ = ["BoundsReader", "bound_key", "bound_keys", "kinds_of"]


def bound_key(spec: Spec, point: Point) -> BoundKey:
    """The key of the point's bounds."""
    grain = point.grain(spec)
    buffer_blocks = point.buffer_blocks(spec) * grain
    drive = preset(spec.tier.storage).read_bytes_per_s
    if spec.tier.device:
        drive *= read_preset(spec.tier.device).nvme.drives.whole
    if spec.tier.below:  # no read is faster than all tiers together
        drive = sum(one.read_bytes_per_s for one in tiers_of(spec, spec.block_bytes))
    return grain, buffer_blocks, min(point.cap or drive, drive)


def bound_keys(spec: Spec) -> list[BoundKey]:
    """The keys of all bounds that the spec's points need, each once."""
    return sorted({bound_key(spec, point) for point in points_of(spec, 0, 0)})


def kinds_of(spec: Spec) -> list[Kind]:
    """The kinds of slabs that a spec's bounds read: one for each grain that its points stage."""
    grains = sorted({grain for grain, _, _ in bound_keys(spec)})
    return [Kind(grain, spec.tier.hbm_pool_over_k) for grain in grains]


@dataclass
class _Reading:
    """The demands of one spec in one grain."""

    spec: Spec
    kind: Kind
    collector: Collector
    widest: int = 0


class BoundsReader:
    """Reads the feed, as reader `(BOUNDS, kind)`, for specs that draw the same selections.

    Call `advance` until it is done, then `result` for each spec. Specs that cannot be read are in
    `failures`; the others continue."""

    def __init__(self, specs: Sequence[Spec], seed: int, workload: Workload, feed: Feed) -> None:
        self._seed, self._feed = seed, feed
        granules = specs[0].granules if specs else 1
        self._readings: list[_Reading] = []
        self._predictors: dict[tuple[int, tuple[int, ...]], Collector] = {}
        for spec in specs:
            for kind in kinds_of(spec):
                read = grained(workload, granules // kind.grain)
                buffers = sorted({key[1] for key in bound_keys(spec) if key[0] == kind.grain})
                collector = Collector(read, buffers, begins=_begins(spec, read))
                self._predictors.setdefault((kind.grain, collector.buffer_blocks), collector)
                self._readings.append(_Reading(spec, kind, collector))
        self._next = dict.fromkeys(range(len(workload.sessions)), 0)
        self.failures: dict[int, OffstageError] = {}
        """Errors by the number of the spec."""
        self._specs = list(specs)

    def advance(self, *, alone: bool) -> bool:
        """Read the slabs that exist; True if all have been read. `alone`: there is no other reader,
        so this one requests slabs, session after session."""
        for session in list(self._next):
            while self._take(session, wanted=alone):
                pass
            if alone and session in self._next:
                break
        return not self._next or not self._readings

    def result(self, number: int) -> dict[BoundKey, SeedBounds]:
        """All bounds of one spec, without buffers that cannot hold one layer's demands of a step.
        BadInput if no buffer can."""
        spec, found = self._specs[number], {}
        keys = bound_keys(spec)
        for reading in [one for one in self._readings if one.spec is spec]:
            fit = [
                key
                for key in keys
                if key[0] == reading.kind.grain and key[1] * spec.layer_count >= reading.widest
            ]
            points = [_point(spec, key) for key in fit]
            for key, one in zip(fit, bounds_at(reading.collector, points), strict=True):
                found[key] = SeedBounds(self._seed, BOUNDS, one.rows, one.reads, one.limit_hits)
        if not found:
            raise BadInput(
                "no buffer holds one layer's demands of a step", "[tier] buffer_over_k", "give more"
            )
        return found

    def _take(self, session: int, *, wanted: bool) -> bool:
        """Pass the next slab of a session to all its readers; False: it does not exist yet."""
        last = None
        foreseen: dict[tuple[int, tuple[int, ...]], list[list[Foreseen | None]]] = {}
        for kind in list(dict.fromkeys(one.kind for one in self._readings)):
            number = self._next.get(session)
            if number is None:
                return False
            try:
                given = self._feed.get((BOUNDS, kind), session, number, wanted=wanted)
            except OffstageError as error:
                self._failed([one for one in self._readings if one.kind == kind], error)
                continue
            if given is None:
                return False
            last = given.last
            for reading in [one for one in self._readings if one.kind == kind]:
                key = kind.grain, reading.collector.buffer_blocks
                try:
                    if key not in foreseen:
                        foreseen[key] = self._predictors[key].look(given.slab)
                    reading.collector.add(given.slab, given.served, foreseen[key])
                    reading.widest = max(reading.widest, given.widest)
                except OffstageError as error:
                    self._failed([reading], error)
        if last is None:
            return False
        self._next[session] += 1
        if last:
            del self._next[session]
        return True

    def _failed(self, readings: list[_Reading], error: OffstageError) -> None:
        specs = [one.spec for one in readings]
        self.failures.update(
            {
                number: error
                for number, spec in enumerate(self._specs)
                if any(spec is one for one in specs)
            }
        )
        self._readings = [
            one for one in self._readings if not any(one.spec is spec for spec in specs)
        ]
        for reading in readings:
            if all(one.kind != reading.kind for one in self._readings):
                self._feed.leave((BOUNDS, reading.kind))


def _point(spec: Spec, key: BoundKey) -> BoundPoint:
    grain, buffer_blocks, cap = key
    return BoundPoint(
        buffer_blocks=buffer_blocks,
        slots=buffer_blocks * spec.layer_count * spec.concurrent,
        bytes_per_s=cap or 0,
        block_bytes=spec.block_bytes // grain,
        layer_ns=spec.time_per_token_ns // spec.layer_count,
        lead_ns=parse_time(spec.tier.warmup, "[tier] warmup"),
    )


def _begins(spec: Spec, workload: Workload) -> list[int]:
    """Nominal first step of each session: 0, or the step at which another session has ended."""
    free = [0] * spec.concurrent
    begins = []
    for info in workload.sessions:
        begin = heapq.heappop(free)
        begins.append(begin)
        heapq.heappush(free, begin + info.steps)
    return begins
