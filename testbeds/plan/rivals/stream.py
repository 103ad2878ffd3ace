"""What a decode step misses: one stream of selections, which drives every rival.

Model: units (tokens, or blocks) are selected at each step and layer. A pool in HBM keeps the ones
used last; what it lacks is read from below, by whole rows or by the drive's pages that hold them.
A DPU's arena keeps the best by a moving average of the scores (the laboratory's `ema`); what it
lacks too comes from flash at once, and what enters it was read ahead. All counts are of one
layer, one session and one step, as shares of k, so that they hold for any number of sessions.

The streams are drawn by profiles, or a capture's; the range of a share is that of its profiles, or
of the capture's sessions. What can fail: `BadInput` of the workload.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.asic_model.blocks import Number
from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload
from offstage.testbeds.workloads.selections.slab import Workload

__all__ = ["ARENA_OVER_K", "Drawn", "drawn", "from_capture", "shares"]

ARENA_OVER_K = 4
"""Units that a DPU's arena has for each layer of a session, over k: as the laboratory's default."""
SMOOTHING = 0.25
"""Weight of the newest scores in the moving average: a choice."""
WARM_UP = 16
"""Steps that fill the pool and are not counted."""
LAYERS = 2
"""Layers that are drawn of each profile: layers of one profile have one process."""
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Drawn:
    """Where streams come from: `about` in words, by profile or session its workload."""

    about: str
    streams: tuple[tuple[Workload, int], ...]
    """Workloads, and the session of each."""


def drawn(profiles: tuple[str, ...], tokens: int, unit: int, k: int, steps: int) -> Drawn:
    """Streams of one session for each profile, with selections of k units of `unit` tokens."""
    block = max(unit, 64)
    options = [
        GeneratedOptions(
            profile=profile,
            layers=LAYERS,
            context_tokens=tokens // block * block,
            steps=WARM_UP + steps,
            block_tokens=block,
            select_blocks=max(1, k * unit // block),
            sink_blocks=0,
            window_blocks=0,
            granule_tokens=None if unit == block else unit,
        )
        for profile in profiles
    ]
    about = f"drawn by {' and '.join(profiles)}, {steps} steps, {LAYERS} layers each"
    return Drawn(about, tuple((GeneratedWorkload(one), 0) for one in options))


def from_capture(path: Path, k: int, steps: int) -> Drawn:
    """The sessions of a file of scores. BadInput for one with too few steps, or no more blocks than
    a DPU's arena has room for: it would seem to need no flash."""
    work = CapturedWorkload(path, k, sink_blocks=0, window_blocks=0)
    longest = max((one.steps for one in work.sessions), default=0)
    blocks = min((one.blocks for one in work.sessions), default=0)
    if longest <= WARM_UP or blocks <= ARENA_OVER_K * k:
        raise BadInput(
            f"{longest} steps of {blocks} blocks, at k = {k}",
            str(path),
            f"give a capture with more than {WARM_UP} steps and {ARENA_OVER_K} k blocks, or a "
            "smaller --k",
        )
    about = f"{path.name}: {len(work.sessions)} sessions, {work.layer_count} layers, "
    about += f"at most {steps} steps, {work.block_tokens} tokens a block"
    return Drawn(about, tuple((work, at) for at in range(len(work.sessions))))


def shares(found: Drawn, pool_over_k: float, page_units: int, steps: int) -> dict[str, Number]:
    """Shares of k that a step and layer miss, by name: `missed` of the pool, `pages` of those
    misses in pages of `page_units` units, `unstaged` of them by the arena too, `ahead` that enter
    the arena, and `spread`, the deviation of `missed` from step to step."""
    rows = np.array(
        [_counted(work, at, pool_over_k, page_units, steps) for work, at in found.streams]
    )
    low, mid, high = rows.min(axis=0), rows.mean(axis=0), rows.max(axis=0)
    names = ("missed", "pages", "unstaged", "ahead", "spread")
    return {
        f"stream.{name}": Number(
            value=float(mid[at]),
            unit="1",
            low=float(low[at]),
            high=float(high[at]),
            tag="derived",
            source=found.about,
        )
        for at, name in enumerate(names)
    }


def _steps(
    work: Workload, session: int, limit: int
) -> Iterator[tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16]]]:
    """Each step's selections and scores, `[layers, k]` and `[layers, units]`."""
    count = 0
    for slab in work.slabs(session):
        for selected, scores in zip(slab.selected, slab.scores, strict=True):
            if count == limit:
                return
            count += 1
            yield selected, scores


def _counted(
    work: Workload, session: int, pool_over_k: float, page: int, steps: int
) -> tuple[float, ...]:
    """The shares of one stream, in the order of `shares`."""
    k, layers = work.select_blocks, work.layer_count
    room, arena = round(pool_over_k * k), ARENA_OVER_K * k
    kept: list[_Layer] = []
    totals: list[tuple[int, int, int, int]] = []
    for step, (selected, scores) in enumerate(_steps(work, session, WARM_UP + steps)):
        if not kept:
            kept = [_Layer(scores.shape[1], room, arena) for _ in range(layers)]
        for at, layer in enumerate(kept):
            chosen = selected[at][selected[at] != ABSENT].astype(np.int64)
            row = layer.step(chosen, scores[at], page)
            if step >= WARM_UP:
                totals.append(row)
    counts = np.array(totals, float)
    mean = counts.mean(axis=0) / k
    return (*map(float, mean), float(counts[:, 0].std()) / k)


class _Layer:
    """Pool and arena of one layer: recency of use, average of scores, and who is in the arena."""

    def __init__(self, units: int, room: int, arena: int) -> None:
        self.used = np.full(units, -1, np.int64)
        self.average = np.zeros(units, np.float32)
        self.staged: Flags = np.zeros(units, bool)
        self.room, self.arena, self.clock = room, arena, 0

    def step(
        self, chosen: npt.NDArray[np.int64], scores: npt.NDArray[np.uint16], page: int
    ) -> tuple[int, int, int, int]:
        """Misses, their pages, those that are not staged, and what enters the arena."""
        missed = chosen[~self._resident()[chosen]]
        unstaged = int((~self.staged[missed]).sum())
        self.used[chosen] = np.arange(self.clock, self.clock + len(chosen))
        self.clock += len(chosen)
        self.average += np.float32(SMOOTHING) * (scores - self.average)
        before, self.staged = self.staged, _best(self.average, self.arena)
        # What the step itself brought up from flash needs no second read.
        entered = self.staged & ~before
        entered[missed] = False
        return len(missed), len(np.unique(missed // page)), unstaged, int(entered.sum())

    def _resident(self) -> Flags:
        known = int((self.used >= 0).sum())
        return self.used >= 0 if known <= self.room else _best(self.used, self.room)


def _best(values: npt.NDArray[np.int64] | npt.NDArray[np.float32], count: int) -> Flags:
    """The greatest `count`, as flags."""
    flags = np.zeros(len(values), bool)
    count = min(count, len(values))
    flags[np.argpartition(values, len(values) - count)[len(values) - count :]] = True
    return flags
