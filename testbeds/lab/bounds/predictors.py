"""What is predicted of a step: a buffer that holds the best blocks by what is known before it.

A predictor is told each step's scores and ranks the blocks for the next; a demand hits where its
block is among the `buffer_blocks` best of its layer (of equal ones the lower ordinal is better, and
0 is none), or where decode wrote it with this step. Reads cost nothing. No predictor is a bound:
who knows more, or makes more of the same, may pass it. `LastStep` has the scores of the step before
and nothing else; `TwoAverages` is the strongest causal predictor from scores that we have. Each
owns what it remembers of its sessions. Slabs out of order are `BadInput`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.selections.slab import ABSENT, Slab, Workload

__all__ = [
    "PREDICTORS", "Asked", "Foreseen", "LastStep", "Predictor", "TwoAverages", "asked",
    "written_count",
]  # fmt: skip

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float64]
Keys = npt.NDArray[Any]  # uint32, or uint64 where a layer has more than 65,536 blocks
Scores = npt.NDArray[np.uint16]
Foreseen = tuple[Keys, list[Keys]]
"""Ranks of every block of a layer, and of each buffer the least that it holds."""


@dataclass(frozen=True)
class Asked:
    """What a slab demands, `[steps, layers, width]`; `written`: decode wrote the block."""

    demanded: Bools
    nontrivial: Bools
    written: Bools
    counts: npt.NDArray[np.int64]
    """`[steps]`: blocks per layer that are written when the step begins."""


class Predictor(ABC):
    """What all predictors do; one says in `_ranks` how it ranks."""

    def __init__(self, workload: Workload, buffer_blocks: Sequence[int]) -> None:
        self._workload = workload
        self._buffers = tuple(buffer_blocks)
        if not self._buffers or min(self._buffers) < 1:
            raise BadInput(
                f"buffers of {self._buffers} blocks", "predictor", "give one or more, each above 0"
            )
        self._ahead: dict[int, Keys] = {}  # of each session's next step

    def take(self, slab: Slab, served: Bools | None = None) -> tuple[Counts, Counts]:
        """Hits and non-trivial hits, uint16 `[steps, layers, buffers]`; slabs of one session in
        order. BadInput where a slab does not follow the one before."""
        return self.hits(slab, asked(self._workload, slab, served), self.look(slab))

    def look(self, slab: Slab) -> list[Foreseen | None]:
        """Of each step of the slab what is known before it, None where that is nothing."""
        steps = len(slab.selected)
        before = self._ahead.pop(slab.session, None)
        if slab.first_step == 0 and before is None:
            before = self._begins(slab.session)
        elif (before is None) != (slab.first_step == 0):
            raise BadInput(
                f"step {slab.first_step} of session {slab.session} does not follow",
                "predictor",
                "give each session's slabs in order",
            )
        found: list[Foreseen | None] = []
        for step in range(steps):
            found.append(None if before is None else (before, _limits(before, self._buffers)))
            before = _keys(self._ranks(slab.session, slab.scores[step]))
        assert before is not None, "a slab has a step"
        if slab.first_step + steps < self._workload.sessions[slab.session].steps:
            self._ahead[slab.session] = before
        else:
            self._ended(slab.session)
        return found

    def hits(
        self, slab: Slab, asks: Asked, foreseen: list[Foreseen | None]
    ) -> tuple[Counts, Counts]:
        """What of the slab's demands was foreseen; as `take`."""
        steps, layers, _ = slab.selected.shape
        hits = np.zeros((2, steps, layers, len(self._buffers)), np.uint16)
        for step, seen in enumerate(foreseen):
            if seen is None:
                continue
            before, limits = seen
            ordinals = np.where(asks.demanded[step], slab.selected[step], 0)
            mine = np.take_along_axis(before, ordinals.astype(np.int64), axis=-1)
            # Rare: only where the step before knew fewer blocks.
            new = asks.written[step] & (slab.selected[step] >= self._known(slab, asks, step))
            for at, limit in enumerate(limits):
                hit = asks.demanded[step] & ((mine >= limit[:, None]) | new)
                hits[0, step, :, at] = hit.sum(axis=-1)
                hits[1, step, :, at] = (hit & asks.nontrivial[step]).sum(axis=-1)
        return hits[0], hits[1]

    def _begins(self, session: int) -> Keys | None:
        """Ranks for a session's first step; None where nothing is known before it."""
        return None

    @abstractmethod
    def _ranks(self, session: int, scores: Scores) -> Scores:
        """Ranks of the next step, uint16 `[layers, blocks]`, higher is better, after these scores;
        0 for a block that is not written."""

    def _ended(self, session: int) -> None:  # noqa: B027
        """No more of this session is asked; for those who keep something of it."""

    def _known(self, slab: Slab, asks: Asked, step: int) -> int:
        """Blocks that were written when the step before began."""
        if step:
            return int(asks.counts[step - 1])
        return written_count(self._workload, slab.session, slab.first_step - 1)


class LastStep(Predictor):
    """The best by the scores of the step before. Nothing is known at a session's first step."""

    def _ranks(self, session: int, scores: Scores) -> Scores:
        return scores


@dataclass
class _Averages:
    """Of one session. fast, slow: float64 `[layers, blocks]` of whole numbers, 0 where not written.
    products `[layers, 4, 4]`, outcomes `[layers, 4]`: sums of the regression, which fade."""

    fast: Floats
    slow: Floats
    features: Floats
    products: Floats
    outcomes: Floats


class TwoAverages(Predictor):
    """The next score by regression on the last one, a fast and a slow average of it.

    Each layer of a session has its own weights, by least squares over its past steps, the older the
    less. At the first step the averages are those of the prefill's windows, where there are any.
    Averages and ranks are whole numbers and weights are rounded: sums are exact, so that ranks are
    the same on every machine.
    """

    fast_share = 1 / 8
    slow_share = 1 / 128
    kept = 31 / 32
    """What of the sums of a regression is left after a step."""

    def __init__(self, workload: Workload, buffer_blocks: Sequence[int]) -> None:
        super().__init__(workload, buffer_blocks)
        self._states: dict[int, _Averages] = {}

    def _begins(self, session: int) -> Keys | None:
        windows = self._workload.prefill(session)
        if windows is None or not len(windows):
            return None
        info = self._workload.sessions[session]
        grown = max(info.steps - 1, 0) // self._workload.block_tokens
        drawn = np.pad(windows, [(0, 0), (0, 0), (0, info.blocks + grown - windows.shape[2])])
        seen = np.maximum((drawn > 0).sum(axis=0), 1)
        mean = np.rint(drawn.sum(axis=0, dtype=np.float64) / seen)
        self._states[session] = _nothing(mean)
        return _keys(self._ranks(session, drawn[-1]))

    def _ranks(self, session: int, scores: Scores) -> Scores:
        now = scores.astype(np.float64)
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = _nothing(np.zeros(scores.shape))
        else:
            known = state.features
            outcomes = np.matmul(known, now[:, :, None])[:, :, 0]
            state.products = self.kept * state.products + np.matmul(known, known.swapaxes(1, 2))
            state.outcomes = self.kept * state.outcomes + outcomes
        state.fast = self._moved(state.fast, now, self.fast_share)
        state.slow = self._moved(state.slow, now, self.slow_share)
        written = scores > 0
        state.features = np.stack([written * _MIDDLE, now, state.fast, state.slow], axis=1)
        ahead = np.matmul(_weights(state)[:, None, :], state.features)[:, 0]
        return np.where(written, np.clip(np.rint(ahead), 1, 65535), 0).astype(np.uint16)

    def _moved(self, average: Floats, now: Floats, share: float) -> Floats:
        """The average one step on; a block's first score is taken as it is."""
        moved = np.rint(average + share * (now - average))
        found: Floats = np.where(average > 0, moved, now)
        return found

    def _ended(self, session: int) -> None:
        self._states.pop(session, None)


def _nothing(averages: Floats) -> _Averages:
    """Of a session of which no step is known."""
    layers, blocks = averages.shape
    return _Averages(averages, averages, np.zeros((layers, 4, blocks)), np.zeros((layers, 4, 4)),
                     np.zeros((layers, 4)))  # fmt: skip


_ROUNDED = 1 << 12
_RIDGE = 1e-6
_MIDDLE = 32768.0


def _weights(state: _Averages) -> Floats:
    """`[layers, 4]`; the last score alone before anything was seen to follow."""
    trace = np.trace(state.products, axis1=1, axis2=2)
    scaled = state.products + (_RIDGE * trace[:, None, None] + 1) * np.eye(4)
    # Drawn to the last score where the past says little.
    prior = np.array([0.0, 1.0, 0.0, 0.0])
    found = np.linalg.solve(scaled, (state.outcomes - state.products @ prior)[:, :, None])[:, :, 0]
    rounded: Floats = np.rint((prior + found) * _ROUNDED) / _ROUNDED
    return rounded


PREDICTORS: dict[str, type[Predictor]] = {"last_step": LastStep, "two_averages": TwoAverages}


def written_count(workload: Workload, session: int, step: int) -> int:
    """Blocks per layer that are written when the step begins: decode adds one every
    `block_tokens` steps."""
    return workload.sessions[session].blocks + step // workload.block_tokens


def asked(workload: Workload, slab: Slab, served: Bools | None) -> Asked:
    """What the slab demands; BadInput for a block that is not written yet."""
    selected = slab.selected
    steps = range(slab.first_step, slab.first_step + len(selected))
    counts = np.array([written_count(workload, slab.session, step) for step in steps], np.int64)
    present = selected != ABSENT
    if (present & (selected >= counts[:, None, None])).any():
        raise BadInput(
            f"session {slab.session} selects a block that is not written yet",
            f"steps from {slab.first_step}",
            f"after its context a block is written every {workload.block_tokens} steps",
        )
    ends = np.maximum(counts - workload.window_blocks, 0)[:, None, None]
    return Asked(
        present if served is None else present & ~served,
        (selected >= workload.sink_blocks) & (selected < ends),
        present & (selected >= workload.sessions[slab.session].blocks),
        counts,
    )


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
