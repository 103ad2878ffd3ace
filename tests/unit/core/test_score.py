"""Does score eviction keep blocks selected by rule, and use the host's scores of a block?"""

from collections.abc import Sequence

import numpy as np
import pytest

from offstage.bindings.core import (
    GUESS,
    KEY,
    PUBLISH,
    READ,
    RETRACT,
    Core,
    CoreConfig,
    Policy,
    SessionConfig,
)
from offstage.bindings.layouts import CAUSES

BLOCKS, SINKS, WINDOW, STEP_NS = 32, 1, 3, 1_000_000
TRIVIAL = [0, 29, 30, 31]
LOUD, QUIET = 40_000, 1
LOOKAHEAD = CAUSES.index("lookahead")


class Staged:
    """One session of `BLOCKS` blocks over `slots`; every read ends at once."""

    def __init__(self, slots: int) -> None:
        config = CoreConfig(slots, 4 * BLOCKS, 2 * BLOCKS, session_max=1, io_max=64)
        self.core = Core(config, Policy("none", "score"))
        self.core.tenant_add(0, b"0" * 16, slots)
        self.session = self.core.session_open(0, SessionConfig(0, 8, SINKS, WINDOW, STEP_NS))
        self.ordinals: dict[int, int] = {}  # by chunk
        self.resident: set[int] = set()
        self.read: list[int] = []
        self.now = 0
        self.append(BLOCKS)
        self.core.session_set_generating(0, self.session, True)

    def append(self, count: int) -> None:
        contents = np.array([(len(self.ordinals) + i, 1) for i in range(count)], KEY)
        for info in self.core.session_append(self.now, self.session, contents):
            self.ordinals[int(info["chunk"])] = len(self.ordinals)
            self.core.block_stored(self.now, int(info["chunk"]), 0)

    def take(self) -> None:
        while len(actions := self.core.actions()):
            for action in actions:
                ordinal = self.ordinals[int(action["chunk"])]
                if action["type"] == READ:
                    self.read.append(ordinal)
                    self.core.io_done(self.now, int(action["io"]))
                elif action["type"] == PUBLISH:
                    self.resident.add(ordinal)
                elif action["type"] == RETRACT:
                    self.resident.remove(ordinal)
        assert self.core.verify()

    def step(self, demands: Sequence[int], loud: Sequence[int] = ()) -> None:
        """Run the next step: its demands, and the blocks with a high score."""
        scores = np.full(len(self.ordinals), QUIET, np.uint16)
        scores[list(loud)] = LOUD
        self.now += STEP_NS
        self.core.step(
            self.now, self.session, self.now // STEP_NS, 0, demands, scores=scores, waiter=1
        )
        self.take()
        self.core.session_release(self.now, self.session)

    def hint(self, ordinal: int, probability: float) -> None:
        """Hint that the layer's next step demands the block."""
        guess = np.zeros(1, GUESS)
        guess["ordinal"], guess["steps"], guess["cause"] = ordinal, 1, LOOKAHEAD
        guess["probability"] = int(probability * 65535)
        self.core.hint(self.now, self.session, guess)
        self.take()


@pytest.mark.parametrize("pooled", [False, True])
def test_sinks_and_window_are_kept_where_they_are_demanded(pooled: bool) -> None:
    """Despite the lowest scores, they are evicted only if a pool serves them."""
    staged = Staged(slots=8)
    loud = range(1, 29)
    staged.step(TRIVIAL, loud)
    for number in range(200):
        # More loud blocks than slots: each of these steps evicts something.
        staged.step([loud[(2 * number + i) % len(loud)] for i in range(2)], loud)
        staged.step([] if pooled else TRIVIAL, loud)
    assert sum(ordinal in TRIVIAL for ordinal in staged.read) == len(TRIVIAL)
    assert set(TRIVIAL).isdisjoint(staged.resident) == pooled


def test_a_block_that_leaves_the_window_is_one_like_any_other() -> None:
    """At the append, before any new score, it becomes the first victim; the new window stays."""
    staged = Staged(slots=8)
    staged.step([1, 2, 3, 4, *TRIVIAL], loud=range(1, 17))
    staged.append(1)
    staged.step([5], loud=range(1, 17))
    assert staged.resident == {0, 1, 2, 3, 4, 5, 30, 31}


def test_what_the_host_predicted_waits_for_its_step() -> None:
    """A guessed block without attention is no victim until its layer has run."""
    staged = Staged(slots=8)
    staged.step([1, 2, 3, 4, *TRIVIAL], loud=range(1, 17))
    for ordinal in (20, 21, 22):
        staged.hint(ordinal, 0.9)
    assert staged.resident >= {20, 21, 22}
    staged.step([], loud=range(1, 17))
    staged.step([5, 6, 7], loud=range(1, 17))
    assert staged.resident.isdisjoint({20, 21, 22})


@pytest.mark.parametrize(
    ("held", "guessed", "taken"),
    [
        (0.9, 0.95, True),
        (0.9, 0.5, False),  # odds 19 and 1 against 3.6
        (0.1, 0.35, True),
        (0.1, 0.2, False),  # 0.54 and 0.25 against 0.4
    ],
)
def test_a_guess_displaces_what_its_odds_are_worth(
    held: float, guessed: float, taken: bool
) -> None:
    """Its odds must exceed four times the score of its victim."""
    staged = Staged(slots=4)
    for ordinal in (1, 2, 3, 4):
        staged.hint(ordinal, held)
    assert staged.resident == {1, 2, 3, 4}
    staged.hint(20, guessed)
    assert (20 in staged.resident) == taken
