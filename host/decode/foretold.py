"""Which blocks a layer will select, by its predicted and its last scores, within a budget of reads.

Model: a block's cell is its rank by the layer's predicted scores and its rank by the layer's own
scores of the step before, both in bands of k. The probability of a cell is the share of its blocks
that were selected, measured for each layer; `PRIOR_BLOCKS` of all layers' share count with it. A
guess is worth a read if its probability reaches a level, which the budget sets: each of `LEVELS`
has a directory of as many blocks as the buffer, filled by demands and by the guesses of that level,
least recently used out. It counts what that level would have read and hit. From the next step on
the level applies whose reads are the budget's, between two of `LEVELS` by their reads. The budget
is a multiple of what LRU without prefetch reads with a buffer of 2 k. Sums fade. In the first
`FIRST_STEPS`, in which the buffers fill, the level is `FIRST_LEVEL`. What was read below or above
the budget is made up for in later steps.

One core for the laboratory, which asks for all layers at once, and for a live host, which asks
layer by layer: what layers share changes in `end_step` alone, so that both decide the same. One
session, one thread; nothing can fail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEVELS", "CurveRow", "Foretold"]

Marks = NDArray[np.bool_]
Scores = NDArray[np.uint16] | NDArray[np.float32]

LEVELS = (0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.0625, 0.045, 0.03, 0.022, 0.015)
"""Least probabilities that are worth a read, about half an octave apart."""
TOLD = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
OWN = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Ends of the bands of either rank, over k. What is beyond, or has no score, is in one more."""
CELLS = (len(TOLD) + 1) * (len(OWN) + 1)
NEAR, FAR = 0.5, 0.02
"""Probabilities before anything is measured: of the best 1.5 k predicted, and of the others."""
FIRST_BLOCKS, PRIOR_BLOCKS = 8, 20
KEPT_CELLS, KEPT_READS, KEPT_CREDIT = 1 - 1 / 128, 1 - 1 / 64, 1 - 1 / 256
"""Of the sums, after each step."""
REPAID_OVER, MADE_UP_MAX = 3.0, 1.5
"""What was read below or above the budget is made up for over three times the span of the sums; a
step's budget is at most this many times the budget, and at least one over it."""
FIRST_LEVEL, FIRST_STEPS = 0.0625, 32
REFERENCE_OVER_K = 2


@dataclass(frozen=True)
class CurveRow:
    """What a level would have had lately: `hit` of the demands, `traffic` in reads over those of
    LRU at 2 k."""

    level: float
    hit: float
    traffic: float


class Foretold:
    """For each step: `guess` a layer before it runs, `ran` after it, `end_step` at the end. Layers
    are given as an array of numbers; all other arrays are `[layers given, blocks]`."""

    def __init__(self, layers: int, select_blocks: int, slots: int, budget: float) -> None:
        """`slots`: blocks of all layers in the buffer. `budget`: as in the module's model."""
        self._bands = [_ends(ends, select_blocks) for ends in (TOLD, OWN)]
        self._selected = np.zeros((layers, CELLS))
        self._seen = np.zeros((layers, CELLS))
        prior = np.repeat(np.where(np.array((*TOLD, np.inf)) <= 1.5, NEAR, FAR), len(OWN) + 1)
        self._first = self._shared = prior
        self._own = np.zeros((layers, 0), np.int64)
        self._cells = np.zeros((layers, 0), np.int64)
        self._chances = np.zeros((layers, 0), np.float32)
        self._reads = _Reads(layers, REFERENCE_OVER_K * select_blocks * layers, slots)
        self._budget = budget
        self._steps = 0
        self.worth = FIRST_LEVEL
        """The least probability that is worth a read in this step."""

    def guess(self, layers: NDArray[np.int64], told: Scores) -> NDArray[np.float32]:
        """Probability that a block is selected in the next run of its layer; 0 where it is not
        worth a read. `told`: predicted scores, 0 for a block that has none."""
        blocks = told.shape[1]
        self._grow(blocks)
        cells = _banded(told, self._bands[0]) * (len(OWN) + 1) + self._own[layers, :blocks]
        seen, selected = self._seen[layers], self._selected[layers]
        measured = (selected + PRIOR_BLOCKS * self._shared) / (seen + PRIOR_BLOCKS)
        chances = np.take_along_axis(measured, cells, axis=1).astype(np.float32)
        self._cells[layers, :blocks] = cells
        self._chances[layers, :blocks] = chances
        return np.where(chances >= np.float32(self.worth), chances, np.float32(0))

    def ran(
        self, layers: NDArray[np.int64], scores: Scores, selected: Marks, held: Marks | None
    ) -> None:
        """The layers have run. `scores`: of their own queries; `held`: what the HBM pool had."""
        blocks = scores.shape[1]
        self._grow(blocks)
        wanted = selected if held is None else selected & ~held
        chances = self._chances[layers, :blocks]
        if held is not None:
            chances = np.where(held, np.float32(0), chances)
        self._reads.take(layers, wanted, chances, self.worth)
        cells = self._cells[layers, :blocks] + CELLS * np.arange(len(layers))[:, None]
        size = len(layers) * CELLS
        told = self._chances[layers, :blocks] > 0  # not in a layer's first run, or a new block
        for sums, marks in ((self._seen, told), (self._selected, told & selected)):
            sums[layers] *= KEPT_CELLS
            sums[layers] += np.bincount(cells[marks], minlength=size).reshape(-1, CELLS)
        self._chances[layers] = 0
        self._own[layers, :blocks] = _banded(scores, self._bands[1])

    def end_step(self) -> None:
        """All layers have run: what they share is brought up to date."""
        seen, selected = self._seen.sum(axis=0), self._selected.sum(axis=0)
        self._shared = (selected + FIRST_BLOCKS * self._first) / (seen + FIRST_BLOCKS)
        self._reads.end_step(self._budget)
        self._steps += 1
        if self._steps > FIRST_STEPS:
            reads, lately = self._reads.reads, max(float(self._reads.reads[0]), 1.0)
            made_up = 1 + self._reads.credit / (REPAID_OVER * self._budget * lately)
            made_up = min(max(made_up, 1 / MADE_UP_MAX), MADE_UP_MAX)
            self.worth = _level(reads[:-1], self._budget * made_up)

    @property
    def reference_reads(self) -> int:
        """What LRU without prefetch would have read at 2 k, since the beginning."""
        return self._reads.reference

    def curve(self) -> list[CurveRow]:
        """Hits against traffic for each level, by the directories."""
        reads, hits = self._reads.reads, self._reads.hits
        demands, reference = max(self._reads.demands, 1.0), max(float(reads[0]), 1.0)
        return [
            CurveRow(level, float(hit / demands), float(read / reference))
            for level, hit, read in zip(LEVELS, hits[1:-1], reads[1:-1], strict=True)
        ]

    def _grow(self, blocks: int) -> None:
        more = blocks - self._own.shape[1]
        if more > 0:
            pad = ((0, 0), (0, more))
            self._own = np.pad(self._own, pad, constant_values=len(OWN))
            self._cells = np.pad(self._cells, pad, constant_values=CELLS - 1)
            self._chances = np.pad(self._chances, pad)
            self._reads.grow(more)


class _Reads:
    """Directories of a session's blocks: the first of demands alone, in a buffer of 2 k, then one
    for each level and one for the guesses that were made, in a buffer of `slots`. A block is there
    if it was among the last so many.

    reads, hits: float `[1 + levels + 1]`; demands: of each. These fade. reference: reads of the
    first. credit: what the budget allowed and was not read, below 0 if more was.
    """

    def __init__(self, layers: int, reference: int, slots: int) -> None:
        count = 1 + len(LEVELS) + 1
        self.reads, self.hits, self.demands = np.zeros(count), np.zeros(count), 0.0
        self.reference, self.credit = 0, 0.0
        self._step_reads = np.zeros(count, np.int64)
        self._room = np.full(count, slots)
        self._room[0] = reference
        self._last = np.full((count, layers, 0), -1, np.int32)
        self._oldest = np.zeros(count, np.int32)
        self._step = 0

    def grow(self, more: int) -> None:
        """The session has `more` blocks."""
        self._last = np.pad(self._last, ((0, 0), (0, 0), (0, more)), constant_values=-1)

    def take(
        self, layers: NDArray[np.int64], wanted: Marks, chances: NDArray[np.float32], worth: float
    ) -> None:
        """Demands of some layers, the probabilities of blocks that could be guessed for them, and
        the least that was guessed."""
        blocks = wanted.shape[1]
        self.demands += np.count_nonzero(wanted)
        for number, level in enumerate((np.inf, *LEVELS, worth)):
            last = self._last[number, layers, :blocks]
            guessed = chances >= np.float32(level)
            there, asked = last >= self._oldest[number], guessed | wanted
            self._step_reads[number] += np.count_nonzero(asked & ~there)
            self.hits[number] += np.count_nonzero(wanted & (there | guessed))
            last[asked] = self._step
            self._last[number, layers, :blocks] = last

    def end_step(self, budget: float) -> None:
        """What is beyond the room of each directory leaves it, of one step all blocks at once."""
        self.reference += int(self._step_reads[0])
        spare = budget * self._step_reads[0] - self._step_reads[-1]
        self.credit = KEPT_CREDIT * self.credit + float(spare)
        self.reads = KEPT_READS * self.reads + self._step_reads
        self._step_reads[:] = 0
        for number, room in enumerate(self._room):
            last = self._last[number].ravel()
            if last.size > room:
                oldest = max(0, int(np.partition(last, -room)[-room]))
                full = np.count_nonzero(last >= oldest) > room
                self._oldest[number] = oldest + full
        self._step += 1
        self.hits *= KEPT_READS
        self.demands *= KEPT_READS


def _level(reads: NDArray[np.float64], budget: float) -> float:
    """The level that reads `budget` times `reads[0]`; reads rise as levels fall."""
    allowed, within = budget * reads[0], np.flatnonzero(reads[1:] <= budget * reads[0])
    if len(within) == 0:
        return LEVELS[0]
    one = int(within[-1])
    if one + 1 == len(LEVELS):
        return LEVELS[one]
    share = (allowed - reads[1 + one]) / (reads[2 + one] - reads[1 + one])
    return float(LEVELS[one] * (LEVELS[one + 1] / LEVELS[one]) ** share)


def _ends(ends: tuple[float, ...], select_blocks: int) -> NDArray[np.int64]:
    return np.array([max(1, round(end * select_blocks)) for end in ends], np.int64)


def _banded(values: Scores, ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The band of each block by the rank of its value; of equal values the first is better."""
    falling = np.subtract(np.uint16(0xFFFF), values) if values.dtype == np.uint16 else -values
    order = np.argsort(falling, axis=1, kind="stable")
    by_rank = np.searchsorted(ends, np.arange(values.shape[1]), side="right")
    bands = np.empty(values.shape, np.int64)
    np.put_along_axis(bands, order, np.broadcast_to(by_rank, values.shape), axis=1)
    bands[values == 0] = len(ends)
    return bands
