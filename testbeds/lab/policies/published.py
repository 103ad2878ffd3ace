"""Policies from papers: PRR, UCM and SolidAttention, as far as a trace supports them."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.testbeds.lab.policies.base import (
    BASELINE,
    PATTERN,
    Averages,
    Component,
    Marks,
    Shares,
    best,
    guess_next_step,
    marked,
    marked_cells,
)
from offstage.testbeds.lab.policies.policy import Setting, View, guesses, no_guesses

__all__ = ["PrrEma", "SolidAttentionPrevStep", "UcmStrided", "UcmStrided3"]


class _PrrState:
    """State of one session: averages, the hit share of each band, and the last guesses."""

    def __init__(self, layer_count: int, shift: int) -> None:
        self.averages = Averages(shift)
        self.near, self.far = Shares(layer_count, 0.7), Shares(layer_count, 0.2)
        self.guessed: tuple[Marks, Marks] | None = None


class PrrEma(Component):
    """Guess the best `set_over_k` times k blocks of each layer by their averages, for the next
    step; at most as many as fit into the buffer next to a selection."""

    name: ClassVar[str] = "prr-ema"
    uses: ClassVar[str] = "scores of all blocks, selected or not"
    source: ClassVar[str] = (
        "PRR arXiv:2606.30389, re-implemented from its description: averages of block scores, "
        "a = 1/2, and a set of 2 k; the buffer less one selection bounds the set, where PRR "
        "uses the time to read it; its grid search of weights during prefill is left out"
    )
    shift: ClassVar[int] = 1
    set_over_k: ClassVar[int] = 2

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _PrrState] = {}

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """Add the windows of the prefill to the averages; no guess."""
        state = self.states[session] = _PrrState(self.setting.layer_count, self.shift)
        for scores in prefill if prefill is not None else ():
            state.averages.take(scores)
        return super().begin(session, blocks, prefill)

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guess the k best, then the rest of the set, each band with its measured share."""
        state = self.states.get(view.session)
        if state is None:
            state = self.states[view.session] = _PrrState(len(view.selected), self.shift)
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


# UCM's strided selection: chosen early in a period, loaded at its end.

_RETRIEVED_AT = 1  # the second step of a period


class _UcmState:
    """State of one session: the choice of the period's retrieval, and the hit share of choices."""

    def __init__(self, layer_count: int) -> None:
        self.chosen: Marks | None = None
        self.loaded: Marks | None = None
        self.share = Shares(layer_count, 0.5)


class UcmStrided(Component):
    """Guess in the last step of a period each layer's k best of its second step."""

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
        self.states: dict[int, _UcmState] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses in the last step of each period."""
        if view.session not in self.states:
            self.states[view.session] = _UcmState(len(view.selected))
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
    """`UcmStrided` with a period of three steps."""

    name: ClassVar[str] = "ucm-strided-3"
    uses: ClassVar[str] = "scores of all blocks, one step in three"
    source: ClassVar[str] = (
        "UCM's GSA (ModelEngine-Group/unified-cache-management), re-implemented from its "
        "description: re-selection every 3 steps; we assume the retrieval and load steps of ESA, "
        "and leave its extra blocks out"
    )
    stride: ClassVar[int] = 3


# SolidAttention's speculative prefetch: a layer's last selection, fetched one layer ahead.


class _SolidState:
    """State of one session: each layer's last selection, and its overlap with the next one."""

    def __init__(self, layer_count: int) -> None:
        self.before: Marks | None = None
        self.shares = Shares(layer_count, 0.8)


class SolidAttentionPrevStep(Component):
    """While a layer computes, guess the previous step's selection of the next layer."""

    name: ClassVar[str] = "solidattention-prev-step"
    uses: ClassVar[str] = "selections of the previous step"
    source: ClassVar[str] = (
        "SolidAttention (FAST '26), re-implemented from its description: the selection of the "
        "previous step, read while the layer before computes; prior .8, from its 81 % similarity"
    )

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.states: dict[int, _SolidState] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses for this step's layers after the first, then for the next step's first layer."""
        last = len(view.selected) - 1
        if view.session not in self.states:
            self.states[view.session] = _SolidState(last + 1)
        state = self.states[view.session]
        share, before = state.shares.share, state.before
        now = state.before = marked(view.selected, view.scores.shape[1])
        rows, ordinals = marked_cells(now[:1])
        answer = guesses(
            rows, ordinals, after_layer=last, steps=1, probability=share[0], cause=BASELINE
        )
        if before is None:
            return answer
        state.shares.learn(before, view.selected)
        rows, ordinals = marked_cells(before[1:])
        ahead = guesses(
            rows + 1,
            ordinals,
            after_layer=rows,
            steps=0,
            probability=share[rows + 1],
            cause=BASELINE,
        )
        return np.concatenate([ahead, answer])
