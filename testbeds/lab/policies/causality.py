"""No guess is made of anything that is known only later: looked at while a policy runs.

What a policy is shown carries its time: `hidden` gives a view in which everything that is not known
yet after a layer is something else. A policy that knew only its past passes the same guesses up to
that layer from either view. `refuse_future` asks a copy of the policy, made before the step; one
that passes others is BadInput. Each step can be asked about; `due` names the few that a run asks
about, since a copy costs as much as the policy's state is large.
"""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.policy import PolicyComponent, View
from offstage.testbeds.workloads.selections.slab import FORETOLD_LEAD_LAYERS

__all__ = ["PERIOD", "copied", "due", "hidden", "refuse_future"]

PERIOD = 64
"""Ask about every n-th step, and the first two of a session."""


def due(view: View) -> int | None:
    """The layer that this step is asked about, another one each time; None for most steps."""
    layers = len(view.selected)
    if layers == 1 or (view.step > 1 and view.step % PERIOD):
        return None
    return (view.session + 2 * (view.step // PERIOD) + view.step % PERIOD) % (layers - 1)


def hidden(view: View, layer: int) -> View:
    """The view as it may be seen after `layer`: in what is known later, rows and the draft, the
    blocks have changed places and the high scores are low."""
    random = np.random.default_rng([view.session, view.step, layer])
    places = random.permutation(view.blocks)
    rows = slice(layer + 1, None)
    selected = view.selected.copy()
    moved = np.append(places, np.zeros(1, np.int64)).astype(np.uint32)
    later = selected[rows]
    there = later != ABSENT
    selected[rows] = np.sort(np.where(there, moved[np.where(there, later, 0)], ABSENT), axis=1)
    foretold = view.foretold
    if foretold is not None:
        foretold = _moved(foretold, places, slice(layer + 1 + FORETOLD_LEAD_LAYERS, None))
        if layer < len(view.selected) - FORETOLD_LEAD_LAYERS:
            foretold = _moved(foretold, places, slice(0, 1))
    draft = view.draft
    if draft is not None and layer + 1 < view.draft_layers:
        draft = _moved(draft, places, slice(None))
    scores = _moved(view.scores, places, rows)
    return replace(view, selected=selected, scores=scores, draft=draft, foretold=foretold)


def refuse_future(
    before: PolicyComponent, view: View, answer: npt.NDArray[np.void], layer: int
) -> None:
    """`before`: a copy of the policy as it was before it gave `answer` to the view."""
    blind = before.step(hidden(view, layer))
    shown, seen = (np.sort(one[one["after_layer"] <= layer]) for one in (answer, blind))
    if shown.tobytes() != seen.tobytes():
        raise BadInput(
            f"policy {before.name!r} used what is known only later: its guesses after layer "
            f"{layer} and before are others where the layers behind are",
            f"step {view.step} of session {view.session}",
            "make a guess of the rows up to its after_layer, of foretold rows two further, of row "
            "0 of these after the last layer but one, and of the draft after draft_layers layers",
        )


def copied(policy: PolicyComponent) -> PolicyComponent:
    """The policy as it is now. BadInput where its state cannot be copied."""
    try:
        return copy.deepcopy(policy)
    except Exception as error:
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
