"""Is what we count of a model's cache what transformers' own implementation keeps?

Tiny models of each kind with random weights read 150 tokens, and the bytes of every tensor in their
caches are compared with the layer's groups.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry

TOKENS = 150
COMMON = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
INDEXER = {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 2}
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
SHARED = {"index_topk_freq": 4, "index_skip_topk_offset": 3, "num_hidden_layers": 6}
TINY: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma3_text": {"sliding_window": 8, "num_hidden_layers": 7},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, **EXPERTS},
    "deepseek_v3": LATENT | EXPERTS,
    "deepseek_v32": LATENT | EXPERTS | INDEXER,
    "glm_moe_dsa": LATENT | EXPERTS | INDEXER | SHARED,
    "deepseek_v4": {
        **EXPERTS,
        **INDEXER,
        "compress_ratios": [128, 128, 4, 0],
        "head_dim": 32,
        "num_key_value_heads": 1,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 8,
        "n_routed_experts": 4,
        "sliding_window": 8,
    },
    "qwen3_next": DELTA | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": DELTA,
    "kimi_linear": LATENT
    | EXPERTS
    | {"linear_head_dim": 8, "linear_num_heads": 4, "num_local_experts": 4}
    | {"num_hidden_layers": 5},
    "minimax": EXPERTS | {"num_local_experts": 4, "block_size": 16},
    "minimax_m3_vl_text": {
        **EXPERTS,
        "num_local_experts": 4,
        "dense_intermediate_size": 32,
        "shared_intermediate_size": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 8,
        "index_topk_blocks": 2,
        "rotary_dim": 8,
        "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
    },
    "granitemoehybrid": {
        **MAMBA2,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "shared_intermediate_size": 16,
        "num_local_experts": 2,
    },
    "jamba": EXPERTS | {"attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 2},
    "lfm2": {"full_attn_idxs": [1]},
}


def cache_of(kind: str) -> tuple[Any, dict[str, Any]]:
    """The cache of a tiny model that has read, and its config as transformers writes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **COMMON | TINY[kind])
    words = getattr(config, "layer_types", None)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        read = model(torch.randint(0, 64, (1, TOKENS)), use_cache=True)
    return read.past_key_values, config.to_dict() | {"layer_types": words}


def tensors(layer: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor that one layer keeps, once, by the name of its attribute."""
    import torch

    seen = set()
    for name, value in vars(layer).items():
        for one in value.values() if isinstance(value, dict) else [value]:
            if isinstance(one, torch.Tensor) and one.dim() and one.data_ptr() not in seen:
                seen.add(one.data_ptr())
                yield name, one


def ours(shape: KvGeometry, number: int) -> dict[str, int]:
    """Bytes of one layer by kind. transformers keeps a window without the newest token."""
    found: dict[str, int] = {}
    for group in shape.groups:
        if number in group.layers:
            entries = group.entries(TOKENS) - (group.kind == "window")
            found[group.kind] = entries * group.values * 2 + group.state_bytes
    return found


def theirs(layer: Any) -> int:
    """Bytes of one layer."""
    return sum(one.numel() * one.element_size() for _, one in tensors(layer))


@pytest.mark.parametrize("kind", [one for one in TINY if one not in ("deepseek_v4", "minimax")])
def test_every_layer_keeps_what_we_count(kind: str) -> None:
    cache, config = cache_of(kind)
    shape = geometry_of(config, kind, "config.json")
    assert shape.layer_count == len(cache.layers)
    counted = [sum(ours(shape, number).values()) for number in range(shape.layer_count)]
    assert counted == [theirs(layer) for layer in cache.layers] and sum(counted)


def test_lightning_attention_keeps_its_states_beside_the_layers() -> None:
    """MiniMax's cache has them in a list of its own."""
    cache, config = cache_of("minimax")
    shape = geometry_of(config, "minimax", "config.json")
    for number, layer in enumerate(cache.layers):
        state = cache.linear_cache[number] if number < len(cache.linear_cache) else []
        kept = 0 if isinstance(state, list) else state.numel() * state.element_size()
        assert sum(ours(shape, number).values()) == theirs(layer) + kept > 0


def test_deepseek_v4_keeps_entries_keys_and_windows() -> None:
    """An entry for each whole 4 or 128 tokens, of which we count the begun one too. transformers
    keeps the tokens of that one as they are; we count the buffer of DeepSeek's own code, which has
    a published size, and holds as much at most."""
    cache, config = cache_of("deepseek_v4")
    shape = geometry_of(config, "deepseek_v4", "config.json")
    for number, layer in enumerate(cache.layers):
        found, form = ours(shape, number), shape.layers[number]
        assert layer.keys.numel() * 2 == found["window"]
        if form.form == "window":
            continue
        entries = layer.compressed_kv["compressor"].numel() // form.head_dim
        assert entries == TOKENS // form.tokens_per_entry
        assert found["compressed"] == (entries + 1) * form.head_dim * 2
        if form.index_dim:
            keys = layer.compressed_kv["indexer"]
            assert found["indexer"] == keys.numel() * 2 + form.index_dim * 2
        buffers = [one for name, one in tensors(layer) if name.startswith(("buffer", "overlap"))]
        kept = sum(one.numel() for one in buffers)
        assert 0 < 4 * kept <= found["compressor"]
