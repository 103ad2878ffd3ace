"""Published KV geometries by name.

Each entry cites its numbers. A block holds 64 tokens unless a layer's compression asks for more;
the block is our unit of paging, not a property of the model.
"""

from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.geometry import KvGeometry, LayerKv

__all__ = ["GEOMETRIES", "geometry"]


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


def _deepseek_v4_pro() -> KvGeometry:
    """61 layers: two heavily compressed ones, then sparse and heavily compressed in turn, ending
    on a sparse one: 30 at ratio 4 (512 values, and a 128-value index key) and 31 at ratio 128.

    Per token, at 2 bytes a value: 30 * 1024 / 4 + 31 * 1024 / 128 = 7,928 B of KV and
    30 * 256 / 4 = 1,920 B of index keys: 9,848 B, that is 9.62 GiB at 1,048,576 tokens."""
    csa = LayerKv("csa", 1, 512, tokens_per_entry=4, window_tokens=128, index_dim=128)
    hca = LayerKv("hca", 1, 512, tokens_per_entry=128, window_tokens=128)
    return KvGeometry(
        "deepseek-v4-pro",
        128,
        (hca, hca, *((csa, hca) * 29), csa),
        block_tokens=256,
        source="compress_ratios, head_dim and sliding_window of deepseek-ai/DeepSeek-V4-Pro "
        "config.json; 9.62 GiB at 1M tokens: vllm.ai/blog/deepseek-v4",
    )


def _glm_5_2() -> KvGeometry:
    """78 MLA layers with DeepSeek sparse attention; layers 0, 1, 2 and then every fourth (6, 10 ...
    74) run an indexer, and the others reuse the selection of the last one that did."""
    layers: list[LayerKv] = []
    for number in range(78):
        if number < 3 or number % 4 == 2:
            source = number
            layers.append(LayerKv("mla", 1, 512 + 64, index_dim=128, value_dim=512))
        else:
            layers.append(LayerKv("mla", 1, 512 + 64, selection_layer=source, value_dim=512))
    return KvGeometry(
        "glm-5.2",
        64,
        tuple(layers),
        block_tokens=64,
        source="kv_lora_rank, qk_rope_head_dim and indexer_types of zai-org/GLM-5.2 config.json "
        "(21 full, 57 shared: ROCm/ATOM#1260)",
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
        KvGeometry(
            "deepseek-v3",
            128,
            (LayerKv("mla", 1, 512 + 64, value_dim=512),) * 61,
            block_tokens=64,
            source="kv_lora_rank 512, qk_rope_head_dim 64, 61 layers: arXiv:2412.19437, 4.2",
        ),
        KvGeometry(
            "deepseek-v3.2",
            128,
            (LayerKv("mla", 1, 512 + 64, index_dim=128, value_dim=512),) * 61,
            block_tokens=64,
            source="as deepseek-v3, and an index key of 128 values in every layer: index_head_dim "
            "of deepseek-ai/DeepSeek-V3.2-Exp config.json",
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
            (LayerKv("mla", 1, 112 + 16, value_dim=112),) * 3,
            block_tokens=16,
            source="no model: latents in blocks of one 4 KiB page, for tests",
        ),
    )
}


def geometry(name: str) -> KvGeometry:
    """The geometry called `name`. Raises `BadInput`, naming the nearest, when there is none."""
    if name in GEOMETRIES:
        return GEOMETRIES[name]
    raise BadInput(f"unknown geometry {name!r}", "geometry", nearest(name, GEOMETRIES))
