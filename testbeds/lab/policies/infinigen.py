"""InfiniGen's speculation on the next layer, as far as a trace can give it.

InfiniGen multiplies the input of layer l with the query weights of layer l + 1 and so sees that
layer's scores before it runs. A trace of selections has no hidden states and no query weights. What
is left of the idea is the claim below it, that adjacent layers want alike blocks: the selection of
layer l stands in for the speculated one. What comes of it does not say how good the original is.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import BASELINE, Component, Shares, marked, places
from offstage.testbeds.lab.policies.policy import Setting, View, guesses, no_guesses

__all__ = ["InfinigenNextLayer"]


class InfinigenNextLayer(Component):
    """After each layer, its selection for the layer behind it, in the same step."""

    name: ClassVar[str] = "infinigen-next-layer"
    uses: ClassVar[str] = "the selection of the layer before"
    source: ClassVar[str] = (
        "InfiniGen (OSDI '24), re-implemented from its description with this layer's selection for "
        "the next layer's speculated one: no query weights in a trace"
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.shares: dict[int, Shares] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Told with the share of earlier steps; this step's outcome is learnt behind it."""
        pairs = len(view.selected) - 1
        if pairs == 0:
            return no_guesses()
        shares = self.shares.setdefault(view.session, Shares(pairs, 0.5))
        marks = marked(view.selected[:-1], view.scores.shape[1])
        rows, ordinals = places(marks)
        answer = guesses(rows + 1, ordinals, after_layer=rows, steps=0,
                         probability=shares.share[rows], cause=BASELINE)  # fmt: skip
        shares.learn(marks, view.selected[1:])
        return answer
