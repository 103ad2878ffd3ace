"""Is every way in which a config.json names its layers read, and a contradiction refused?"""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry

PLAIN = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 4096,
}
WINDOWS = PLAIN | {"sliding_window": 512}
LATENTS = PLAIN | {"kv_lora_rank": 32, "qk_rope_head_dim": 8}
INDEXED = LATENTS | {"index_topk": 16, "index_head_dim": 12}
V4 = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "head_dim": 32,
    "qk_rope_head_dim": 8,
    "compress_ratios": [0, 128, 4],
    "sliding_window": 64,
    "index_topk": 16,
    "index_head_dim": 12,
    "max_position_embeddings": 4096,
}
DELTA = PLAIN | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
MAMBA2 = PLAIN | {
    "layer_types": ["mamba", "attention", "mamba", "moe"],
    "mamba_n_heads": 4,
    "mamba_d_head": "auto",
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
}
KIMI = LATENTS | {
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 8,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    }
}


def read(config: object) -> KvGeometry:
    return geometry_of(config, "m", "config.json")


def forms(config: object) -> str:
    """A letter for each layer."""
    return "".join(one.form[0] for one in read(config).layers)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PLAIN, "gggg"),
        (PLAIN | {"sliding_window": 9999, "use_sliding_window": False}, "gggg"),
        (PLAIN | {"layer_types": ["full_attention"] * 4, "sliding_window": 9999}, "gggg"),
        (WINDOWS | {"layer_types": ["sliding_attention", "full_attention"] * 2}, "wgwg"),
        (WINDOWS | {"sliding_window_pattern": 2}, "wgwg"),
        (WINDOWS | {"model_type": "gpt_oss"}, "wgwg"),
        (WINDOWS | {"model_type": "gemma3_text", "num_hidden_layers": 7}, "wwwwwgw"),
        (WINDOWS | {"use_sliding_window": True, "max_window_layers": 3}, "gggw"),
        (WINDOWS | {"model_type": "mistral"}, "wwww"),
        (PLAIN | {"model_type": "mistral", "sliding_window": None}, "gggg"),
        (PLAIN | {"layer_types": ["chunked_attention"] * 4, "attention_chunk_size": 64}, "wwww"),
        (LATENTS, "mmmm"),
        (V4, "whc"),
        (V4 | {"compress_ratios": [128, 4, 4, 0]}, "hcc"),
        (DELTA, "sssg"),
        (MAMBA2, "sgsn"),
        (KIMI, "sssm"),
        (PLAIN | {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1]}, "sssg"),
        (PLAIN | {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2}, "ssgs"),
        (PLAIN | {"model_type": "bamba", "attn_layer_indices": [0]}, "gsss"),
        (PLAIN | {"model_type": "lfm2", "full_attn_idxs": [1]}, "sgss"),
        (PLAIN | {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-E"}, "sgnn"),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}}, "wwwwwg"),
    ],
)
def test_layers_are_named_in_many_ways(config: dict[str, Any], expected: str) -> None:
    assert forms(config) == expected


def test_a_nested_text_model_has_the_defaults_of_its_class() -> None:
    """Gemma 3's file leaves out heads and their width, which its class has as 4 of 256."""
    (first, *_) = read({"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}}).layers
    assert (first.kv_heads, first.head_dim, first.window_tokens) == (4, 256, 4096)


def test_sizes_of_each_kind() -> None:
    """Bytes and values, worked out by hand from the configs above."""
    plain, latent, indexed = read(PLAIN), read(LATENTS), read(INDEXED)
    assert plain.layers[0].entry_values == 2 * 2 * 8 and plain.context_tokens == 4096
    assert (latent.layers[0].entry_values, latent.value_dim()) == (40, 32)
    assert (indexed.layers[0].index_dim, indexed.layers[0].top_k) == (12, 16)
    assert read(DELTA).state_bytes == 3 * (4 * 4 * 8 * 16 + 2 * (2 * 2 * 8 + 4 * 16) * 4)
    assert read(MAMBA2).state_bytes == 2 * (4 * 128 * 8 + 2 * (128 + 2 * 8) * 4)
    assert read(KIMI).state_bytes == 3 * (4 * 4 * 8 * 8 + 2 * 3 * 32 * 4)
    window, hca, csa = read(V4).layers
    assert (window.entry_values, window.window_tokens, window.layout) == (32, 64, "compressed")
    assert hca.state_bytes == 2 * 4 * 128 * 32
    assert csa.state_bytes == 2 * 4 * 8 * 64 + 2 * 4 * 8 * 24
    assert read(V4).block_tokens == 256 and read(PLAIN).block_tokens == 64


def test_layers_share_an_indexer_as_the_config_says() -> None:
    """By their types, a pattern, or that each Nth has one."""
    for more in (
        {"indexer_types": ["full", "full", "shared", "full"]},
        {"index_topk_pattern": "FFSF"},
        {"index_topk_freq": 2, "index_skip_topk_offset": 2},
    ):
        shape = read(INDEXED | more)
        assert [one.selection_layer for one in shape.layers] == [-1, -1, 1, -1]
        assert [one.index_dim for one in shape.layers] == [12, 12, 0, 12]
        assert [one.top_k for one in shape.layers] == [16] * 4


def test_an_indexer_may_select_in_blocks() -> None:
    """MiniMax-M3's, by its own names and by those of its checkpoint."""
    sizes = {"index_head_dim": 12, "index_topk_blocks": 2, "index_block_size": 8}
    table = {
        "sparse_attention_freq": [0, 1, 1, 1],
        "sparse_index_dim": 12,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 8,
    }
    kinds = ["full_attention", *["minimax_m3_sparse"] * 3]
    for config in (
        PLAIN | sizes | {"layer_types": kinds},
        PLAIN | {"sparse_attention_config": table},
    ):
        first, second, *_ = read(config).layers
        assert (first.top_k, first.index_dim) == (0, 0)
        assert (second.top_k, second.granule_entries, second.index_dim) == (16, 8, 12)


TYPES = ["full_attention", "full_attention", "full_attention"]
REFUSED: dict[str, tuple[object, str]] = {
    "a list": ([1], "not a model's config.json"),
    "a number": (3, "not a model's config.json"),
    "nothing in it": ({}, "no whole number num_hidden_layers"),
    "text_config": ({"text_config": 3}, "text_config is not an object"),
    "an unknown kind": (PLAIN | {"layer_types": [*TYPES, "hybrid"]}, "layer_types has 'hybrid'"),
    "a kind with a slip": (
        PLAIN | {"layer_types": [*TYPES, "ful_attention"]},
        "did you mean 'full_attention'",
    ),
    "too few kinds": (PLAIN | {"layer_types": TYPES}, "layer_types has 3 entries"),
    "kinds that are none": (PLAIN | {"layer_types": 3}, "layer_types is not a list of words"),
    "an unknown letter": (PLAIN | {"hybrid_override_pattern": "M*?E"}, "hybrid_override_pattern"),
    "an unknown ratio": (V4 | {"compress_ratios": [0, 8, 4]}, "compress_ratios has 8"),
    "ratios that are none": (V4 | {"compress_ratios": [0, -1, 4]}, "not a list of whole numbers"),
    "a window of 0": (WINDOWS | {"sliding_window_pattern": 2, "sliding_window": 0}, "is 0"),
    "a window beyond the context": (
        WINDOWS | {"sliding_window_pattern": 2, "sliding_window": 5000},
        "sliding_window is 5,000, longer than the context of 4,096",
    ),
    "no window": (PLAIN | {"sliding_window_pattern": 2}, "no sliding_window"),
    "a window switched off": (
        WINDOWS | {"layer_types": ["sliding_attention"] * 4, "use_sliding_window": False},
        "use_sliding_window is false",
    ),
    "a switch that is a word": (
        WINDOWS | {"use_sliding_window": "false", "max_window_layers": 2},
        "use_sliding_window is 'false'",
    ),
    "a layer beyond the last": (
        PLAIN | {"model_type": "lfm2", "full_attn_idxs": [1, 4]},
        "full_attn_idxs has layer 4, and num_hidden_layers is 4",
    ),
    "a context without end": (
        PLAIN | {"max_position_embeddings": 1 << 50},
        "write less than 1,099,511,627,776",
    ),
    "a window of no layer": (WINDOWS, "no field says which layers have it"),
    "a window of V4": (V4 | {"sliding_window": 4097}, "longer than the context"),
    "chunks of no layer": (PLAIN | {"attention_chunk_size": 64}, "attention_chunk_size"),
    "top-k above the context": (
        INDEXED | {"index_topk": 5000},
        "index_topk is 5,000, above the context of 4,096 tokens",
    ),
    "top-k of entries above it": (V4 | {"index_topk": 1025}, "index_topk is 1,025 of 4 tokens"),
    "an indexer without keys": (
        LATENTS | {"index_topk": 16},
        "index_topk is 16, and there is no index_head_dim",
    ),
    "keys without an indexer": (
        LATENTS | {"index_head_dim": 16},
        "index_head_dim is 16, and there is no index_topk",
    ),
    "the same of a known class": (
        {"model_type": "deepseek_v32", "index_topk": 16},
        "there is no index_head_dim",
    ),
    "a latent without rotary values": (PLAIN | {"kv_lora_rank": 32}, "no qk_rope_head_dim"),
    "the same of its class": (
        {"model_type": "deepseek_v3", "kv_lora_rank": 32},
        "kv_lora_rank is 32, and there is no qk_rope_head_dim",
    ),
    "a shared indexer first": (
        INDEXED | {"indexer_types": ["shared"] * 4},
        "layer 0 shares an indexer",
    ),
    "an unknown indexer": (INDEXED | {"index_topk_pattern": "FFXF"}, "indexer_types has 'X'"),
    "too few indexers": (INDEXED | {"indexer_types": ["full"]}, "1 entries for 4 layers"),
    "states of no size": (
        PLAIN | {"layer_types": ["linear_attention"] * 4},
        "no field that gives the size of their state",
    ),
    "states of no layer": (
        PLAIN | {"mamba_d_ssm": 64},
        "mamba_d_ssm is of layers that keep a state",
    ),
    "Kimi's class alone": ({"model_type": "kimi_linear"}, "no field says which those are"),
    "a layer in no list": (
        KIMI | {"num_hidden_layers": 5},
        "full_attn_layers and kda_layers of linear_attn_config",
    ),
    "layers that share KV": (PLAIN | {"num_kv_shared_layers": 2}, "num_kv_shared_layers changes"),
    "K and V of two sizes": (PLAIN | {"head_dim": 12, "v_head_dim": 8}, "v_head_dim is 8"),
    "heads that do not divide": (PLAIN | {"num_key_value_heads": 3}, "num_key_value_heads is 3"),
    "heads of no width": (PLAIN | {"hidden_size": 4}, "hidden_size is 4"),
    "no layers": (PLAIN | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "very many layers": (PLAIN | {"num_hidden_layers": 10**6}, "at most 10,000"),
    "a fraction": (PLAIN | {"num_hidden_layers": 4.0}, "no whole number num_hidden_layers"),
    "a flag": (PLAIN | {"num_key_value_heads": True}, "no whole number num_key_value_heads"),
    "a context of text": (PLAIN | {"max_position_embeddings": "4K"}, "max_position_embeddings"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_contradicts_itself_is_refused_in_one_line(what: str) -> None:
    """The line names the field, the file and the cure."""
    config, says = REFUSED[what]
    with pytest.raises(BadInput) as error:
        read(config)
    line = str(error.value)
    assert says in line and "\n" not in line and "config.json" in line
    assert error.value.fix


ODD = (None, True, False, -1, 0, 3, 1 << 50, 0.5, math.nan, "", "x", [], [0], ["x"], {}, {"a": 1})
CONFIGS = (WINDOWS | {"sliding_window_pattern": 2}, INDEXED, V4, DELTA, MAMBA2, KIMI)


@given(
    config=st.sampled_from(CONFIGS),
    more=st.dictionaries(
        st.sampled_from(sorted({name for one in CONFIGS for name in one} | {"layer_types"})),
        st.sampled_from(ODD),
        max_size=3,
    ),
    inside=st.dictionaries(
        st.sampled_from(sorted(KIMI["linear_attn_config"])), st.sampled_from(ODD)
    ),
)
def test_whatever_is_in_a_field_there_is_a_cache_or_one_line(
    config: dict[str, Any], more: dict[str, Any], inside: dict[str, Any]
) -> None:
    """No other error, whichever values stand in whichever fields."""
    changed = config | more
    if isinstance(changed.get("linear_attn_config"), dict):
        changed["linear_attn_config"] = changed["linear_attn_config"] | inside
    try:
        shape = read(changed)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert shape.session_bytes(1000) >= 0 and shape.groups is not None
