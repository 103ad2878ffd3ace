"""Is a run the same however its steps are split, and do its rows add up to the core's counters?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_drive import DRIVE

from offstage.bindings.core import GUESS, Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.engine import ABSENT, ROW, Engine, EngineConfig, HbmPool
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES, ENDS
from offstage.bindings.sim import populate_contents

SESSIONS, STEPS, LAYERS, BLOCKS, WIDTH = 3, 21, 3, 40, 5
LOOKAHEAD = CAUSES.index("lookahead")
COMPUTE_NS = 500_000


@dataclass
class Work:
    """All input of one session."""

    selected: np.ndarray
    served: np.ndarray | None
    scores: np.ndarray | None
    offsets: np.ndarray | None
    guesses: np.ndarray | None

    def slabs(self, steps: int, end_known: bool = True) -> Iterator[tuple]:
        """Yield arguments of `feed`; with `end_known`, the last slab with steps says so."""
        for begin in range(0, STEPS, steps):
            end = min(begin + steps, STEPS)
            cut = [
                None if a is None else a[begin:end].copy()
                for a in (self.selected, self.served, self.scores)
            ]
            cut_guesses: list = [None, None]
            if self.offsets is not None and self.guesses is not None:
                offsets = self.offsets[begin * LAYERS : end * LAYERS + 1]
                cut_guesses = [offsets - offsets[0], self.guesses[offsets[0] : offsets[-1]].copy()]
            yield (*cut, *cut_guesses, end == STEPS and end_known)
        if not end_known:
            yield (self.selected[:0], None, None, None, None, True)


def work_of(seed: int, *, pool: int = 0, guessed: float = 0.0, plain: bool = False) -> Work:
    """Random selections of the context and of appended blocks, in rows of any length, and random
    guesses; `plain`: full rows, nothing appended."""
    random = np.random.default_rng(seed)
    scores = random.integers(1, 65536, (STEPS, LAYERS, BLOCKS)).astype(np.uint16)
    scores[:, :, :8] = 60000 + np.arange(8)
    selected = np.full((STEPS, LAYERS, WIDTH), ABSENT, np.uint32)
    for step in range(STEPS):
        for layer in range(LAYERS):
            count = WIDTH if plain else random.integers(0, WIDTH + 1)
            chosen = random.choice(12 if plain else 12 + step // 2, count, replace=False)
            selected[step, layer, :count] = np.sort(chosen)
    served = HbmPool(LAYERS, BLOCKS, pool).served(selected) if pool else None
    counts = random.poisson(guessed, STEPS * LAYERS)
    guesses = np.zeros(counts.sum(), GUESS)
    guesses["layer"] = random.integers(0, LAYERS, len(guesses))
    guesses["ordinal"] = random.integers(0, 12, len(guesses))
    guesses["steps"] = random.integers(0, 3, len(guesses))
    guesses["probability"] = random.integers(0, 65536, len(guesses))
    guesses["cause"] = LOOKAHEAD
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Work(selected, served, scores, offsets, guesses)


def core_of(
    policy: Policy, slots: int = 40, queue_max: int = 5, session_max: int = SESSIONS
) -> Core:
    """Return a core whose `queue_max` is below the number of blocks reported at once."""
    config = CoreConfig(
        slots,
        1024,
        BLOCKS,
        LAYERS,
        session_max=session_max,
        block_size_bytes=4096,
        io_max=6,
        queue_max=queue_max,
        demand_max=WIDTH,
        log_size_bytes=1 << 22,
    )
    core = Core(config, policy)
    core.tenant_add(0, b"0" * 16, slots)
    return core


def session_of(core: Core, number: int, now_ns: int = 0) -> int:
    config = SessionConfig(0, WIDTH, sink_blocks=1, window_blocks=2, step_ns=LAYERS * COMPUTE_NS)
    session = core.session_open(now_ns, config)
    contents = np.array([(i, 0 if i < 6 else number) for i in range(12)], np.uint64)
    populate_contents(core, session, contents, now_ns)
    core.session_set_generating(now_ns, session, True)
    return session


CONFIG = EngineConfig(SESSIONS, COMPUTE_NS, 20_000, append_steps=2, nvme=DRIVE, seed=4)
POLICIES = {
    "none": Policy(),
    "ema": Policy("window+ema+shared", "score", window_blocks=2, lease_ns=10_000_000),
    "capped": Policy("ema", "score", prefetch_bytes_per_s_max=20_000_000),
}


def ran(
    policy: Policy,
    works: list[Work],
    cuts: list[int],
    config: EngineConfig = CONFIG,
    slots: int = 40,
    queue_max: int = 5,
    end_known: bool = True,
) -> tuple[Core, Engine, np.ndarray]:
    """Run every work in its own batch slot; sessions close when they end."""
    core = core_of(policy, slots, queue_max)
    engine = Engine(core, config)
    sessions = [session_of(core, number) for number in range(len(works))]
    slabs = [w.slabs(c, end_known) for w, c in zip(works, cuts, strict=True)]
    begin = np.zeros(7, GUESS)
    begin["ordinal"], begin["probability"], begin["cause"] = np.arange(7), 50000, LOOKAHEAD
    for slot, session in enumerate(sessions):
        engine.start(slot, session, slot * 700_000, begin, lead_ns=100_000)
    rows: list[list[np.ndarray]] = [[] for _ in works]
    while event := engine.run():
        what, slot = event
        rows[slot].append(engine.take_rows(slot))
        if what == "rows":
            engine.feed(slot, *next(slabs[slot]))
        else:
            core.session_close(engine.now_ns, sessions[slot])
    assert core.verify()
    return core, engine, np.concatenate([taken for of_slot in rows for taken in of_slot])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(sorted(POLICIES)),
    cuts=st.lists(st.sampled_from([1, 2, 3, 16, STEPS]), min_size=SESSIONS, max_size=SESSIONS),
    end_known=st.booleans(),
    pool=st.sampled_from([0, 8]),
    guessed=st.sampled_from([0.0, 4.0]),
)
def test_how_steps_are_cut_changes_nothing(
    seed: int, policy: str, cuts: list[int], end_known: bool, pool: int, guessed: float
) -> None:
    """Rows, ledger, decision log, time and reads equal those of the run in one piece."""
    works = [work_of(seed + i, pool=pool, guessed=guessed) for i in range(SESSIONS)]
    whole, one, rows = ran(POLICIES[policy], works, [STEPS] * SESSIONS)
    cut, other, again = ran(POLICIES[policy], works, cuts, end_known=end_known)
    assert rows.tobytes() == again.tobytes()
    assert whole.log() == cut.log()
    assert whole.ledger() == cut.ledger()
    assert (one.now_ns, one.reads, one.failed) == (other.now_ns, other.reads, other.failed)


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_add_up_to_the_ledger(policy: str) -> None:
    """The core's counters are the sums of its rows, and every selection is in one row."""
    works = [work_of(i, pool=8, guessed=3.0) for i in range(SESSIONS)]
    core, engine, rows = ran(POLICIES[policy], works, [4] * SESSIONS)
    ledger = core.ledger()
    assert len(rows) == SESSIONS * STEPS * LAYERS == ledger.steps
    for name in ("demands", "nontrivial", "shadow_misses", "pollution", "selected"):
        assert rows[name].sum(dtype=np.int64) == getattr(ledger, name), name
    for name in ("ends", "nontrivial_ends"):
        assert rows[name].sum(axis=0, dtype=np.int64).tolist() == getattr(ledger, name), name
    assert (rows["ends"].sum(axis=1) == rows["demands"]).all()
    assert (rows["demands"] + rows["pool_hits"] == rows["selected"]).all()
    parts = rows["nontrivial"] + rows["nontrivial_pool_hits"]
    assert (parts == rows["nontrivial_selected"]).all() and rows["nontrivial_pool_hits"].any()
    assert rows["demand_reads"].sum() == sum(ledger.issued[:3])
    assert rows["prefetch_reads"].sum() == sum(ledger.issued[3:]) > 0
    assert engine.reads == sum(ledger.issued) and engine.failed == 0
    order = [
        (slot, step, layer)
        for slot in range(SESSIONS)
        for step in range(STEPS)
        for layer in range(LAYERS)
    ]
    assert [tuple(row) for row in rows[["session", "step", "layer"]].tolist()] == order


def test_time_is_compute_hits_and_stalls() -> None:
    """A session's time is its layers' compute, the fabric's part of those that demanded, and its
    rows' stalls, nothing else."""
    _, engine, rows = ran(POLICIES["none"], [work_of(1)], [3])
    computed = len(rows) * COMPUTE_NS + int((rows["demands"] > 0).sum()) * CONFIG.hit_ns
    begin_ns = 100_000
    assert rows["stall_ns"].sum() > 0
    assert engine.now_ns == begin_ns + computed + int(rows["stall_ns"].sum(dtype=np.int64))


def clairvoyant(work: Work, steps: int) -> Work:
    """Guess, after each step's last layer, what every layer selects `steps` steps later."""
    counts = np.zeros((STEPS, LAYERS), np.int64)
    ahead = []
    for step in range(STEPS - steps):
        layer, column = np.nonzero(work.selected[step + steps] != ABSENT)
        guesses = np.zeros(len(layer), GUESS)
        guesses["layer"], guesses["ordinal"] = layer, work.selected[step + steps][layer, column]
        guesses["steps"], guesses["probability"], guesses["cause"] = steps, 65535, LOOKAHEAD
        counts[step, -1] = len(layer)
        ahead.append(guesses)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return replace(work, offsets=offsets, guesses=np.concatenate(ahead))


def test_what_the_host_predicts_is_there() -> None:
    """If the host predicts the next step and it fits, only the first step misses."""
    blind = work_of(3, plain=True)
    config = replace(CONFIG, nvme=None, append_steps=0)
    slots = 2 * LAYERS * WIDTH - 6  # a step and most of the next
    _, _, without = ran(Policy(), [replace(blind, guesses=None)], [5], config, slots, 20)
    _, _, predicted = ran(Policy(), [clairvoyant(blind, 1)], [5], config, slots, 20)
    late = ENDS.index("late")
    assert without["ends"][LAYERS:, late:].sum() > 20
    assert predicted["ends"][LAYERS:, late:].sum() == 0
    assert predicted["ends"][:, ENDS.index("lookahead")].sum() > 20
    assert predicted["ends"][0, ENDS.index("lookahead")] > 0  # hinted before its first step


def test_a_batch_slot_serves_one_session_after_another() -> None:
    """Entries are reused, and the rows of both sessions are kept."""
    core = core_of(POLICIES["ema"], session_max=1)
    engine = Engine(core, replace(CONFIG, batch_slot_max=1))
    for number in range(2):
        session = session_of(core, number, engine.now_ns)
        engine.start(0, session, engine.now_ns + 1000)
        with pytest.raises(BadInput):
            engine.start(0, session, engine.now_ns + 2000)
        slabs = work_of(number).slabs(8)
        while (event := engine.run()) == ("rows", 0):
            engine.feed(0, *next(slabs))
        assert event == ("ended", 0)
        core.session_close(engine.now_ns, session)
    rows = engine.take_rows(0)
    assert rows["step"].tolist() == 2 * [step for step in range(STEPS) for _ in range(LAYERS)]
    assert len(engine.take_rows(0)) == 0
    assert engine.run() is None


def test_what_does_not_fit_is_refused() -> None:
    core = core_of(Policy())
    engine = Engine(core, CONFIG)
    session = session_of(core, 0)
    work = work_of(1)
    with pytest.raises(BadInput):
        engine.feed(0, work.selected)  # the batch slot is empty
    engine.start(0, session, 5)
    with pytest.raises(BadInput):
        engine.start(1, session, 5)  # it already runs
    with pytest.raises(BadInput):
        engine.feed(0, work.selected[:, :2])
    with pytest.raises(BadInput):
        engine.feed(0, work.selected, scores=work.scores[:3])
    with pytest.raises(BadInput):
        engine.feed(0, work.selected[:0])
    with pytest.raises(BadInput):
        offsets = np.zeros(STEPS * LAYERS, np.uint64)
        engine.feed(0, work.selected, guess_offsets=offsets, guesses=np.zeros(1, GUESS))
    engine.feed(0, work.selected)
    with pytest.raises(BadInput):
        engine.feed(0, work.selected)  # the first rows are not used up
    with pytest.raises(BadInput):
        Engine(core, replace(CONFIG, batch_slot_max=0))
    with pytest.raises(BadInput):
        engine.run()  # ordinals not yet written: nothing is appended before step 2
        engine.run()
        engine.feed(0, np.full((1, LAYERS, 1), BLOCKS, np.uint32))
        engine.run()


def test_rows_lie_in_memory_as_the_engine_writes_them() -> None:
    from offstage.bindings.firmware import ffi

    fields = ffi.typeof("struct ofs_row").fields
    assert [name for name, _ in fields] == list(ROW.names or ())
    assert [field.offset for _, field in fields] == [ROW.fields[n][1] for n in ROW.names or ()]
    fields = ffi.typeof("struct ofs_guess").fields
    assert [field.offset for _, field in fields] == [GUESS.fields[n][1] for n in GUESS.names or ()]


def test_hints_cost_what_the_policy_lets_a_host_send() -> None:
    """Each of 12 scores takes 2 bytes or 1; with a maximum of three, each takes an ordinal of 2
    more; hints may skip every second step. Seven guesses of 16 bytes precede the first step."""
    policy = Policy("ema", "score")
    limits = [
        ({}, 2 * 12 * STEPS),
        ({"hint_score_bits": 8}, 12 * STEPS),
        ({"hint_score_bits": 8, "hint_scores_max": 3}, 3 * 3 * STEPS),
        ({"hint_score_bits": 8, "hint_scores_max": 11}, 12 * STEPS),  # sending all is shorter
        ({"hint_every_steps": 2}, 2 * 12 * 11),
    ]
    config = replace(CONFIG, nvme=None, append_steps=0)
    work = replace(work_of(3, plain=True), guesses=None)
    for changes, size_bytes in limits:
        core, _, _ = ran(policy.with_(**changes), [work], [5], config)
        assert core.ledger().hint_bytes == LAYERS * size_bytes + 7 * 16, changes
    core, _, _ = ran(Policy(), [work], [5], config)
    assert core.ledger().hint_bytes == 7 * 16  # the policy uses no scores: none are sent
