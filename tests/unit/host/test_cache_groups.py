"""Do published models have the cache that their publishers state, group by group?

Each figure is worked out here from the sizes that its source states, or is the source's own. Where
none states a figure there is no test of it: how many entries DeepSeek-V4-Pro selects, which layers
of Kimi Linear, MiniMax-Text-01 and MiniMax-M3 are of which kind.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.host.model import formats
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.groups import CacheGroup, groups_of
from offstage.host.model.layer_kv import UNPUBLISHED
from offstage.host.model.models import caches

K, M = 1 << 10, 1 << 20
MIB, GIB = 1 << 20, 1 << 30


def of(name: str, kind: str) -> list[CacheGroup]:
    return [one for one in caches()[name].groups if one.kind == kind]


def cache_bytes(name: str, dtype: str, tokens: int) -> formats.Stored:
    """Of entries, without states."""
    shape = caches()[name]
    held = formats.total([formats.held(one, dtype, tokens) for one in shape.groups])
    return formats.Stored(*(one - shape.state_bytes for one in held))


@pytest.mark.parametrize(
    ("name", "token", "what"),
    [
        ("deepseek-v3", 61 * (512 + 64) * 2, "published as 68.6 KB"),
        ("deepseek-v3.2", 61 * (512 + 64 + 128) * 2, "83.88 GiB at 1M"),
        ("deepseek-v4-pro", 30 * (512 + 128) * 2 // 4 + 31 * 512 * 2 // 128, "9.62 GiB at 1M"),
        ("glm-5", 78 * (512 + 64 + 128) * 2, "56,229,888 B for 512 tokens"),
        ("glm-5.2", (78 * (512 + 64) + 21 * 128) * 2, "21 of 78 layers have an indexer"),
        ("gemma-3-270m", 3 * 2 * 1 * 256 * 2, "every sixth of 18 layers reads everything"),
        ("gpt-oss-120b", 18 * 2 * 8 * 64 * 2, "every second of 36"),
        ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256 * 2, "every fourth of 48"),
        ("qwen3.5-9b", 8 * 2 * 4 * 256 * 2, "every fourth of 32"),
        ("minimax-m2", 62 * 2 * 8 * 128 * 2, "every layer"),
    ],
)
def test_bytes_of_a_token(name: str, token: int, what: str) -> None:
    shape = caches()[name]
    assert shape.bytes_per_token() == token, what
    assert math.fsum(formats.growth(one, "fp16").value for one in shape.groups) == token


def test_deepseek_v3_is_published_as_68_6_binary_kilobytes() -> None:
    assert round(caches()["deepseek-v3"].bytes_per_token() / K, 1) == 68.6


def test_glm_5_is_what_a_store_counts() -> None:
    assert caches()["glm-5"].session_bytes(512) == 56_229_888


def test_deepseek_v4_pro_at_a_million_tokens() -> None:
    """Published: 9.62 GiB in BF16, 17.84 MiB of compressor state a session, 4.8 GiB with KV in FP8
    and index keys in FP4. Rows without their scales are 4.82 GiB, bare values 4.34, with all scales
    4.91: the published figure lies between and is nearest to the first."""
    assert round(cache_bytes("deepseek-v4-pro", "fp16", M).value / GIB, 2) == 9.62
    assert round(caches()["deepseek-v4-pro"].state_bytes / MIB, 2) == 17.84
    low, value, high = (one / GIB for one in cache_bytes("deepseek-v4-pro", "fp8", M))
    row, key = 448 + 64 * 2, 128 // 2
    without_scales = (30 * (row + key) / 4 + 31 * row / 128) * M / GIB
    assert round(without_scales, 1) == 4.8 and low < without_scales < value == high
    assert value == pytest.approx(4.8, rel=0.025)


def test_a_deepseek_v4_has_two_compressions_a_window_keys_and_buffers() -> None:
    """31 HCA layers at 128, 30 CSA layers at 4 with keys of 128 values, windows of 128 in all."""
    found = [
        (one.kind, one.layer_count, one.values, one.tokens_per_entry, one.lives, one.selected)
        for one in caches()["deepseek-v4-pro"].groups
    ]
    assert found == [
        ("compressed", 31, 512, 128, "context", "all"),
        ("compressed", 30, 512, 4, "context", "top-k"),
        ("window", 61, 512, 1, "window", "window"),
        ("indexer", 30, 128, 4, "context", "all"),
        ("compressor", 31, 0, 1, "session", "state"),
        ("compressor", 30, 0, 1, "session", "state"),
    ]
    assert [one.read(M) for one in of("deepseek-v4-pro", "compressed")] == [M // 128, None]
    assert of("deepseek-v4-pro", "compressed")[1].top_k == UNPUBLISHED


def test_a_begun_entry_counts_whole() -> None:
    """Of 128 tokens in one and of 4 in the other."""
    for tokens, entries in ((1, [1, 1]), (128, [1, 32]), (129, [2, 33]), (256, [2, 64])):
        assert [one.entries(tokens) for one in of("deepseek-v4-pro", "compressed")] == entries


def test_an_indexer_that_layers_share_is_counted_once() -> None:
    """GLM-5.2: 21 indexers select for 78 layers; each layer reads 2,048 latents."""
    (latent,), (keys,) = of("glm-5.2", "latent"), of("glm-5.2", "indexer")
    assert latent.layer_count == 78 and latent.selectors == 21 == keys.layer_count
    assert latent.read(M) == 2048 and latent.read(100) == 100
    assert not latent.is_resident and keys.is_resident and keys.read(M) == M


@pytest.mark.parametrize(
    ("name", "layers", "window", "bytes_each"),
    [
        ("gemma-3-270m", 15, 512, 2 * 256 * 2),
        ("gpt-oss-120b", 18, 128, 2 * 8 * 64 * 2),
        ("deepseek-v4-pro", 61, 128, 512 * 2),
    ],
)
def test_a_window_stops_growing(name: str, layers: int, window: int, bytes_each: int) -> None:
    (found,) = of(name, "window")
    assert (found.layer_count, found.tokens_max) == (layers, window)
    assert not found.grows and found.entries(window - 1) == window - 1
    for tokens in (window, window + 1, M):
        assert formats.held(found, "fp16", tokens).value == layers * window * bytes_each


@pytest.mark.parametrize(
    ("name", "layers", "state"),
    [
        # 32 matrices of 128 x 128 in float32, and 4 inputs of 8,192 channels in 16 bits.
        ("qwen3-next-80b-a3b", 36, 32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 4 * 2),
        ("qwen3.5-9b", 24, 32 * 128 * 128 * 4 + (2 * 16 + 32) * 128 * 4 * 2),
    ],
)
def test_a_recurrent_state_has_one_size(name: str, layers: int, state: int) -> None:
    (found,) = of(name, "recurrent")
    assert found.layer_count == layers and found.entries(M) == 0
    for dtype in formats.DTYPES:
        for tokens in (1, M):
            assert formats.held(found, dtype, tokens) == (layers * state,) * 3
    assert caches()[name].state_bytes == layers * state


def test_rows_of_few_bits_are_the_published_ones() -> None:
    """FlashMLA: 656 B of a latent; vLLM: 584 B of a DeepSeek-V4 entry; a key in 8 bits with its
    scale is 132 B (DeepSeek-V3.2), in 4 bits 68 B."""
    rows = {
        ("deepseek-v3", "latent"): 656,
        ("deepseek-v4-pro", "compressed"): 584,
        ("deepseek-v4-pro", "window"): 584,
        ("deepseek-v3.2", "indexer"): 132,
        ("deepseek-v4-pro", "indexer"): 68,
    }
    for (name, kind), expected in rows.items():
        assert formats.entry_bytes(of(name, kind)[0], "fp8").value == expected


def test_heads_have_a_scale_each_at_the_high_end() -> None:
    (found,) = of("minimax-m2", "full")
    assert formats.entry_bytes(found, "fp8") == (2048, 2048, 2048 + 2 * 8 * 4)
    assert formats.entry_bytes(found, "fp4") == (1024, 1024 + 128, 1024 + 128)


@pytest.mark.parametrize("shape", caches().values(), ids=caches())
@given(tokens=st.integers(1, 1 << 21))
def test_groups_add_up_to_the_session(shape: KvGeometry, tokens: int) -> None:
    """Whatever the length: a session is the sum of its groups, and no step reads more than it."""
    held = [formats.held(one, "fp16", tokens).value for one in shape.groups]
    assert sum(held) == shape.session_bytes(tokens)
    for group, whole in zip(shape.groups, held, strict=True):
        read = formats.read(group, "fp16", tokens)
        assert read is None or read.value <= whole
        assert not group.is_resident or (read is not None and read.value == whole)


def test_every_layer_is_in_the_groups_of_its_form() -> None:
    layers = (
        LayerKv("gqa", 2, 8),
        LayerKv("window", 2, 8, window_tokens=4),
        LayerKv("state", 0, 0, state_bytes=7),
        LayerKv("none", 0, 0),
        LayerKv("gqa", 2, 8),
        LayerKv("mla", 1, 12, value_dim=8, rotary_dim=4, index_dim=3, top_k=5),
        LayerKv("mla", 1, 12, value_dim=8, rotary_dim=4, selection_layer=5, top_k=5),
    )
    found = {one.kind: one.layers for one in groups_of(layers)}
    assert found == {
        "full": (0, 4),
        "latent": (5, 6),
        "window": (1,),
        "indexer": (5,),
        "recurrent": (2,),
    }
