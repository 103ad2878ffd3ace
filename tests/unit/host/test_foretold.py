"""The core that guesses what a layer selects: is the laboratory's decision the live host's, are
probabilities measured, and is the budget kept?"""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from offstage.bindings.engine import ABSENT
from offstage.host.decode.foretold import FIRST_LEVEL, FIRST_STEPS, LEVELS, Foretold
from offstage.host.decode.layer import SelectionRule
from offstage.host.decode.predicted import Predicted
from offstage.host.selection import select
from offstage.testbeds.lab.policies.policy import Setting, View
from offstage.testbeds.lab.policies.registry import parse

LAYERS, BLOCKS, K, STEPS = 4, 60, 6, FIRST_STEPS + 24
RULE = SelectionRule("mass", K, sink_blocks=1, window_blocks=2)
TRAFFIC = 1.1
Ints = NDArray[np.uint16]


def drawn(seed: int, steps: int = STEPS) -> tuple[Ints, Ints, NDArray[np.uint32]]:
    """Own scores, predicted scores `[steps, layers, blocks]`, selections `[steps, layers, K]`. What
    is important drifts, and the prediction knows it with an error; layer 0 is not predicted."""
    rng = np.random.default_rng(seed)
    level = rng.normal(0, 3000, (LAYERS, BLOCKS))
    own = np.empty((steps, LAYERS, BLOCKS))
    for step in range(steps):
        level = 0.9 * level + rng.normal(0, 1400, level.shape)
        own[step] = 30_000 + level
    told = np.clip(own + rng.normal(0, 900, own.shape), 1, 65535).astype(np.uint16)
    scores = np.clip(own, 1, 65535).astype(np.uint16)
    told[:, 0] = 0
    selected = [
        [np.sort(select(row.astype(np.float32), RULE.top_blocks, 1, 2, BLOCKS)) for row in step]
        for step in scores
    ]
    return scores, told, np.array(selected, np.uint32)


def live(scores: Ints, told: Ints, selected: NDArray[np.uint32]) -> set[tuple[int, ...]]:
    """Guesses of a host that decodes layer by layer behind a pool of the last selection."""
    predicted = Predicted(LAYERS, RULE, 3 * K * LAYERS, TRAFFIC)
    found = []
    for step in range(STEPS):
        for layer in range(LAYERS):
            held = _marks(selected[step - 1, layer]) if step else np.zeros(BLOCKS, np.bool_)
            if layer == 0:
                predicted.told(0, scores[step, 0].astype(np.float32))
            predicted.ran(layer, scores[step, layer].astype(np.float32), held)
            if layer + 1 < LAYERS:
                ahead = _marks(selected[step - 1, layer + 1]) if step else np.zeros_like(held)
                predicted.told(layer + 1, told[step, layer + 1].astype(np.float32))
                found.append((step, predicted.guesses(layer + 1, ~ahead)))
            if layer == LAYERS - 2:
                found.append((step, predicted.first_guesses(~_marks(selected[step, 0]))))
    return {
        (step, *(int(one[name]) for name in ("layer", "steps", "ordinal", "probability")))
        for step, guesses in found
        for one in guesses
    }


def laboratory(scores: Ints, told: Ints, selected: NDArray[np.uint32]) -> set[tuple[int, ...]]:
    """Guesses of the policy, without those that the runner drops because the pool has them."""
    opened = parse("lookahead-measured").open(
        Setting(
            *(LAYERS, K, 3 * K, 1, 2, 16, np.arange(LAYERS)),
            predicts=True,
            pool_blocks=K,
            traffic=TRAFFIC,
        )
    )
    nothing = np.full((LAYERS, K), ABSENT, np.uint32)
    found = set()
    for step in range(STEPS):
        held = selected[step - 1] if step else nothing
        view = View(
            *(0, step, BLOCKS, selected[step], scores[step], None, False),
            predicted=told[step],
            held=held,
        )
        for one in opened.step(view):
            pool = selected[step] if one["steps"] else held
            if int(one["ordinal"]) not in pool[one["layer"]].tolist():
                names = ("layer", "steps", "ordinal", "probability")
                found.add((step, *(int(one[name]) for name in names)))
    return found


def _marks(ordinals: NDArray[np.uint32]) -> NDArray[np.bool_]:
    marks = np.zeros(BLOCKS, np.bool_)
    marks[ordinals] = True
    return marks


def test_the_laboratory_guesses_what_a_live_host_guesses() -> None:
    """Do both make the same guesses with the same probabilities on the same events, though one
    sees a step at once and the other layer by layer, and though the level moves?"""
    events = drawn(1)
    host, lab = live(*events), laboratory(*events)
    assert host == lab and len(host) > 100
    assert {layer for _, layer, *_ in host} == set(range(LAYERS)), "each layer is guessed"
    late = [p for step, *_, p in host if step > FIRST_STEPS + 8]
    assert min(late) > 1.1 * FIRST_LEVEL * 65535, "the level moved"


@pytest.mark.parametrize("right", [0.25, 0.75])
def test_a_probability_is_the_measured_share(right: float) -> None:
    """If a band comes true this often, is that its probability in the end?"""
    rng, core = np.random.default_rng(2), Foretold(1, 8, 1000, 1000.0)
    every = np.arange(1)
    for _ in range(400):
        told, scores = np.zeros((1, 64), np.uint16), np.zeros((1, 64), np.uint16)
        told[0, :2] = 9, 8
        chances = core.guess(every, told)
        core.ran(every, scores, np.arange(64)[None] < 2 * (rng.random() < right), None)
        core.end_step()
    assert chances[0, :2] == pytest.approx(right, abs=0.15)
    assert not chances[0, 2:].any(), "never selected, never guessed"


def test_a_budget_buys_the_level_that_it_pays_for() -> None:
    """Does more budget mean a lower level, and is the rising curve read near the budget?"""
    scores, told, selected = drawn(3, 200)
    told[:, 0] = scores[:, 0]
    every, worths = np.arange(LAYERS), []
    for budget in (0.9, 1.3, 2.0):
        core = Foretold(LAYERS, K, 4 * K * LAYERS, budget)
        for step in range(200):
            core.guess(every, told[step])
            marks = np.stack([_marks(row) for row in selected[step]])
            before = (
                [_marks(row) for row in selected[step - 1]]
                if step
                else [_marks(row[:0]) for row in selected[0]]
            )
            core.ran(every, scores[step], marks, np.stack(before))
            core.end_step()
        rows = core.curve()
        assert [one.level for one in rows] == list(LEVELS)
        assert all(one.traffic <= other.traffic for one, other in pairwise(rows))
        assert rows[0].hit < rows[-3].hit
        traffic = np.interp(
            -core.worth, [-one.level for one in rows], [one.traffic for one in rows]
        )
        assert traffic == pytest.approx(budget, rel=0.25)
        worths.append(core.worth)
    assert worths == sorted(worths, reverse=True) and worths[0] > worths[-1]


def test_the_reference_is_lru_at_two_k() -> None:
    """Are the reads that the budget is a multiple of those of a plain LRU of 2 k blocks a layer?"""
    scores, _, selected = drawn(4, 120)
    every, core = np.arange(LAYERS), Foretold(LAYERS, K, 4 * K * LAYERS, 1.0)
    plain, reads = OrderedDict[tuple[int, int], None](), 0
    for step in range(120):
        core.ran(every, scores[step], np.stack([_marks(row) for row in selected[step]]), None)
        core.end_step()
        for layer, row in enumerate(selected[step].tolist()):
            for ordinal in row:
                reads += (layer, ordinal) not in plain
                plain[layer, ordinal] = None
                plain.move_to_end((layer, ordinal))
            while len(plain) > 2 * K * LAYERS:
                plain.popitem(last=False)
    assert core.reference_reads == pytest.approx(reads, rel=0.05)
