"""Do the work counters equal costs computed by hand, also when a log is replayed?"""

import random

import numpy as np
import pytest
from core_pair import Driver, random_policy

from offstage.bindings.core import (
    EVENTS,
    GUESS,
    KEY,
    TABLES,
    Core,
    CoreConfig,
    Policy,
    SessionConfig,
    replay,
)
from offstage.bindings.figures import EventWork
from offstage.bindings.layouts import CAUSES
from offstage.bindings.sim import populate

BLOCKS, LAYERS, SLOTS = 100, 2, 8
INDEX_BYTES, CANDIDATE_BYTES = 4, 32
WRITES_OF_A_MOVE = 2  # sifting up and sifting down each write it once, moved or not


def small_core(policy: Policy, **sizes: int) -> tuple[Core, int]:
    """Return a core with one session of no chunks, and an index that has no collisions."""
    core = Core(CoreConfig(SLOTS, 1 << 16, 128, LAYERS, **sizes), policy)
    core.tenant_add(0, b"\0" * 16, SLOTS)
    return core, core.session_open(0, SessionConfig(0, select_blocks=4))


def contents(count: int) -> np.ndarray:
    keys = np.zeros(count, KEY)
    keys["lo"] = np.arange(count)
    return keys


@pytest.mark.parametrize(("prefetchers", "probes"), [("none", 4), ("shared", 2)])
def test_an_appended_chunk_is_looked_up_and_entered(prefetchers: str, probes: int) -> None:
    """A private chunk has a home, which is looked up and entered too."""
    core, session = small_core(Policy(prefetchers))
    core.session_append(0, session, contents(5))
    work = core.work()["append"]
    assert (work.events, work.probes) == (1, 5 * probes)
    assert work.table_bytes["index"] == 5 * probes * INDEX_BYTES
    core.session_append(0, session, contents(5))  # other chunks: their prefix differs
    assert core.work()["append"].probes == 10 * probes


def test_scores_are_values_and_only_enough_of_them_are_ranked() -> None:
    """Each score shows if the query turned, enters its average, and has its class noted."""
    core, session = small_core(Policy("ema", "score", probability_permille_min=0))
    populate(core, session, BLOCKS)
    scores = np.arange(1, BLOCKS + 1, dtype=np.uint16)
    before = core.work()["append"]
    core.step(1, session, 0, 0, [], scores=scores)
    work = core.work()["step"]
    # turned, averaged, noted; then the averages are compared with what is enough.
    assert work.values == 4 * BLOCKS
    assert work.ranked == 4 * 800 // 100  # the best of residency_percent of a selection
    # The degree lets two of them in; both are read, and the second moves up when the first is.
    assert work.heap_moves == WRITES_OF_A_MOVE * (2 + 1)
    assert core.work()["append"] == before


def test_a_heap_counts_every_entry_that_is_written() -> None:
    """Guesses of equal need and probability queue in order of arrival."""
    core, session = small_core(Policy("none", prefetch_in_flight_max=0), queue_max=16)
    populate(core, session, BLOCKS)
    guesses = np.zeros(5, GUESS)
    guesses["ordinal"], guesses["cause"] = np.arange(5), CAUSES.index("lookahead")
    guesses["steps"], guesses["probability"] = 1, 1000
    core.hint(1, session, guesses)
    work = core.work()["hint"]
    assert work.ranked == 5 and work.heap_moves == WRITES_OF_A_MOVE * 5
    assert work.table_bytes["queue"] == work.heap_moves * CANDIDATE_BYTES


def test_a_victim_is_the_first_slot_that_is_not_held() -> None:
    core, session = small_core(Policy("none", "lru"))
    populate(core, session, BLOCKS)
    for now in range(SLOTS):
        core.step(now, session, 0, 0, [now])
        for action in core.actions():
            core.io_done(now, int(action["io"]))
        core.actions()
    assert core.work()["step"].victims == 0
    core.step(SLOTS, session, 0, 0, [SLOTS])
    assert core.work()["step"].victims == 1
    core.actions()
    held = [SLOTS - 1, SLOTS - 2, 1, 2, SLOTS + 1]  # 1 and 2 are hits: now last, and pinned
    core.step(SLOTS + 1, session, 0, 0, held)
    assert core.work()["step"].victims == 2


def test_what_is_asked_or_refused_costs_nothing() -> None:
    core, session = small_core(Policy("ema", "score"))
    populate(core, session, BLOCKS)
    before = core.work()
    assert core.verify() and core.ledger().demands == 0
    with pytest.raises(Exception, match="in range"):
        core.step(1, session, 0, LAYERS, [0])
    assert core.work() == before


def test_a_reset_begins_anew() -> None:
    core, session = small_core(Policy())
    populate(core, session, BLOCKS)
    core.reset(1)
    assert core.work() == {}
    core.tick(2)
    assert core.work() == {
        "tick": EventWork(events=1, table_bytes=dict.fromkeys(TABLES, 0)),
    }


@pytest.mark.parametrize("seed", range(12))
def test_the_replay_of_a_log_does_the_same_work(seed: int) -> None:
    config = CoreConfig(
        *(10, 64, 16, 2, 2, 3),
        block_size_bytes=4096,
        io_max=4,
        queue_max=8,
        demand_max=8,
        log_size_bytes=1 << 20,
    )
    driver = Driver(seed, config, random_policy(random.Random(seed)))
    driver.begin()
    driver.run(150)
    while len(driver.pair.core.work()) <= 8:  # a reset near the end cleared it
        driver.run(50)
    work = driver.pair.core.work()
    again = replay(driver.pair.log)
    assert again.diverged_at is None and again.work == work
    assert set(work) <= set(EVENTS.values())


def test_work_depends_on_no_log_and_no_records() -> None:
    rows = []
    for sizes in ({}, {"log_size_bytes": 1 << 20, "record_max": 100}):
        core, session = small_core(Policy("ema+shared", "score"), **sizes)
        populate(core, session, BLOCKS)
        for step in range(20):
            scores = np.random.default_rng(step).integers(0, 65535, BLOCKS, np.uint16)
            core.step(step, session, step, step % LAYERS, [step, step + 7], scores=scores)
            core.actions()
        rows.append(core.work())
    assert rows[0] == rows[1]
