"""The way into a model's attention: queries and keys after rotation, and a KV cache of fixed size.

`transformers` lets an attention function be registered by name; the model calls it with queries,
and with keys and values as they lie in the cache, after norms, biases and rotation, whatever its
architecture. Ours takes the scores of the last query, where they are wanted, and computes attention
by SDPA. A `Hook` belongs to one model and one thread; `installed` puts it in for a while.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.testbeds.capture.scores import Layer

__all__ = ["NAME", "Hook", "KvCache", "attend", "installed"]

NAME = "offstage_capture"

_QUERY_ROWS = 512
"""Queries times heads of a group in one call of SDPA: bounds its mask at 512 x context."""

Scores = dict[str, npt.NDArray[np.float16]]


class KvCache:
    """Keys and values of all layers, `[1, groups, tokens, head_dim]`, allocated once.

    It has what a model asks of a cache, and does not copy what it has for every token, as the
    library's own does. `truncate` forgets the tokens behind a length.
    """

    is_compileable = False

    def __init__(self, layer_count: int, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._stored: list[tuple[Any, Any] | None] = [None] * layer_count
        self._lengths = [0] * layer_count

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Adds tokens to a layer; gives all its keys and values."""
        stored = self._stored[layer]
        if stored is None:
            stored = self._stored[layer] = (self._room(keys), self._room(values))
        begin, end = self._lengths[layer], self._lengths[layer] + keys.shape[2]
        stored[0][:, :, begin:end] = keys
        stored[1][:, :, begin:end] = values
        self._lengths[layer] = end
        return stored[0][:, :, :end], stored[1][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of a layer."""
        return self._lengths[layer_idx]

    def truncate(self, tokens: int) -> None:
        """Keeps the first `tokens` of every layer."""
        self._lengths = [min(tokens, length) for length in self._lengths]

    def _room(self, like: Any) -> Any:
        batch, groups, _, head_dim = like.shape
        return like.new_empty((batch, groups, self._tokens_max, head_dim))


class Hook:
    """Block summaries of the recorded layers, and the scores of the last forward pass.

    layers: the model's numbers of the layers to record. `wanted`: whether the next forward pass is
    to give scores of its last query; `take` gives them.
    """

    def __init__(self, layers: tuple[int, ...], block_tokens: int, tokens_max: int) -> None:
        blocks_max = -(-tokens_max // block_tokens)
        self._layers = {layer: Layer(block_tokens, blocks_max) for layer in layers}
        self._found: dict[int, Scores] = {}
        self.wanted = False

    def see(self, layer: int, query: Any, key: Any, scaling: float) -> None:
        """A layer's attention is about to run: `[1, heads, new, head_dim]`, keys of all tokens."""
        if layer not in self._layers:
            return
        keys = key[0]
        self._layers[layer].extend(keys, keys.shape[1] - query.shape[2])
        if self.wanted:
            self._found[layer] = self._layers[layer].scores(query[0, :, -1], keys, scaling)

    def take(self) -> Scores:
        """The scores of the last pass, float16 `[layers, groups, blocks]` by name."""
        assert len(self._found) == len(self._layers), "every recorded layer has run"
        found = [self._found.pop(layer) for layer in self._layers]
        return {name: np.stack([one[name] for one in found]) for name in found[0]}


def attend(query: Any, key: Any, value: Any, scaling: float) -> Any:
    """Causal attention of the newest tokens over all: `[1, new, heads, head_dim]`.

    The heads of a group become rows of one query matrix, so that keys are never repeated; queries
    go a few at a time, so that neither mask nor scores grow with the square of the context.
    """
    import torch

    _, heads, new, head_dim = query.shape
    groups, tokens = key.shape[1], key.shape[2]
    per_group = heads // groups
    step = max(1, _QUERY_ROWS // per_group)
    parts = []
    for begin in range(0, new, step):
        count = min(step, new - begin)
        seen = tokens - new + begin + count
        rows = query[:, :, begin : begin + count].reshape(1, groups, per_group * count, head_dim)
        mask = None
        if count > 1:
            mask = torch.ones(count, seen, dtype=torch.bool, device=query.device)
            mask = mask.tril(seen - count).repeat(per_group, 1)
        part = torch.nn.functional.scaled_dot_product_attention(
            rows, key[:, :, :seen], value[:, :, :seen], attn_mask=mask, scale=scaling
        )
        parts.append(part.reshape(1, heads, count, value.shape[3]))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


@contextlib.contextmanager
def installed(model: Any, hook: Hook) -> Iterator[None]:
    """The model's attention goes through `hook`, one model at a time in a process. The library's
    mask is not used: what runs is one sequence, all of it causal."""
    from transformers import AttentionInterface

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **_: Any
    ) -> tuple[Any, None]:
        hook.see(module.layer_idx, query, key, scaling)
        return attend(query, key, value, scaling), None

    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
