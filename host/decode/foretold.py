"""How well a layer's selection was foretold, one session, layer by layer; and its guesses.

Told are the scores that a foretold query gives the layer's blocks, a layer before its own query
exists. Judged is what of the selection by score was among the best foretold; beside it what the
step before and the layer before had selected. Sinks and window are left out: they are certain.
How often a layer's foretold blocks came true is the probability that the next guesses carry.
One thread; nothing can fail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.bindings.layouts import CAUSES
from offstage.host.decode.layer import SelectionRule
from offstage.host.selection import select

__all__ = ["Foretold", "LayerAgreement"]

Ordinals = NDArray[np.int32]
RECENT_STEPS = 16
UNKNOWN = 0.5
"""How likely a guess of a layer is that nothing was foretold of yet."""


@dataclass
class LayerAgreement:
    """Shares of one layer's selections, means over the steps that had something to compare."""

    layer: int
    steps: int
    foretold: float
    step_before: float
    layer_before: float
    """0 in the first layer."""


class Foretold:
    """`told` before a layer runs, `ran` after; `agreement` at the end. Selections by `rule`."""

    def __init__(self, layer_count: int, rule: SelectionRule) -> None:
        self._rule = rule
        self._told: dict[int, Ordinals] = {}
        self._before: dict[int, Ordinals] = {}
        self._shares: list[list[tuple[float, float, float]]] = [[] for _ in range(layer_count)]

    def told(self, layer: int, scores: NDArray[np.float32]) -> None:
        """What a foretold query gives the stored blocks of a layer."""
        self._told[layer] = self._best(scores)

    def ran(self, layer: int, scores: NDArray[np.float32]) -> None:
        """What a layer's own query gave the same blocks."""
        own = self._best(scores)
        told, before = self._told.pop(layer, None), self._before.get(layer)
        if told is not None and before is not None and own.size:
            above = self._before.get(layer - 1, np.empty(0, np.int32))
            shares = _share(own, told), _share(own, before), _share(own, above)
            self._shares[layer].append(shares)
        self._before[layer] = own

    def guesses(self, layer: int, wanted: Ordinals) -> NDArray[np.void]:
        """What was told of a layer, as the tier takes guesses for the step that runs; of it those
        that are `wanted`."""
        told = self._told.get(layer, np.empty(0, np.int32))
        recent = [row[0] for row in self._shares[layer][-RECENT_STEPS:]]
        likely = float(np.mean(recent)) if recent else UNKNOWN
        found = np.zeros(np.count_nonzero(np.isin(told, wanted)), GUESS)
        found["layer"], found["ordinal"] = layer, told[np.isin(told, wanted)]
        found["probability"], found["cause"] = round(likely * 65535), CAUSES.index("lookahead")
        return found

    def agreement(self) -> list[LayerAgreement]:
        """Layers that had a step to compare."""
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
