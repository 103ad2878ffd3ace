"""Lookahead: components that know or predict a layer's selection before the layer runs.

Three sources. If layers share an index set, the layer that computes it selects for the later ones,
exactly and within the step. If a small draft model finishes a token before the model does, most of
its selection is the model's too. And a layer's input, passed through the norm and the query
projection of the next layer, predicts that layer's query. A component whose source the workload
lacks is BadInput at open.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.host.decode.foretold import Foretold
from offstage.testbeds.lab.policies.base import (
    LOOKAHEAD,
    Component,
    Marks,
    Shares,
    best,
    marked,
    marked_cells,
)
from offstage.testbeds.lab.policies.policy import (
    CoreSwitches,
    Setting,
    View,
    guesses,
    no_guesses,
)
from offstage.testbeds.workloads.selections.slab import PREDICTED_LEAD_LAYERS

__all__ = [
    "Lookahead",
    "LookaheadDraft",
    "LookaheadIndex",
    "LookaheadMeasured",
    "LookaheadQuery",
    "LookaheadUndrafted",
    "OasisDraft",
]


def _followers(setting: Setting) -> npt.NDArray[np.int64]:
    """Layers that use the selection of an earlier layer."""
    return np.flatnonzero(setting.index_source < np.arange(setting.layer_count))


class LookaheadIndex(Component):
    """Guess a layer's selection for each later layer that shares its index set."""

    name: ClassVar[str] = "lookahead-index"
    uses: ClassVar[str] = "index sets that later layers share"
    source: ClassVar[str] = "HiSparse arXiv:2608.07009 on GLM-5.2's shared indices"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.layers = _followers(setting)
        if not len(self.layers):
            raise BadInput(
                "no layer shares the selection of another",
                f"policy {self.name!r}",
                "choose a workload with shared index sets, or another policy",
            )
        self.sources = setting.index_source[self.layers]

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses for this step, with probability 1."""
        selected = view.selected[self.sources]
        rows, columns = marked_cells(selected != ABSENT)
        return guesses(
            self.layers[rows],
            selected[rows, columns],
            steps=0,
            after_layer=self.sources[rows],
            cause=LOOKAHEAD,
        )


class LookaheadDraft(Component):
    """When the draft model has finished a step's token, guess its selection for every layer that
    has not run yet."""

    name: ClassVar[str] = "lookahead-draft"
    uses: ClassVar[str] = "a draft model's selection for the token that is decoded"
    source: ClassVar[str] = "Offstage, after OasisKV arXiv:2608.08097, without its cap"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.draft_agreement is None:
            raise BadInput(
                "the workload has no draft model",
                f"policy {self.name!r}",
                "choose a workload with a draft agreement, or another policy",
            )
        self.agreement = setting.draft_agreement

    def wanted(self, view: View, draft: npt.NDArray[np.uint16]) -> Marks:
        """The blocks to guess, `[layers, blocks]`: the draft's selection."""
        return best(draft, self.setting.select_blocks)

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses with the workload's draft agreement as the probability."""
        if view.draft is None:
            return no_guesses()
        marks = self.wanted(view, view.draft)
        marks[: view.draft_layers] = False
        layer, ordinal = marked_cells(marks)
        return guesses(
            layer,
            ordinal,
            after_layer=view.draft_layers - 1,
            steps=0,
            probability=self.agreement,
            cause=LOOKAHEAD,
        )


class OasisDraft(LookaheadDraft):
    """Guess only new blocks of the draft's selection: the best few of each layer that the previous
    step did not select."""

    name: ClassVar[str] = "oasiskv-draft"
    source: ClassVar[str] = (
        "OasisKV arXiv:2608.08097, re-implemented from its description: at most 5 % per step, its "
        "best point; we assume 5 % of the selection"
    )
    cap_share: ClassVar[float] = 0.05

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.before: dict[int, Marks] = {}

    def wanted(self, view: View, draft: npt.NDArray[np.uint16]) -> Marks:
        """The best new blocks of the draft's selection, at least one per layer."""
        cap = max(1, round(self.cap_share * self.setting.select_blocks))
        new = super().wanted(view, draft)
        before = self.before.get(view.session)
        if before is not None:
            new[:, : before.shape[1]] &= ~before[:, : new.shape[1]]
        self.before[view.session] = marked(view.selected, draft.shape[1])
        return best(np.where(new, draft, np.uint16(0)), cap)


class _Predicted:
    """State of one session: how often the blocks of each band of each layer are selected, and the
    predicted bands of the next step's first layer."""

    def __init__(self, layers: int, bands: int, prior: float) -> None:
        self.shares = [Shares(layers, prior) for _ in range(bands)]
        self.first: list[Marks] = []

    def learn(self, bands: list[Marks], selected: npt.NDArray[np.uint32]) -> None:
        """Compare the selection with the predicted `bands`; those of the first layer are from the
        previous step."""
        for number, (band, shares) in enumerate(zip(bands, self.shares, strict=True)):
            seen = band.copy()
            seen[0] = False
            if self.first:
                seen[0, : len(self.first[number])] = self.first[number]
            shares.learn(seen, selected)
        self.first = [band[0] for band in bands]


def _unpredicted(name: str) -> BadInput:
    return BadInput(
        "the workload has no predicted queries",
        f"policy {name!r}",
        'capture again with this release, or set predicted = "captured"',
    )


class LookaheadQuery(Component):
    """Guess the best blocks two layers ahead, by the predicted query of a layer; for the first
    layer of the next step, by the queries of the drafted tokens.

    Guesses are made in bands, the best `depths[0]` times k blocks first. The probability of a band
    is the measured share of its blocks that are selected, per layer. A band whose probability is
    below `Setting.worth`, which also bounds the core's guesses, is measured but not passed on.
    """

    name: ClassVar[str] = "lookahead-query"
    uses: ClassVar[str] = (
        "the next layer's query, predicted from this layer's input; drafted tokens"
    )
    source: ClassVar[str] = (
        "InfiniGen (OSDI '24): its query speculation; bands, probabilities and the gate are ours"
    )
    depths: ClassVar[tuple[float, ...]] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    prior: ClassVar[float] = 0.5
    untold: ClassVar[tuple[int, ...]] = (1,)

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not setting.predicts:
            raise _unpredicted(self.name)
        k = setting.select_blocks
        self.counts = sorted({max(1, round(depth * k)) for depth in self.depths})
        self.sessions: dict[int, _Predicted] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses for this step's layers from the third on, and for the first of the next step. The
        prediction for the second layer comes too late: its demand precedes the end of a read."""
        layers = len(view.selected)
        if view.predicted is None or layers <= PREDICTED_LEAD_LAYERS:
            return no_guesses()
        if view.session not in self.sessions:
            self.sessions[view.session] = _Predicted(layers, len(self.counts), self.prior)
        state = self.sessions[view.session]
        predicted = view.predicted.copy()
        predicted[list(self.untold)] = 0
        steps = np.arange(layers) == 0
        after = np.where(steps, layers, np.arange(layers)) - PREDICTED_LEAD_LAYERS
        bands = self._bands(predicted)
        answers = []
        for band, shares in zip(bands, state.shares, strict=True):
            layer, ordinal = marked_cells(band & (shares.share >= self.setting.worth)[:, None])
            answers.append(
                guesses(
                    layer,
                    ordinal,
                    after_layer=after[layer],
                    steps=steps[layer],
                    probability=shares.share[layer],
                    cause=LOOKAHEAD,
                )
            )
        state.learn(bands, view.selected)
        return np.concatenate(answers)

    def _bands(self, predicted: npt.NDArray[np.uint16]) -> list[Marks]:
        """Disjoint bands of each layer's blocks, best first."""
        nearer = np.zeros(predicted.shape, np.bool_)
        bands = []
        for count in self.counts:
            marks = best(predicted, count)
            bands.append(marks & ~nearer)
            nearer = marks
        return bands


class LookaheadMeasured(Component):
    """Guess by `host.decode.foretold`, as a live host does: each layer from the second on when
    the layer before it has its demands, and the first of the next step by the drafted tokens. The
    core guesses nothing of its own; its averages say what is evicted."""

    name: ClassVar[str] = "lookahead-measured"
    uses: ClassVar[str] = (
        "the next layer's query, a layer's own last scores; drafted tokens; a budget of reads"
    )
    source: ClassVar[str] = "InfiniGen's query speculation; cells, shares and the budget are ours"
    core: ClassVar[CoreSwitches] = CoreSwitches(("ema",), "score", {"degree_max": 0})
    budgets: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not setting.predicts:
            raise _unpredicted(self.name)
        self.sessions: dict[int, Foretold] = {}

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Guesses for this step's layers from the second on, and for the first of the next."""
        layers, blocks, setting = len(view.selected), view.blocks, self.setting
        if view.predicted is None or layers < PREDICTED_LEAD_LAYERS:
            return no_guesses()
        if view.session not in self.sessions:
            slots = setting.buffer_blocks * layers
            self.sessions[view.session] = Foretold(
                layers, setting.select_blocks, slots, setting.traffic
            )
        state, every = self.sessions[view.session], np.arange(layers)
        told = view.predicted[:, :blocks]
        chances = np.zeros((layers, blocks), np.float32)
        chances[1:] = state.guess(every[1:], told[1:])
        held = None if view.held is None else marked(view.held, blocks)
        state.ran(every, view.scores[:, :blocks], marked(view.selected, blocks), held)
        chances[0] = state.guess(every[:1], told[:1])[0]
        state.end_step()
        layer, ordinal = marked_cells(chances > 0)
        after = np.where(every == 0, layers - PREDICTED_LEAD_LAYERS, every - 1)
        return guesses(
            layer,
            ordinal,
            after_layer=after[layer],
            steps=layer == 0,
            probability=chances[layer, ordinal],
            cause=LOOKAHEAD,
        )


class LookaheadUndrafted(LookaheadQuery):
    """`LookaheadQuery` without guesses for the first layer, for models that draft no tokens."""

    name: ClassVar[str] = "lookahead-undrafted"
    uses: ClassVar[str] = "the next layer's query, predicted from this layer's input"
    source: ClassVar[str] = "lookahead-query without its drafts, to measure their gain"
    untold: ClassVar[tuple[int, ...]] = (0, 1)


class Lookahead(Component):
    """Combine shared index sets and drafts, if the workload has them."""

    name: ClassVar[str] = "lookahead"
    uses: ClassVar[str] = (
        "shared index sets and a draft model's selection, where the workload has them"
    )
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
        """The guesses of the parts, concatenated."""
        return np.concatenate([part.step(view) for part in self.parts])
