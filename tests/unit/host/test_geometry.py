"""Do geometries have the sizes that their publishers state, and are impossible ones refused?"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import GEOMETRIES, caches, geometry

# Published bytes of KV per token at two bytes a value. Llama-3: 2 * layers * kv_heads * head_dim
# * 2; Mooncake (arXiv:2407.00079) rounds the 70B figure to 320 KB. DeepSeek-V3: 61 * 576 * 2.
PUBLISHED = {"llama-3-70b": 327_680, "llama-3-8b": 131_072, "deepseek-v3": 70_272}


WINDOW = LayerKv("window", 2, 32, window_tokens=40)


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_equal_the_published_figure(name: str) -> None:
    assert geometry(name).bytes_per_token() == PUBLISHED[name]


def test_deepseek_v4_pro_costs_about_10_kb_per_token() -> None:
    """vLLM publishes 9.62 GiB at 1,048,576 tokens in bfloat16, index keys included; a figure of
    three digits is good to 0.1 %. The windows, 61 * 128 entries, are below that; the state of its
    compressors is published beside it, as 17.84 MiB."""
    shape = geometry("deepseek-v4-pro")
    entries = shape.session_bytes(1 << 20) - shape.state_bytes
    assert entries / 2**30 == pytest.approx(9.62, rel=1.5e-3)
    assert round(shape.state_bytes / 2**20, 2) == 17.84
    assert shape.bytes_per_token() == pytest.approx(10e3, rel=0.02)


def test_deepseek_v4_pro_has_30_sparse_and_31_heavily_compressed_layers() -> None:
    forms = [layer.form for layer in geometry("deepseek-v4-pro").layers]
    assert (forms.count("csa"), forms.count("hca")) == (30, 31)


def test_glm_shares_one_selection_among_four_layers() -> None:
    """The published schedule: 21 layers with an indexer (0, 1, 2, then 6, 10 ... 74), 57 without.
    With an indexer on all 78 layers, as in GLM-5, a token costs 109,824 B (LMCache's figure:
    56,229,888 B for 512 tokens)."""
    shape = geometry("glm-5.2")
    sources = [shape.selection_source(layer) for layer in range(shape.layer_count)]
    assert sorted(set(sources)) == [0, 1, *range(2, 75, 4)]
    assert sources[2:10] == [2, 2, 2, 2, 6, 6, 6, 6]
    own = tuple(replace(layer, index_dim=128, selection_layer=-1) for layer in shape.layers)
    glm5 = replace(shape, layers=own)
    assert glm5.bytes_per_token() == 109_824


def test_demo_blocks_are_32_kib() -> None:
    shape = geometry("demo")
    assert shape.block_bytes(0) == 32 * 1024
    assert shape.block_shape() == (2, 2, 64, 64)
    assert shape.block_count(131_072) == 2048
    assert shape.session_bytes(131_072) == 256 * 2**20


@pytest.mark.parametrize("shape", GEOMETRIES.values(), ids=GEOMETRIES)
@given(blocks=st.integers(1, 5000))
def test_blocks_add_up_to_the_session(shape: KvGeometry, blocks: int) -> None:
    """In every geometry a session of whole blocks is the sum of its blocks, index keys, windows
    and states."""
    tokens = blocks * shape.block_tokens
    assert shape.source
    assert shape.block_count(tokens) == blocks == shape.block_count(tokens - 1)
    expected = 0
    for number, layer in enumerate(shape.layers):
        index_bytes = shape.index_entry_bytes(number) * shape.block_tokens
        expected += blocks * (shape.block_bytes(number) + index_bytes // layer.tokens_per_entry)
        expected += min(layer.window_tokens, tokens) * shape.entry_bytes(number)
        expected += layer.state_bytes
    assert shape.session_bytes(tokens) == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": ()}, "no layers"),
        ({"block_tokens": 0}, "at least 1"),
        ({"q_heads": 3}, "do not divide"),
        ({"layers": (LayerKv("hca", 1, 512, tokens_per_entry=128),)}, "one entry per 128 tokens"),
        ({"layers": (LayerKv("mla", 1, 576, selection_layer=0),)}, "has none yet"),
        ({"layers": (LayerKv("gqa", 1, 0),)}, "below 1"),
        ({"layers": (LayerKv("mla", 1, 8, index_dim=-1),)}, "negative"),
        ({"layers": (LayerKv("mla", 1, 8, value_dim=9),)}, "at most its head_dim"),
        ({"layers": (LayerKv("gqa", 1, 8, value_dim=4),)}, "to a latent only"),
        ({"layers": (LayerKv("gqa", 1, 8, rotary_dim=4),)}, "to a latent only"),
        ({"layers": (LayerKv("mla", 1, 8, rotary_dim=9),)}, "at most its head_dim"),
        ({"layers": (LayerKv("window", 1, 8),)}, "a window of 0 tokens"),
        ({"layers": (LayerKv("gqa", 1, 8, granule_entries=0),)}, "below 1"),
        ({"layers": (LayerKv("gqa", 1, 8, top_k=-2),)}, "negative"),
        ({"layers": (LayerKv("state", 0, 0, state_bytes=-1),)}, "negative"),
    ],
)
def test_an_impossible_geometry_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        replace(geometry("demo"), **change)  # type: ignore[arg-type]


def test_bad_questions_are_answered_with_the_fix() -> None:
    with pytest.raises(BadInput, match="did you mean 'llama-3-70b'"):
        geometry("llama3-70b")
    with pytest.raises(BadInput, match="multiple of 128"):
        geometry("deepseek-v4-pro").block_bytes(0, 64)
    with pytest.raises(BadInput, match="hca entries of 128 tokens"):
        geometry("deepseek-v4-pro").block_shape()
    with pytest.raises(BadInput, match="gqa, mla or window"):
        caches()["qwen3-next-80b-a3b"].block_shape()
    for name in ("gemma-3-270m", "qwen3-next-80b-a3b"):
        with pytest.raises(BadInput, match="unknown geometry"):
            geometry(name)


def test_a_window_is_read_from_its_first_token_on() -> None:
    """The newest token counts; a full layer is read from 0. Blocks that hold none are not read."""
    shape = replace(geometry("tiny"), layers=(LayerKv("gqa", 2, 32), WINDOW))
    assert shape.block_shape(0) == shape.block_shape(1) == (2, 2, 16, 32)
    assert [shape.first_token(layer, 100) for layer in (0, 1)] == [0, 60]
    assert [shape.first_token(1, tokens) for tokens in (1, 40, 41)] == [0, 0, 1]
    assert [shape.first_block(1, tokens) for tokens in (55, 56, 57, 72)] == [0, 1, 1, 2]
    assert shape.blocks_read(100) == 7 + 4


def test_a_latent_is_one_plane_and_its_front_is_the_value() -> None:
    shape = geometry("deepseek-v3")
    assert shape.block_shape() == (1, 1, 64, 576) and shape.value_dim() == 512
    assert geometry("demo").value_dim() == 64
    assert replace(shape, layers=(LayerKv("mla", 1, 576),)).value_dim() == 576


def test_a_tier_holds_a_compressed_layer_as_a_window_and_entries_of_one_block_size() -> None:
    """DeepSeek-V4-Pro: the same bytes in twice the layers. A block of entries spans as many chunks
    as an entry has tokens, and the last of them names it."""
    model = geometry("deepseek-v4-pro")
    tier = model.in_tier(16, "bfloat16")
    assert tier.layer_count == 122 and tier.parts == tuple((2 * n, 2 * n + 1) for n in range(61))
    assert {tier.block_bytes(layer) for layer in range(122)} == {16 * 512 * 2}
    for tokens in (1, 100_000, 1 << 20):
        assert tier.session_bytes(tokens) == model.session_bytes(tokens)
    window, entries = tier.parts[0]
    assert (tier.beside(window), tier.beside(entries)) == (entries, None)
    assert tier.is_read_whole(window) and tier.is_read_whole(entries)
    assert tier.chunks_per_block(window) == 1 and tier.chunks_per_block(entries) == 128
    assert tier.chunks_of(entries, np.array([0, 1])).tolist() == [127, 255]
    assert [tier.entries(entries, tokens) for tokens in (127, 128, 2048)] == [0, 1, 16]
    assert [tier.block_count(tokens, entries) for tokens in (127, 128, 2176)] == [0, 1, 2]
    assert model.in_tier(16, "float16").block_tokens == 16
    assert geometry("llama-3-8b").in_tier(64, "float16").parts == tuple((n,) for n in range(32))
