"""Hand-made settings and views for the laboratory's policies."""

from typing import Any

import numpy as np

from offstage.bindings.engine import ABSENT
from offstage.testbeds.lab.policies.base import (
    best,
)
from offstage.testbeds.lab.policies.policy import (
    Setting,
    View,
)


def setting(
    layers: int = 2,
    k: int = 2,
    *,
    sources: Any = None,
    draft: float | None = None,
    buffer: int = 4,
    predicts: bool = False,
) -> Setting:
    own = np.arange(layers) if sources is None else np.asarray(sources)
    return Setting(layers, k, buffer, 0, 0, 64, own, draft, predicts)


def view(
    step: int,
    scores: Any,
    *,
    k: int = 2,
    draft: Any = None,
    turn: bool = False,
    session: int = 0,
    predicted: Any = None,
) -> View:
    """A view in which the k best blocks of each layer are selected."""
    scores = np.asarray(scores, np.uint16)
    selected = np.full((len(scores), k), ABSENT, np.uint32)
    for layer, chosen in enumerate(best(scores, k)):
        selected[layer, : chosen.sum()] = np.flatnonzero(chosen)
    drafted = None if draft is None else np.asarray(draft, np.uint16)
    ahead = None if predicted is None else np.asarray(predicted, np.uint16)
    return View(session, step, scores.shape[1], selected, scores, drafted, turn, ahead)


def guesses_of(answer: Any) -> set[tuple[int, int, int, int]]:
    """Return (after_layer, layer, steps, ordinal) of every guess."""
    names = ("after_layer", "layer", "steps", "ordinal")
    return {tuple(int(one[name]) for name in names) for one in answer}  # type: ignore[misc]
