"""UCM's strided selection: chosen early in a period, loaded at its end."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import (
    BASELINE,
    Component,
    Marks,
    Shares,
    best,
    guess_next_step,
)
from offstage.testbeds.lab.policies.policy import Setting, View, no_guesses

__all__ = ["UcmStrided", "UcmStrided3"]

_RETRIEVED_AT = 1  # the second step of a period


class _State:
    """Of one session: what the period's retrieval chose, and how often such choices came true."""

    def __init__(self, layer_count: int) -> None:
        self.chosen: Marks | None = None
        self.loaded: Marks | None = None
        self.share = Shares(layer_count, 0.5)


class UcmStrided(Component):
    """Each layer's k best of the second step of a period are guessed in its last step."""

    name: ClassVar[str] = "ucm-strided"
    uses: ClassVar[str] = "scores of all blocks, one step in five"
    source: ClassVar[str] = (
        "UCM's ESA (ModelEngine-Group/unified-cache-management), re-implemented from its "
        "description: retrieval in step 2 of 5, load in the last; k is the workload's, and the "
        "model still selects at every step"
    )
    stride: ClassVar[int] = 5

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _State] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses in the last step of each period."""
        if view.session not in self.states:
            self.states[view.session] = _State(len(view.selected))
        state = self.states[view.session]
        phase = view.step % self.stride
        if state.loaded is not None:
            state.share.learn(state.loaded, view.selected)
            state.loaded = None
        if phase == _RETRIEVED_AT:
            state.chosen = best(view.scores, self.setting.select_blocks)
        if phase != self.stride - 1 or state.chosen is None:
            return no_guesses()
        state.loaded = state.chosen
        return guess_next_step(state.chosen, state.share.share, BASELINE)


class UcmStrided3(UcmStrided):
    """The same with a period of three steps."""

    name: ClassVar[str] = "ucm-strided-3"
    uses: ClassVar[str] = "scores of all blocks, one step in three"
    source: ClassVar[str] = (
        "UCM's GSA (ModelEngine-Group/unified-cache-management), re-implemented from its "
        "description: re-selection every 3 steps; that retrieval and load lie as in ESA is our "
        "reading, and its extra blocks are left out"
    )
    stride: ClassVar[int] = 3
