"""Does the core in C make the same decision for every event as the plain model of its rules?"""

import random
from dataclasses import replace

from core_pair import CONFIG, Driver, random_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.core import Policy, replay
from offstage.bindings.layouts import CAUSES, ENDS


def drive(seed: int, events: int) -> Driver:
    driver = Driver(seed, CONFIG, random_policy(random.Random(seed)))
    driver.begin()
    driver.run(events)
    return driver


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_core_and_model_agree_on_every_event(seed: int) -> None:
    """Answers, actions, every counter of every ledger and the tables agree after every event."""
    driver = drive(seed, 120)
    assert driver.pair.model.event > 10


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_log_replays_bit_identically(seed: int) -> None:
    """The log alone reproduces all decisions."""
    driver = drive(seed, 80)
    result = replay(driver.pair.log)
    assert result.diverged_at is None
    assert driver.pair.core.ledger().log_bytes_lost == 0
    assert result.agreed == driver.pair.decisions


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1),
    eviction=st.sampled_from(["lru", "s3fifo", "score", "sieve", "lru_k", "arc"]),
    rate=st.sampled_from([0, 4_096_000, 40_960_000]),
    accuracy=st.sampled_from([200, 950]),
)
def test_long_runs_agree(seed: int, eviction: str, rate: int, accuracy: int) -> None:
    """Covers effects that need time: feedback, the bandwidth cap, turns between tenants."""
    config = replace(
        CONFIG, slot_count=48, chunk_max=256, session_chunk_max=40, io_max=16, queue_max=24
    )
    policy = Policy(
        prefetchers="window+ema+shared+next_n",
        eviction=eviction,
        window_blocks=4,
        residency_percent=300,
        prefetch_in_flight_max=12,
        prefetch_bytes_per_s_max=rate,
        accuracy_permille_min=accuracy,
        lateness_permille_max=200,
    )
    driver = Driver(seed, config, policy, policy_changes=False)
    driver.begin()
    driver.run(700)
    assert sum(driver.pair.core.ledger().issued[3:]) > 0


def test_the_driver_reaches_what_it_must() -> None:
    """The property test is only as good as its events: they reach every end, fate and prefetching
    cause."""
    ends, by_cause = [0] * 9, [[0] * 5 for _ in range(8)]
    for seed in range(60):
        ledger = drive(seed, 150).pair.core.ledger()
        ends = [a + b for a, b in zip(ends, ledger.ends, strict=True)]
        by_cause = [
            [a + b for a, b in zip(*rows, strict=True)]
            for rows in zip(by_cause, ledger.fates, strict=True)
        ]
    assert all(ends), dict(zip(ENDS, ends, strict=True))
    for cause in ("window", "pattern", "lookahead", "baseline"):
        assert all(by_cause[CAUSES.index(cause)]), (cause, by_cause)
    assert sum(by_cause[CAUSES.index("shared")]) > 10, by_cause
