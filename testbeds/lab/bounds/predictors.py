"""Predictors: a buffer that holds the best blocks, ranked by the scores of earlier steps.

A predictor gets each step's scores and ranks the blocks for the next step. A demand hits if its
block is among the `buffer_blocks` best of its layer (the lower ordinal wins a tie, and a block of
rank 0 is never held), or if decode wrote it with this step. Reads cost nothing. A predictor is not
a bound: a policy with more information, or a better model, may exceed it. `LastStep` uses only the
scores of the previous step; `TwoAverages` is the strongest causal predictor from scores that we
have. Each owns its state per session. Slabs out of order are `BadInput`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.bindings import ranks
from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.selections.slab import Slab, Workload

__all__ = [
    "PREDICTORS",
    "Asked",
    "Foreseen",
    "LastStep",
    "Predictor",
    "TwoAverages",
    "asked",
    "written_count",
]

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float64]
Scores = npt.NDArray[np.uint16]
Foreseen = tuple[Scores, npt.NDArray[np.uint64]]
"""Ranks of every block `[layers, blocks]`, and the lowest rank that each buffer holds."""


@dataclass(frozen=True)
class Asked:
    """The demands of a slab, `[steps, layers, width]`; `written`: decode wrote the block."""

    demanded: Bools
    nontrivial: Bools
    written: Bools
    counts: npt.NDArray[np.int64]
    """`[steps]`: blocks per layer that are written when the step begins."""


class Predictor(ABC):
    """Base of all predictors; a subclass implements the ranking in `_ranks`."""

    def __init__(self, workload: Workload, buffer_blocks: Sequence[int]) -> None:
        self._workload = workload
        self._buffers = tuple(buffer_blocks)
        if not self._buffers or min(self._buffers) < 1:
            raise BadInput(
                f"buffers of {self._buffers} blocks", "predictor", "give one or more, each above 0"
            )
        self._ahead: dict[int, Scores] = {}  # ranks for each session's next step

    def take(self, slab: Slab, served: Bools | None = None) -> tuple[Counts, Counts]:
        """Hits and non-trivial hits, uint16 `[steps, layers, buffers]`; slabs of one session in
        order. BadInput for a slab out of order."""
        return self.hits(slab, asked(self._workload, slab, served), self.look(slab))

    def look(self, slab: Slab) -> list[Foreseen | None]:
        """The prediction for each step of the slab; None if nothing is known before the step."""
        steps = len(slab.selected)
        before = self._ahead.pop(slab.session, None)
        if slab.first_step == 0 and before is None:
            before = self._begins(slab.session)
        elif (before is None) != (slab.first_step == 0):
            raise BadInput(
                f"step {slab.first_step} of session {slab.session} is out of order",
                "predictor",
                "give each session's slabs in order",
            )
        found: list[Foreseen | None] = []
        for step in range(steps):
            found.append(None if before is None else (before, ranks.limits(before, self._buffers)))
            before = np.ascontiguousarray(self._ranks(slab.session, slab.scores[step]))
        assert before is not None, "a slab has a step"
        if slab.first_step + steps < self._workload.sessions[slab.session].steps:
            self._ahead[slab.session] = before
        else:
            self._ended(slab.session)
        return found

    def hits(
        self, slab: Slab, asks: Asked, foreseen: list[Foreseen | None]
    ) -> tuple[Counts, Counts]:
        """The demands of the slab that `foreseen` predicts; the result is as in `take`."""
        steps, layers, _ = slab.selected.shape
        hits = np.zeros((2, steps, layers, len(self._buffers)), np.uint16)
        for step, seen in enumerate(foreseen):
            if seen is not None:
                hits[:, step] = ranks.hits(
                    *seen,
                    slab.selected[step],
                    asks.demanded[step],
                    asks.nontrivial[step],
                    asks.written[step],
                    self._known(slab, asks, step),
                )
        return hits[0], hits[1]

    def _begins(self, session: int) -> Scores | None:
        """Ranks for a session's first step; None if nothing is known before it."""
        return None

    @abstractmethod
    def _ranks(self, session: int, scores: Scores) -> Scores:
        """Ranks for the step after these scores, uint16 `[layers, blocks]`; higher is better, 0 is
        a block that is not written."""

    def _ended(self, session: int) -> None:  # noqa: B027
        """The session has ended: a predictor with state per session drops it."""

    def _known(self, slab: Slab, asks: Asked, step: int) -> int:
        """Number of blocks per layer that were written when the previous step began."""
        if step:
            return int(asks.counts[step - 1])
        return written_count(self._workload, slab.session, slab.first_step - 1)


class LastStep(Predictor):
    """Rank by the scores of the previous step; no prediction for a session's first step."""

    def _ranks(self, session: int, scores: Scores) -> Scores:
        return scores


@dataclass
class _Regression:
    """State of one session. products `[layers, 4, 4]`, outcomes `[layers, 4]`: decayed sums."""

    averages: ranks.Averages
    products: Floats
    outcomes: Floats


class TwoAverages(Predictor):
    """Predict the next score by regression on the last score and a fast and a slow average.

    Each layer of a session has its own weights, fitted by least squares over past steps with
    exponential decay. At the first step the averages are those of the prefill's windows, if any.
    Averages and ranks are integers and weights are rounded, so sums are exact and ranks are the
    same on every machine.
    """

    fast_shift = 3
    slow_shift = 7
    """An average moves by 2^-shift of its distance to the score."""
    kept = 31 / 32
    """Decay of the sums of a regression per step."""

    def __init__(self, workload: Workload, buffer_blocks: Sequence[int]) -> None:
        super().__init__(workload, buffer_blocks)
        self._states: dict[int, _Regression] = {}

    def _begins(self, session: int) -> Scores | None:
        windows = self._workload.prefill(session)
        if windows is None or not len(windows):
            return None
        info = self._workload.sessions[session]
        grown = max(info.steps - 1, 0) // self._workload.block_tokens
        drawn = np.pad(windows, [(0, 0), (0, 0), (0, info.blocks + grown - windows.shape[2])])
        seen = np.maximum((drawn > 0).sum(axis=0), 1)
        mean = np.rint(drawn.sum(axis=0, dtype=np.float64) / seen)
        self._states[session] = _begun(mean.astype(np.uint16))
        return self._taken(self._states[session], drawn[-1])

    def _ranks(self, session: int, scores: Scores) -> Scores:
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = _begun(np.zeros(scores.shape, np.uint16))
        else:
            products, outcomes = state.averages.sums(scores)
            state.products = self.kept * state.products + products
            state.outcomes = self.kept * state.outcomes + outcomes
        return self._taken(state, scores)

    def _taken(self, state: _Regression, scores: Scores) -> Scores:
        state.averages.take(scores, self.fast_shift, self.slow_shift)
        return state.averages.ahead(_weights(state))

    def _ended(self, session: int) -> None:
        self._states.pop(session, None)


_ROUNDED = 1 << 12
_RIDGE = 1e-6
_MIDDLE = 32768


def _begun(averages: Scores) -> _Regression:
    """The state of a session before its first step."""
    layers = len(averages)
    known = ranks.Averages(np.zeros_like(averages), averages, averages.copy(), _MIDDLE)
    return _Regression(known, np.zeros((layers, 4, 4)), np.zeros((layers, 4)))


def _weights(state: _Regression) -> Floats:
    """Weights `[layers, 4]`; only the last score counts before the first outcome."""
    trace = np.trace(state.products, axis1=1, axis2=2)
    scaled = state.products + (_RIDGE * trace[:, None, None] + 1) * np.eye(4)
    # Ridge regression toward the last score.
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
    """The demands of the slab; BadInput for a block that is not written yet."""
    selected = slab.selected
    steps = range(slab.first_step, slab.first_step + len(selected))
    counts = np.array([written_count(workload, slab.session, step) for step in steps], np.int64)
    present = selected != ABSENT
    if (present & (selected >= counts[:, None, None])).any():
        raise BadInput(
            f"session {slab.session} selects a block that is not written yet",
            f"steps from {slab.first_step}",
            f"decode writes one block every {workload.block_tokens} steps",
        )
    ends = np.maximum(counts - workload.window_blocks, 0)[:, None, None]
    return Asked(
        present if served is None else present & ~served,
        (selected >= workload.sink_blocks) & (selected < ends),
        present & (selected >= workload.sessions[slab.session].blocks),
        counts,
    )
