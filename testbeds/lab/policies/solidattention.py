"""SolidAttention's speculative prefetch: a layer's last selection, one layer ahead of its turn."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import BASELINE, Component, Marks, Shares, marked, places
from offstage.testbeds.lab.policies.policy import Setting, View, guesses

__all__ = ["SolidAttentionPrevStep"]


class _State:
    """Of one session: each layer's last selection, and how much of one is in the next."""

    def __init__(self, layer_count: int) -> None:
        self.before: Marks | None = None
        self.shares = Shares(layer_count, 0.8)


class SolidAttentionPrevStep(Component):
    """While a layer computes, what the layer behind it selected in the step before."""

    name: ClassVar[str] = "solidattention-prev-step"
    uses: ClassVar[str] = "selections of the previous step"
    source: ClassVar[str] = (
        "SolidAttention (FAST '26), re-implemented from its description: the selection of the "
        "previous step, read while the layer before computes; prior .8 after its 81 % similarity"
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _State] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """For this step's layers but the first, then for the first layer of the next step."""
        last = len(view.selected) - 1
        if view.session not in self.states:
            self.states[view.session] = _State(last + 1)
        state = self.states[view.session]
        share, before = state.shares.share, state.before
        now = state.before = marked(view.selected, view.scores.shape[1])
        rows, ordinals = places(now[:1])
        answer = guesses(rows, ordinals, after_layer=last, steps=1, probability=share[0],
                         cause=BASELINE)  # fmt: skip
        if before is None:
            return answer
        state.shares.learn(before, view.selected)
        rows, ordinals = places(before[1:])
        ahead = guesses(rows + 1, ordinals, after_layer=rows, steps=0, probability=share[rows + 1],
                        cause=BASELINE)  # fmt: skip
        return np.concatenate([ahead, answer])
