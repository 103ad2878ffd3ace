"""Check at run time that no guess uses information from the future.

`hidden` returns a view in which everything that is unknown after a layer has been replaced. A
policy that uses only the past makes the same guesses up to that layer from both views.
`refuse_future` passes the hidden view to a copy of the policy from before the step; different
guesses are BadInput, which says whether another copy makes others from the same view too. Any step
can be checked. A run checks the few that `due` names, because the cost of a copy grows with the
policy's state.
"""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.policy import PolicyComponent, View
from offstage.testbeds.workloads.selections.slab import PREDICTED_LEAD_LAYERS

__all__ = ["PERIOD", "copied", "due", "hidden", "refuse_future"]

PERIOD = 64
"""Steps between checks; the first two steps of a session are checked too."""


def due(view: View) -> int | None:
    """The layer to check in this step, a different one each time; None for most steps."""
    layers = len(view.selected)
    if layers == 1 or (view.step > 1 and view.step % PERIOD):
        return None
    return (view.session + 2 * (view.step // PERIOD) + view.step % PERIOD) % (layers - 1)


def hidden(view: View, layer: int) -> View:
    """The view with everything that is unknown after `layer` replaced: in later rows and the draft,
    blocks are permuted and scores inverted."""
    random = np.random.default_rng([view.session, view.step, layer])
    places = random.permutation(view.blocks)
    rows = slice(layer + 1, None)
    selected = view.selected.copy()
    moved = np.append(places, np.zeros(1, np.int64)).astype(np.uint32)
    later = selected[rows]
    there = later != ABSENT
    selected[rows] = np.sort(np.where(there, moved[np.where(there, later, 0)], ABSENT), axis=1)
    predicted = view.predicted
    if predicted is not None:
        predicted = _moved(predicted, places, slice(layer + 1 + PREDICTED_LEAD_LAYERS, None))
        if layer < len(view.selected) - PREDICTED_LEAD_LAYERS:
            predicted = _moved(predicted, places, slice(0, 1))
    draft = view.draft
    if draft is not None and layer + 1 < view.draft_layers:
        draft = _moved(draft, places, slice(None))
    scores = _moved(view.scores, places, rows)
    return replace(view, selected=selected, scores=scores, draft=draft, predicted=predicted)


def refuse_future(
    before: PolicyComponent, view: View, answer: npt.NDArray[np.void], layer: int
) -> None:
    """BadInput if `answer` uses the future, or is not what the policy would answer again.
    `before`: a copy of the policy made before it."""
    twin, where = copied(before), f"step {view.step} of session {view.session}"
    blind = before.step(hidden(view, layer))
    if _up_to(answer, layer) == _up_to(blind, layer):
        return
    if _up_to(answer, layer) != _up_to(twin.step(view), layer):
        raise BadInput(
            f"policy {before.name!r} is not deterministic: a copy of it guesses otherwise",
            where,
            "use no clock and no global random state, and keep its state in the object alone",
        )
    raise BadInput(
        f"policy {before.name!r} used the future: its guesses up to layer "
        f"{layer} change with the layers after it",
        where,
        "use rows up to after_layer, rows of predicted up to after_layer + 2 (row 0 after the "
        "last layer but one), and the draft after draft_layers layers",
    )


def _up_to(answer: npt.NDArray[np.void], layer: int) -> bytes:
    """The guesses passed after this layer and before, in an order of their own."""
    return np.sort(answer[answer["after_layer"] <= layer]).tobytes()


def copied(policy: PolicyComponent) -> PolicyComponent:
    """A copy of the policy with its current state. BadInput if that cannot be copied."""
    try:
        return copy.deepcopy(policy)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"policy {policy.name!r} cannot be copied: {type(error).__name__}: {error}",
            "",
            "keep its state in numbers, arrays and containers",
        ) from error


def _moved(scores: npt.NDArray[np.uint16], places: npt.NDArray[Any], rows: slice) -> Any:
    changed = scores.copy()
    moved = scores[rows, : len(places)]
    changed[rows, places] = np.where(moved > 0, 1 + (0xFFFF - moved), 0)
    return changed
