"""Does `--rope` scale rotary positions as transformers does for a config that names the scaling?"""

from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture.rope import KINDS, Rope, parse_rope

transformers = pytest.importorskip("transformers")

TRAINED, FACTOR = 512, 4.0


def config(**rope: Any) -> Any:
    return transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **rope},
    )


def rotated(given: Any, tokens: int) -> Any:
    """Return cos and sin of the first `tokens` positions."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(given)
    return torch.stack(rotary(torch.zeros(1), torch.arange(tokens)[None]))


@pytest.mark.parametrize("kind", KINDS)
def test_angles_are_those_of_a_config_that_names_the_scaling(kind: str) -> None:
    """NTK with a fixed factor equals transformers' dynamic NTK at that length."""
    named = {
        "linear": config(rope_type="linear", factor=FACTOR),
        "ntk": config(rope_type="dynamic", factor=1.0, original_max_position_embeddings=TRAINED),
        "yarn": config(rope_type="yarn", factor=FACTOR, original_max_position_embeddings=TRAINED),
        "llama3": config(
            rope_type="llama3",
            factor=FACTOR,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=TRAINED,
        ),
    }[kind]
    scaled = config()
    Rope(kind, FACTOR).scale(scaled, "model")
    tokens = int(TRAINED * FACTOR)
    assert scaled.max_position_embeddings == tokens
    ours, theirs, plain = (rotated(one, tokens) for one in (scaled, named, config()))
    assert float((ours - theirs).abs().max()) < 1e-5
    assert float((ours - plain).abs().max()) > 0.1


@pytest.mark.parametrize(
    "text", ["yarn", "yarn:", "yarn:1", "yarn:nan", "yarn:65", "dynamic:4", "yarn:4:2"]
)
def test_a_scaling_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--rope"):
        parse_rope(text)


def test_a_model_without_rotary_positions_or_with_scaled_ones_is_refused() -> None:
    with pytest.raises(BadInput, match="already scales"):
        Rope("yarn", 2.0).scale(config(rope_type="linear", factor=2.0), "model")
    with pytest.raises(BadInput, match="no rotary"):
        Rope("yarn", 2.0).scale(transformers.GPT2Config(), "model")
