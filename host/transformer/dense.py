"""The model's prefill and dense attention: the source of the tier's blocks, and the reference.

`DenseKv` keeps the KV of the context as the model computed it, for the comparison with dense
attention; it also restores blocks of the context that the tier has lost. A model that only decodes
would discard it. A layer with a window keeps all of its tokens here and attends to the window, so
that a shorter context is a front of a longer one. One thread. Can fail: RunFailed when the tier has
lost a block that decoding wrote, since there is no other copy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.values import ValueType
from offstage.host.transformer.attention import entries_of
from offstage.host.transformer.compressed import SessionLayer, WholeCache, WholeLayer
from offstage.host.transformer.recurrent import (
    States,
    copies,
    is_recurrent,
    new_layer,
    state_bytes,
    states_of,
    take,
)

__all__ = ["DenseKv", "kv_geometry"]


def kv_geometry(name: str, config: Any, block_tokens: int, value_type: ValueType) -> KvGeometry:
    """The KV geometry of a model in the tier, from its configuration; of a model that compresses,
    each layer's window and its entries are two. Raises BadInput as `geometry_of`."""
    return geometry_of(config.to_dict(), name, "config.json").in_tier(block_tokens, value_type)


def _whole_cache(geometry: KvGeometry) -> Any:
    """A cache whose layers keep all of their tokens, and index keys where the model gives some."""
    from transformers.cache_utils import Cache, DynamicIndexedLayer

    if any(one.layout == "compressed" for one in geometry.layers):
        last = [geometry.layers[parts[-1]] for parts in geometry.parts]
        rates = [one.tokens_per_entry if one.form == "entries" else 0 for one in last]
        return WholeCache(rates, geometry.layers[0].window_tokens)
    if geometry.absent:
        return Cache([DynamicIndexedLayer() if one else new_layer() for one in geometry.parts])
    return Cache(layer_class_to_replicate=DynamicIndexedLayer)


def _front(layer: Any, tokens: int) -> dict[str, Any]:
    """What a layer of the cache has of its first tokens, by name."""
    if isinstance(layer, WholeLayer):
        return layer.front(tokens)
    found = {"k": layer.keys[:, :, :tokens], "v": layer.values[:, :, :tokens]}
    if layer.is_indexer_initialized:
        found["i"] = layer.indexer_keys[:, :tokens]
    return found


class DenseKv:
    """A prefilled context of `tokens` tokens in whole blocks: a `KvSource`."""

    def __init__(self, model: Any, geometry: KvGeometry) -> None:
        self.geometry = geometry
        self._model = model
        self._cache: Any = None
        self._length = 0
        self.last_logits: NDArray[np.float32] = np.empty(0, np.float32)
        """Logits after the context, `[vocabulary]`."""

    def prefill(
        self,
        tokens: Sequence[int],
        piece: int,
        advance: Callable[[int], None],
        first: int = 0,
        reached: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        """Prefill the context, `piece` tokens at a time. `first`: go on after as many, which were
        restored; less than all. `reached` is called with the tokens read, after each piece."""
        import torch

        if not first:
            self._cache = _whole_cache(self.geometry)
        with torch.inference_mode():
            for begin in range(first, len(tokens), piece):
                some = list(tokens[begin : begin + piece])
                last = self._pass(some, begin, logits=1)
                self._length = begin + len(some)
                advance(len(some))
                reached(self._length)
            self.last_logits = last[-1].float().cpu().numpy()

    @property
    def compresses(self) -> bool:
        """Whether its layers keep windows and compressed entries."""
        return any(one.layout == "compressed" for one in self.geometry.layers)

    @property
    def tokens(self) -> int:
        """Of the context."""
        return self._length

    def tensors(self) -> dict[str, Any]:
        """The context's KV and last logits, for `restore`."""
        return self._tensors(self._length)

    def _tensors(self, tokens: int) -> dict[str, Any]:
        import torch

        found = {"logits": torch.from_numpy(self.last_logits)}
        for number, layer in enumerate(self._cache.layers):
            if not is_recurrent(layer):
                found |= {f"{number}.{name}": one for name, one in _front(layer, tokens).items()}
        if tokens == self._length:
            found |= states_of(self._cache.layers)
        return {name: one.contiguous() for name, one in found.items()}

    @property
    def states(self) -> States:
        """What the context goes on with beside whole blocks, a checkpoint: the states of recurrent
        layers, or of layers that compress, with their windows. Empty of a model without any."""
        size, found = self.geometry.block_tokens, states_of(self._cache.layers)
        for number, layer in self._whole_layers():
            found |= {f"{number}.{name}": one for name, one in layer.checkpoint(size).items()}
        return found

    @property
    def index_keys(self) -> dict[int, Any]:
        """The keys of each layer's indexer, `[1, tokens or entries, dim]`; empty of a model without
        one."""
        found = {number: one.index_keys for number, one in self._compressors().items()}
        for number, layer in enumerate(self._cache.layers):
            if getattr(layer, "is_indexer_initialized", False):
                found[number] = layer.indexer_keys
        return {number: keys for number, keys in found.items() if keys is not None}

    def session_layers(self) -> dict[int, Any]:
        """What compressors and recurrent layers go on with after the context, by layer; empty of a
        model without any. Each call gives its own."""
        return {**self._compressors(), **copies(self._cache.layers)}

    def _compressors(self) -> dict[int, SessionLayer]:
        return {number: one.session() for number, one in self._whole_layers()}

    def _whole_layers(self) -> list[tuple[int, WholeLayer]]:
        layers = enumerate(self._cache.layers)
        return [(number, one) for number, one in layers if isinstance(one, WholeLayer)]

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent layers and of compressors that stay with a session, blocks of entries
        not yet full included at what they hold."""
        open_entries = sum(
            self.geometry.entries(layer, self._length)
            % self.geometry.block_tokens
            * self.geometry.entry_bytes(layer)
            for layer in range(self.geometry.layer_count)
        )
        compressors = sum(one.state_bytes for one in self._compressors().values())
        return open_entries + compressors + state_bytes(self._cache.layers)

    def restore(self, tensors: Mapping[str, Any], tokens: int) -> None:
        """Take `tensors` of a context of `tokens` tokens in place of `prefill`."""
        self._cache = _whole_cache(self.geometry)
        self._length = tokens
        parts: dict[int, dict[str, Any]] = {}
        for name in tensors.keys() - {"logits"}:
            number, _, part = name.partition(".")
            parts.setdefault(int(number), {})[part] = tensors[name].to(self._model.device)
        for at in sorted(parts):
            own = next(iter(self._cache.layers[at : at + 1]), None)
            if isinstance(own, WholeLayer):
                own.restore(parts[at], tokens)
                continue
            if own is not None and is_recurrent(own):
                take({at: own}, {f"{at}.{name}": one for name, one in parts[at].items()})
                continue
            self._cache.update(parts[at]["k"], parts[at]["v"], at)
            if "i" in parts[at]:
                self._cache.update_indexer(parts[at]["i"], at)
        if "logits" in tensors:
            self.last_logits = tensors["logits"].numpy()

    def front(self, tokens: int, states: States | None = None) -> "DenseKv":
        """A copy of the first `tokens` tokens, in whole blocks; its last logits are this one's.
        `states`: as the property, after these tokens: of a model with recurrent layers, and of one
        that compresses where this began at a later checkpoint."""
        found = self.anew()
        own = self._whole_blocks(tokens) if states and self.compresses else self._tensors(tokens)
        found.restore(own | (states or {}), tokens)
        return found

    def _whole_blocks(self, tokens: int) -> dict[str, Any]:
        size = self.geometry.block_tokens
        return {
            f"{number}.{name}": one
            for number, layer in self._whole_layers()
            for name, one in layer.whole_blocks(tokens, size).items()
        }

    def anew(self) -> "DenseKv":
        """One of the same model that has read nothing."""
        return DenseKv(self._model, self.geometry)

    def stored_tensors(self, layer: int, blocks: NDArray[np.uint8]) -> dict[str, Any]:
        """What `restore` takes of a layer of the tier, from its first blocks in order."""
        form, number = self.geometry.layers[layer], self._number(layer)
        planes = self._planes(layer, blocks)
        if form.form == "entries":
            return {f"{number}.compressor.entries": planes[0]}
        if form.planes == 2:
            keys, values = planes[:1], planes[1:]
        else:
            keys, values = planes[..., : form.value_dim], planes[..., form.value_dim :]
        return {f"{number}.k": keys, f"{number}.v": values}

    def _planes(self, layer: int, blocks: NDArray[np.uint8]) -> Any:
        """Blocks in the model's own numbers, as runs of tokens:
        `[planes, kv_heads, tokens, head_dim]`."""
        import torch

        numbers = torch.from_numpy(blocks).view(getattr(torch, self.geometry.value_type))
        paged = numbers.reshape(len(blocks), *self.geometry.block_shape(layer))
        return paged.permute(1, 2, 0, 3, 4).flatten(2, 3)

    def replace(self, layer: int, blocks: NDArray[np.uint8]) -> Callable[[], None]:
        """Attend in one layer to these blocks, as `blocks` gives them, until the returned call."""
        stored = self._cache.layers[self._number(layer)]
        before = stored.keys, stored.values
        halves = self._planes(layer, blocks).to(before[0])

        def undo() -> None:
            stored.keys, stored.values = before

        stored.keys, stored.values = halves[:1].contiguous(), halves[1:].contiguous()
        return undo

    def logits(self, tokens: Sequence[int]) -> Any:
        """Logits of each token after the context, float32 `[tokens, vocabulary]`."""
        import torch

        with torch.inference_mode():
            before = copies(self._cache.layers)
            found = self._pass(list(tokens), self._length, logits=len(tokens))
            self._forget(len(tokens), before)
            return found.float()

    def generate(
        self,
        choose: Callable[[NDArray[np.float32]], int],
        steps: int,
        advance: Callable[[int], None],
    ) -> list[int]:
        """`steps` tokens after the context, each chosen from logits `[vocabulary]`."""
        import torch

        found: list[int] = []
        logits = self.last_logits
        with torch.inference_mode():
            before = copies(self._cache.layers)
            for step in range(steps):
                found.append(choose(logits))
                last = self._pass(found[-1:], self._length + step, logits=1)
                logits = last[-1].float().cpu().numpy()
                advance(1)
            self._forget(steps, before)
        return found

    def _forget(self, tokens: int, before: Mapping[int, Any]) -> None:
        """Go back by as many tokens; to these states."""
        if not before:
            self._cache.crop(-tokens)
        for number in range(len(self._cache.layers) if before else 0):
            if number in before:
                self._cache.layers[number] = before[number]
            else:
                self._cache.layers[number].crop(-tokens)

    def _pass(self, tokens: list[int], first: int, logits: int) -> Any:
        import torch

        device = self._model.device
        positions = torch.arange(first, first + len(tokens), device=device)[None]
        return self._model(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=logits,
        ).logits[0]

    def blocks(
        self, layer: int, first_ordinal: int, identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Consecutive blocks of one layer, uint8 `[blocks, block_bytes]`."""
        size, count = self.geometry.block_tokens, len(identities)
        span = slice(first_ordinal * size, (first_ordinal + count) * size)
        return self._bytes(layer, span, count)

    def open_block(self, layer: int) -> NDArray[np.uint8]:
        """The block of entries that the context has begun, uint8 `[1, block_bytes]`, as if the
        others were 0: it is no chunk's yet, and so not the tier's."""
        geometry = self.geometry
        full, begun = divmod(geometry.entries(layer, self._length), geometry.block_tokens)
        found = np.zeros((1, geometry.block_bytes(layer)), np.uint8)
        first = full * geometry.block_tokens
        entries = self._bytes(layer, slice(first, first + begun), 1)
        found[:, : entries.shape[1]] = entries
        return found

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        """Full blocks of the context at any ordinals, uint8 `[blocks, block_bytes]`."""
        self.check_has(layer, ordinals, self.geometry.chunks_per_block(layer))
        size = self.geometry.block_tokens
        found = [self._bytes(layer, slice(one * size, (one + 1) * size), 1) for one in ordinals]
        return np.concatenate(found)

    def check_has(self, layer: int, ordinals: NDArray[np.integer], span: int = 1) -> None:
        """Raises RunFailed for a block behind the context. `span`: chunks that one spans."""
        if ordinals.max(initial=-1) * self.geometry.block_tokens >= self._length // span:
            raise RunFailed(
                f"the tier lost block {int(ordinals.max())} of layer {layer}, which decode had "
                "written",
                "host run",
                "see the daemon's log; run again",
            )

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float32]:
        """The keys inside blocks, float32 `[blocks, kv_heads, block_tokens, head_dim]`."""
        import torch

        shape = self.geometry.block_shape(layer)
        numbers = torch.from_numpy(blocks).view(getattr(torch, self.geometry.value_type))
        keys: NDArray[np.float32] = numbers.reshape(len(blocks), *shape)[:, 0].float().numpy()
        return keys

    def _number(self, layer: int) -> int:
        """The layer of the model that has this layer of the tier."""
        return next(at for at, parts in enumerate(self.geometry.parts) if layer in parts)

    def _entries(self, layer: int, span: slice) -> Any:
        """What is stored of some tokens, or entries, `[planes, kv_heads, entries, head_dim]`."""
        stored = self._cache.layers[self._number(layer)]
        if isinstance(stored, WholeLayer):
            compressed = self.geometry.layers[layer].form == "entries"
            return stored.entries[:, :, span] if compressed else stored.window(span)
        keys, values = stored.keys[:, :, span], stored.values[:, :, span]
        return entries_of(keys, values, self.geometry.block_shape(layer)[0] == 1)

    def _bytes(self, layer: int, span: slice, count: int) -> NDArray[np.uint8]:
        import torch

        if not count:
            return np.empty((0, self.geometry.block_bytes(layer)), np.uint8)
        numbers = self._entries(layer, span).to(getattr(torch, self.geometry.value_type))
        # [planes, kv_heads, blocks * tokens, head_dim] to blocks first
        paged = numbers.unflatten(2, (count, -1)).permute(2, 0, 1, 3, 4).contiguous()
        found: NDArray[np.uint8] = paged.cpu().flatten(1).view(torch.uint8).numpy()
        return found
