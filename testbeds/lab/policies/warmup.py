"""Warm-up from the prefill's tail: what its last windows attended to, before the first step."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import PATTERN, Component, best, places
from offstage.testbeds.lab.policies.policy import guesses, no_guesses

__all__ = ["Warmup"]


class Warmup(Component):
    """The union of the last windows' k best, most often chosen first, as far as a buffer goes."""

    name: ClassVar[str] = "warmup"
    uses: ClassVar[str] = "scores of the last windows of the prefill"
    source: ClassVar[str] = (
        "ESS arXiv:2512.10576: top ids of the last 32 windows; the order and the limit are ours"
    )
    windows: ClassVar[int] = 32

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """Probability: the share of windows that chose the block. None where nothing is known."""
        if prefill is None or not len(prefill):
            return no_guesses()
        votes = np.zeros(prefill.shape[1:], np.uint16)
        tail = prefill[-self.windows :]
        for scores in tail:
            votes += best(scores, self.setting.select_blocks)
        votes[:, blocks:] = 0
        layer, ordinal = places(best(votes, self.setting.buffer_blocks))
        share = votes[layer, ordinal] / len(tail)
        return guesses(layer, ordinal, after_layer=0, steps=0, probability=share, cause=PATTERN)
