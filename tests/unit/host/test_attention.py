"""Does every paged kernel equal dense softmax over the same tokens, for a batch of sessions?"""

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
from offstage.host.arrays import open_arrays
from offstage.host.attention import (
    arrays_of,
    block_tables,
    kernel,
    kernels,
    numpy_kernel,
    reference,
)
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import geometry
from offstage.host.model.values import ValueType

PADDING = 1 << 30
"""A pool index that nothing may follow."""


@dataclass(frozen=True)
class Case:
    """A pool full of noise, with a query and a selection of partly filled blocks for each session
    of a batch. Layers 0 and 1 have different shapes in the same rows."""

    kind: KvGeometry
    queries: npt.NDArray[np.float32]
    storage: npt.NDArray[np.uint8]
    indices: list[npt.NDArray[np.int32]]
    counts: list[npt.NDArray[np.int32]]
    layer: int = 0
    slots: list[npt.NDArray[np.int32]] | None = None
    sink_logits: npt.NDArray[np.float32] | None = None

    def blocks(self, storage: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
        """The pool as this layer sees it, in place."""
        shape = self.kind.block_shape(self.layer)
        used = storage[:, : self.kind.block_bytes(self.layer)]
        return used.view(np.float16).reshape(len(storage), *shape)

    def run(self, name: str, **change: Any) -> npt.NDArray[np.float32]:
        """Return the kernel's output in host memory. Tables are padded with entries that must not
        be read."""
        case = replace(self, **change)
        arrays = open_arrays(arrays_of(name))
        counts = block_tables(case.counts)
        tables = np.where(counts > 0, block_tables(case.indices), PADDING).astype(np.int32)
        given = arrays.from_host(case.queries), arrays.from_host(case.storage)
        slots = None if case.slots is None else block_tables(case.slots)
        more = case.layer, slots, case.sink_logits
        output = kernel(name)(*given, tables, counts, case.kind, *more)
        assert type(output) is type(given[1]), "the output stays in the library's own array"
        return arrays.to_host(output)


def make_case(
    kv_heads: int,
    group: int,
    tokens: int,
    dim: int,
    blocks: list[int],
    seed: int,
    layer: int = 0,
    value_dim: int = 0,
) -> Case:
    """`blocks`: how many blocks each session selects. With a `value_dim` layer 0 stores latents."""
    first = LayerKv("gqa", kv_heads, dim)
    if value_dim:
        first = LayerKv("mla", kv_heads, dim, value_dim=min(value_dim, dim))
    layers = first, LayerKv("gqa", 1, 2 * kv_heads * dim)
    kind = replace(geometry("tiny"), q_heads=kv_heads * group, layers=layers, block_tokens=tokens)
    random = np.random.default_rng(seed)
    pool_blocks = max(blocks, default=0) + 3
    content = random.standard_normal((pool_blocks, kind.block_bytes(layer) // 2))
    # In a pool shared by layers of different shapes, rows are wider than one layer's block.
    storage = np.full((pool_blocks, kind.block_bytes(1) + 64), 255, np.uint8)
    storage[:, : kind.block_bytes(layer)] = content.astype(np.float16).view(np.uint8)
    counts, indices = [], []
    for count in blocks:
        filled = np.full(count, tokens, np.int32)
        filled[random.random(count) < 0.3] = random.integers(0, tokens + 1)
        counts.append(filled)
        indices.append(random.permutation(pool_blocks)[:count].astype(np.int32))
    head_dim = kind.layers[layer].head_dim
    queries = 3 * random.standard_normal((len(blocks), kind.q_heads, head_dim), dtype=np.float32)
    return Case(kind, queries, storage, indices, counts, layer)


def by_token(case: Case, share: float, seed: int) -> Case:
    """The same with a share of its tokens, in any order, each an entry of its own."""
    random = np.random.default_rng(seed)
    indices, slots = [], []
    for own, counts in zip(case.indices, case.counts, strict=True):
        places = [(i, slot) for i, n in zip(own, counts, strict=True) for slot in range(n)]
        chosen = [place for place in places if random.random() < share]
        random.shuffle(chosen)
        taken = np.array(chosen, np.int32).reshape(-1, 2)
        indices.append(taken[:, 0])
        slots.append(taken[:, 1])
    counts = [np.ones_like(one) for one in slots]
    return replace(case, indices=indices, counts=counts, slots=slots)


CASES = st.builds(
    make_case,
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 4]),
    tokens=st.sampled_from([1, 5, 16, 64]),
    dim=st.sampled_from([2, 32, 64]),
    blocks=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    seed=st.integers(0, 999),
    layer=st.integers(0, 1),
    value_dim=st.sampled_from([0, 1, 17, 64]),
)
FAST = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library) is None, reason="pip install '.[host]'"
        ),
    )
    for name, library in (("numpy", "numpy"), ("torch", "torch"))
]


@settings(deadline=None, max_examples=40)
@given(case=CASES)
def test_the_reference_is_softmax_attention(case: Case) -> None:
    """The reference equals the formula written as one expression, with K and V repeated for each
    head."""
    shape = case.kind.block_shape(case.layer)
    rows = case.blocks(case.storage)
    output = case.run("reference")
    for query, indices, counts, attended in zip(
        case.queries, case.indices, case.counts, output, strict=True
    ):
        taken = [rows[i, :, :, :n] for i, n in zip(indices, counts, strict=True)]
        tokens = np.concatenate([rows[0][:, :, :0], *taken], axis=2).astype(np.float64)
        repeated = np.repeat(tokens, case.kind.q_heads // shape[1], axis=1)
        keys, values = repeated[0], repeated[-1][..., : case.kind.value_dim(case.layer)]
        raw = np.exp(np.einsum("hd,htd->ht", query, keys) / np.sqrt(shape[3]))
        expected = np.einsum("ht,htd->hd", raw, values) / np.maximum(raw.sum(1), 1e-300)[:, None]
        np.testing.assert_allclose(attended, expected, atol=1e-6)


@pytest.mark.parametrize("name", FAST)
@settings(deadline=None, max_examples=40)
@given(case=CASES)
def test_kernels_agree_with_the_reference(name: str, case: Case) -> None:
    """Ragged batches of any shape, groups of 1 and 4, partial and empty blocks, no blocks at
    all."""
    before = case.storage.copy()
    output = case.run(name)
    size = (*case.queries.shape[:2], case.kind.value_dim(case.layer))
    assert output.dtype == np.float32 and output.shape == size
    np.testing.assert_allclose(output, case.run("reference"), atol=2e-5)
    assert (case.storage == before).all(), "a kernel changed the pool"


@pytest.mark.parametrize("name", ["reference", *FAST])
@settings(deadline=None, max_examples=15)
@given(case=CASES)
def test_a_batch_is_its_sessions_one_by_one(name: str, case: Case) -> None:
    """A session's output depends neither on the other sessions nor on its row."""
    alone = [
        case.run(name, queries=case.queries[i : i + 1], indices=[own], counts=[case.counts[i]])[0]
        for i, own in enumerate(case.indices)
    ]
    np.testing.assert_allclose(case.run(name), np.stack(alone), atol=1e-5)
    turned = case.run(
        name,
        queries=case.queries[::-1].copy(),
        indices=case.indices[::-1],
        counts=case.counts[::-1],
    )
    np.testing.assert_allclose(turned[::-1], np.stack(alone), atol=1e-5)


@pytest.mark.parametrize("name", ["reference", *FAST])
@settings(deadline=None, max_examples=15)
@given(case=CASES)
def test_kernels_ignore_order_and_what_is_not_selected(name: str, case: Case) -> None:
    """Infinities and NaN in unwritten slots and in other blocks never reach the output."""
    output = case.run(name)
    for row, (indices, counts) in enumerate(zip(case.indices, case.counts, strict=True)):
        spoiled = case.storage.copy()
        view = case.blocks(spoiled)
        view[np.setdiff1d(np.arange(len(view)), indices[counts > 0])] = np.nan
        for index, count in zip(indices, counts, strict=True):
            view[index, 0, :, count:] = np.nan
            view[index, 1:, :, count:] = np.inf
        again = case.run(
            name,
            storage=spoiled,
            queries=case.queries[row : row + 1],
            indices=[indices[::-1]],
            counts=[counts[::-1]],
        )
        np.testing.assert_allclose(again[0], output[row], atol=2e-5)


@pytest.mark.parametrize("name", ["reference", *FAST])
@settings(deadline=None, max_examples=30)
@given(case=CASES, share=st.sampled_from([0.0, 0.05, 0.5, 1.0]), seed=st.integers(0, 99))
def test_single_tokens_are_read_and_no_others(
    name: str, case: Case, share: float, seed: int
) -> None:
    """Is a selection of tokens softmax attention over them, in float64, whatever stands beside
    them in their blocks? Few, none, one or all; several of a block, in any order."""
    chosen = by_token(case, share, seed)
    assert chosen.slots is not None
    spoiled = case.storage.copy()
    view, rows = chosen.blocks(spoiled), chosen.blocks(case.storage)
    read = np.zeros((len(view), view.shape[3]), np.bool_)
    for indices, slots in zip(chosen.indices, chosen.slots, strict=True):
        read[indices, slots] = True
    view.transpose(0, 3, 1, 2, 4)[~read] = np.nan
    output = chosen.run(name, storage=spoiled)
    group = case.kind.q_heads // view.shape[2]
    for session, (indices, slots) in enumerate(zip(chosen.indices, chosen.slots, strict=True)):
        tokens = rows[indices, :, :, slots].astype(np.float64).repeat(group, axis=2)
        logits = np.einsum("hd,thd->ht", case.queries[session], tokens[:, 0])
        raw = np.exp(logits / np.sqrt(view.shape[4]))
        values = tokens[:, -1, :, : case.kind.value_dim(case.layer)]
        expected = np.einsum("ht,thd->hd", raw, values)
        expected /= np.maximum(raw.sum(1), 1e-300)[:, None]
        np.testing.assert_allclose(output[session], expected, atol=2e-5)
    if share == 1.0:
        np.testing.assert_allclose(output, case.run(name), atol=2e-5)


@pytest.mark.parametrize("name", ["reference", *FAST])
@settings(deadline=None, max_examples=30)
@given(case=CASES, height=st.sampled_from([-50.0, 0.0, 9.0, 80.0]), tokens=st.booleans())
def test_a_sink_logit_counts_in_the_sum_alone(
    name: str, case: Case, height: float, tokens: bool
) -> None:
    """Is a head's output, with a logit of its own in the denominator, what float64 says: of logits
    below and far above every key's, over blocks and single tokens, and zeros of no tokens?"""
    drawn = np.random.default_rng(5).standard_normal(case.kind.q_heads)
    sinks = (height + drawn).astype(np.float32)
    case = replace(by_token(case, 1.0, 1), sink_logits=sinks)
    assert case.slots is not None
    rows = case.blocks(case.storage)
    group = case.kind.q_heads // rows.shape[2]
    expected = np.zeros((*case.queries.shape[:2], case.kind.value_dim(case.layer)))
    for session, (indices, slots) in enumerate(zip(case.indices, case.slots, strict=True)):
        read = rows[indices, :, :, slots].astype(np.float64).repeat(group, axis=2)
        logits = np.einsum("hd,thd->ht", case.queries[session], read[:, 0])
        logits /= np.sqrt(rows.shape[4])
        top = np.maximum(logits.max(axis=1, initial=-np.inf), sinks)[:, None]
        raw = np.exp(logits - top)
        total = raw.sum(axis=1, keepdims=True) + np.exp(sinks[:, None] - top)
        values = read[:, -1, :, : expected.shape[2]]
        expected[session] = np.einsum("ht,thd->hd", raw / total, values)
    if not tokens:
        blocks = [np.unique(one) for one in case.indices]
        counts = [
            np.array([own[index == block].max() + 1 for block in block_list], np.int32)
            for own, index, block_list in zip(case.slots, case.indices, blocks, strict=True)
        ]
        case = replace(case, indices=blocks, counts=counts, slots=None)
    np.testing.assert_allclose(case.run(name), expected, atol=2e-5)


def test_all_tokens_in_order_are_the_same_bits_as_their_blocks() -> None:
    """The oracle makes no difference between a block and its tokens one by one."""
    case = make_case(2, 4, 16, 32, [9, 0, 3], 5)
    chosen = by_token(case, 1.0, 0)
    assert chosen.slots is not None
    indices, slots = [], []
    for own, counts in zip(case.indices, case.counts, strict=True):
        indices.append(own.repeat(counts))
        slots.append(np.concatenate([np.arange(n, dtype=np.int32) for n in (*counts, 0)]))
    chosen = replace(chosen, indices=indices, slots=slots)
    assert (chosen.run("reference") == case.run("reference")).all()


@pytest.mark.parametrize("name", ["reference", *FAST])
@pytest.mark.parametrize("value_type", ["bfloat16", "float32"])
def test_how_numbers_are_stored_changes_nothing(name: str, value_type: ValueType) -> None:
    """Numbers that every type represents exactly give the same bits whichever type stores them,
    over blocks and over single tokens."""
    case = make_case(2, 4, 16, 32, [9, 0, 3], 5)
    rows = case.blocks(case.storage)
    rows[...] = (rows * 8).round() / 8  # exact in both float16 and bfloat16
    kind = replace(case.kind, value_type=value_type)
    numbers = rows.astype(np.float32).reshape(len(rows), -1)
    if value_type == "bfloat16":
        content = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        content = numbers.view(np.uint8)
    assert content.shape[1] == kind.block_bytes(0)
    storage = np.full((len(rows), content.shape[1] + 64), 255, np.uint8)
    storage[:, : content.shape[1]] = content
    for one in (case, by_token(case, 0.5, 1)):
        assert (one.run(name, kind=kind, storage=storage) == one.run(name)).all()


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block per chunk, with a maximum that rises late, equals all blocks in one chunk."""
    case = make_case(2, 4, 16, 32, [40], 7)
    case.blocks(case.storage)[case.indices[0][-1], 0] *= 2
    monkeypatch.setattr(numpy_kernel, "_CHUNK_BYTES", 1)
    small = case.run("numpy")
    monkeypatch.setattr(numpy_kernel, "_CHUNK_BYTES", 1 << 30)
    np.testing.assert_allclose(small, case.run("numpy"), atol=1e-5)


def test_how_many_sessions_torch_gathers_at_once_does_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="pip install '.[host]'")
    from offstage.host.attention import torch_kernel

    case = make_case(2, 4, 16, 32, [40, 0, 7, 1, 12], 7)
    monkeypatch.setattr(torch_kernel, "_GATHER_BYTES", {"cpu": 1})
    one_by_one = case.run("torch")
    monkeypatch.setattr(torch_kernel, "_GATHER_BYTES", {"cpu": 1 << 30})
    np.testing.assert_allclose(one_by_one, case.run("torch"), atol=1e-5)
    assert not one_by_one[1].any(), "a session without blocks gets zeros"


def test_torch_gathers_no_block_that_is_not_selected() -> None:
    """Not even to mask it later, since a fetch of another session may be writing to it."""
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    overrides = pytest.importorskip("torch.overrides")
    case = make_case(2, 4, 16, 32, [9, 0, 2, 5], 7)
    case = replace(
        case, indices=[own % 11 + 1 for own in case.indices]
    )  # no session selects block 0
    gathered: list[int] = []

    class Watch(overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, call: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            if call is torch.Tensor.index_select:
                gathered.extend(args[2].tolist())
            return call(*args, **(kw or {}))

    with Watch():
        case.run("torch")
    filled = [own[counts > 0] for own, counts in zip(case.indices, case.counts, strict=True)]
    assert set(gathered) == set(np.concatenate(filled).tolist())


@pytest.mark.gpu
def test_cuda_agrees_with_the_reference() -> None:
    """The same call over a pool on the device, where the output stays."""
    torch = pytest.importorskip("torch", reason="pip install '.[host]'")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device: run on a GPU node with the driver installed")
    case = make_case(2, 4, 64, 64, [50, 3, 0, 31], 11)
    queries, storage = (torch.from_numpy(one).cuda() for one in (case.queries, case.storage))
    tables, counts = block_tables(case.indices), block_tables(case.counts)
    output = kernel("torch")(queries, storage, tables, counts, case.kind, case.layer)
    assert output.device == storage.device
    np.testing.assert_allclose(output.cpu().numpy(), case.run("reference"), atol=2e-4)


def test_a_missing_library_is_reported_and_raised_only_on_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, arrays, _, extra = attention._LOADERS["torch"]
    needs = "numpy", "no_such_library"
    monkeypatch.setitem(attention._LOADERS, "torch", (module, arrays, needs, extra))
    found = {info.name: info.available for info in kernels()}
    has_triton = all(importlib.util.find_spec(name) for name in ("torch", "triton"))
    assert found == {"reference": True, "numpy": True, "torch": False, "triton": has_triton}
    with pytest.raises(Missing, match=r"pip install '\.\[host\]'"):
        kernel("torch")
    with pytest.raises(BadInput, match="choose one of"):
        kernel("cuda")
    assert kernel("reference") is reference.decode
