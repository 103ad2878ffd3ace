"""Do a workload's bounds count its sessions' demands as a plain loop over sets does?"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.bounds import CREDIT_ONE
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import EVICTIONS, PREFETCHERS
from offstage.bindings.sim import DecodePlan, decode, populate
from offstage.testbeds.lab.bounds.collect import BOUNDS, BoundPoint, Collector, bounds_at
from offstage.testbeds.lab.bounds.predictors import LastStep, TwoAverages
from offstage.testbeds.lab.run.bounds_rows import BoundRow, bounds_table
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab

LAYERS, SELECT, BLOCK_TOKENS, BLOCK_BYTES = 2, 4, 3, 1 << 16


@dataclass
class Drawn:
    """A small workload drawn from a seed: sessions share a prefix, grow, and select by scores of
    few distinct values, so that ties are common."""

    seed: int
    shared: int
    steps: tuple[int, ...]
    layer_count: int = LAYERS
    select_blocks: int = SELECT
    sink_blocks: int = 1
    window_blocks: int = 2
    block_tokens: int = BLOCK_TOKENS
    draft_agreement: float | None = None
    index_source: npt.NDArray[np.int64] = field(default_factory=lambda: np.arange(LAYERS))

    def describe(self) -> dict[str, object]:
        return {"kind": "test", "synthetic": True}

    def prefill(self, session: int) -> None:
        return None

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        return tuple(
            SessionInfo(f"{number}", 6 + number, steps, self.contents(number))
            for number, steps in enumerate(self.steps)
        )

    def contents(self, number: int) -> npt.NDArray[np.uint64]:
        """The first `shared` blocks are equal in all sessions; block 5 is too, but behind another
        prefix, and so is another chunk."""
        names = [
            (0, i) if i < self.shared or i == 5 else (number + 1, i) for i in range(6 + number)
        ]
        return np.array(names, np.uint64)

    def step(self, number: int, step: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
        """Return selected ordinals [layers, width] and scores [layers, blocks at the end]."""
        random = np.random.default_rng((self.seed, number, step))
        info = self.sessions[number]
        count = info.blocks + step // BLOCK_TOKENS
        scores = np.zeros((LAYERS, info.blocks + (info.steps - 1) // BLOCK_TOKENS), np.uint16)
        scores[:, :count] = random.integers(0, 5, (LAYERS, count))
        selected = np.full((LAYERS, SELECT + 1), ABSENT, np.uint32)
        for layer in range(LAYERS):
            chosen = random.choice(count, random.integers(1, SELECT + 1), replace=False)
            selected[layer, : len(chosen)] = np.sort(chosen)
        return selected, scores

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        for first in range(0, self.steps[session], steps):
            last = min(first + steps, self.steps[session])
            parts = [self.step(session, step) for step in range(first, last)]
            selected, scores = (np.stack(column) for column in zip(*parts, strict=True))
            yield Slab(session, first, selected, scores)


def every_fourth(slab: Slab) -> npt.NDArray[np.bool_]:
    """An HBM pool that always has every fourth ordinal."""
    return slab.selected % 4 == 3


workloads = st.builds(
    Drawn,
    st.integers(0, 99),
    st.integers(0, 7),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
)


def ordinals(workload: Drawn, session: int, step: int, layer: int, pool: bool) -> list[int]:
    row = workload.step(session, step)[0][layer]
    return [int(o) for o in row if o != ABSENT and not (pool and o % 4 == 3)]


@settings(max_examples=40)
@given(workloads, st.booleans(), st.integers(1, 5))
def test_demands_are_those_of_the_selections(workload: Drawn, pool: bool, slab_steps: int) -> None:
    """Demands, non-trivial ones, compulsory hits and their blocks are those of a loop over sets."""
    collector = Collector(workload, (4,))
    for session in range(len(workload.steps)):
        for slab in workload.slabs(session, slab_steps):
            collector.add(slab, every_fourth(slab) if pool else None)
    point = BoundPoint(4, 10_000, 0, BLOCK_BYTES, 1000)
    (bounds,) = bounds_at(collector, [point])
    rows = {(r["session"], r["step"], r["layer"]): r for r in bounds.rows}
    assert len(rows) == len(bounds.rows) == LAYERS * sum(workload.steps)
    seen: set[object] = set()
    reads = 0
    for step in range(max(workload.steps)):
        for layer in range(LAYERS):
            for session, steps in enumerate(workload.steps):
                if step >= steps:
                    continue
                info, row = workload.sessions[session], rows[session, step, layer]
                count = info.blocks + step // BLOCK_TOKENS
                hits = demands = nontrivial = nontrivial_hits = 0
                for ordinal in ordinals(workload, session, step, layer, pool):
                    prefix = info.contents[: ordinal + 1].tobytes()
                    written = ordinal >= info.blocks
                    name = (layer, (session, ordinal) if written else prefix)
                    hit = name in seen or written
                    seen.add(name)
                    inner = workload.sink_blocks <= ordinal < count - workload.window_blocks
                    demands, hits = demands + 1, hits + hit
                    nontrivial, nontrivial_hits = nontrivial + inner, nontrivial_hits + inner * hit
                    reads += not hit
                assert (row["demands"], row["nontrivial"]) == (demands, nontrivial)
                assert (row["hits"][0], row["nontrivial_hits"][0]) == (hits, nontrivial_hits)
                # With room for all, Belady is the unlimited buffer; no cap misses nothing.
                assert row["hits"][:3].tolist() == [hits, hits, demands]
    assert bounds.reads == {"compulsory": reads, "belady": reads, "clairvoyant": reads}
    assert bounds.limit_hits is None
    assert collector.demands().block_count >= len(seen)


@settings(max_examples=40)
@given(workloads, st.booleans(), st.integers(1, 5))
def test_last_step_is_the_best_by_the_scores_before(
    workload: Drawn, pool: bool, slab_steps: int
) -> None:
    """A demand hits exactly if a sort of the previous step puts it among the best."""
    buffers = (3, 1, 6, 100)
    last = LastStep(workload, buffers)
    for session in range(len(workload.steps)):
        for slab in workload.slabs(session, slab_steps):
            hits, nontrivial_hits = last.take(slab, every_fourth(slab) if pool else None)
            assert (nontrivial_hits <= hits).all()
            for step, layer in np.ndindex(*hits.shape[:2]):
                now = slab.first_step + step
                wanted = ordinals(workload, session, now, layer, pool)
                if now == 0:
                    assert not hits[step, layer].any()
                    continue
                before = workload.step(session, now - 1)[1][layer]
                best = sorted(np.flatnonzero(before), key=lambda o: (-int(before[o]), o))
                known = workload.sessions[session].blocks + (now - 1) // BLOCK_TOKENS
                for at, buffer in enumerate(buffers):
                    want = [o for o in wanted if o in best[:buffer] or o >= known]
                    assert hits[step, layer, at] == len(want)


@pytest.mark.parametrize("pool", [False, True])
def test_two_averages_know_more_than_the_last_step(pool: bool) -> None:
    """A regression on the past beats the previous step from the first step on, without knowing the
    future: its hits are unchanged if all later steps differ."""
    options = GeneratedOptions(
        profile="gvr",
        layers=6,
        context_tokens=64 * 512,
        steps=96,
        select_blocks=32,
        window_blocks=2,
    )
    workload = GeneratedWorkload(options)
    slabs = list(workload.slabs(0, 24))
    found = []
    for kind in (LastStep, TwoAverages):
        predictor = kind(workload, (64, 128))
        served = every_fourth if pool else lambda _: None
        found.append(np.concatenate([predictor.take(slab, served(slab))[1] for slab in slabs]))
    last, two = (hits.sum(axis=(0, 1)) for hits in found)
    demands = 96 * 6 * (32 - 3)
    assert two[0] > last[0] + 0.01 * demands and two[1] > last[1]
    assert found[0][0].sum() == 0 < found[1][0].sum()
    other = GeneratedWorkload(replace(options, seed=2))
    later = [
        replace(one, scores=two.scores, selected=two.selected)
        for one, two in zip(slabs, other.slabs(0, 24), strict=True)
    ]
    predictor = TwoAverages(workload, (64, 128))
    changed = [predictor.take(slab)[1] for slab in (*slabs[:2], *later[2:])]
    plain = TwoAverages(workload, (64, 128))
    own = [plain.take(slab)[1] for slab in slabs]
    assert np.array_equal(changed[0], own[0]) and np.array_equal(changed[1], own[1])


def test_keys_of_long_contexts_are_wider() -> None:
    """Beyond 65,536 blocks of a layer, the order by score and ordinal is the same."""
    info = SessionInfo("long", 70_000, 2, np.zeros((70_000, 2), np.uint64))

    class Long(Drawn):
        sessions = (info,)

    scores = np.ones((2, LAYERS, 70_000), np.uint16)
    scores[0, :, 69_999] = 2
    selected = np.tile(np.array([0, 1, 66_000, 69_999], np.uint32), (2, LAYERS, 1))
    hits, _ = LastStep(Long(0, 0, (2,)), (2, 66_001, 66_002)).take(Slab(0, 0, selected, scores))
    assert hits[1].tolist() == [[2, 3, 4]] * LAYERS


@pytest.mark.parametrize("begins", [None, [0, 5]])
def test_credit_is_shared_by_the_decoding_sessions(begins: list[int] | None) -> None:
    """The bytes that pass while a layer computes are divided by the sessions of that step."""
    workload = Drawn(1, 2, (8, 4))
    collector = Collector(workload, (4,), begins=begins)
    collector.collect()
    layer_ns = 10_000
    point = BoundPoint(4, 64, BLOCK_BYTES * 100_000, BLOCK_BYTES, layer_ns, lead_ns=20_000)
    cap = collector.cap(point)
    assert cap is not None and cap.lead == (17 + 2) * CREDIT_ONE
    together = {0: range(8), 1: range(4)} if begins is None else {0: range(8), 1: range(5, 9)}
    rows = collector.rows()
    for row, credit in zip(rows, cap.credits, strict=True):
        nominal = together[int(row["session"])][int(row["step"])]
        active = sum(nominal in steps for steps in together.values())
        assert credit == -(-CREDIT_ONE // active)
    # Without waiting, the credit earned is what passes while the steps run.
    steps = {step for one in together.values() for step in one}
    assert int(cap.credits.sum()) == len(steps) * LAYERS * CREDIT_ONE
    keys = [
        (together[int(r["session"])][int(r["step"])], int(r["layer"]), int(r["session"]))
        for r in rows[collector.demands().order]
    ]
    assert keys == sorted(keys)


def test_a_tighter_cap_or_buffer_is_never_better() -> None:
    """Bounds are ordered as they must be over many points at once."""
    workload = Drawn(7, 3, (40, 30, 35))
    collector = Collector(workload, (4, 8))
    collector.collect()
    rates = [BLOCK_BYTES * 1000 * n for n in (1, 10, 100, 0)]
    points = [
        BoundPoint(b, s, r, BLOCK_BYTES, 10_000) for b, s in ((4, 12), (8, 24)) for r in rates
    ]
    found = bounds_at(collector, points)
    total = int(found[0].rows["demands"].sum())
    hits = np.array([one.rows["hits"].sum(axis=0) for one in found])
    compulsory, alone, ahead, last, two = hits.reshape(2, len(rates), len(BOUNDS)).transpose(
        2, 0, 1
    )
    assert (compulsory == compulsory[0, 0]).all()
    assert (alone == alone[:, :1]).all() and (alone[0] < alone[1]).all()
    assert (np.diff(ahead, axis=1) >= 0).all() and (ahead[:, -1] == total).all()
    assert (alone <= ahead).all() and (ahead[0] <= ahead[1]).all()
    assert (last[0] < last[1]).all() and (two[0] < two[1]).all()
    for one, ahead_hits in zip(found, ahead.reshape(-1), strict=True):
        assert (one.limit_hits is None) == (one.point.bytes_per_s == 0)
        assert one.limit_hits is None or ahead_hits <= one.limit_hits <= total


COMPUTE_NS = 1_000_000


def core_hits(workload: Drawn, policy: Policy, slots: int) -> tuple[int, int]:
    """Return (on-time hits, prefetched) of the decision core if reads take no time."""
    layers, block_bytes = workload.layer_count, BLOCK_BYTES
    core = Core(CoreConfig(slots, 512, 64, layers, 1, 3, block_bytes, seed=workload.seed), policy)
    tenant = core.tenant_add(0, b"0" * 16, slots)
    sessions = []
    for number, info in enumerate(workload.sessions):
        config = SessionConfig(tenant, SELECT, 1, 2, COMPUTE_NS * layers)
        sessions.append(core.session_open(0, config))
        populate(core, sessions[-1], workload.shared, content=99)
        populate(core, sessions[-1], info.blocks - workload.shared, content=number)
        core.session_set_generating(0, sessions[-1], True)
    steps = workload.steps[0]
    drawn = [workload.step(n, step) for n in range(len(sessions)) for step in range(steps)]
    rows = [row[row != ABSENT] for selected, _ in drawn for row in selected]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    counts = tuple(info.blocks for info in workload.sessions)
    scores = np.stack([scores[:, : min(counts)] for _, scores in drawn])
    plan = DecodePlan(
        tuple(sessions),
        steps,
        offsets,
        np.concatenate(rows),
        scores,
        SELECT,
        BLOCK_TOKENS,
        COMPUTE_NS,
    )
    result = decode(core, plan)
    ledger = core.ledger()
    assert result.failed == ledger.busy == 0 and result.stall_ns.sum() == 0
    assert ledger.demands == len(plan.demands) and core.verify()
    return sum(ledger.ends[:5]), ledger.prefetch_bytes_read // block_bytes


@pytest.mark.parametrize("seed", range(3))
def test_the_decision_core_keeps_to_the_bounds(seed: int) -> None:
    """No eviction exceeds Belady, and no prefetcher under a cap exceeds the cap's bound."""
    workload, slots = Drawn(seed, 3, (60, 60, 60)), 40
    collector = Collector(workload, (6,))
    collector.collect()
    rate = BLOCK_BYTES * 500
    (bounds,) = bounds_at(collector, [BoundPoint(6, slots, rate, BLOCK_BYTES, COMPUTE_NS)])
    compulsory, alone, ahead, *_ = bounds.rows["hits"].sum(axis=0).tolist()
    total = int(bounds.rows["demands"].sum())
    assert bounds.limit_hits is not None
    assert alone < compulsory and alone < ahead <= bounds.limit_hits < total
    for eviction in EVICTIONS:
        hits, prefetched = core_hits(workload, Policy(eviction=eviction), slots)
        assert hits <= alone and prefetched == 0
        for prefetcher in PREFETCHERS:
            policy = Policy(
                f"{prefetcher}+shared",
                eviction,
                window_blocks=3,
                prefetch_bytes_per_s_max=rate,
                probability_permille_min=0,
            )
            assert core_hits(workload, policy, slots)[0] <= bounds.limit_hits


def test_what_breaks_the_contract_is_refused() -> None:
    """Each is one error: wrong order, missing slabs, unwritten blocks, too many, no scores."""
    workload = Drawn(3, 2, (6,))
    first, second = workload.slabs(0, 3)
    with pytest.raises(BadInput, match="in order"):
        Collector(workload, (4,)).add(second)
    with pytest.raises(BadInput, match="in order"):
        LastStep(workload, (4,)).take(second)
    half = Collector(workload, (4,))
    half.add(first)
    with pytest.raises(BadInput, match="all slabs"):
        half.demands()
    early = np.where(first.selected == first.selected.min(), np.uint32(8), first.selected)
    with pytest.raises(BadInput, match="not written yet"):
        half.add(Slab(0, 3, np.full_like(first.selected, 99), second.scores))
    with pytest.raises(BadInput, match="not written yet"):
        Collector(workload, (4,)).add(Slab(0, 0, early, first.scores))
    narrow = Drawn(3, 2, (6,), select_blocks=1)
    with pytest.raises(BadInput, match="select_blocks"):
        Collector(narrow, (4,)).collect()
    whole = Collector(workload, (4,))
    whole.collect()
    with pytest.raises(BadInput, match="no scores"):
        bounds_at(whole, [BoundPoint(5, 64, 0, BLOCK_BYTES, 1)])
    with pytest.raises(BadInput, match="buffer"):
        bounds_at(whole, [BoundPoint(4, 2, 0, BLOCK_BYTES, 1)])
    with pytest.raises(BadInput, match="buffers"):
        LastStep(workload, ())


def test_bounds_that_differ_in_cap_or_granules_look_different() -> None:
    """Does the table tell two rows apart? A column stands there only where it does."""

    def titles(*settings: tuple[int | None, int]) -> list[str]:
        rows = [
            BoundRow(
                workload="generated",
                buffer_over_k=2.0,
                granules_per_block=granules,
                cap_bytes_per_s=cap,
                bound="clairvoyant",
            )
            for cap, granules in settings
        ]
        table = bounds_table(rows)
        cells = [tuple(one.text for one in table.cells(row)) for row in table.parts[0].rows]
        assert len(set(cells)) == len(settings) and all(len(one) == len(cells[0]) for one in cells)
        return [one.title for one in table.columns]

    always = ["workload", "buffer", "bound", "non-trivial", "hit", "blocks read"]
    assert titles((None, 1)) == always
    assert titles((None, 1), (10**6, 1)) == [*always[:2], "cap", *always[2:]]
    assert titles((None, 1), (None, 4)) == [*always[:2], "granules", *always[2:]]
