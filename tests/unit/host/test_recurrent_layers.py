"""Which layers does a tier hold of a model of which some keep states?"""

from offstage.host.model.config import geometry_of
from offstage.host.model.models import caches, geometry

KIMI = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 5,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3, 5],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}


def test_a_tier_holds_the_layers_with_kv() -> None:
    """Of Qwen3-Next every fourth, of Kimi Linear its latents; each is found by its own number."""
    own = caches()["qwen3-next-80b-a3b"]
    tier = own.in_tier(16, "bfloat16")
    assert tier.layer_count == 12 and {one.form for one in tier.layers} == {"gqa"}
    assert tier.absent == tuple(n for n in range(48) if n % 4 != 3)
    assert len(tier.parts) == 48
    assert [tier.parts[n] for n in range(3, 48, 4)] == [(n,) for n in range(12)]
    assert all(tier.parts[n] == () for n in tier.absent)
    assert tier.blocks_read(160) == 12 * 10
    kimi = geometry_of(KIMI, "kimi", "config.json").in_tier(16, "bfloat16")
    assert kimi.layer_count == 1 and kimi.layers[0].form == "mla"
    assert kimi.parts == ((), (), (), (0,), ())


def test_other_models_lack_no_layer() -> None:
    tier = geometry("deepseek-v4-pro").in_tier(16, "bfloat16")
    assert tier.absent == () and len(tier.parts) == 61 and tier.layer_count == 122
