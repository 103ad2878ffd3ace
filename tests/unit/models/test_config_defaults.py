"""Are the defaults that a config.json may leave out those of transformers' classes?"""

import dataclasses
from typing import Any

import pytest

from offstage.host.model.config import geometry_of
from offstage.host.model.config_fields import _defaults

OF_THE_CODE = {"sliding_window_pattern", "full_attention_interval"}
"""What a class derives in its code, and has in no field."""
WITHOUT_LAYERS = {
    "kimi_linear": "full_attention at other places than its checkpoint's lists",
    "minimax": "every second layer, of no checkpoint",
    "bamba": "no attention at all",
    "granitemoehybrid": "no attention at all",
    "nemotron_h": "four layers, of no checkpoint",
    "jamba": "its layers are a property, which no file has",
    "lfm2": "no convolution at all",
    "deepseek_v4": "DeepSeek-V4-Pro's pattern over Flash's layers",
}
"""Classes whose default layers no file has: a config.json of them is asked to say its own."""


def config_of(kind: str, **given: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**given)


@pytest.mark.parametrize("kind", _defaults())
def test_a_default_is_that_of_its_class(kind: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    of_class = {one.name: one.default for one in dataclasses.fields(CONFIG_MAPPING[kind])}
    ours = {name: one for name, one in _defaults()[kind].items() if name not in OF_THE_CODE}
    if kind == "kimi_linear":
        assert ours.pop("first_k_dense_replace") == 1  # an argument, which is no field
    assert ours == {name: of_class.get(name) for name in ours}


@pytest.mark.parametrize("kind", [one for one in _defaults() if one not in WITHOUT_LAYERS])
def test_a_class_as_it_is_written_has_the_same_cache(kind: str) -> None:
    """What transformers writes into a file, all fields, and a file with `model_type` alone."""
    written = geometry_of(config_of(kind).to_dict(), "m", "config.json")
    bare = geometry_of({"model_type": kind}, "m", "config.json")
    assert written.layers == bare.layers and written.groups == bare.groups


@pytest.mark.parametrize("kind", WITHOUT_LAYERS)
def test_a_class_says_its_layers_where_it_is_written(kind: str) -> None:
    """Each of them, by the words of its own `layer_types`."""
    config = config_of(kind)
    words = list(config.layer_types)
    given = config.to_dict() | {"layer_types": words, "num_hidden_layers": len(words)}
    shape = geometry_of(given, "m", "config.json")
    assert shape.layer_count == len(words)
    stateful = sum(one.form == "state" for one in shape.layers)
    assert stateful == sum(one in ("linear_attention", "conv") for one in words)


def test_kimi_linears_class_has_six_latents_and_twenty_one_states() -> None:
    """Its own default: 6 x 576 x 2 B a token, and 32 matrices of 128 x 128 in float32 with 4 inputs
    of 12,288 channels in 21 layers. A checkpoint says its layers itself."""
    config = config_of("kimi_linear")
    shape = geometry_of(config.to_dict(), "m", "config.json")
    assert shape.bytes_per_token() == 6 * (512 + 64) * 2
    assert shape.state_bytes == 21 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 4 * 2)
