"""The KV of a real model: the content of its cache after reading a text, as numbers.

Memory: the model, its cache and a copy of it in float32. What can fail: see `model.py`, and a text
that is too short.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture.attention import Hook, KvCache, installed
from offstage.testbeds.capture.model import load, look, text_tokens

__all__ = ["ModelKv", "model_kv"]

PIECE_TOKENS = 1024


@dataclass(frozen=True)
class ModelKv:
    """`values`: float32 `[layers, 2, kv_heads, tokens, head_dim]`, keys then values, keys as the
    cache has them, after rotation. `computed_as`: the dtype of the model's arithmetic."""

    values: npt.NDArray[np.float32]
    model: str
    computed_as: str
    config_sha256: str
    text_sha256: str


def model_kv(model: Path, text: Path, tokens: int) -> ModelKv:
    """Read `tokens` tokens of a text. Raises Missing without the extra `capture`, BadInput."""
    shape = look(model)
    import torch

    loaded = load(shape)
    ids, text_sha256 = text_tokens(loaded, text)
    if len(ids) < tokens:
        raise BadInput(
            f"the text has {len(ids)} tokens, not {tokens}", str(text), "give a longer text"
        )
    cache = KvCache(shape.layer_count, tokens)
    with torch.inference_mode(), installed(loaded.model, Hook((), PIECE_TOKENS, tokens)):
        for begin in range(0, tokens, PIECE_TOKENS):
            loaded.model(
                input_ids=torch.tensor([ids[begin : min(begin + PIECE_TOKENS, tokens)]]),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
    found = np.stack([cache.layer(layer) for layer in range(shape.layer_count)])
    return ModelKv(found, shape.name, loaded.dtype, shape.config_sha256, text_sha256)
