"""Does each eviction policy with a memory choose the same victims as its plain model?

`test_model.py` compares them too, mixed and changed at run time; here one policy stays long enough
for its ghosts to return and its target to move, in both sets of a tenant.
"""

from collections import Counter

import numpy as np
import pytest
from core_pair import CONFIG, Driver
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig, replay
from offstage.bindings.sim import flat, populate

POLICIES = ("s3fifo", "sieve", "lru_k", "arc")


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_policy_that_stays_agrees_with_its_model(eviction: str) -> None:
    """They agree on every event, with and without guesses, and the whole log replays."""
    seen: Counter[str] = Counter()
    for seed in range(6):
        policy = Policy("ema+next_n" if seed % 2 else "none", eviction, degree_max=4)
        driver = Driver(seed, CONFIG, policy, policy_changes=False)
        driver.begin()
        driver.run(250)
        ledger = driver.pair.core.ledger()
        seen["last resort"] += ledger.evictions_generating
        seen["set 0"] += ledger.evictions - ledger.evictions_generating
        for memory in driver.pair.model.memories.values():
            seen["ghosts"] += memory.count("once") + memory.count("often")
            seen["target"] += memory.target > 0
        assert replay(driver.pair.log).diverged_at is None
    assert seen["last resort"] > 20 and seen["set 0"] > 20, seen
    assert (seen["ghosts"] > 10) == (eviction in ("s3fifo", "arc")), seen
    assert (seen["target"] > 0) == (eviction == "arc"), seen


def flat_core(slots: int, blocks: int, eviction: str) -> tuple[Core, int]:
    core = Core(CoreConfig(slots, 2 * blocks, blocks), Policy(eviction=eviction))
    tenant = core.tenant_add(0, b"0" * 16, slots)
    session = core.session_open(0, SessionConfig(tenant, 1))
    populate(core, session, blocks)
    return core, session


@given(
    trace=st.lists(st.integers(0, 15), min_size=60, max_size=200),
    eviction=st.sampled_from(POLICIES),
)
def test_a_reset_forgets_ghosts_and_targets(trace: list[int], eviction: str) -> None:
    """After a reset the same accesses give the same hits as the first time."""
    core, session = flat_core(6, 16, eviction)
    ids = np.array(trace, np.uint32)
    first = flat(core, session, ids)
    core.session_release(len(trace), session)
    core.reset(len(trace))
    core.actions()
    assert core.verify() and core.ledger().resident_slots == 0
    assert flat(core, session, ids) == first
