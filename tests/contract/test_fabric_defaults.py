"""Is a side that only begins fetches and puts a complete fabric?

New fabrics are copied from `tests/reference/smallest_fabric.py`; the defaults of `Fabric` do the
rest. Every side that moves blocks runs through `test_fabric.py` as well.
"""

import errno

import numpy as np
import pytest
from numpy.typing import NDArray
from smallest_fabric import SmallestFabric

from offstage.bindings.core import GUESS
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest
from offstage.bindings.keys import checksum
from offstage.host.decode.prefill import put_blocks

BLOCKS = 6
SOURCE = np.random.default_rng(3).integers(0, 256, (BLOCKS, 4096), np.uint8)
ALL = np.arange(BLOCKS, dtype=np.uint32)


def request(ordinals: list[int]) -> FetchRequest:
    keys = np.zeros((len(ordinals), 2), np.uint64)
    target = np.zeros((len(ordinals), 4096), np.uint8)
    return FetchRequest(1, 1, 0, np.array(ordinals, np.uint32), keys, target)


@pytest.fixture
def fabric() -> SmallestFabric:
    made = SmallestFabric()
    assert not made.put(PutRequest(1, 0, ALL, SOURCE)).any()
    return made


def test_what_was_put_comes(fabric: SmallestFabric) -> None:
    """Blocks come in the requested rows, with length and checksum; one never put has its errno."""
    asked = request([4, 9, 2])
    done = fabric.fetch(asked)
    assert done.rcs.tolist() == [0, -errno.ENOENT, 0] and done.failed_count == 1
    assert done.ends[1] == 255 and done.hit_count == 2
    for row, ordinal in ((0, 4), (2, 2)):
        assert np.array_equal(asked.target[row], SOURCE[ordinal])
        assert done.checksums[row] == checksum(SOURCE[ordinal]) and done.lengths[row] == 4096
    fabric.put(PutRequest(1, 0, ALL[:1], SOURCE[:1], length_bytes=100))
    assert fabric.fetch(request([0])).lengths.tolist() == [100]


def test_calls_are_told_once_ended_and_given_up(fabric: SmallestFabric) -> None:
    """Each call is reported once, calls in flight are limited, and a cancelled call is not
    reported."""
    begun: list[Fetch] = [fabric.fetch_begin(request([n])) for n in range(fabric.calls_max)]
    with pytest.raises(RunFailed) as caught:
        fabric.fetch_begin(request([0]))
    assert caught.value.errno == errno.EAGAIN and caught.value.fix
    fabric.fetch_cancel(begun[3])
    assert fabric.poll() == begun[:3] and fabric.poll(1_000_000) == []
    for fetch in begun[:3]:
        assert not fabric.fetch_end(fetch).rcs.any()
    fabric.fetch_begin(request([5]))
    fabric.close()
    assert fabric.poll() == []


def test_what_a_side_has_no_use_for_has_no_effect(fabric: SmallestFabric) -> None:
    """The decode loop makes all of these calls, on any side."""
    array: NDArray[np.uint8] = np.zeros((1, 4096), np.uint8)
    fabric.register(array)
    fabric.limit_scores(6, 2, 8)
    assert fabric.hint(1, np.zeros(3, GUESS)) == 0
    fabric.release(1)
    fabric.unregister(array)
    assert fabric.stats() == {} and fabric.stages() == {} and not fabric.pins
    put_blocks(fabric, 2, [(layer, ALL, SOURCE) for layer in range(2 * fabric.calls_max)])
    assert fabric.fetch(request([1])).hit_count == 1


def test_a_side_without_commands_on_values_says_so(fabric: SmallestFabric) -> None:
    with pytest.raises(BadInput, match="carries no values"):
        fabric.value_io(1, 1.0)
