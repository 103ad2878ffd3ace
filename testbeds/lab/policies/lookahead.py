"""Lookahead: selections that are known before they are made.

Two sources. Where layers share an index set, the selection of the layer that computes it is that of
the later ones, exactly and within the step. Where a draft model runs ahead, its selection for the
token to come is mostly that of the real token. A workload that has neither is BadInput at open.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.base import (
    LOOKAHEAD,
    Component,
    Marks,
    best,
    marked,
    marked_cells,
)
from offstage.testbeds.lab.policies.policy import Setting, View, guesses, no_guesses
from offstage.testbeds.workloads.selections.slab import ABSENT

__all__ = ["Lookahead", "LookaheadDraft", "LookaheadIndex", "OasisDraft"]


def _followers(setting: Setting) -> npt.NDArray[np.int64]:
    """Layers that use the selection of a layer before them."""
    return np.flatnonzero(setting.index_source < np.arange(setting.layer_count))


class LookaheadIndex(Component):
    """After a layer that selects for later ones too, its selection for each of them."""

    name: ClassVar[str] = "lookahead-index"
    uses: ClassVar[str] = "index sets that later layers share"
    source: ClassVar[str] = "HiSparse arXiv:2608.07009 on GLM-5.2's shared indices"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.layers = _followers(setting)
        if not len(self.layers):
            raise BadInput(
                "no layer uses the selection of another",
                f"policy {self.name!r}",
                "choose a workload with shared index sets, or another policy",
            )
        self.sources = setting.index_source[self.layers]

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Certain, and for this step: probability 1."""
        selected = view.selected[self.sources]
        rows, columns = marked_cells(selected != ABSENT)
        return guesses(self.layers[rows], selected[rows, columns], steps=0,
                       after_layer=self.sources[rows], cause=LOOKAHEAD)  # fmt: skip


class LookaheadDraft(Component):
    """After the last layer, what the draft token selects, for every layer of the next step."""

    name: ClassVar[str] = "lookahead-draft"
    uses: ClassVar[str] = "a draft model's selection for the next token"
    source: ClassVar[str] = "Offstage, after OasisKV arXiv:2608.08097 but without its cap"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.draft_agreement is None:
            raise BadInput(
                "the workload has no draft model",
                f"policy {self.name!r}",
                "choose one with a draft agreement, or another policy",
            )
        self.agreement = setting.draft_agreement

    def wanted(self, view: View, draft: npt.NDArray[np.uint16]) -> Marks:
        """What is guessed, `[layers, blocks]`: the draft's selection."""
        return best(draft, self.setting.select_blocks)

    def step(self, view: View) -> npt.NDArray[np.void]:
        """With the stated agreement as the probability."""
        if view.draft is None:
            return no_guesses()
        layer, ordinal = marked_cells(self.wanted(view, view.draft))
        return guesses(layer, ordinal, after_layer=len(view.selected) - 1, steps=1,
                       probability=self.agreement, cause=LOOKAHEAD)  # fmt: skip


class OasisDraft(LookaheadDraft):
    """The draft's selection, capped: of what it adds to this step's, the best few of each layer."""

    name: ClassVar[str] = "oasiskv-draft"
    source: ClassVar[str] = (
        "OasisKV arXiv:2608.08097, re-implemented from its description: at most 5 % of a selection "
        "a step, its best point; that the 5 % are of the selection is our reading"
    )
    cap_share: ClassVar[float] = 0.05

    def wanted(self, view: View, draft: npt.NDArray[np.uint16]) -> Marks:
        """The best new blocks of the draft's selection, one a layer at least."""
        cap = max(1, round(self.cap_share * self.setting.select_blocks))
        new = super().wanted(view, draft) & ~marked(view.selected, draft.shape[1])
        return best(np.where(new, draft, np.uint16(0)), cap)


class Lookahead(Component):
    """Both, as far as the workload has them."""

    name: ClassVar[str] = "lookahead"
    uses: ClassVar[str] = "shared index sets, a draft model's selection, whichever there is"
    source: ClassVar[str] = "lookahead-index and lookahead-draft together"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.parts: list[Component] = []
        if len(_followers(setting)):
            self.parts.append(LookaheadIndex(setting))
        if setting.draft_agreement is not None:
            self.parts.append(LookaheadDraft(setting))
        if not self.parts:
            raise BadInput(
                "the workload has neither shared index sets nor a draft model",
                f"policy {self.name!r}",
                "choose a workload with one of them, or another policy",
            )

    def step(self, view: View) -> npt.NDArray[np.void]:
        """The guesses of the parts, one behind the other."""
        return np.concatenate([part.step(view) for part in self.parts])
