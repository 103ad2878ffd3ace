"""Components that adapt to changes of the selections: stability, boundary and warm-up."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import (
    PATTERN,
    Averages,
    Component,
    Marks,
    Shares,
    best,
    guess_next_step,
    marked,
    marked_cells,
    overlap,
)
from offstage.testbeds.lab.policies.policy import Setting, View, guesses, no_guesses

__all__ = ["Boundary", "Stability", "Warmup"]


class _StabilityState:
    """State of one session: averages, churn and class of each layer, and the last guesses."""

    def __init__(self, scores: npt.NDArray[np.uint16], shift: int) -> None:
        layer_count = len(scores)
        self.averages = Averages(shift)
        self.before: Marks | None = None
        self.kept = Shares(layer_count, 0.5)
        self.stable = np.zeros(layer_count, np.bool_)
        self.guessed: Marks = np.zeros(scores.shape, np.bool_)
        self.share = Shares(layer_count, 0.4)
        self.seen = 0


class Stability(Component):
    """Guess by averaged scores: 4 k blocks of an unstable layer in each step, 2 k of a stable one
    every 16 steps, and at most as many as fit into the buffer next to a selection.

    After a first window of 32 steps, and every 256 steps after that, the quarter of the layers
    whose selection changes most from step to step becomes unstable. During the first window every
    layer is ranked in each step, for 2 k blocks. Stable layers are ranked in different steps, so
    that their reads are spread over time.
    """

    name: ClassVar[str] = "stability"
    uses: ClassVar[str] = "scores of all blocks; how much each layer's selection changes"
    source: ClassVar[str] = (
        "Offstage, after FlexiCache arXiv:2511.00868: 25 % of the heads unstable, stable ones "
        "re-ranked every 16 steps; by layer here, as blocks hold all heads"
    )
    first_window: ClassVar[int] = 32
    period: ClassVar[int] = 256
    rank_every: ClassVar[int] = 16
    unstable_fraction: ClassVar[float] = 0.25
    stable_over_k: ClassVar[int] = 2
    unstable_over_k: ClassVar[int] = 4
    shift: ClassVar[int] = 2

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _StabilityState] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses by the classes from earlier steps; this step's churn is recorded afterwards."""
        if view.session not in self.states:
            self.states[view.session] = _StabilityState(view.scores, self.shift)
        state = self.states[view.session]
        state.share.learn(state.guessed, view.selected)
        averages = state.averages.take(view.scores)
        state.guessed = np.zeros(averages.shape, np.bool_)
        for layers, over_k in self._ranked(state, view.step):
            if len(layers):
                state.guessed[layers] = best(averages[layers], self.fitting(over_k))
        answer = guess_next_step(state.guessed, state.share.share, PATTERN)
        self._observe(state, view)
        return answer

    def _ranked(self, state: _StabilityState, step: int) -> list[tuple[npt.NDArray[np.int64], int]]:
        """Layers that are ranked in this step, with the number of blocks in multiples of k."""
        layers = np.arange(len(state.stable))
        if state.seen < self.first_window:
            return [(layers, self.stable_over_k)]
        due = state.stable & ((layers + step) % self.rank_every == 0)
        return [
            (layers[~state.stable], self.unstable_over_k),
            (layers[due], self.stable_over_k),
        ]

    def _observe(self, state: _StabilityState, view: View) -> None:
        if state.before is not None:
            state.kept.learn_overlap(state.before, view.selected)
        state.before = marked(view.selected, view.scores.shape[1])
        state.seen += 1
        if (state.seen - self.first_window) % self.period == 0:
            count = max(1, round(self.unstable_fraction * len(state.stable)))
            order = np.argsort(state.kept.share, kind="stable")
            state.stable[:] = True
            state.stable[order[:count]] = False


# Boundary: after the query changes, the newest scores predict better than the averages.


class _BoundaryState:
    """State of one session; each layer detects a turn independently, before later layers run."""

    def __init__(self, scores: npt.NDArray[np.uint16]) -> None:
        layer_count = len(scores)
        self.before: Marks | None = None
        self.overlap = Shares(layer_count, 0.0)
        self.until = np.full(layer_count, -1, np.int64)
        self.guessed: Marks = np.zeros(scores.shape, np.bool_)
        self.share = Shares(layer_count, 0.3)


class Boundary(Component):
    """For some steps after a turn, guess the best 3 k blocks of each turned layer by its newest
    scores, or as many as the buffer holds next to a selection if that is less.

    A layer turns when its selection's overlap with the one before falls below half the running
    average, as in the core's `ema`, or when a turn of the conversation begins.
    """

    name: ClassVar[str] = "boundary"
    uses: ClassVar[str] = "the newest scores after the query turns"
    source: ClassVar[str] = (
        "Offstage, after LouisKV (ICLR '26): selections are similar within a reasoning step and "
        "change at its end; half the average, 8 steps and 3 k are ours"
    )
    steps: ClassVar[int] = 8
    set_over_k: ClassVar[int] = 3

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _BoundaryState] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses for the layers that turned recently."""
        if view.session not in self.states:
            self.states[view.session] = _BoundaryState(view.scores)
        state = self.states[view.session]
        turned = np.full(len(view.selected), view.turn)
        if state.before is not None:
            common = overlap(state.before, view.selected)
            turned |= 2 * common < state.overlap.share
            if not state.overlap.share.any():
                state.overlap.share = common
            state.overlap.learn_overlap(state.before, view.selected)
            state.share.learn(state.guessed, view.selected)
        state.before = marked(view.selected, view.scores.shape[1])
        state.until[turned] = view.step + self.steps
        active = np.flatnonzero(state.until > view.step)
        state.guessed = np.zeros(view.scores.shape, np.bool_)
        if not len(active):
            return no_guesses()
        state.guessed[active] = best(view.scores[active], self.fitting(self.set_over_k))
        return guess_next_step(state.guessed, state.share.share, PATTERN)


# Warm-up from the end of the prefill: the blocks that its last windows attended to.


class Warmup(Component):
    """Guess the union of the last windows' k best blocks, most frequent first, up to one buffer."""

    name: ClassVar[str] = "warmup"
    uses: ClassVar[str] = "scores of the last windows of the prefill"
    source: ClassVar[str] = (
        "ESS arXiv:2512.10576: top ids of the last 32 windows; the order and the limit are ours"
    )
    windows: ClassVar[int] = 32

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """Probability: the share of windows that chose the block. No guess without windows."""
        if prefill is None or not len(prefill):
            return no_guesses()
        votes = np.zeros(prefill.shape[1:], np.uint16)
        tail = prefill[-self.windows :]
        for scores in tail:
            votes += best(scores, self.setting.select_blocks)
        votes[:, blocks:] = 0
        layer, ordinal = marked_cells(best(votes, self.setting.buffer_blocks))
        share = votes[layer, ordinal] / len(tail)
        return guesses(layer, ordinal, after_layer=0, steps=0, probability=share, cause=PATTERN)
