"""A second, smaller model that drafts the token after the one that the model reads next.

It reads the same tokens as the model, into a separate cache, and gives its likeliest next tokens
before the model's pass begins, so a draft is there in time, whatever the model computes. One
thread. Can fail: BadInput for a model with another tokenizer than the first one's, or too short a
window; memory and weights as `model.load`.
"""

from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture.attention import DRAFTS
from offstage.testbeds.capture.model import load, look, text_tokens

__all__ = ["DraftModel"]


class DraftModel:
    """Its folder, the text, the model's tokens of it, and the maximum number of tokens to read."""

    def __init__(
        self, folder: Path, text: Path, tokens: list[int], tokens_max: int, device: str, dtype: str
    ) -> None:
        import transformers

        shape = look(folder)
        if tokens_max > shape.tokens_max:
            raise BadInput(
                f"{tokens_max} tokens; the draft model supports {shape.tokens_max}",
                str(folder),
                "give fewer, or another draft model",
            )
        self._loaded = load(shape, device, dtype)
        if text_tokens(self._loaded, text)[0] != tokens:
            raise BadInput(
                "tokenizes the text differently from the model",
                str(folder),
                "give a draft model with the same tokenizer",
            )
        self._cache: Any = transformers.DynamicCache()

    def read(self, tokens: list[int]) -> dict[int, float]:
        """Read more tokens; return the likeliest next ones, in order, with shares that sum to 1."""
        import torch

        ids = torch.tensor([tokens], device=self._loaded.model.device)
        found = self._loaded.model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        logits = found.logits[0, -1].float()
        likely = torch.softmax(logits, dim=-1).topk(min(DRAFTS, logits.shape[-1]))
        shares = (likely.values / likely.values.sum()).tolist()
        return dict(zip(likely.indices.tolist(), shares, strict=True))

    def back_to(self, tokens: int) -> None:
        """Drop everything after the first `tokens`."""
        if more := self._cache.get_seq_length() - tokens:
            self._cache.crop(-more)
