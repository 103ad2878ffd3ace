"""Does the simulated HBM pool hold the same blocks as the host's own pool?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.engine import ABSENT, HbmPool
from offstage.bindings.errors import BadInput
from offstage.host.decode.pool import HbmPool as HostPool
from offstage.host.model.models import geometry

BLOCKS, WIDTH = 12, 4


def selections(rows: list[list[int]], width: int = WIDTH) -> np.ndarray:
    """Rows of one layer, uint32 `[steps, 1, width]`."""
    selected = np.full((len(rows), 1, width), ABSENT, np.uint32)
    for step, row in enumerate(rows):
        selected[step, 0, : len(row)] = row
    return selected


ROWS = st.lists(st.lists(st.integers(0, BLOCKS - 1), unique=True, max_size=WIDTH), max_size=40)


@settings(max_examples=60)
@given(rows=ROWS, pool_blocks=st.integers(WIDTH, BLOCKS), cut=st.integers(0, 40))
def test_it_serves_what_the_host_would_find(
    rows: list[list[int]], pool_blocks: int, cut: int
) -> None:
    """However the steps are split, each row serves the blocks that `hold` finds resident."""
    host = HostPool(geometry("tiny"), pool_blocks)
    pool = HbmPool(1, BLOCKS, pool_blocks)
    selected = selections(rows)
    served = np.concatenate([pool.served(selected[:cut]), pool.served(selected[cut:])])
    for row, got in zip(rows, served[:, 0], strict=True):
        found = host.hold("s", 0, row)
        missing = np.asarray(row, np.int64)[found < 0]
        host.allocate("s", 0, missing)
        assert got[: len(row)].tolist() == (found >= 0).tolist()
        assert not got[len(row) :].any()
    held = pool.held()[0]
    assert sorted(held[held != ABSENT].tolist()) == host.resident("s", 0).tolist()


@settings(max_examples=60)
@given(rows=ROWS, layer_blocks=st.sampled_from([0, *range(WIDTH, BLOCKS)]))
def test_a_host_pool_of_many_layers_serves_the_same(
    rows: list[list[int]], layer_blocks: int
) -> None:
    """With separate room for each layer, no layer evicts another's blocks, even if nothing is
    retained or a block being filled is pinned with the selection."""
    host = HostPool(geometry("tiny"), 2 * (max(layer_blocks, WIDTH) + 1), layer_blocks=layer_blocks)
    pool = HbmPool(2, BLOCKS, layer_blocks)
    for step, row in enumerate(rows):
        selected = np.full((1, 2, WIDTH), ABSENT, np.uint32)
        both = row, list({(ordinal * (step + 3)) % BLOCKS for ordinal in row[:2]})
        for layer, wanted in enumerate(both):
            selected[0, layer, : len(wanted)] = wanted
        served = pool.served(selected)[0]
        for layer, wanted in enumerate(both):
            found = host.hold("s", layer, wanted)
            host.allocate("s", layer, np.asarray(wanted, np.int64)[found < 0])
            assert served[layer, : len(wanted)].tolist() == (found >= 0).tolist()
    for layer in range(2):
        assert len(host.resident("s", layer)) <= max(layer_blocks, WIDTH)


def test_layers_do_not_meet() -> None:
    """Each layer has its own room and serves what it would serve alone."""
    random = np.random.default_rng(2)
    selected = np.sort(random.permuted(np.tile(np.arange(BLOCKS), (30, 3, 1)), axis=2)[..., :WIDTH])
    together = HbmPool(3, BLOCKS, 5).served(selected.astype(np.uint32))
    for layer in range(3):
        alone = HbmPool(1, BLOCKS, 5).served(selected[:, layer : layer + 1].astype(np.uint32))
        assert (together[:, layer] == alone[:, 0]).all()
    assert 0 < together.mean() < 1


def test_no_pool_serves_nothing_and_a_small_one_is_refused() -> None:
    rows = selections([[1, 2], [1, 2], [1, 2]])
    assert not HbmPool(1, BLOCKS, 0).served(rows).any()
    with pytest.raises(BadInput, match="4 blocks through 3"):
        HbmPool(1, BLOCKS, 3).served(rows)
    with pytest.raises(BadInput):
        HbmPool(1, BLOCKS, 4).served(selections([[BLOCKS]]))
    with pytest.raises(BadInput):
        HbmPool(2, BLOCKS, 4).served(rows)
