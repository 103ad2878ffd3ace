"""Boundary: when the query turns, the past says little, and the newest scores say more."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import (
    PATTERN,
    Component,
    Marks,
    Shares,
    best,
    guess_next_step,
    marked,
    overlap,
)
from offstage.testbeds.lab.policies.policy import Setting, View, no_guesses

__all__ = ["Boundary"]


class _State:
    """Of one session; a layer turns by itself, as each is told before the ones behind it."""

    def __init__(self, scores: npt.NDArray[np.uint16]) -> None:
        layer_count = len(scores)
        self.before: Marks | None = None
        self.overlap = Shares(layer_count, 0.0)
        self.until = np.full(layer_count, -1, np.int64)
        self.guessed: Marks = np.zeros(scores.shape, np.bool_)
        self.share = Shares(layer_count, 0.3)


class Boundary(Component):
    """For some steps after a turn, the best of each turned layer's newest scores: 3 k of them, or
    what the buffer holds beside a selection if that is less.

    A layer turns when its selection's overlap with the one before falls below half the running
    average, as in the core's `ema`, or when a turn of the conversation begins.
    """

    name: ClassVar[str] = "boundary"
    uses: ClassVar[str] = "the newest scores, where the query turns"
    source: ClassVar[str] = (
        "Offstage, after LouisKV (ICLR '26): selections are alike inside a reasoning step and part "
        "at its end; half the average, 8 steps and 3 k are ours"
    )
    steps: ClassVar[int] = 8
    set_over_k: ClassVar[int] = 3

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _State] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses of the layers that have turned lately."""
        if view.session not in self.states:
            self.states[view.session] = _State(view.scores)
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
