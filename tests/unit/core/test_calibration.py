"""Does the core learn which averages lead to demands, even where low ones do?"""

from collections.abc import Sequence

import numpy as np
import pytest

from offstage.bindings.core import KEY, READ, Core, CoreConfig, Policy, SessionConfig

BLOCKS, LOUD, STEPS = 32, 60_000, 16
QUIET = 20_000
SCORES = np.array([LOUD] * 16 + [QUIET] * 16, np.uint16)


def opened(eviction: str = "score", slots: int = 64) -> Core:
    config = CoreConfig(slots, 4 * BLOCKS, BLOCKS, session_max=2, io_max=64)
    core = Core(config, Policy("ema", eviction, degree_max=8))
    core.tenant_add(0, b"0" * 16, slots)
    return core


def session_of(core: Core, content: int) -> int:
    session = core.session_open(0, SessionConfig(0, 8))
    contents = np.array([(content, i) for i in range(BLOCKS)], KEY)
    for info in core.session_append(0, session, contents):
        core.block_stored(0, int(info["chunk"]), 0)
    return session


def step(core: Core, session: int, number: int, demands: Sequence[int]) -> set[int]:
    """Return the ordinals that one step prefetches; all its reads end at once."""
    now = number * 1_000_000
    guessed = set()
    chunks: dict[int, int] = {}
    core.step(now, session, number, 0, demands, scores=SCORES)
    while len(actions := core.actions()):
        for action in actions:
            if action["type"] == READ:
                chunks[int(action["chunk"])] = int(action["cause"])
                core.io_done(now, int(action["io"]))
    first = session * BLOCKS  # nothing is shared: per ordinal a chunk and its home
    for chunk, cause in chunks.items():
        if cause == 4:
            guessed.add((chunk - 2 * first) // 2)
    return guessed


@pytest.mark.parametrize("demanded", [range(16), range(16, 32)])
def test_what_is_guessed_is_what_was_demanded(demanded: range) -> None:
    """After eight rounds of demands from one half, guesses for a cold arena come from that half."""
    core = opened()
    session = session_of(core, 1)
    for number in range(8 * STEPS):
        step(core, session, number, [demanded[number % 16]])
    core.reset(8 * STEPS * 1_000_000)
    core.actions()
    guessed = step(core, session, 8 * STEPS, [])
    assert len(guessed) == 8 and guessed <= set(demanded)
    assert core.verify()


def test_a_new_session_knows_what_its_sibling_learnt() -> None:
    """It first guesses the quiet half; alone, it would follow the prior and guess the loud one."""
    core = opened()
    teacher = session_of(core, 1)
    for number in range(8 * STEPS):
        step(core, teacher, number, [16 + number % 16])
    pupil = session_of(core, 2)
    guessed = step(core, pupil, 8 * STEPS, [])
    assert len(guessed) == 8 and guessed <= set(range(16, 32))
    alone = opened()
    guessed = step(alone, session_of(alone, 2), 0, [])
    assert len(guessed) == 8 and guessed <= set(range(16))


def test_a_layer_that_changes_its_ways_is_learnt_again() -> None:
    """A long past in the loud half fades: half as many new rounds outweigh it."""
    core = opened()
    session = session_of(core, 1)
    for number in range(100 * STEPS):
        step(core, session, number, [number % 16])
    for number in range(100 * STEPS, 150 * STEPS):
        step(core, session, number, [16 + number % 16])
    core.reset(150 * STEPS * 1_000_000)
    core.actions()
    guessed = step(core, session, 150 * STEPS, [])
    assert len(guessed) == 8 and guessed <= set(range(16, 32))
