"""A decode step of a transformers model with attention that is ours: the seam to the library.

`transformers` lets an attention function be registered by name. In every architecture each layer
calls it with the query and the cache's K and V, after norms, biases and rotation. In a step the
cache returns only the newest token's K and V; the attention function has the others. What the model
hands to its cache is what a block holds of a token: K and V, or of MLA the latent and its rotated
part (arXiv:2405.04434). MLA's query is then brought into the latent's space, and what attention
finds there is brought back, by the two halves of the layer's `kv_b_proj` (the absorbed form). One
model at a time in a process, one thread.

A layer of DeepSeek sparse attention reads the tokens that an indexer selects. That is the model's
own module: it scores all of its keys, which the cache therefore gives, and the library passes what
it selected to the attention function, in a layer that shares a selection (IndexShare) an earlier
layer's. DeepSeek-V4's modules compress, and select among, entries; what they keep is a session's
(`compressed`), and attention gets the entry that the token has completed.

The query of a later layer can be predicted (`Foresight`): that layer's norm and attention run on an
earlier layer's input until they call the attention function, which returns the query instead of
attending. No code here depends on an architecture. The extra cost are the K and V projections,
which are small with grouped heads.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NAME",
    "Asker",
    "Foresight",
    "LayerAttention",
    "SessionsAttention",
    "Step",
    "entries_of",
    "installed",
    "is_latent",
    "sink_logits_of",
    "turns_of",
]

NAME = "offstage_tier"


@runtime_checkable
class LayerAttention(Protocol):
    """Attention of one session's newest token, called layer by layer."""

    def attend(
        self,
        layer: int,
        query: Any,
        entry: Any,
        tokens: NDArray[np.int32] | None = None,
        closed: Any = None,
    ) -> Any:
        """From the token's query `[q_heads, head_dim]` and what a block holds of it in this layer,
        `[planes, kv_heads, head_dim]`, float32 `[q_heads, value_dim]`: tensors on the model's
        device. The query is scaled so that its logits are q.k / sqrt(head_dim). `tokens`: those
        that the model itself selects, ascending; None in a layer without an indexer. `closed`: of a
        layer that compresses, the entries that the token completes, `[planes, kv_heads, entries,
        head_dim]`, one or none; `tokens` are then entries."""
        ...


class SessionsAttention(Protocol):
    """Attention of the newest token of each of several sessions, called layer by layer."""

    def attend_together(
        self,
        layer: int,
        queries: Sequence[Any],
        entries: Sequence[Any],
        tokens: Sequence[NDArray[np.int32]] | None = None,
        closed: Sequence[Any] | None = None,
    ) -> Any:
        """From what `LayerAttention.attend` takes of each session, float32 `[sessions, q_heads,
        value_dim]`. All have as many tokens, and so complete entries at the same ones."""
        ...


class Step(Protocol):
    """Decodes a token at its position: logits, float32 `[vocabulary]`, on the model's device; or
    one of each of several sessions, all at that position: `[sessions, vocabulary]`."""

    def __call__(self, token: int | Sequence[int], position: int) -> Any: ...


class _Newest:
    """The model's cache object: `tokens` long, but with only the newest token's K and V; of index
    keys it gives all. `layers`: by number, what compressors call, and the states of recurrent
    layers."""

    is_compileable = False

    def __init__(
        self, index_keys: Callable[[int, Any], Any] | None, layers: Mapping[int, Any]
    ) -> None:
        self.tokens = 0
        self._index_keys = index_keys
        self.layers = dict(layers)
        self.given: tuple[Any, Any] = None, None
        """What the layer that runs has handed over, `[1, heads, 1, dim]` each."""

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        self.given = keys, values
        return keys, values

    def update_indexer(self, keys: Any, layer: int) -> Any:
        assert self._index_keys is not None, "a model with indexers"
        return self._index_keys(layer, keys)

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Any:
        return self.layers[layer].conv_states[state_idx]

    def update_conv_state(self, states: Any, layer: int, state_idx: int = 0, **given: Any) -> Any:
        return self.layers[layer].update_conv_state(states, state_idx, **given)

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> Any:
        return self.layers[layer].recurrent_states[state_idx]

    def update_recurrent_state(self, states: Any, layer: int, state_idx: int = 0, **_: Any) -> Any:
        return self.layers[layer].update_recurrent_state(states, state_idx)

    def is_recording_past(self, layer: int) -> bool:
        return False

    def has_previous_state(self, layer: int | None = None, state_idx: int | None = None) -> bool:
        return True

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens


class _Reached(Exception):
    """Raised when a predicted query reaches the attention function."""

    def __init__(self, query: Any) -> None:
        super().__init__()
        self.query = query


class Asker:
    """Gets a layer's query in any architecture: runs its norm and attention, without a cache, on a
    given input up to the attention function, which passes the query to `reached` first."""

    def __init__(self) -> None:
        self._asking = False

    def ask(self, layer: Any, hidden: Any, **given: Any) -> Any:
        """The query `[q_heads, head_dim]` of the last token of `hidden` `[1, tokens, width]`.
        `given`: other arguments of the layer's attention, such as `position_embeddings`."""
        given |= {"past_key_values": None, "attention_mask": None}
        self._asking = True
        try:
            layer.self_attn(hidden_states=layer.input_layernorm(hidden), **given)
        except _Reached as reached:
            return reached.query[0, :, -1]
        finally:
            self._asking = False
        raise AssertionError("attention is reached in every layer")

    def reached(self, query: Any) -> None:
        """Does not return while `ask` runs."""
        if self._asking:
            raise _Reached(query)


class Foresight:
    """Predicts queries from an earlier layer's input, while the model is `installed`.

    Before layer l runs, `tell(l + 1, query)` is called with the next layer's query predicted from
    l's input, float32 `[q_heads, head_dim]`; `tell(0, query)` gets the exact query of layer 0."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self.asker = Asker()
        self._handles: list[Any] = []

    def watch(self, decoder: Any) -> None:
        """Install hooks in the layers of a model's decoder."""
        for number, layer in enumerate(decoder.layers):
            if number == 0:
                self._hook(layer, 0, decoder)
            if number + 1 < len(decoder.layers):
                self._hook(layer, number + 1, decoder)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, layer: Any, told: int, decoder: Any) -> None:
        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            rest = {name: value for name, value in kwargs.items() if name != "hidden_states"}
            rest["position_embeddings"] = turns_of(decoder, told, hidden, kwargs)
            self._tell(told, self.asker.ask(decoder.layers[told], hidden, **rest).float())

        self._handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))


def turns_of(decoder: Any, layer: int, hidden: Any, given: Mapping[str, Any]) -> Any:
    """What turns a layer's queries and keys, by the arguments of another layer of that step: the
    same, unless layers of one kind have rotary positions of their own."""
    rotary = decoder.rotary_emb
    if not hasattr(rotary, "layer_types"):
        return given["position_embeddings"]
    return rotary(hidden, given["position_ids"], decoder.config.layer_types[layer])


@contextlib.contextmanager
def installed(
    model: Any,
    attention: LayerAttention | SessionsAttention,
    foresight: Foresight | None = None,
    index_keys: Callable[[int, Any], Any] | None = None,
    layers: Mapping[int, Any] | None = None,
) -> Iterator[Step]:
    """Within it, what is yielded runs the model's decode steps with `attention`: of one session, or
    of several without `foresight`. `index_keys`: all of a layer's indexer, `[sessions, tokens,
    dim]`, from the newest's; of a model with some. `layers`: what compressors and recurrent layers
    go on with, by layer; index keys of compressed entries are in it, and `index_keys` is None."""
    import torch
    from transformers import AttentionInterface

    newest = _Newest(index_keys, layers or {})
    picked, hooks = _picks(model)

    def attend(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        *,
        scaling: float,
        indices: Any = None,
        **_: Any,
    ) -> tuple[Any, None]:
        layer, asked = module.layer_idx, [_asked(module, one, scaling) for one in query[:, :, -1]]
        if foresight is not None:
            foresight.asker.reached(asked[0][None, :, None])
        entries = _newest_entries(*newest.given, is_latent(module))
        compressor = getattr(module, "compressor", None)
        closed = None if compressor is None else list(newest.layers[layer].closed[:, None, None])
        tokens = _ascending(picked.pop(getattr(compressor, "indexer", None), indices))
        found = _found(attention, layer, asked, entries, tokens, closed)
        back = torch.stack([_brought_back(module, one) for one in found])
        return back.to(query.dtype)[:, None], None

    def step(token: int | Sequence[int], position: int) -> Any:
        newest.tokens, device = position, model.device
        ids = [[token]] if isinstance(token, int) else [[one] for one in token]
        # An indexer wants one, and the library makes none for attention of ours.
        mask = torch.ones(1, 1, 1, position + 1, dtype=torch.bool, device=device)
        with torch.inference_mode():
            found = model(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=None if index_keys is None else mask,
                position_ids=torch.full((len(ids), 1), position, device=device),
                past_key_values=newest,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
        return found[0].float() if isinstance(token, int) else found.float()

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
    if foresight is not None:
        foresight.watch(model.get_decoder())
    try:
        yield step
    finally:
        for hook in hooks:
            hook.remove()
        if foresight is not None:
            foresight.close()
        model.set_attn_implementation(before)


def _found(
    attention: LayerAttention | SessionsAttention,
    layer: int,
    queries: Sequence[Any],
    entries: Sequence[Any],
    tokens: Sequence[NDArray[np.int32]] | None,
    closed: Sequence[Any] | None,
) -> Any:
    """What attention finds, of one session or several: `[sessions, q_heads, value_dim]`."""
    if isinstance(attention, LayerAttention):
        more = (None if one is None else one[0] for one in (tokens, closed))
        return attention.attend(layer, queries[0], entries[0], *more)[None]
    return attention.attend_together(layer, queries, entries, tokens, closed)


def _newest_entries(keys: Any, values: Any, latent: bool) -> list[Any]:
    """Of each session what blocks hold of its newest token, `[planes, kv_heads, head_dim]`, from
    what the model hands to its cache, `[sessions, heads, 1, dim]` each."""
    own = keys.split(1)
    each = zip(own, own if keys is values else values.split(1), strict=True)
    return [entries_of(k, v, latent)[:, :, -1] for k, v in each]


def _ascending(indices: Any) -> list[NDArray[np.int32]] | None:
    """Of each session what its newest token selects, from `[sessions, tokens, k]`; None of none."""
    return None if indices is None else list(indices[:, -1].sort().values.cpu().numpy())


def entries_of(keys: Any, values: Any, latent: bool) -> Any:
    """What blocks hold of tokens, `[planes, kv_heads, tokens, head_dim]`, from what a model hands
    to its cache, `[1, heads, tokens, dim]` each; DeepSeek-V4 hands over one that is both."""
    import torch

    if keys is values:
        return keys
    return torch.cat([keys, values], dim=-1) if latent else torch.cat([keys, values])


def is_latent(module: Any) -> bool:
    """Whether an attention keeps latents: what it hands to its cache is a latent and its rotated
    part."""
    return hasattr(module, "kv_b_proj")


def _picks(model: Any) -> tuple[dict[Any, Any], list[Any]]:
    """By module, what it selects among a layer's compressed entries, as the model runs; and the
    hooks that note it."""
    found: dict[Any, Any] = {}

    def note(module: Any, _: Any, chosen: Any) -> Any:
        found[module] = chosen
        return chosen[..., :0]  # the compressor has new entries alone to look them up in

    attentions = [getattr(one, "self_attn", None) for one in model.get_decoder().layers]
    compressors = (getattr(one, "compressor", None) for one in attentions)
    indexers = [getattr(one, "indexer", None) for one in compressors]
    return found, [one.register_forward_hook(note) for one in indexers if one is not None]


def sink_logits_of(model: Any) -> dict[int, NDArray[np.float32]]:
    """The learned logits of each head that count in the softmax's sum, by layer, `[q_heads]`."""
    found = {}
    for number, layer in enumerate(model.get_decoder().layers):
        sinks = getattr(getattr(layer, "self_attn", None), "sinks", None)
        if sinks is not None:
            found[number] = sinks.detach().float().cpu().numpy()
    return found


def _halves(module: Any) -> tuple[Any, Any]:
    """What makes a latent's keys and its values, `[heads, dim, rank]` each."""
    both = module.kv_b_proj.weight.float().unflatten(0, (module.num_heads, -1))
    return both[:, : module.qk_nope_head_dim], both[:, module.qk_nope_head_dim :]


def _asked(module: Any, query: Any, scaling: float) -> Any:
    """The query as a kernel takes it: in the space of what is stored, and scaled for it."""
    import torch

    if is_latent(module):
        own, rotated = query.float().split([module.qk_nope_head_dim, module.qk_rope_head_dim], -1)
        query = torch.cat([torch.einsum("hn,hnr->hr", own, _halves(module)[0]), rotated], -1)
    factor = scaling * query.shape[-1] ** 0.5
    return query if abs(factor - 1) < 1e-9 else query.float() * factor


def _brought_back(module: Any, found: Any) -> Any:
    """What attention found, as the model's output projection takes it, `[q_heads, dim]`."""
    import torch

    if not is_latent(module):
        return found
    return torch.einsum("hr,hvr->hv", found.float(), _halves(module)[1])
