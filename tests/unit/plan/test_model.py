"""Is a model that a config.json describes the one of its model card, and is it found by its id?"""

import json
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.models import geometry
from offstage.testbeds.plan.kv import parameters, session_bytes, token_bytes
from offstage.testbeds.plan.model import Model

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}


def written(folder: Path, config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("config", "everything", "active", "token"),
    [
        (LLAMA_70B, 70.6, 70.6, 327_680),
        (DEEPSEEK_V3, 671, 37, 70_272),
        (MIXTRAL, 46.7, 12.9, 131_072),
        ({"text_config": LLAMA_70B}, 70.6, 70.6, 327_680),
    ],
)
def test_it_has_the_parameters_and_the_kv_of_its_card(
    config: Any, everything: float, active: float, token: int, tmp_path: Path
) -> None:
    """Parameters as Meta, DeepSeek and Mistral publish them; bytes of a token as in `models.py`."""
    shape, found, passed = parameters(str(written(tmp_path, config)))
    assert found.value == pytest.approx(everything, rel=0.015)
    assert passed.value == pytest.approx(active, rel=0.02)
    assert token_bytes(shape, "fp16").value == token
    assert "config.json" in found.source


@pytest.mark.parametrize(
    ("kind", "everything", "active", "state", "token"),
    [
        ("qwen3_next", 80, 3, 77_856_768, 24_576),
        ("gpt_oss", 117, 5.1, 0, 36_864),
        ("minimax_m2", 230, 10, 0, 253_952),
        ("kimi_linear", 48, 3, 20 * 2_195_456, 7 * 1_152),
    ],
)
def test_a_hybrid_has_the_parameters_and_the_state_of_its_card(
    kind: str, everything: float, active: float, state: int, token: int, tmp_path: Path
) -> None:
    """By the defaults of transformers' class; Kimi Linear's layers are given, three linear ones to
    each full one. A card rounds to a whole number of 10^9."""
    config: dict[str, Any] = {"model_type": kind}
    if kind == "kimi_linear":
        full = [4, 8, 12, 16, 20, 24, 27]
        linear = [one for one in range(1, 28) if one not in full]
        sizes = {"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}
        config["linear_attn_config"] = {"full_attn_layers": full, "kda_layers": linear, **sizes}
    shape, found, passed = parameters(str(written(tmp_path, config)))
    assert found.value == pytest.approx(everything, rel=0.03)
    assert passed.value == pytest.approx(active, rel=0.3)
    assert token_bytes(shape, "fp16").value == token
    assert session_bytes(shape, "fp16", 1).value == pytest.approx(state + held_by_one(shape))


def test_a_latent_of_a_table_has_the_rows_of_a_published_one() -> None:
    """576 values are 512 and 64 rotary ones, which 8 bits keep in 16: 656 B (FlashMLA)."""
    given = Model(layers=61, form="mla", heads=128, head=576, parameters=671)
    for dtype in ("fp16", "fp8", "fp4"):
        ours, published = (
            token_bytes(shape, dtype) for shape in (given.shape("ours")[0], geometry("deepseek-v3"))
        )
        assert (ours.low, ours.value, ours.high) == (published.low, published.value, published.high)
    assert token_bytes(given.shape("ours")[0], "fp8").value == 61 * 656


def held_by_one(shape: KvGeometry) -> int:
    """Bytes of the entries of a session of one token."""
    return sum(shape.entry_bytes(number) for number in range(shape.layer_count))


def test_a_model_of_the_table_is_known_by_its_id_in_any_case() -> None:
    for name in ("Llama-3-70B", "meta-llama/meta-llama-3-70b"):
        assert parameters(name) == parameters("llama-3-70b")


def test_an_id_is_looked_up_in_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any case; one that the cache does not have is refused, and nothing is fetched."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    written(tmp_path / "models--Some-Org--Big-Model/snapshots/abc", LLAMA_70B)
    assert parameters("some-org/big-model")[1].value == pytest.approx(70.6, rel=0.015)
    with pytest.raises(BadInput, match="no published geometry of 'some-org/other'"):
        parameters("some-org/other")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ([], "not a model's config.json"),
        ({}, "no whole number num_hidden_layers"),
        (LLAMA_70B | {"vocab_size": "many"}, "no whole number vocab_size"),
        (LLAMA_70B | {"layer_types": ["sliding_attention"]}, "layer_types has 1 entries"),
        (
            {"model_type": "jamba"},
            r"the parameters of layers of its kind \(state\) are not counted",
        ),
        (LLAMA_70B | {"num_hidden_layers": 0}, "layers"),
    ],
)
def test_what_describes_no_model_is_refused_in_one_line(
    config: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says) as error:
        parameters(str(written(tmp_path, config)))
    assert "\n" not in str(error.value) and "config.json" in str(error.value)
