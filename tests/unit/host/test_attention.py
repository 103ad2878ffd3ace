"""Does every paged kernel give what dense softmax over the same tokens gives?"""

import importlib.util
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput, Missing
from offstage.host import attention
from offstage.host.attention import kernel, kernels, numpy_kernel, reference
from offstage.host.geometry import KvGeometry, LayerKv
from offstage.host.models import geometry


@dataclass(frozen=True)
class Case:
    """A pool full of noise, a query, and a selection whose blocks are partly filled."""

    kind: KvGeometry
    query: npt.NDArray[np.float32]
    storage: npt.NDArray[np.uint8]
    indices: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]

    def run(self, name: str, **change: Any) -> npt.NDArray[np.float32]:
        case = replace(self, **change)
        decode = kernel(name)
        return decode(case.query, case.storage, case.indices, case.counts, case.kind)


def make_case(kv_heads: int, group: int, tokens: int, dim: int, blocks: int, seed: int) -> Case:
    layer = LayerKv("gqa", kv_heads, dim)
    kind = replace(geometry("tiny"), q_heads=kv_heads * group, layers=(layer,), block_tokens=tokens)
    random = np.random.default_rng(seed)
    pool_blocks = blocks + 3
    content = random.standard_normal((pool_blocks, kind.block_bytes(0) // 2)).astype(np.float16)
    # The rows of a pool shared by unlike layers are wider than one layer's block.
    storage = np.full((pool_blocks, kind.block_bytes(0) + 64), 255, np.uint8)
    storage[:, : kind.block_bytes(0)] = content.view(np.uint8)
    counts = np.full(blocks, tokens, np.int32)
    counts[random.random(blocks) < 0.3] = random.integers(0, tokens + 1)
    query = 3 * random.standard_normal((kv_heads * group, dim), dtype=np.float32)
    indices = random.permutation(pool_blocks)[:blocks].astype(np.int32)
    return Case(kind, query, storage, indices, counts)


CASES = st.builds(
    make_case,
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 4]),
    tokens=st.sampled_from([1, 5, 16, 64]),
    dim=st.sampled_from([2, 32, 64]),
    blocks=st.integers(0, 60),
    seed=st.integers(0, 999),
)
FAST = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library) is None, reason="pip install 'offstage[host]'"
        ),
    )
    for name, library in (("numpy", "numpy"), ("torch", "torch"))
]


@settings(deadline=None)
@given(case=CASES)
def test_the_reference_is_softmax_attention(case: Case) -> None:
    """The oracle against the formula in one expression over heads, with K and V repeated."""
    shape = case.kind.block_shape()
    rows = case.storage[:, : case.kind.block_bytes(0)].view(np.float16).reshape(-1, *shape)
    taken = [rows[i, :, :, :n] for i, n in zip(case.indices, case.counts, strict=True)]
    tokens = np.concatenate([rows[0][:, :, :0], *taken], axis=2).astype(np.float64)
    group = case.kind.q_heads // shape[1]
    keys, values = np.repeat(tokens, group, axis=1)
    raw = np.exp(np.einsum("hd,htd->ht", case.query, keys) / np.sqrt(shape[3]))
    expected = np.einsum("ht,htd->hd", raw, values) / np.maximum(raw.sum(1), 1e-300)[:, None]
    np.testing.assert_allclose(case.run("reference"), expected, atol=1e-6)


@pytest.mark.parametrize("name", FAST)
@settings(deadline=None)
@given(case=CASES)
def test_kernels_agree_with_the_reference(name: str, case: Case) -> None:
    """Any shape, groups of 1 and 4, partial and empty blocks, no block at all."""
    before = case.storage.copy()
    output = case.run(name)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, case.run("reference"), atol=2e-5)
    assert (case.storage == before).all(), "a kernel changed the pool"


@pytest.mark.parametrize("name", ["reference", *FAST])
@settings(deadline=None, max_examples=25)
@given(case=CASES)
def test_kernels_ignore_order_and_what_is_not_selected(name: str, case: Case) -> None:
    """Infinities and NaN in unwritten slots and in other blocks never reach the output."""
    rows = case.storage[:, : case.kind.block_bytes(0)].view(np.float16)
    spoiled = case.storage.copy()
    view = spoiled[:, : case.kind.block_bytes(0)].view(np.float16)
    view = view.reshape(len(rows), *case.kind.block_shape())
    others = np.setdiff1d(np.arange(len(rows)), case.indices)
    view[others] = np.nan
    for index, count in zip(case.indices, case.counts, strict=True):
        view[index, 0, :, count:] = np.nan
        view[index, 1, :, count:] = np.inf
    output = case.run(
        name, storage=spoiled, indices=case.indices[::-1].copy(), counts=case.counts[::-1].copy()
    )
    np.testing.assert_allclose(output, case.run(name), atol=2e-5)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block per chunk, with a maximum that rises late, equals all blocks in one chunk."""
    case = make_case(2, 4, 16, 32, 40, 7)
    rows = case.storage[:, : case.kind.block_bytes(0)].view(np.float16)
    rows.reshape(len(rows), 2, -1)[case.indices[-1], 0] *= 2
    monkeypatch.setattr(numpy_kernel, "_CHUNK_BYTES", 1)
    small = case.run("numpy")
    monkeypatch.setattr(numpy_kernel, "_CHUNK_BYTES", 1 << 30)
    np.testing.assert_allclose(small, case.run("numpy"), atol=1e-5)


@pytest.mark.gpu
def test_cuda_agrees_with_the_reference() -> None:
    """The same call with the pool in numpy, which sends the blocks, and with it on the device."""
    torch = pytest.importorskip("torch", reason="pip install 'offstage[host]'")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device: run on a GPU node with the driver installed")
    from offstage.host.attention import torch_kernel

    case = make_case(2, 4, 64, 64, 50, 11)
    arguments = case.indices, case.counts, case.kind
    sent = torch_kernel.decode(case.query, case.storage, *arguments, device="cuda")
    there = torch_kernel.decode(case.query, torch.from_numpy(case.storage).cuda(), *arguments)
    np.testing.assert_allclose(sent, case.run("reference"), atol=2e-4)
    np.testing.assert_allclose(there, sent, atol=1e-6)


@pytest.mark.parametrize("name", FAST[1:])
def test_torch_reads_a_tensor_where_it_lies(name: str) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'offstage[host]'")
    case = make_case(2, 1, 16, 32, 20, 5)
    tensor = torch.from_numpy(case.storage)
    np.testing.assert_allclose(case.run(name, storage=tensor), case.run("numpy"), atol=2e-5)
    if not torch.cuda.is_available():
        arguments = case.query, case.storage, case.indices, case.counts, case.kind
        with pytest.raises(BadInput, match="use device 'cpu'"):
            kernel(name)(*arguments, device="cuda")  # type: ignore[call-arg]


def test_a_missing_library_is_reported_and_raised_only_on_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, _, extra = attention._LOADERS["torch"]
    monkeypatch.setitem(attention._LOADERS, "torch", (module, "no_such_library", extra))
    assert {info.name: info.available for info in kernels()} == {
        "reference": True,
        "numpy": True,
        "torch": False,
    }
    with pytest.raises(Missing, match="pip install 'offstage\\[host\\]'"):
        kernel("torch")
    with pytest.raises(BadInput, match="choose one of"):
        kernel("cuda")
    assert kernel("reference") is reference.decode
