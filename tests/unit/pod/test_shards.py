"""Is every chunk in one shard, and do shards double up to the maximum length?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.dpu.pod.map import PodMap
from offstage.dpu.pod.shards import ShardGrid


def plain_sizes(most: int, first: int, length: int) -> list[int]:
    """Return sizes by the plain rule: each shard is as long as all before it, at most `most`."""
    sizes = [min(first or most, most)]
    while sum(sizes) < length:
        sizes.append(min(sum(sizes), most))
    return sizes


@given(st.integers(1, 40), st.integers(0, 50), st.integers(1, 400))
def test_it_is_the_rule_written_out(most: int, first: int, length: int) -> None:
    """Sizes, starts, counts and each chunk's shard follow the rule."""
    grid, sizes = ShardGrid(most, first), plain_sizes(most, first, length)
    starts = np.cumsum([0, *sizes[:-1]])
    assert grid.starts(length).tolist() == starts.tolist()
    assert [grid.size(n) for n in range(len(sizes))] == sizes
    assert grid.count(length) == len(sizes)
    of = np.repeat(np.arange(len(sizes)), sizes)[:length]
    assert grid.numbers(np.arange(length, dtype=np.uint32)).tolist() == of.tolist()


@pytest.mark.parametrize(
    ("first_tokens", "block_tokens", "starts"),
    [
        (512, 64, [0, 8, 16, 32, 64, 128]),
        (0, 64, [0, 64, 128]),
        (8192, 64, [0, 64, 128]),
        (100, 64, [0, 2, 4, 8, 16, 32, 64, 128]),
        (512, 512, [0, 1, 2, 4, 8, 16]),
    ],
)
def test_a_maps_shards_in_chunks(first_tokens: int, block_tokens: int, starts: list[int]) -> None:
    """Shards are whole blocks, at most 4,096 tokens, the first as set."""
    pod = PodMap(first_shard_tokens=first_tokens)
    assert pod.grid(block_tokens).starts(9000 // block_tokens).tolist()[: len(starts)] == starts
