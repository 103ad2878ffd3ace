"""A model's attention: access to its queries and keys.

`transformers` lets an attention function be registered by name. The model calls it with queries,
and with keys and values as in the cache, after norms, biases and rotation, for any
architecture. Our function takes the scores of the last query when they are wanted, and computes
attention by SDPA. A `Hook` belongs to one model and one thread; `installed` registers it for a
while.

A query is *predicted* from the input of the layer before its own: that input is put through the
norm and the query projection of the later layer (the idea of InfiniGen, OSDI '24), and the result
is scored against the keys of the tokens before the newest. The layer's own input is not used.
The first layer's next query needs the next token. Early exit drafts it, with its likeliest tokens
by the input of the last layer, and the text may have a draft, that of prompt lookup. The prediction
is the mean over the drafts, weighted by their probability. Drafts of a draft model replace those of
early exit.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.transformer.attention import Asker, turns_of
from offstage.testbeds.capture.block_scores import HALF_MAX, Layer
from offstage.testbeds.workloads.selections.scores_file import PREDICTED

__all__ = ["DRAFTS", "NAME", "Hook", "KvCache", "attend", "installed"]


NAME = "offstage_capture"

_QUERY_ROWS = 1024
"""Queries times heads of a group in one call of SDPA: bounds the scores of a piece's own part."""

_OWN_COLUMNS = 8
"""Columns of keys and values for a piece's own part: fast kernels want a multiple of eight."""

_LSE_TERMS = 3
"""Three bfloat16 hold the 24 bits of a float32's mantissa."""

DRAFTS = 8
"""Tokens drafted by early exit or a draft model: the first of early exit is right in a third of the
steps of a small model."""

Scores = dict[str, npt.NDArray[np.float16]]


class KvCache:
    """Keys and values of all layers, `[1, groups, tokens, head_dim]`, allocated once.

    It implements what a model needs of a cache, without the library's copy of all content for every
    token. `truncate` drops the tokens after a length.
    """

    is_compileable = False

    def __init__(self, layer_count: int, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._stored: list[tuple[Any, Any] | None] = [None] * layer_count
        self._lengths = [0] * layer_count

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Add tokens to a layer; return all its keys and values."""
        stored = self._stored[layer]
        if stored is None:
            stored = self._stored[layer] = (self._room(keys), self._room(values))
        begin, end = self._lengths[layer], self._lengths[layer] + keys.shape[2]
        stored[0][:, :, begin:end] = keys
        stored[1][:, :, begin:end] = values
        self._lengths[layer] = end
        return stored[0][:, :, :end], stored[1][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens in a layer."""
        return self._lengths[layer_idx]

    def layer(self, layer: int) -> npt.NDArray[np.float32]:
        """A layer's content, keys then values, `[2, groups, tokens, head_dim]`, copied."""
        stored = self._stored[layer]
        assert stored is not None, "the model has run"
        length = self._lengths[layer]
        return np.stack([half[0, :, :length].float().cpu().numpy() for half in stored])

    def truncate(self, tokens: int) -> None:
        """Keep the first `tokens` of every layer."""
        self._lengths = [min(tokens, length) for length in self._lengths]

    def _room(self, like: Any) -> Any:
        batch, groups, _, head_dim = like.shape
        return like.new_empty((batch, groups, self._tokens_max, head_dim))


class Hook:
    """Block summaries of the recorded layers, and the scores of the last forward pass.

    layers: the model's numbers of the layers to record. `wanted`: whether the next forward pass
    gives scores of its last query; `take` returns them. `lookup`: the token after that pass by
    prompt lookup, and its probability; None without one. `drafts`: that token by early exit, the
    likeliest first; empty where not all layers are recorded. `second`: that token by a draft model,
    with shares, the likeliest first: replaces early exit's.
    """

    def __init__(self, layers: tuple[int, ...], block_tokens: int, tokens_max: int) -> None:
        blocks_max = -(-tokens_max // block_tokens)
        self._layers = {layer: Layer(block_tokens, blocks_max) for layer in layers}
        self._found: dict[int, Scores] = {}
        self._predicted: dict[int, Any] = {}  # predicted queries, of layers that have not run yet
        self._first: tuple[Any, float] | None = None  # keys of layer 0 and its scaling
        self._drafted: Scores | None = None
        self.pairs = tuple(itertools.pairwise(layers))
        self.asker = Asker()
        self.lookup: tuple[int, float] | None = None
        self.drafts: tuple[int, ...] = ()
        self.second: dict[int, float] | None = None
        self.wanted = False

    @property
    def recorded(self) -> int:
        """Number of recorded layers."""
        return len(self._layers)

    def see(self, layer: int, query: Any, key: Any, scaling: float) -> None:
        """Called before a layer's attention: `[1, heads, new, head_dim]`, keys of all tokens."""
        if layer not in self._layers:
            return
        keys, own = key[0], self._layers[layer]
        before = keys.shape[1] - query.shape[2]
        predicted = self._predicted.pop(layer, None)
        found = (
            own.scores(predicted, keys[:, :before], scaling)
            if before and self.wanted and (predicted is not None)
            else None
        )
        own.extend(keys, before)
        if layer == 0:
            self._first = keys, scaling
        if self.wanted:
            scores = own.scores(query[0, :, -1], keys, scaling)
            self._found[layer] = scores | _predicted(found, scores)

    def predict(self, layer: int, module: Any, hidden: Any, positions: Any) -> None:
        """Take the input `[1, new, width]` of the layer before `layer`, which is `module`."""
        if self.wanted:
            last = tuple(one[:, -1:] for one in positions)
            self._predicted[layer] = self.asker.ask(
                module, hidden[:, -1:], position_embeddings=last
            )

    def early_exit(self, model: Any, first: Any, hidden: Any) -> None:
        """Take the input of the last layer. `first`: the module of layer 0."""
        import torch

        if not self.wanted:
            return
        assert self._first is not None, "the first layer has run"
        keys, scaling = self._first
        logits = model.lm_head(model.model.norm(hidden[:, -1:]))[0, -1].float()
        likely = torch.softmax(logits, dim=-1).topk(min(DRAFTS, logits.shape[-1]))
        self.drafts = tuple(int(token) for token in likely.indices)
        shares = (likely.values / likely.values.sum()).tolist()
        weights = self.second or dict(zip(self.drafts, shares, strict=True))
        if self.lookup is not None:
            token, chance = self.lookup
            weights = {one: (1 - chance) * weight for one, weight in weights.items()}
            weights[token] = weights.get(token, 0.0) + chance
        position = torch.tensor([[keys.shape[1]]], device=keys.device)
        # Of layer 0, where kinds of layers have rotary positions of their own.
        kind = (
            model.config.layer_types[:1] if hasattr(model.model.rotary_emb, "layer_types") else ()
        )
        found: dict[str, npt.NDArray[np.float32]] = {}
        for token, weight in weights.items():
            embedded = model.get_input_embeddings()(torch.tensor([[token]], device=keys.device))
            turns = model.model.rotary_emb(embedded, position, *kind)
            query = self.asker.ask(first, embedded, position_embeddings=turns)
            for name, scores in self._layers[0].scores(query, keys, scaling).items():
                found[name] = found.get(name, 0) + np.float32(weight) * scores
        self._drafted = {name: scores.astype(np.float16) for name, scores in found.items()}

    def take(self) -> Scores:
        """The scores of the last pass, float16 `[layers, groups, blocks]` by name."""
        assert len(self._found) == len(self._layers), "every recorded layer has run"
        if self._drafted is not None:
            self._found[0] |= {PREDICTED + name: one for name, one in self._drafted.items()}
        found = [self._found.pop(layer) for layer in self._layers]
        return {name: np.stack([one[name] for one in found]) for name in found[0]}


def attend(query: Any, key: Any, value: Any, scaling: float) -> Any:
    """Causal attention of the newest tokens over all: `[1, new, heads, head_dim]`.

    The heads of a group become rows of one query matrix, so that keys are never repeated; queries
    are processed a few at a time, so that neither mask nor scores grow with the square of the
    context. Only among themselves do the queries of a piece need a mask. All before them is read
    without one, in which SDPA is about half as fast again on a CPU, and the two are merged there:
    a piece's own part is one more key, whose score is that part's log-sum-exp, and whose value is a
    column of its own that says how much of the whole that part is. Log-sum-exp of SDPA, which no
    public call returns, is then not needed.
    """
    import torch

    _, heads, new, head_dim = query.shape
    groups, tokens = key.shape[1], key.shape[2]
    per_group = heads // groups
    if new == 1:
        rows = query.reshape(1, groups, per_group, head_dim)
        alone = torch.nn.functional.scaled_dot_product_attention(rows, key, value, scale=scaling)
        return alone.reshape(1, 1, heads, value.shape[3])
    step = max(1, _QUERY_ROWS // per_group)
    past_keys, past_values = _with_own_part(key), _with_own_part(value)
    past_keys[:, :, 0, head_dim : head_dim + _LSE_TERMS] = 1
    past_values[:, :, 0, value.shape[3]] = 1
    parts = []
    for begin in range(0, new, step):
        count, past = min(step, new - begin), tokens - new + begin
        rows = query[:, :, begin : begin + count].reshape(1, groups, per_group * count, head_dim)
        part, lse = _own_part(rows, key[:, :, past:][:, :, :count], value[:, :, past:], scaling)
        if past:
            found = torch.nn.functional.scaled_dot_product_attention(
                torch.cat([rows, _terms(lse / scaling, rows.dtype)], dim=3),
                past_keys[:, :, : past + 1],
                past_values[:, :, : past + 1],
                scale=scaling,
            )
            share = found[..., value.shape[3], None]
            part = found[..., : value.shape[3]] + share * part
        parts.append(part.to(query.dtype).reshape(1, heads, count, value.shape[3]))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


def _with_own_part(stored: Any) -> Any:
    """Keys or values behind a row of zeros for a piece's own part, and with columns for it."""
    import torch

    return torch.nn.functional.pad(stored, (0, _OWN_COLUMNS, 1, 0))


def _own_part(rows: Any, key: Any, value: Any, scaling: float) -> tuple[Any, Any]:
    """Causal attention of a piece among its own tokens, `rows` of heads times tokens: output, and
    log-sum-exp `[1, groups, rows, 1]`, in float32."""
    import torch

    count = key.shape[2]
    scores = rows.float() @ key.float().transpose(2, 3) * scaling
    later = torch.ones(count, count, dtype=torch.bool, device=rows.device).triu(1)
    scores.masked_fill_(later.repeat(rows.shape[2] // count, 1), -torch.inf)
    lse = scores.logsumexp(dim=3, keepdim=True)
    return (scores - lse).exp() @ value[:, :, :count].float(), lse


def _terms(number: Any, dtype: Any) -> Any:
    """Float32 `[..., 1]` as a sum of `_LSE_TERMS` numbers of a type of as few as eight bits of
    mantissa, in `_OWN_COLUMNS` columns, the others 0."""
    import torch

    terms = []
    for _ in range(_LSE_TERMS):
        terms.append(number.to(dtype))
        number = number - terms[-1].float()
    return torch.nn.functional.pad(torch.cat(terms, dim=-1), (0, _OWN_COLUMNS - _LSE_TERMS))


@contextlib.contextmanager
def installed(model: Any, hook: Hook) -> Iterator[None]:
    """Route the model's attention through `hook`, one model at a time in a process. The library's
    mask is not used: the input is one sequence, all of it causal."""
    from transformers import AttentionInterface

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **_: Any
    ) -> tuple[Any, None]:
        hook.asker.reached(query)
        hook.see(module.layer_idx, query, key, scaling)
        return attend(query, key, value, scaling), None

    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    modules = {one.self_attn.layer_idx: one for one in model.modules() if hasattr(one, "self_attn")}
    hooked = []
    for layer, later in hook.pairs:

        def predict(_: Any, given: Any, named: Any, later: int = later) -> None:
            hidden = given[0] if given else named["hidden_states"]
            turns = turns_of(model.get_decoder(), later, hidden, named)
            hook.predict(later, modules[later], hidden, turns)

        hooked.append(modules[layer].register_forward_pre_hook(predict, with_kwargs=True))
    if hook.recorded == len(modules) > 1:

        def early_exit(_: Any, given: Any, named: Any) -> None:
            hook.early_exit(model, modules[0], given[0] if given else named["hidden_states"])

        last = modules[len(modules) - 1]
        hooked.append(last.register_forward_pre_hook(early_exit, with_kwargs=True))
    try:
        yield
    finally:
        for one in hooked:
            one.remove()
        model.set_attn_implementation("sdpa")


def _predicted(found: Scores | None, own: Scores) -> Scores:
    """Scores for as many blocks as the layer's own: all 0 without a prediction, and the minimum in
    a block that begins with the newest tokens."""
    result = {}
    for name, values in own.items():
        filled = np.zeros_like(values)
        if found is not None:
            count = found[name].shape[1]
            filled[:, :count] = found[name]
            filled[:, count:] = 0 if name == "mass" else -HALF_MAX
        result[PREDICTED + name] = filled
    return result
