"""Does every array library keep the contract of `host.arrays`, on every device that this machine
has?

`later` is a device of the tests, on which a copy happens as late as it may; `torch-staged` uses
torch's path to a device on the CPU. A new library is one line in SIDES.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from later_arrays import LaterArrays

from offstage.bindings.errors import BadInput, Missing
from offstage.host import arrays as registry
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.arrays.staging import StagingRing
from offstage.host.decode.pool import HbmPool
from offstage.host.model.models import geometry

BLOCKS, BLOCK_BYTES, ROWS = 12, 64, 5


def open_torch(device: str = "cpu", **options: Any) -> Arrays:
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device: run on a GPU node with the driver installed")
    from offstage.host.arrays.torch_arrays import TorchArrays

    return TorchArrays(device, **options)


def open_torch_batch() -> Arrays:
    """Return the CUDA side over a test runtime that makes each copy as late as it may."""
    pytest.importorskip("torch", reason="pip install '.[host]'")
    from later_runtime import LaterBatchArrays

    return LaterBatchArrays()


SIDES: dict[str, Callable[[], Arrays]] = {
    "numpy": open_arrays,
    "later": LaterArrays,
    "torch": open_torch,
    "torch-staged": lambda: open_torch(staged=True),
    "torch-batch": open_torch_batch,
    "torch-cuda": lambda: open_torch("cuda"),
}
PARAMS = [
    pytest.param(name, marks=pytest.mark.gpu if name.endswith("cuda") else ()) for name in SIDES
]


@pytest.fixture(params=PARAMS)
def side(request: pytest.FixtureRequest) -> Arrays:
    return SIDES[request.param]()


WHICH = st.lists(st.integers(0, BLOCKS - 1), max_size=ROWS, unique=True)
CALLS = st.lists(
    st.tuples(st.sampled_from(["land", "land", "commit", "write", "read"]), WHICH), max_size=40
)


@settings(max_examples=40)
@given(calls=CALLS, seed=st.integers(0, 99))
@pytest.mark.parametrize("name", PARAMS)
def test_blocks_hold_what_was_committed_or_written_last(
    name: str, calls: list[tuple[str, list[int]]], seed: int
) -> None:
    """Blocks hold the last commit or write, with several fetches landing at once, commits in any
    order, and writes and reads between them."""
    random = np.random.default_rng(seed)
    memory = SIDES[name]().memory(BLOCKS, BLOCK_BYTES, ROWS)
    expected = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    out: list[tuple[Any, Any, Any]] = []

    def commit(index: int) -> None:
        indices, rows, content = out.pop(index)
        assert (memory.landing[rows] == content).all(), "another landing was given the same rows"
        memory.commit(indices, rows)
        expected[indices] = content

    for call, which in calls:
        away = {int(index) for indices, _, _ in out for index in indices}
        indices = np.array([index for index in which if index not in away], np.int32)
        content = random.integers(0, 256, (indices.size, BLOCK_BYTES), np.uint8)
        if call == "land":
            while (rows := memory.land(indices)) is None:
                assert out, "refused while nothing is on its way"
                commit(int(random.integers(len(out))))
            assert rows.dtype == np.uint32 and rows.size == indices.size
            memory.landing[rows] = content
            out.append((indices, rows, content))
        elif call == "commit" and out:
            commit(int(random.integers(len(out))))
        elif call == "write":
            used = int(random.integers(1, BLOCK_BYTES + 1))
            memory.write(indices, content[:, :used])
            expected[indices, :used] = content[:, :used]
        elif call == "read":
            assert (memory.read(indices) == expected[indices]).all()
    while out:
        commit(0)
    assert (memory.read(np.arange(BLOCKS, dtype=np.int32)) == expected).all()


def test_the_pool_gives_the_kernels_what_was_written(side: Arrays) -> None:
    """Tokens go to their slots, a fetched block to its row; the view is the storage itself."""
    shape = geometry("tiny").block_shape()
    pool = HbmPool(geometry("tiny"), 4, side, landing_rows=2)
    random = np.random.default_rng(3)
    content = random.standard_normal((2, *shape)).astype(np.float16)
    indices = np.array([3, 1], np.int32)
    rows = pool.memory.land(indices)
    assert rows is not None
    pool.memory.landing[rows] = content.view(np.uint8).reshape(2, -1)
    pool.memory.commit(indices, rows)
    token = random.standard_normal((2, 2, shape[1], shape[3])).astype(np.float16)
    pool.write_tokens(0, np.array([1, 0], np.int32), np.array([5, 15], np.int32), token)
    expected = np.zeros((4, *shape), np.float16)
    expected[[3, 1]] = content
    expected[1, :, :, 5], expected[0, :, :, 15] = token
    assert (side.to_host(pool.blocks()) == expected).all()
    assert pool.memory.read(indices).tobytes() == expected[[3, 1]].tobytes()


def test_arrays_go_there_and_back(side: Arrays) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    there = side.from_host(numbers)
    assert (side.to_host(there) == numbers).all() and side.all_finite(there)
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = numbers.copy()
        spoiled[1, 1] = bad
        assert not side.all_finite(side.from_host(spoiled))


@given(counts=st.lists(st.integers(1, 7), max_size=60), seed=st.integers(0, 99))
def test_runs_of_the_ring_never_overlap(counts: list[int], seed: int) -> None:
    """In any sequence of takes, commits and waits, no two runs in use share a row, a run is refused
    only while others are in use, and a copy is waited for before its rows are reused."""
    random = np.random.default_rng(seed)
    ring = StagingRing(7)
    owner = [-1] * ring.rows
    open_runs: list[tuple[int, int, int]] = []

    def commit_one() -> None:
        number, first, count = open_runs.pop(int(random.integers(len(open_runs))))

        def wait() -> None:
            for row in range(first, first + count):
                assert owner[row] == number
                owner[row] = -1

        ring.commit(first, wait)

    for number, count in enumerate(counts):
        if open_runs and random.random() < 0.5:
            commit_one()
        while (first := ring.take(count)) is None:
            assert open_runs, "refused while nothing is out"
            commit_one()
        assert owner[first : first + count] == [-1] * count
        owner[first : first + count] = [number] * count
        open_runs.append((number, first, count))


def test_what_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="choose one of"):
        open_arrays("cupy")
    with pytest.raises(BadInput, match="numpy has no device 'cuda'"):
        open_arrays("numpy", "cuda")
    module, _, extra = registry._LOADERS["torch"]
    monkeypatch.setitem(registry._LOADERS, "torch", (module, "no_such_library", extra))
    with pytest.raises(Missing, match=r"pip install '\.\[host\]'"):
        open_arrays("torch")


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_torch_names_a_device_that_is_not_there(device: str) -> None:
    pytest.importorskip("torch", reason="pip install '.[host]'")
    with pytest.raises(BadInput, match=f"torch has no device '{device}'"):
        open_arrays("torch", device)


def test_a_pool_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little device memory is one error line with the fix."""
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    from offstage.host.arrays.torch_arrays import StagedMemory

    def full(*given: object, **named: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(BadInput, match=r"4\.3 GB does not fit into the memory of 'cuda:0'; decode"):
        StagedMemory(torch.device("cuda:0"), 1024, 4 << 20, 8)
