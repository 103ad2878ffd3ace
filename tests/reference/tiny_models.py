"""Tiny models of every supported architecture, with random weights, and a tokenizer."""

from pathlib import Path
from typing import Any

__all__ = ["CONFIGS", "TEXT_BYTES", "save_model", "save_text"]

TEXT_BYTES = 500

SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    **EXPERTS,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
# Heads enough that no token's scores are all 0, which would leave a selection to chance.
SPARSE = {
    **LATENT,
    "num_hidden_layers": 3,
    "index_n_heads": 16,
    "index_head_dim": 24,
    "index_topk": 512,
}
# A layer of full attention behind two that keep a state.
DELTA = {
    "num_hidden_layers": 4,
    "layer_types": [
        "linear_attention",
        "linear_attention",
        "full_attention",
        "full_attention",
    ],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", {**EXPERTS, "num_experts": 4}),
    "glm": ("GlmConfig", {}),
    "glm4": ("Glm4Config", {}),
    # Every layer sees all of a short context; every second one has its own rotary positions.
    "gemma3_text": (
        "Gemma3TextConfig",
        {"sliding_window": 512, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8},
    ),
    "gpt_oss": ("GptOssConfig", {**EXPERTS, "num_local_experts": 4, "sliding_window": 64}),
    "deepseek_v3": ("DeepseekV3Config", LATENT),
    "deepseek_v32": ("DeepseekV32Config", SPARSE),
    # Layer 2 reads what the indexer of layer 1 selects.
    "glm_moe_dsa": (
        "GlmMoeDsaConfig",
        {**SPARSE, "indexer_types": ["full", "full", "shared"]},
    ),
    # Beside a window of its own, layer 1 has an entry for 8 tokens, and layer 2 one for 4.
    "deepseek_v4": (
        "DeepseekV4Config",
        {
            **EXPERTS,
            "n_routed_experts": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "q_lora_rank": 16,
            "o_groups": 2,
            "o_lora_rank": 8,
            "partial_rotary_factor": 0.25,
            "sliding_window": 40,
            "layer_types": [
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4},
            "index_n_heads": 16,
            "index_head_dim": 16,
            "index_topk": 128,
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {**DELTA, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5_text": ("Qwen3_5TextConfig", DELTA),
    "kimi_linear": (
        "KimiLinearConfig",
        {
            **LATENT,
            "q_lora_rank": None,
            "num_local_experts": 4,
            "num_hidden_layers": 4,
            "layer_types": DELTA["layer_types"],
            "linear_num_heads": 4,
            "linear_head_dim": 8,
        },
    ),
    "glm4_moe": ("Glm4MoeConfig", {**EXPERTS, "n_routed_experts": 4, "use_qk_norm": True}),
}


def save_model(folder: Path, architecture: str, changes: dict[str, Any]) -> None:
    import tokenizers
    import torch
    import transformers

    name, own = CONFIGS[architecture]
    config = getattr(transformers, name)(**{**SMALL, **own, **changes})
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    # Biases and norms begin as zeros and ones, which would hide a missing one.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):  # a state that lasts for some fifty tokens
                weight.fill_(-3.5)
            elif weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    model.save_pretrained(folder)
    # A byte-level tokenizer without merges: one token a byte.
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>", *alphabet]
    vocabulary = {name: index for index, name in enumerate(names)}
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)


def save_text(path: Path, letters: int = TEXT_BYTES) -> Path:
    """Write a text of this many letters, each of them one token."""
    path.write_text("".join(chr(97 + (i * i + i // 7) % 23) for i in range(letters)))
    return path
