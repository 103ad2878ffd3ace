"""Does the pool agree, call by call, with a plain dict and an ordered list of victims?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.decode.pool import HbmPool, PoolFull
from offstage.host.model.models import geometry

Key = tuple[int, int]
SHAPE = geometry("tiny")


class PlainPool:
    """The model: the resident blocks, the pinned ones, and the others in the order their pins
    ended."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.resident: set[tuple[Key, int]] = set()
        self.held: dict[Key, list[int]] = {}
        self.lasting: dict[Key, list[int]] = {}
        self.order: list[tuple[Key, int]] = []

    def is_pinned(self, key: Key, ordinal: int) -> bool:
        return ordinal in self.held.get(key, []) or ordinal in self.lasting.get(key, [])

    def settle(self, key: Key, before: list[int]) -> None:
        self.order = [entry for entry in self.order if not self.is_pinned(*entry)]
        for ordinal in before:
            entry = key, ordinal
            if entry in self.resident and entry not in self.order:
                if not self.is_pinned(key, ordinal):
                    self.order.append(entry)

    def replace(self, sets: dict[Key, list[int]], key: Key, ordinals: list[int]) -> None:
        before = sets.get(key, [])
        sets[key] = [ordinal for ordinal in ordinals if (key, ordinal) in self.resident]
        self.settle(key, before)

    def allocate(self, key: Key, ordinals: list[int]) -> bool:
        missing = [ordinal for ordinal in ordinals if (key, ordinal) not in self.resident]
        victims = [entry for entry in self.order if entry[0] != key or entry[1] not in ordinals]
        short = len(missing) - (self.size - len(self.resident))
        if short > len(victims):
            return False
        for entry in victims[: max(short, 0)]:
            self.resident.remove(entry)
            self.order.remove(entry)
        self.resident |= {(key, ordinal) for ordinal in missing}
        kept = [ordinal for ordinal in ordinals if ordinal not in missing]
        self.held[key] = list(dict.fromkeys(self.held.get(key, []) + kept + missing))
        self.settle(key, [])
        return True

    def drop(self, key: Key, ordinals: list[int]) -> None:
        gone = {(key, ordinal) for ordinal in ordinals}
        self.resident -= gone
        self.order = [entry for entry in self.order if entry not in gone]
        for sets in (self.held, self.lasting):
            sets[key] = [ordinal for ordinal in sets.get(key, []) if ordinal not in ordinals]


KEYS = st.sampled_from([(0, 0), (0, 0), (1, 1)])
# Few ordinals, so that calls meet the same blocks; one beyond the first size of a table.
ORDINALS = st.lists(st.sampled_from([*range(12), 150]), max_size=9, unique=True)
NAMES = st.sampled_from(["hold", "pin", "allocate", "allocate", "release", "drop"])
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "pin", "allocate", "allocate", "release", "drop"]), KEYS, ORDINALS
    ),
    min_size=20,
    max_size=60,
)


def apply(pool: HbmPool, model: PlainPool, call: str, key: Key, ordinals: list[int]) -> None:
    """Make one call on both; the bytes of a new block name its owner."""
    if call == "allocate":
        try:
            indices = pool.allocate(*key, ordinals)
        except PoolFull:
            assert not model.allocate(key, ordinals), "refused what fits"
            return
        assert model.allocate(key, ordinals), "accepted what does not fit"
        for ordinal, index in zip(ordinals, indices, strict=True):
            pool.memory.storage[index, :3] = *key, ordinal
    elif call == "hold":
        pool.hold(*key, ordinals)
        model.replace(model.held, key, ordinals)
    elif call == "pin":
        pool.pin(*key, ordinals)
        model.replace(model.lasting, key, ordinals)
    elif call == "release":
        pool.release(*key)
        model.replace(model.held, key, [])
    else:
        pool.drop(*key, ordinals)
        model.drop(key, ordinals)


@settings(max_examples=200, deadline=None)
@given(calls=CALLS, size=st.integers(1, 14))
def test_pool_agrees_with_a_plain_model(calls: list[tuple[str, Key, list[int]]], size: int) -> None:
    """Resident blocks, eviction order and free space always equal the model's. No row is given to
    two blocks, and a refused call changes nothing."""
    pool, model = HbmPool(SHAPE, size), PlainPool(size)
    for call, key, ordinals in calls:
        apply(pool, model, call, key, ordinals)
        assert pool.free_count == size - len(model.resident)
        assert pool.pinned_count == len(model.resident) - len(model.order)
        for session in range(2):
            for layer in range(2):
                expected = sorted(o for k, o in model.resident if k == (session, layer))
                assert pool.resident(session, layer).tolist() == expected
                indices = pool.lookup(session, layer, expected)
                names = [[session, layer, ordinal] for ordinal in expected]
                assert pool.memory.storage[indices, :3].tolist() == names


def test_least_recently_selected_block_leaves_first_and_pinned_ones_never() -> None:
    pool = HbmPool(SHAPE, 4)
    pool.allocate("a", 0, [0, 1, 2, 3])
    pool.pin("a", 0, [0])
    pool.hold("a", 0, [2])  # unpins 1 and 3
    pool.release("a", 0)  # unpins 2
    pool.allocate("b", 0, [0])
    assert pool.resident("a", 0).tolist() == [0, 2, 3]
    pool.allocate("b", 0, [1, 2])
    assert pool.resident("a", 0).tolist() == [0]
    assert pool.evictions == 3
    with pytest.raises(PoolFull, match="enlarge the pool"):
        pool.allocate("a", 0, [7])
    pool.close("b")
    assert pool.allocate("a", 0, [7, 8, 9]).size == 3


def test_a_call_that_names_resident_blocks_counts_them_as_taken() -> None:
    """With three idle blocks, one of them requested again, three new ones do not fit."""
    pool = HbmPool(SHAPE, 3)
    pool.allocate("a", 0, [0, 1, 2])
    pool.release("a", 0)
    with pytest.raises(PoolFull, match="1 of 3 are pinned"):
        pool.allocate("a", 0, [0, 7, 8, 9])
    assert pool.resident("a", 0).tolist() == [0, 1, 2]
    assert sorted(pool.allocate("a", 0, [0, 7, 8])) == [0, 1, 2]
    assert pool.resident("a", 0).tolist() == [0, 7, 8]


def test_a_long_run_keeps_its_queue_bounded() -> None:
    """After 5,000 steps over a pool far smaller than the session, every block is accounted for."""
    pool = HbmPool(SHAPE, 32)
    random = np.random.default_rng(1)
    for _ in range(5_000):
        selection = np.sort(random.choice(400, 12, replace=False))
        found = pool.hold(0, 0, selection)
        pool.allocate(0, 0, selection[found < 0])
        assert (pool.lookup(0, 0, selection) >= 0).all()
        assert pool.resident(0, 0).size + pool.free_count == 32


def test_block_view_is_the_storage() -> None:
    pool = HbmPool(SHAPE, 3)
    blocks = pool.blocks()
    blocks[1, 1, 0, 2, 5] = 1.5
    assert blocks.shape == (3, 2, 2, 16, 32)
    assert pool.memory.storage[1].any() and not pool.memory.storage[[0, 2]].any()
    with pytest.raises(BadInput, match="at least 1"):
        HbmPool(SHAPE, 0)
