"""Do the tiers below the arena hold a plain model's blocks, and take the times of closed forms?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers_model import NEVER, TiersModel

from offstage.bindings.bounds import Demands, belady
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import preset
from offstage.bindings.tiers import TierCosts, Tiers, TiersConfig, open_tiers

BLOCK = 4096
CHUNKS = 24


def opened(capacities: list[int], promote: list[int], **more: Any) -> Tiers:
    """Return tiers of one layer that take no time."""
    costs = [TierCosts(size, within) for size, within in zip(capacities, promote, strict=True)]
    return open_tiers(TiersConfig(CHUNKS, 1, 4, BLOCK, **more), costs)


def read(tiers: Tiers, now_ns: int, chunk: int, **more: Any) -> int:
    """Return when a read ends, in ps."""
    end_ps = tiers.timing.ask("read", now_ns * 1000, chunk=chunk, size_bytes=BLOCK, **more)
    assert end_ps is not None
    return end_ps


TRACES = st.lists(st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, 4)), max_size=150)


@settings(max_examples=150, deadline=None)
@given(
    TRACES,
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 3, 20, NEVER]), min_size=4, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(0, CHUNKS),
)
def test_blocks_lie_where_the_plain_model_has_them(
    trace: list[tuple[int, int]],
    sizes: list[int],
    promote: list[int],
    exclusive: bool,
    place_last: bool,
    filled: int,
) -> None:
    """Each block's tier after each read, the tier that served it and all writes agree, inclusive or
    exclusive, at any thresholds."""
    sizes = sorted(sizes)
    within = promote[: len(sizes)]
    tiers = opened(sizes, within, exclusive=exclusive, place_last=place_last)
    model = TiersModel(sizes, within, exclusive, place_last)
    now_ns = 0
    tiers.fill(now_ns, np.arange(filled, dtype=np.uint32))
    for chunk in range(filled):
        model.place(now_ns, chunk)
    for chunk, later in trace:
        now_ns += later
        before = tiers.where(chunk)
        served = model.read(now_ns, chunk)
        assert before in (served, None)
        read(tiers, now_ns, chunk)
        assert [tiers.where(one) for one in range(CHUNKS)] == [
            model.where(one) for one in range(CHUNKS)
        ]
    stats = tiers.stats()[:-1]
    assert [one["reads"] for one in stats] == model.served
    assert [one["writes"] for one in stats] == model.writes
    assert [one["resident"] for one in stats] == [len(held) for held in model.held]
    for one in stats:
        assert one["resident"] == one["placed"] + one["promoted"] + one["demoted"] - one["gone"]


def lru_hits(trace: list[int], capacity: int) -> int:
    """Return the hits of textbook LRU, by stack distance."""
    stack: list[int] = []
    hits = 0
    for one in trace:
        if one in stack:
            hits += len(stack) - stack.index(one) <= capacity
            stack.remove(one)
        stack.append(one)
    return hits


@pytest.mark.parametrize("exclusive", [False, True])
def test_what_is_promoted_at_once_is_lru_by_its_closed_form(exclusive: bool) -> None:
    """Inclusive tiers up to i serve what an LRU of tier i's size does, exclusive ones what an LRU
    of all their sizes does. Belady's optimum is never exceeded."""
    random = np.random.default_rng(7)
    trace = [int(one) for one in random.zipf(1.4, 4000) % CHUNKS]
    sizes = [2, 5, 9, CHUNKS]
    tiers = opened(sizes, [NEVER] * 4, exclusive=exclusive, place_last=True)
    tiers.fill(0, np.arange(CHUNKS, dtype=np.uint32))
    for now_ns, chunk in enumerate(trace):
        read(tiers, now_ns, chunk)
    served = [one["reads"] for one in tiers.stats()[:-1]]
    assert sum(served) == len(trace)
    rooms = np.cumsum(sizes) if exclusive else np.array(sizes)
    for at, room in enumerate(rooms[:-1]):
        assert sum(served[: at + 1]) == lru_hits(trace, int(room))
        optimum = belady(Demands.flat(np.array(trace)), int(room)).hits.sum()
        assert sum(served[: at + 1]) <= optimum


def test_a_block_moves_up_only_when_it_comes_back_soon_enough() -> None:
    """The threshold is the reuse interval below which a block enters a tier, to the ns."""
    for interval, tier in ((9, 0), (10, 1), (99, 1), (100, 2)):
        tiers = opened([4, 8, CHUNKS], [10, 100, 0], exclusive=True, place_last=True)
        read(tiers, 5, 3)
        assert tiers.where(3) == 2  # its first read
        read(tiers, 5 + interval, 3)
        assert tiers.where(3) == tier


def test_an_idle_tier_takes_its_latency_and_its_link() -> None:
    """Two concurrent reads share the link, which is one server; their latencies overlap."""
    one = TierCosts(CHUNKS, latency_ps=50_000, read_ps=7_000, write_ps=11_000)
    tiers = open_tiers(TiersConfig(CHUNKS, 1, 1, BLOCK), [one])
    assert [read(tiers, 0, chunk) for chunk in range(3)] == [57_000, 64_000, 71_000]
    assert tiers.timing.ask("write", 0, chunk=9) == 61_000
    assert read(tiers, 1_000, 4) == 1_057_000
    stats = tiers.stats()[0]
    assert (stats["reads"], stats["read_ns"], stats["read_ns_max"]) == (4, 57 + 64 + 71 + 57, 71)


def test_no_more_requests_than_a_server_takes_are_under_way() -> None:
    """Little's law at saturation: c requests of length L each give c / L a second."""
    one = TierCosts(CHUNKS, latency_ps=1_000_000, concurrency=4)
    tiers = open_tiers(TiersConfig(CHUNKS, 1, 1, BLOCK), [one])
    ends = [read(tiers, 0, chunk % CHUNKS) for chunk in range(40)]
    assert ends == [1_000_000 * (1 + at // 4) for at in range(40)]


def test_a_drive_takes_the_time_of_its_model_and_the_link_before_it_comes_on_top() -> None:
    drive = preset("gen5-tlc").params
    bare, behind = (
        open_tiers(
            TiersConfig(CHUNKS, 1, 1, BLOCK, seed=3),
            [TierCosts(CHUNKS, latency_ps=latency, drive_count=2, drive=drive)],
        )
        for latency in (0, 30_000_000)
    )
    ends = [
        (read(bare, now, chunk), read(behind, now, chunk))
        for now, chunk in ((0, 1), (5, 1), (1_000_000, 2))
    ]
    assert all(there - here == 30_000_000 for here, there in ends)
    assert ends[0][0] > 40_000_000


def test_a_wait_is_that_of_the_tier_whose_read_ended_it() -> None:
    """A hit waits for its command's slowest read; a hit without a read belongs to no tier."""
    costs = [TierCosts(4, NEVER, latency_ps=2_000_000), TierCosts(CHUNKS, latency_ps=9_000_000)]
    tiers = open_tiers(TiersConfig(CHUNKS, 1, 2, BLOCK), costs)
    tiers.fill(0, np.arange(6, dtype=np.uint32))  # 0 and 1 have left the first
    side = tiers.timing
    side.ask("command", 1_000_000, session=1, count=2)
    assert (read(tiers, 1_000, 5), read(tiers, 1_000, 0)) == (3_000_000, 10_000_000)
    side.ask("hit", 10_000_000, session=1, count=2)
    assert [one["stall_ns"] for one in tiers.stats()] == [0, 9_000, 0]
    side.ask("command", 20_000_000, session=1, count=1)
    read(tiers, 20_000, 5)
    side.ask("command", 21_000_000, session=1, count=1)  # repeated: its wait began at the first
    side.ask("hit", 22_000_000, session=1, count=1)
    assert [one["stall_ns"] for one in tiers.stats()] == [2_000, 9_000, 0]
    side.ask("command", 30_000_000, session=0, count=1)
    side.ask("hit", 30_500_000, session=0, count=1)
    assert [one["stall_ns"] for one in tiers.stats()] == [2_000, 9_000, 500]


@pytest.mark.parametrize(
    "costs",
    [
        [],
        [TierCosts(0)],
        [TierCosts(4), TierCosts(3)],
        [TierCosts(4)] * 9,
        [TierCosts(4, concurrency=2, drive_count=1, drive=preset("gen5-tlc").params)],
        [TierCosts(4, latency_ps=2**60)],
    ],
)
def test_tiers_out_of_range_are_refused(costs: list[TierCosts]) -> None:
    with pytest.raises(BadInput):
        open_tiers(TiersConfig(CHUNKS, 1, 1, BLOCK), costs)


def test_a_chunk_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput):
        opened([CHUNKS], [0]).fill(0, np.array([CHUNKS], np.uint32))
