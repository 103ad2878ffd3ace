"""PRR's predictor: a running average of block scores, and a set larger than the selection."""

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
)
from offstage.testbeds.lab.policies.policy import Setting, View

__all__ = ["PrrEma"]


class _State:
    """Of one session: averages, how often each band came true, what was guessed last."""

    def __init__(self, layer_count: int, shift: int) -> None:
        self.averages = Averages(shift)
        self.near, self.far = Shares(layer_count, 0.7), Shares(layer_count, 0.2)
        self.guessed: tuple[Marks, Marks] | None = None


class PrrEma(Component):
    """The best `set_over_k` times k blocks of each layer by their averages, for the next step; no
    more than fit into the buffer beside a selection."""

    name: ClassVar[str] = "prr-ema"
    uses: ClassVar[str] = "scores of all blocks, selected or not"
    source: ClassVar[str] = (
        "PRR arXiv:2606.30389, re-implemented from its description: averages of block scores, "
        "a = 1/2, and a set of 2 k; the set is bounded by what the buffer holds beside a "
        "selection, where PRR bounds it by the time to read it; its grid search of weights during "
        "prefill is left out"
    )
    shift: ClassVar[int] = 1
    set_over_k: ClassVar[int] = 2

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _State] = {}

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """The averages take in the windows of the prefill; no guess."""
        state = self.states[session] = _State(self.setting.layer_count, self.shift)
        for scores in prefill if prefill is not None else ():
            state.averages.take(scores)
        return super().begin(session, blocks, prefill)

    def step(self, view: View) -> npt.NDArray[np.void]:
        """First the k best, then the rest of the set, each with its measured share."""
        state = self.states.get(view.session)
        if state is None:
            state = self.states[view.session] = _State(len(view.selected), self.shift)
        if state.guessed is not None:
            state.near.learn(state.guessed[0], view.selected)
            state.far.learn(state.guessed[1], view.selected)
        averages = state.averages.take(view.scores)
        near = best(averages, self.fitting(1))
        far = best(averages, self.fitting(self.set_over_k)) & ~near
        state.guessed = near, far
        return np.concatenate(
            [
                guess_next_step(near, state.near.share, PATTERN),
                guess_next_step(far, state.far.share, PATTERN),
            ]
        )
