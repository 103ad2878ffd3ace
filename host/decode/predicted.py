"""How well each layer's selection was predicted for one session, and the guesses made from it.

A predicted query scores a layer's blocks one layer before the layer's own query exists. Accuracy is
the share of the layer's selection by score that was predicted; for comparison, the shares selected
by the previous step and by the previous layer. Sinks and window do not count: they are certain.
What is guessed, and with which probability, is decided by `foretold`. One thread; nothing can fail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.bindings.layouts import CAUSES
from offstage.host.decode.foretold import Foretold
from offstage.host.decode.layer import SelectionRule
from offstage.host.selection import select

__all__ = ["LayerAgreement", "Predicted", "as_guesses"]

Ordinals = NDArray[np.int32]
Marks = NDArray[np.bool_]


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
    """Call `told` before a layer runs, `ran` after it. `guesses` follows `told` for any layer but
    the first, and `first_guesses` the first layer's `ran`, before the step ends."""

    def __init__(self, layer_count: int, rule: SelectionRule, slots: int, traffic: float) -> None:
        """`slots`: blocks in the tier's buffer. `traffic`: the budget of reads, see `Foretold`."""
        self._rule, self._layer_count = rule, layer_count
        self.foretold = Foretold(layer_count, rule.select_blocks, slots, traffic)
        self._chances: NDArray[np.float32] = np.empty(0, np.float32)
        self._told: dict[int, Ordinals] = {}
        self._before: dict[int, Ordinals] = {}
        self._shares: list[list[tuple[float, float, float]]] = [[] for _ in range(layer_count)]

    def told(self, layer: int, scores: NDArray[np.float32]) -> None:
        """Record the scores of a layer's stored blocks for its predicted query."""
        self._told[layer] = self._best(scores)
        if layer:
            self._chances = self.foretold.guess(np.array([layer]), scores[None])[0]

    def ran(self, layer: int, scores: NDArray[np.float32], held: Marks) -> None:
        """Record the scores of the same blocks for the layer's own query, and which of them the
        HBM pool has."""
        own = self._best(scores)
        told, before = self._told.pop(layer, None), self._before.get(layer)
        if told is not None and before is not None and own.size:
            above = self._before.get(layer - 1, np.empty(0, np.int32))
            shares = _share(own, told), _share(own, before), _share(own, above)
            self._shares[layer].append(shares)
        self._before[layer] = own
        selected = np.zeros(scores.size, np.bool_)
        selected[self._selected(scores)] = True
        self.foretold.ran(np.array([layer]), scores[None], selected[None], held[None])
        if layer == self._layer_count - 1:
            self.foretold.end_step()

    def guesses(self, layer: int, absent: Marks) -> NDArray[np.void]:
        """Guesses for the layer that was told last, of blocks that the HBM pool lacks."""
        return self._found(layer, 0, absent)

    def first_guesses(self, absent: Marks) -> NDArray[np.void]:
        """Guesses for the first layer of the next step, by its last scores alone."""
        untold = np.zeros((1, absent.size), np.float32)
        self._chances = self.foretold.guess(np.array([0]), untold)[0]
        return self._found(0, 1, absent)

    def _found(self, layer: int, steps: int, absent: Marks) -> NDArray[np.void]:
        ordinals = np.flatnonzero((self._chances > 0) & absent)
        return as_guesses(layer, steps, ordinals, self._chances[ordinals])

    def agreement(self) -> list[LayerAgreement]:
        """The layers with at least one step to compare."""
        return [
            LayerAgreement(layer, len(rows), *(float(one) for one in np.mean(rows, axis=0)))
            for layer, rows in enumerate(self._shares)
            if rows
        ]

    def _selected(self, scores: NDArray[np.float32]) -> Ordinals:
        sinks, window = self._rule.sink_blocks, self._rule.window_blocks
        return select(scores, self._rule.top_blocks, sinks, window, scores.size)

    def _best(self, scores: NDArray[np.float32]) -> Ordinals:
        found = self._selected(scores)
        sinks, end = self._rule.sink_blocks, scores.size - self._rule.window_blocks
        return found[(found >= sinks) & (found < end)]


def as_guesses(
    layer: int, steps: int, ordinals: NDArray[np.integer], chances: float | NDArray[np.float32]
) -> NDArray[np.void]:
    """Guesses of a layer's blocks for so many steps ahead, each with its probability."""
    found = np.zeros(ordinals.size, GUESS)
    found["layer"], found["ordinal"], found["steps"] = layer, ordinals, steps
    found["probability"] = chances * 65535
    found["cause"] = CAUSES.index("lookahead")
    return found


def _share(own: Ordinals, other: Ordinals) -> float:
    return float(np.isin(own, other).mean())
