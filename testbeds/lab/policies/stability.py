"""Stability: layers that change little are ranked seldom, and the budget goes to the others."""

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
)
from offstage.testbeds.lab.policies.policy import Setting, View

__all__ = ["Stability"]


class _State:
    """Of one session: averages, churn and class of each layer, what was guessed last."""

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
    """Guesses by averaged scores: of unstable layers 4 k each step, of stable ones 2 k in 16, and
    of neither more than fit into the buffer beside a selection.

    After a first window of 32 steps, and every 256 from then on, the quarter of the layers whose
    selection changes most from step to step is unstable. Until then all are ranked each step, 2 k.
    Stable layers take turns, so that their reads do not come all at once.
    """

    name: ClassVar[str] = "stability"
    uses: ClassVar[str] = "scores of all blocks, how much each layer's selection changes"
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
        self.states: dict[int, _State] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses by the classes of earlier steps; what this step shows of churn comes after."""
        if view.session not in self.states:
            self.states[view.session] = _State(view.scores, self.shift)
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

    def _ranked(self, state: _State, step: int) -> list[tuple[npt.NDArray[np.int64], int]]:
        """Layers that are ranked now, and over how many k."""
        layers = np.arange(len(state.stable))
        if state.seen < self.first_window:
            return [(layers, self.stable_over_k)]
        due = state.stable & ((layers + step) % self.rank_every == 0)
        return [
            (layers[~state.stable], self.unstable_over_k),
            (layers[due], self.stable_over_k),
        ]

    def _observe(self, state: _State, view: View) -> None:
        if state.before is not None:
            state.kept.learn_overlap(state.before, view.selected)
        state.before = marked(view.selected, view.scores.shape[1])
        state.seen += 1
        if (state.seen - self.first_window) % self.period == 0:
            count = max(1, round(self.unstable_fraction * len(state.stable)))
            order = np.argsort(state.kept.share, kind="stable")
            state.stable[:] = True
            state.stable[order[:count]] = False
