"""How well each layer's selection was predicted for one session, and the guesses made from it.

A predicted query scores a layer's blocks one layer before the layer's own query exists. Accuracy is
the share of the layer's selection by score that was predicted; for comparison, the shares selected
by the previous step and by the previous layer. Sinks and window do not count: they are certain.
A layer's recent accuracy is the probability that its next guesses carry. One thread; nothing can
fail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.bindings.layouts import CAUSES
from offstage.host.decode.layer import SelectionRule
from offstage.host.selection import select

__all__ = ["LayerAgreement", "Predicted"]

Ordinals = NDArray[np.int32]
RECENT_STEPS = 16
UNKNOWN = 0.5
"""Probability of guesses for a layer without earlier predictions."""


@dataclass
class LayerAgreement:
    """Shares of one layer's selections, means over the steps that can be compared."""

    layer: int
    steps: int
    predicted: float
    step_before: float
    layer_before: float
    """0 in the first layer."""


class Predicted:
    """Call `told` before a layer runs, `ran` after it, `agreement` at the end."""

    def __init__(self, layer_count: int, rule: SelectionRule) -> None:
        self._rule = rule
        self._told: dict[int, Ordinals] = {}
        self._before: dict[int, Ordinals] = {}
        self._shares: list[list[tuple[float, float, float]]] = [[] for _ in range(layer_count)]

    def told(self, layer: int, scores: NDArray[np.float32]) -> None:
        """Record the scores of a layer's stored blocks for its predicted query."""
        self._told[layer] = self._best(scores)

    def ran(self, layer: int, scores: NDArray[np.float32]) -> None:
        """Record the scores of the same blocks for the layer's own query."""
        own = self._best(scores)
        told, before = self._told.pop(layer, None), self._before.get(layer)
        if told is not None and before is not None and own.size:
            above = self._before.get(layer - 1, np.empty(0, np.int32))
            shares = _share(own, told), _share(own, before), _share(own, above)
            self._shares[layer].append(shares)
        self._before[layer] = own

    def guesses(self, layer: int, wanted: Ordinals) -> NDArray[np.void]:
        """Guesses for the current step: the predicted blocks of a layer that are in `wanted`."""
        told = self._told.get(layer, np.empty(0, np.int32))
        recent = [row[0] for row in self._shares[layer][-RECENT_STEPS:]]
        likely = float(np.mean(recent)) if recent else UNKNOWN
        found = np.zeros(np.count_nonzero(np.isin(told, wanted)), GUESS)
        found["layer"], found["ordinal"] = layer, told[np.isin(told, wanted)]
        found["probability"], found["cause"] = round(likely * 65535), CAUSES.index("lookahead")
        return found

    def agreement(self) -> list[LayerAgreement]:
        """The layers with at least one step to compare."""
        return [
            LayerAgreement(layer, len(rows), *(float(one) for one in np.mean(rows, axis=0)))
            for layer, rows in enumerate(self._shares)
            if rows
        ]

    def _best(self, scores: NDArray[np.float32]) -> Ordinals:
        sinks, window = self._rule.sink_blocks, self._rule.window_blocks
        found = select(scores, self._rule.top_blocks, sinks, window, scores.size)
        return found[(found >= sinks) & (found < scores.size - window)]


def _share(own: Ordinals, other: Ordinals) -> float:
    return float(np.isin(own, other).mean())
