"""Guess the blocks whose scores rise fastest."""

from typing import ClassVar

import numpy as np

from offstage.bindings.core import CAUSES
from offstage.testbeds.lab.policies.policy import CoreSwitches, Setting, View, guesses, no_guesses

PATTERN = CAUSES.index("pattern")


class Rising:
    """The k blocks of each layer that gained most since the step before, for the next step."""

    name: ClassVar[str] = "rising"
    uses: ClassVar[str] = "scores of this step and of the one before"
    source: ClassVar[str] = "an example"
    core: ClassVar[CoreSwitches] = CoreSwitches(eviction="score")

    def __init__(self, setting: Setting) -> None:
        self.count = setting.select_blocks
        self.before: dict[int, np.ndarray] = {}  # by session

    def begin(self, session: int, blocks: int, prefill: np.ndarray | None) -> np.ndarray:
        """Nothing is known of a rise before the first step."""
        return no_guesses()

    def step(self, view: View) -> np.ndarray:
        """Layer l's guesses use layer l alone, so they are passed as soon as it has run."""
        scores = view.scores.astype(np.int32)  # a copy: the view ends with the call
        before = self.before.get(view.session)
        self.before[view.session] = scores
        if before is None:
            return no_guesses()
        rise = scores.copy()
        rise[:, : before.shape[1]] -= before  # blocks written since then are all rise
        order = np.argsort(-rise, axis=1, kind="stable")[:, : self.count]
        layer, column = np.nonzero(np.take_along_axis(rise, order, axis=1) > 0)
        return guesses(
            layer,
            order[layer, column],
            after_layer=layer,
            steps=1,
            probability=0.3,
            cause=PATTERN,
        )
