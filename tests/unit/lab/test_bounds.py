"""Are the bounds right: Belady's counts, attainable ones, and the limit of all schedules?"""

import gzip
import json
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.bounds import (
    CREDIT_ONE,
    NONTRIVIAL,
    WRITTEN,
    Cap,
    Demands,
    belady,
    cap_limit,
    clairvoyant,
    compulsory,
)
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.importer import open_trace

ORACLE = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
TRACES = {
    "mooncake_conversation_0-2400s.jsonl.gz": "hash_ids",
    "lmcache_magagent_dev.jsonl.gz": "hash_runs",
    "lmcache_miniswe_dev.jsonl.gz": "hash_runs",
    "sharegpt_llmservingsim_300.jsonl.gz": "hash_runs",
}
Row = list[int]


def demands_of(
    rows: list[Row],
    nontrivial: AbstractSet[int] = frozenset(),
    written: AbstractSet[int] = frozenset(),
    order: list[int] | None = None,
) -> Demands:
    """Return rows of block numbers; marks belong to blocks."""
    flat = [block for row in rows for block in row]
    marks = [NONTRIVIAL * (b in nontrivial) + WRITTEN * (b in written) for b in flat]
    return Demands(
        np.array(flat, np.uint32),
        np.cumsum([0, *map(len, rows)]).astype(np.uint64),
        np.array(marks, np.uint8),
        max(flat, default=0) + 1,
        None if order is None else np.array(order, np.uint32),
    )


def cap_of(rows: list[Row], credit: float, lead: float, burst: float) -> Cap:
    one = np.full(len(rows), int(credit * CREDIT_ONE), np.uint64)
    return Cap(one, int(lead * CREDIT_ONE), int(burst * CREDIT_ONE))


class PlainModel:
    """The same buffer, unoptimized: it searches for every next use each time."""

    def __init__(self, rows: list[Row], slots: int, written: set[int]) -> None:
        self.rows, self.slots, self.written = rows, slots, written
        self.held: dict[int, int] = {}  # block: when it was last inserted
        self.seen: set[int] = set()
        self.puts = self.reads = self.prefetched = 0

    def next_use(self, block: int, after: int) -> int:
        uses = (t for t in range(after, len(self.rows)) if block in self.rows[t])
        return next(uses, len(self.rows))

    def put(self, block: int) -> None:
        self.puts += 1
        self.held[block] = self.puts
        self.seen.add(block)

    def evict(self, after: int, spared: Row, later_than: int) -> bool:
        """Evict the block needed last; of several, the one inserted last."""
        free = [block for block in self.held if block not in spared]
        victim = max(free, key=lambda b: (self.next_use(b, after), self.held[b]))
        if self.next_use(victim, after) <= later_than:
            return False
        del self.held[victim]
        return True

    def costs(self, block: int) -> bool:
        return block not in self.held and not (block in self.written and block not in self.seen)

    def serve(self, time: int) -> int:
        row = self.rows[time]
        misses = [block for block in row if self.costs(block)]
        coming = sum(block not in self.held for block in row)
        while len(self.held) + coming > self.slots:
            self.evict(time + 1, row, -1)
        for block in row:
            self.put(block)
        self.reads += len(misses)
        return len(row) - len(misses)

    def prefetch(self, now: int, credit: float) -> float:
        """Read the blocks needed soonest until credit or room runs out; return the credit left."""
        for time in range(now, len(self.rows)):
            for block in self.rows[time]:
                if not self.costs(block):
                    continue
                if credit < 1:
                    return credit
                if len(self.held) == self.slots and not self.evict(now, [], time):
                    return credit
                self.put(block)
                credit -= 1
                self.reads += 1
                self.prefetched += 1
        return credit


def plain_run(
    rows: list[Row], slots: int, written: set[int], cap: tuple[float, float, float] | None
) -> tuple[list[int], int, int]:
    """Return (hits of each row, reads, prefetched); cap is (credit a row, lead, burst)."""
    model = PlainModel(rows, slots, written)
    hits = []
    credit = model.prefetch(0, cap[1]) if cap else 0.0
    for time in range(len(rows)):
        hits.append(model.serve(time))
        if cap:
            credit = model.prefetch(time + 1, min(credit + cap[0], cap[2]))
    return hits, model.reads, model.prefetched


def fewest_misses(
    rows: list[Row], slots: int, written: set[int], cap: tuple[float, float, float]
) -> int:
    """Return the minimum over all possible schedules."""
    blocks = sorted({block for row in rows for block in row})
    born = {b: next(t for t, row in enumerate(rows) if b in row) for b in blocks}

    def subsets(of: frozenset[int]) -> Iterator[frozenset[int]]:
        for size in range(min(slots, len(of)) + 1):
            yield from map(frozenset, combinations(sorted(of), size))

    @cache
    def after_row(time: int, held: frozenset[int], credit: float) -> int:
        """Return the fewest from here on, prefetch first."""
        if time == len(rows):
            return 0
        known = {b for b in blocks if b not in written or born[b] < time}
        best = 1 << 30
        for now in subsets(frozenset(known | held)):
            spent = len(now - held)
            if spent <= credit:
                best = min(best, at_row(time, now, credit - spent))
        return best

    @cache
    def at_row(time: int, held: frozenset[int], credit: float) -> int:
        row = frozenset(rows[time])
        free = {b for b in row if b in written and born[b] == time}
        left = min(credit + cap[0], cap[2])
        keeps = [kept for kept in subsets(held | row) if row <= kept]
        return len(row - held - free) + min(after_row(time + 1, kept, left) for kept in keeps)

    return after_row(0, frozenset(), cap[1])


def rows_of(blocks: int, width: int, count: int) -> st.SearchStrategy[list[Row]]:
    row = st.lists(st.integers(0, blocks - 1), max_size=width, unique=True)
    return st.lists(row, min_size=1, max_size=count)


credits_of = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.5])


@given(
    rows_of(14, 4, 40),
    st.integers(4, 12),
    st.sets(st.integers(0, 13), max_size=4),
    st.sets(st.integers(0, 13)),
    st.tuples(credits_of, st.sampled_from([0.0, 2.0]), st.sampled_from([1.0, 3.0, 17.0])),
)
def test_bounds_equal_a_plain_model(
    rows: list[Row],
    slots: int,
    written: set[int],
    nontrivial: set[int],
    cap: tuple[float, float, float],
) -> None:
    """Hits of each row, reads and prefetches are those of a model that searches every time."""
    demands = demands_of(rows, nontrivial, written)
    for bound, want in (
        (belady(demands, slots), plain_run(rows, slots, written, None)),
        (
            clairvoyant(demands, slots, cap_of(rows, *cap)),
            plain_run(rows, slots, written, cap),
        ),
        (
            clairvoyant(demands, slots, None),
            plain_run(rows, slots, written, (1e9, 1e9, 1e9)),
        ),
        (compulsory(demands), plain_run(rows, 14, written, None)),
    ):
        assert (bound.hits.tolist(), bound.reads, bound.prefetched) == want
    everything = demands_of(rows, set(range(14)), written)
    one = clairvoyant(everything, slots, cap_of(rows, *cap))
    assert (one.nontrivial_hits == one.hits).all()
    marked = clairvoyant(demands, slots, cap_of(rows, *cap))
    others = clairvoyant(
        demands_of(rows, set(range(14)) - nontrivial, written), slots, cap_of(rows, *cap)
    )
    assert (marked.nontrivial_hits + others.nontrivial_hits == marked.hits).all()


@settings(max_examples=60)
@given(
    rows_of(5, 3, 7),
    st.integers(3, 4),
    st.sets(st.integers(0, 4), max_size=2),
    st.tuples(credits_of, st.sampled_from([0.0, 1.0]), st.sampled_from([1.0, 2.0])),
)
def test_no_schedule_exceeds_the_limit(
    rows: list[Row], slots: int, written: set[int], cap: tuple[float, float, float]
) -> None:
    """The best of all schedules lies between the attained count and the upper limit."""
    demands = demands_of(rows, written=written)
    total = len(demands.demands)
    alone = belady(demands, slots)
    attained = int(clairvoyant(demands, slots, cap_of(rows, *cap)).hits.sum())
    best = total - fewest_misses(rows, slots, written, cap)
    limit = cap_limit(demands, alone, cap_of(rows, *cap))
    assert int(alone.hits.sum()) <= attained <= best <= limit
    assert int(alone.hits.sum()) == total - fewest_misses(rows, slots, written, (0, 0, 0))


@given(rows_of(14, 4, 40), st.integers(4, 12), st.integers(0, 999))
def test_rows_are_served_in_the_order_given(rows: list[Row], slots: int, seed: int) -> None:
    """Rows with an explicit order give the same as rows sorted by it."""
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    sorted_rows = [rows[index] for index in order]
    cap = cap_of(rows, 0.5, 1, 17)
    for bound in (
        compulsory,
        lambda d: belady(d, slots),
        lambda d: clairvoyant(d, slots, cap),
    ):
        got, want = bound(demands_of(rows, order=order)), bound(demands_of(sorted_rows))
        assert got.hits[order].tolist() == want.hits.tolist()
        assert got.reads == want.reads
    shuffled = demands_of(rows, order=order)
    straight = demands_of(sorted_rows)
    assert cap_limit(shuffled, belady(shuffled, slots), cap) == cap_limit(
        straight, belady(straight, slots), cap
    )


def plain_bypass(ids: list[int], slots: int) -> int:
    """Return Belady's hits if the block needed last is not kept, even the one just read."""
    uses: dict[int, list[int]] = {}
    for time in range(len(ids) - 1, -1, -1):
        uses.setdefault(ids[time], []).append(time)
    held: set[int] = set()
    hits = 0
    for block in ids:
        uses[block].pop()
        hits += block in held
        held.add(block)
        if len(held) > slots:
            held.remove(max(held, key=lambda b: uses[b][-1] if uses[b] else len(ids)))
    return hits


@given(st.lists(st.integers(0, 12), max_size=80), st.integers(1, 12))
def test_bypass_keeps_what_is_needed_soonest(ids: list[int], slots: int) -> None:
    """The hits are those of a buffer that may also evict the block it has just read."""
    assert belady(Demands.flat(np.array(ids, np.int64)), slots, bypass=True).hits.sum() == (
        plain_bypass(ids, slots)
    )


def accesses(path: Path) -> npt.NDArray[np.int64]:
    """Return the block ids of a trace, in order of request."""
    if TRACES[path.name] == "hash_ids":
        return np.array([b for one in open_trace(path).requests() for b in one.block_ids], np.int64)
    ids: list[npt.NDArray[np.int64]] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            ids += [np.arange(first, first + n) for first, n in json.loads(line)["hash_runs"]]
    return np.concatenate(ids)


def reference_hits(demands: Demands, slots: int) -> int:
    """Return libCacheSim's Belady hits, from oracleGeneral: time, id, size, next access or -1."""
    lcs = pytest.importorskip("libcachesim")
    ids = demands.demands
    order = np.argsort(ids, kind="stable")
    records = np.zeros(len(ids), ORACLE)
    records["time"], records["id"], records["size"] = np.arange(len(ids)), ids, 1
    records["next"] = -1
    again = ids[order[1:]] == ids[order[:-1]]
    records["next"][order[:-1][again]] = order[1:][again]
    with tempfile.NamedTemporaryFile() as file:
        file.write(records.tobytes())
        file.flush()
        parameters = lcs.ReaderInitParam(ignore_obj_size=True)
        reader = lcs.TraceReader(file.name, lcs.TraceType.ORACLE_GENERAL_TRACE, parameters)
        miss_ratio, _ = lcs.Belady(cache_size=slots).process_trace(reader)
    return len(ids) - round(miss_ratio * len(ids))


@pytest.mark.parametrize("name", TRACES)
def test_flat_counts_are_those_of_others(traces: Path, name: str) -> None:
    """On real traces hits equal libCacheSim's Belady, and OPT is the reference file's."""
    reference = json.loads((traces / "reference_stats.json").read_text())
    want = reference["traces"][name]
    demands = Demands.flat(accesses(traces / name))
    assert (len(demands.demands), demands.block_count) == (want["accesses"], want["unique"])
    for fraction, opt in zip(reference["capacity_fractions"], want["opt_block"], strict=True):
        slots = round(fraction * demands.block_count)  # the file's capacities are rounded
        with_bypass = int(belady(demands, slots, bypass=True).hits.sum())
        assert round(with_bypass / len(demands.demands), 4) == opt
        assert int(belady(demands, slots).hits.sum()) == reference_hits(demands, slots)


@pytest.mark.parametrize(
    ("demands", "slots"),
    [
        (demands_of([[0, 1, 2]]), 2),
        (demands_of([[0]]), 0),
        (demands_of([[1, 1]]), 4),
        (demands_of([[0], [1]], order=[0, 0]), 4),
        (demands_of([[0], [1]], order=[0, 2]), 4),
        (demands_of([[0], [1]], order=[0]), 4),
        (
            Demands(
                np.zeros(2, np.uint32),
                np.array([0, 1, 2], np.uint64),
                np.array([0, WRITTEN], np.uint8),
                1,
            ),
            4,
        ),
        (Demands(*(np.zeros(1, kind) for kind in (np.uint32, np.uint64, np.uint8)), 1), 4),
        (Demands(np.ones(1, np.uint32), np.array([0, 1], np.uint64), np.zeros(1, np.uint8), 1), 4),
    ],
    ids=[
        "row",
        "none",
        "twice",
        "order twice",
        "order range",
        "order size",
        "written",
        "offsets",
        "block",
    ],
)
def test_bad_input_is_refused(demands: Demands, slots: int) -> None:
    """A buffer below a row, a block twice in one, and an array of a wrong size are one error."""
    with pytest.raises(BadInput):
        belady(demands, slots)


def test_a_cap_that_does_not_fit_is_refused() -> None:
    demands = demands_of([[0], [1]])
    for credits, lead in (([1], 0), ([1, 2**62], 0), ([1, 1], -1)):
        with pytest.raises(BadInput):
            clairvoyant(demands, 4, Cap(np.array(credits, np.uint64), lead))
