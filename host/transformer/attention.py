"""A decode step of a transformers model with attention that is ours: the seam to the library.

`transformers` lets an attention function be registered by name. In every architecture each layer
calls it with the query and the cache's K and V, after norms, biases and rotation. In a step the
cache returns only the newest token's K and V; the attention function has the others. One model at a
time in a process, one thread.

The query of a later layer can be predicted (`Foresight`): that layer's norm and attention run on an
earlier layer's input until they call the attention function, which returns the query instead of
attending. No code here depends on an architecture. The extra cost are the K and V projections,
which are small with grouped heads.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

__all__ = ["NAME", "Asker", "Foresight", "LayerAttention", "installed", "step_logits", "turns_of"]

NAME = "offstage_tier"


class LayerAttention(Protocol):
    """Attention of one session's newest token, called layer by layer."""

    def attend(self, layer: int, query: Any, key: Any, value: Any) -> Any:
        """From the token's query `[q_heads, head_dim]`, key and value `[kv_heads, head_dim]` in
        this layer, float32 `[q_heads, head_dim]`: tensors, those given on the model's device."""
        ...


class _Newest:
    """The model's cache object: `tokens` long, but with only the newest token's K and V."""

    is_compileable = False

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._tokens


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
    model: Any, attention: LayerAttention, foresight: Foresight | None = None
) -> Iterator[None]:
    """Run the model's decode steps with `attention`."""
    from transformers import AttentionInterface

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any
    ) -> tuple[Any, None]:
        if foresight is not None:
            foresight.asker.reached(query)
        found = attention.attend(module.layer_idx, query[0, :, -1], key[0, :, -1], value[0, :, -1])
        return found.to(query.dtype)[None, None], None

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
    if foresight is not None:
        foresight.watch(model.get_decoder())
    try:
        yield
    finally:
        if foresight is not None:
            foresight.close()
        model.set_attn_implementation(before)


def step_logits(model: Any, token: int, position: int) -> Any:
    """One token through an `installed` model: float32 `[vocabulary]`, on its device."""
    import torch

    with torch.inference_mode():
        device = model.device
        found = model(
            input_ids=torch.tensor([[token]], device=device),
            position_ids=torch.tensor([[position]], device=device),
            past_key_values=_Newest(position),
            use_cache=True,
            logits_to_keep=1,
        )
        return found.logits[0, -1].float()
