"""Does Triton's attention equal dense softmax attention, in its interpreter on the CPU?

Shapes are small: the interpreter takes milliseconds for each tile. On a GPU, tests/gpu/run_all.py
checks the same cases and large ones.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="pip install '.[triton]'")
pytest.importorskip("triton", reason="pip install '.[triton]'")

from gpu_cases import (
    ERROR_MAX,
    Shape,
    attention_case,
    by_token,
    poisoned,
    relative_error,
    with_sinks,
)

from offstage.bindings.errors import BadInput
from offstage.host.attention import block_tables, kernel
from offstage.host.gpu import check_device, interpreted
from offstage.host.gpu.attention import Tiling
from offstage.host.model.entries import packed
from offstage.host.model.geometry import LayerKv
from offstage.host.model.models import geometry
from offstage.testbeds.beds.daemon import offstage_words

pytestmark = pytest.mark.skipif(
    not interpreted(), reason="a GPU is there: python tests/gpu/run_all.py checks it"
)
COMPILE = Path(__file__).resolve().parents[2] / "reference/gpu_compile.py"
SHAPES = [
    Shape(kv_heads=2, group=4, head_dim=32, block_tokens=16),
    Shape(kv_heads=3, group=1, head_dim=20, block_tokens=5),
    Shape(kv_heads=1, group=20, head_dim=24, block_tokens=8, value_dim=16),
    Shape(kv_heads=1, group=3, head_dim=40, block_tokens=64, value_dim=32),
]


@pytest.mark.parametrize(
    ("shape", "value_type"),
    [
        (SHAPES[0], "bfloat16"),
        (SHAPES[0], "float32"),
        (SHAPES[1], "float8_e4m3fn"),
        (SHAPES[2], "bfloat16"),
        (SHAPES[2], "float8_e4m3fn"),
        (SHAPES[3], "float16"),
    ],
    ids=str,
)
def test_attention_over_blocks_is_softmax_attention(shape: Shape, value_type: str) -> None:
    """Covers separate K and V and latents, each type, blocks that no tile of tokens divides,
    sessions of different lengths, one without a block, and splits that are combined."""
    case = attention_case(shape, value_type, [7, 0, 3], 3)
    with poisoned():
        found = case.run("cpu", tiling=Tiling(tokens=32, heads=16, splits=3))
    assert relative_error(found, case.expected()) < ERROR_MAX[value_type]
    assert not found[1].any(), "a session without blocks gets zeros"


@settings(max_examples=8)
@given(
    shape=st.builds(
        Shape,
        st.integers(1, 2),
        st.integers(1, 5),
        st.sampled_from([4, 16, 33]),
        st.sampled_from([1, 7, 16]),
        st.sampled_from([0, 3]),
    ),
    value_type=st.sampled_from(["bfloat16", "float8_e4m3fn"]),
    widths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 999),
    splits=st.integers(0, 2),
    tokens=st.sampled_from([None, 0, 1, 40]),
)
def test_attention_of_any_shape(
    shape: Shape, value_type: str, widths: list[int], seed: int, splits: int, tokens: int | None
) -> None:
    """Over whole blocks, and over single tokens of them: none, one, many."""
    if shape.latent:
        shape = replace(shape, kv_heads=1)
    case = attention_case(shape, value_type, widths, seed)
    if tokens is not None:
        case = by_token(case, tokens, seed)
    with poisoned():
        found = case.run("cpu", tiling=Tiling(tokens=16, splits=splits))
    assert relative_error(found, case.expected()) < ERROR_MAX[value_type]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=["K and V", "latent"])
def test_single_tokens_are_softmax_attention(shape: Shape, splits: int) -> None:
    """Out of blocks whose other tokens are NaN, whatever the split between programs."""
    case = by_token(attention_case(shape, "bfloat16", [7, 0, 3], 3), 90, 4)
    with poisoned():
        found = case.run("cpu", tiling=Tiling(tokens=16, heads=16, splits=splits))
    assert relative_error(found, case.expected()) < ERROR_MAX["bfloat16"]
    assert not found[1].any(), "a session without blocks gets zeros"


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=["K and V", "latent"])
def test_sink_logits_count_in_the_sum_alone(shape: Shape, splits: int) -> None:
    """Once, whatever the split between programs, over blocks and over single tokens."""
    case = with_sinks(attention_case(shape, "bfloat16", [7, 0, 3], 3), 6)
    for one in (case, by_token(case, 90, 4)):
        with poisoned():
            found = one.run("cpu", tiling=Tiling(tokens=16, heads=16, splits=splits))
        assert relative_error(found, one.expected()) < ERROR_MAX["bfloat16"]
        assert not found[1].any(), "a session without blocks gets zeros"


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=["K and V", "latent"])
@pytest.mark.parametrize("value_type", ["float16", "float8_e4m3fn"])
def test_a_query_may_be_beyond_half_precision(shape: Shape, value_type: str) -> None:
    """The first and the last channel are beyond the range of float16, and every key is 0 there."""
    import torch

    case = attention_case(shape, value_type, [5, 2], 4)
    for channel in (0, shape.head_dim - 1):
        case.queries[:, :, channel] = 2e5
        case.keys[..., channel] = torch.zeros(()).to(case.keys.dtype)
    found = case.run("cpu", tiling=Tiling(tokens=32, splits=2))
    assert relative_error(found, case.expected()) < ERROR_MAX[value_type]


def test_sixty_four_sessions_of_mixed_length() -> None:
    """Each gives the same bits as alone: no session's tokens depend on the others."""
    widths = [(7 * session) % 4 for session in range(64)]
    shape = replace(SHAPES[1], kv_heads=1)
    case = attention_case(shape, "bfloat16", widths, 5)
    whole = case.run("cpu", tiling=Tiling(tokens=16, splits=1))
    assert relative_error(whole, case.expected()) < ERROR_MAX["bfloat16"]
    for session in (0, 3, 63):
        own = slice(session, session + 1)
        alone = replace(
            case,
            queries=case.queries[own],
            tables=case.tables[own],
            counts=case.counts[own],
            lengths=case.lengths[own],
        )
        assert (alone.run("cpu", tiling=Tiling(tokens=16, splits=1))[0] == whole[session]).all()


@pytest.mark.parametrize("value_type", ["float16", "float8_e4m3fn"])
def test_the_side_of_the_seam_agrees_with_the_reference(value_type: str) -> None:
    """Pool, tables, counts and slots are as the decoder gives them, with padding; float8 too."""
    import torch

    kind = replace(
        geometry("tiny"),
        value_type=value_type,
        layers=(LayerKv("gqa", 2, 32), LayerKv("gqa", 1, 48), LayerKv("mla", 1, 37, value_dim=29)),
    )
    random = np.random.default_rng(7)
    for layer in (0, 1, 2):
        numbers = torch.from_numpy(random.standard_normal((9, kind.block_bytes(layer)), np.float32))
        content = numbers.to(getattr(torch, value_type)).view(torch.uint8)
        storage = torch.zeros((9, kind.block_bytes(1) + kind.block_bytes(0)), dtype=torch.uint8)
        storage[:, : kind.block_bytes(layer)] = content[:, : kind.block_bytes(layer)]
        indices = [random.permutation(9)[:count].astype(np.int32) for count in (5, 0, 7)]
        tables = block_tables(indices)
        counts = block_tables(
            [random.integers(0, 17, len(one)).astype(np.int32) for one in indices]
        )
        tables[counts == 0] = 1 << 30
        dim = kind.layers[layer].head_dim
        queries = random.standard_normal((3, kind.q_heads, dim), np.float32)
        given = (tables, counts, kind, layer)
        found = kernel("triton")(torch.from_numpy(queries), storage, *given)
        expected = kernel("reference")(queries, storage.numpy(), *given)
        assert relative_error(found, torch.from_numpy(expected)) < ERROR_MAX[value_type]
        slots = random.integers(0, 16, tables.shape).astype(np.int32)
        sinks = random.standard_normal(kind.q_heads, np.float32)
        given = tables, np.minimum(counts, 1), kind, layer, slots, sinks
        found = kernel("triton")(torch.from_numpy(queries), storage, *given)
        expected = kernel("reference")(queries, storage.numpy(), *given)
        assert relative_error(found, torch.from_numpy(expected)) < ERROR_MAX[value_type]


@pytest.mark.parametrize("layer", [0, 1, 2], ids=["K and V", "latent", "two scales"])
def test_rows_in_fp8_are_softmax_attention(layer: int) -> None:
    """Over blocks, and over single tokens with sink logits, by the scales of each token."""
    import torch

    latents = (LayerKv("mla", 1, n + 16, value_dim=n, rotary_dim=16) for n in (48, 160))
    layers = LayerKv("gqa", 2, 24), *latents
    kind = replace(geometry("tiny"), layers=layers, block_tokens=16, scaled=True)
    random = np.random.default_rng(8)
    values = random.standard_normal((9, *kind.block_shape(layer)))
    values *= np.exp(random.normal(0, 1, (*values.shape[:4], 1)))
    content = packed(values, kind, layer).reshape(9, -1)
    storage = torch.full((9, content.shape[1] + 64), 255, dtype=torch.uint8)
    storage[:, : content.shape[1]] = torch.from_numpy(content)
    tables = np.array([[3, 1, 7, 8], [2, 5, 1 << 30, 1 << 30]], np.int32)
    counts = np.array([[16, 5, 16, 1], [9, 16, 0, 0]], np.int32)
    queries = random.standard_normal((2, kind.q_heads, kind.layers[layer].head_dim), np.float32)
    slots = random.integers(0, 16, tables.shape).astype(np.int32)
    sinks = random.standard_normal(kind.q_heads, np.float32)
    for more in ((counts, kind, layer), (np.minimum(counts, 1), kind, layer, slots, sinks)):
        found = kernel("triton")(torch.from_numpy(queries), storage, tables, *more)
        expected = kernel("reference")(queries, storage.numpy(), tables, *more)
        assert relative_error(found, torch.from_numpy(expected)) < ERROR_MAX["float8_e4m3fn"]


def test_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is one line with the fix, not a Triton error in the middle of a run."""
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(BadInput, match="add --device cuda, or set TRITON_INTERPRET=1"):
        check_device("cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_device("cpu")
    with pytest.raises(BadInput, match="unset it"):
        check_device("cuda")


def test_the_command_line_refuses_it_too() -> None:
    """A GPU that is requested but absent gives one line, exit code 2 and no traceback."""
    bare = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    command = offstage_words("demo", "--quick", "--kernel", "triton")
    done = subprocess.run(command, capture_output=True, text=True, env=bare, timeout=300)
    assert done.returncode == 2 and "runs on a GPU" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """The interpreter does not compile, so this does: to machine code for an absent GPU, in the
    shapes of Llama and of DeepSeek, within a multiprocessor's shared memory."""
    bare = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(COMPILE)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**bare, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = {"_attend", "_combine", "_summarise", "_score", "_best", "_resolve"}
    assert {one["kernel"] for one in made} == kinds
    assert max(one["shared_bytes"] for one in made) <= 227 << 10
