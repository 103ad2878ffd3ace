"""Tiny models with random weights that vLLM can run, in the environment that has vLLM.

`vllm_models.py KIND FOLDER TOKENIZER`: a model of KIND in FOLDER, with the tokenizer of the folder
TOKENIZER. A window is shorter than the tests' prompts, so that their first blocks leave it.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

WINDOW = 64
SMALL = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 64,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 6,
    **EXPERTS,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3_text": (
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
    ),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gpt_oss": ("GptOssConfig", {**EXPERTS, "num_local_experts": 4, "sliding_window": WINDOW}),
    "deepseek_v3": ("DeepseekV3Config", LATENT),
}


def main() -> None:
    import torch
    import transformers

    kind, folder, tokenizer = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    name, more = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, name)(**SMALL | more)
    made = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    made.save_pretrained(folder)
    for one in tokenizer.glob("tokenizer*"):
        shutil.copy(one, folder)
    print(json.dumps({"layers": getattr(config, "layer_types", None)}))


if __name__ == "__main__":
    main()
