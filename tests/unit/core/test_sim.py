"""Does virtual time give the textbook's answers, and the same ones every time?"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_drive import DRIVE

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.sim import DecodePlan, DecodeResult, decode, flat, populate

SESSIONS, STEPS, LAYERS, BLOCKS, SELECTED = 3, 40, 2, 64, 6


def lru_hits(trace: list[int], slots: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in trace:
        hits += block in held
        held[block] = None
        held.move_to_end(block)
        if len(held) > slots:
            held.popitem(last=False)
    return hits


def flat_core(slots: int, blocks: int, eviction: str = "lru") -> tuple[Core, int]:
    core = Core(CoreConfig(slots, 2 * blocks, blocks), Policy(eviction=eviction))
    tenant = core.tenant_add(0, b"0" * 16, slots)
    session = core.session_open(0, SessionConfig(tenant, 1))
    populate(core, session, blocks)
    return core, session


@given(trace=st.lists(st.integers(0, 11), min_size=1, max_size=200), slots=st.integers(1, 12))
def test_flat_lru_is_the_textbook_lru(trace: list[int], slots: int) -> None:
    core, session = flat_core(slots, 12)
    assert flat(core, session, np.array(trace, np.uint32)) == lru_hits(trace, slots)
    ledger = core.ledger()
    assert ledger.shadow_misses == sum(ledger.ends[5:])  # the shadow is the same LRU
    assert core.verify()


def test_a_flat_trace_out_of_range_is_refused() -> None:
    core, session = flat_core(4, 8)
    with pytest.raises(BadInput):
        flat(core, session, np.array([1, 2, 99], np.uint32))


def plan_of(seed: int, sessions: tuple[int, ...]) -> DecodePlan:
    """Return a plan: scores drift; the best blocks, the sink and the last two are demanded."""
    random = np.random.default_rng(seed)
    shape = (len(sessions), STEPS, LAYERS, BLOCKS)
    walk = np.cumsum(random.normal(size=shape) * 0.3, axis=1) + random.normal(size=shape) * 0.3
    scores = np.clip(walk * 6000 + 32768, 1, 65535).astype(np.uint16)
    scores[..., 0] = scores[..., -2:] = 65535
    demands = np.argsort(-scores.astype(np.int64), axis=-1, kind="stable")[..., :SELECTED]
    rows = len(sessions) * STEPS * LAYERS
    offsets = np.arange(rows + 1, dtype=np.uint64) * SELECTED
    flat_demands = demands.reshape(-1).astype(np.uint32)
    return DecodePlan(sessions, STEPS, offsets, flat_demands, scores, SELECTED, nvme=DRIVE)


def decoded(
    policy: Policy, seed: int = 1, append_steps: int = 0, slots: int = 60
) -> tuple[Core, DecodeResult]:
    config = CoreConfig(
        slots,
        4 * SESSIONS * BLOCKS,
        BLOCKS + STEPS,
        LAYERS,
        session_max=SESSIONS,
        block_size_bytes=4096,
        io_max=8,
        log_size_bytes=1 << 24,
    )
    core = Core(config, policy)
    tenant = core.tenant_add(0, b"0" * 16, slots)
    sessions = []
    for number in range(SESSIONS):
        session = core.session_open(0, SessionConfig(tenant, SELECTED, 1, 2, 2_000_000))
        populate(core, session, BLOCKS // 2, content=7)  # a prefix that all share
        populate(core, session, BLOCKS // 2, content=100 + number)
        core.session_set_generating(0, session, True)
        sessions.append(session)
    plan = replace(plan_of(seed, tuple(sessions)), append_steps=append_steps, seed=seed)
    result = decode(core, plan)
    assert core.verify()
    return core, result


POLICIES = {
    "none": Policy(),
    "window": Policy("window", window_blocks=2),
    "all": Policy("window+ema+shared", "score", window_blocks=2, lease_ns=10_000_000),
    "capped": Policy("window+ema+shared", "score", prefetch_bytes_per_s_max=20_000_000),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_inputs_give_the_same_log(name: str) -> None:
    """Logs and stalls are equal, with appended chunks and a drive that retries reads."""
    first, result = decoded(POLICIES[name], append_steps=5)
    second, again = decoded(POLICIES[name], append_steps=5)
    assert first.log() == second.log()
    assert (result.stall_ns == again.stall_ns).all() and result.end_ns == again.end_ns
    assert first.ledger() == second.ledger()


@pytest.mark.parametrize("name", POLICIES)
def test_every_demand_and_every_guess_ends(name: str) -> None:
    """The counters of demands, issued reads and time add up."""
    core, result = decoded(POLICIES[name])
    ledger = core.ledger()
    assert result.failed == 0 and ledger.busy == 0
    assert sum(ledger.ends) == ledger.demands == SESSIONS * STEPS * LAYERS * SELECTED
    assert sum(ledger.issued) == result.reads
    assert ledger.demand_bytes_read + ledger.prefetch_bytes_read == 4096 * result.reads
    guessed = sum(ledger.issued[3:])
    ended = sum(sum(fates[i] for i in (0, 1, 2, 4)) for fates in ledger.fates)
    assert guessed - ended <= ledger.resident_slots + core.config.io_max and guessed >= ended
    computed = STEPS * LAYERS * plan_of(1, (0,)).compute_ns
    assert result.end_ns == computed + int(result.stall_ns.sum(axis=1).max())


def test_what_is_known_ahead_is_ready_on_time() -> None:
    """At an equal buffer, more information gives more hits and less waiting, on every seed."""
    for seed in range(5):
        hits, stalls = [], []
        for name in ("none", "all"):
            core, result = decoded(POLICIES[name], seed)
            ledger = core.ledger()
            hits.append(sum(ledger.ends[:5]))
            stalls.append(int(result.stall_ns.sum()))
        assert hits[0] < hits[1] and stalls[0] > stalls[1]


def test_a_buffer_for_everything_misses_only_what_is_new() -> None:
    core, _ = decoded(POLICIES["none"], slots=4 * SESSIONS * BLOCKS)
    ends = core.ledger().ends
    assert ends[6] > 0 and ends[7] == ends[8] == 0


@settings(max_examples=8)
@given(rate=st.integers(1_000_000, 100_000_000))
def test_the_bandwidth_cap_holds(rate: int) -> None:
    """Over the whole run, prefetched bytes stay within the burst and the rate."""
    core, result = decoded(replace(POLICIES["capped"], prefetch_bytes_per_s_max=rate))
    last_guess_ns = result.end_ns + 5_000_000  # guesses of the last step may still be issued
    allowed = 17 * 4096 + rate * last_guess_ns / 1e9
    assert core.ledger().prefetch_bytes_read <= allowed


def test_a_plan_that_does_not_fit_is_refused() -> None:
    core, session = flat_core(4, 8)
    short = DecodePlan((session,), 3, np.zeros(2, np.uint64), np.zeros(0, np.uint32))
    with pytest.raises(BadInput):
        decode(core, short)
