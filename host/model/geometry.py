"""The shape of a model's KV cache: what one token, one block and one session cost in bytes.

A `KvGeometry` is a tuple of layers, because layers differ: a DeepSeek-V4 model alternates two
kinds that compress the sequence by 4 and by 128. An *entry* is what one layer stores for
`tokens_per_entry` consecutive tokens; a *block* is `block_tokens` tokens of one layer, all its KV
heads. Index keys (the small keys a learned indexer scores) are counted, but belong to no
block: every selection reads all of them, so they stay in the HBM pool's memory with the weights.

Owns nothing, immutable, any thread. A shape that cannot exist raises `BadInput`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from offstage.bindings.errors import BadInput
from offstage.host.model.values import WIDTHS, ValueType

__all__ = ["KvForm", "KvGeometry", "LayerKv"]

KvForm = Literal["gqa", "mla", "csa", "hca"]


@dataclass(frozen=True)
class LayerKv:
    """What one layer stores.

    form: `gqa` (grouped or full multi-head: K and V per KV head), `mla` (one latent per token, read
    as key and as value), `csa` and `hca` (DeepSeek-V4's compressed sparse and heavily compressed
    attention: one latent per `tokens_per_entry` tokens, and a window of uncompressed ones).
    head_dim: values of one KV head in one entry; for a latent, its rank and its rotary values.
    value_dim: of a latent: how many of those, from the front, are read as its value; 0: all.
    window_tokens: uncompressed entries kept per session whatever its length; 0 without a window.
    index_dim: values of the indexer's key per entry; 0 where the layer has no indexer of its own.
    selection_layer: the layer whose selection this one reuses; -1 where it selects for itself.
    """

    form: KvForm
    kv_heads: int
    head_dim: int
    tokens_per_entry: int = 1
    window_tokens: int = 0
    index_dim: int = 0
    selection_layer: int = -1
    value_dim: int = 0

    @property
    def planes(self) -> int:
        """2 where K and V are stored apart, 1 where one latent serves as both."""
        return 2 if self.form == "gqa" else 1

    @property
    def entry_values(self) -> int:
        """Values of one entry, K and V of all heads."""
        return self.planes * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class KvGeometry:
    """A model's KV cache, its numbers stored as `value_type`; `source` says where the sizes are
    published. Raises `BadInput` when a number is out of range, when `block_tokens` is
    not a multiple of each layer's `tokens_per_entry`, or when a layer reuses the selection of a
    layer that comes later or that does not select."""

    name: str
    q_heads: int
    layers: tuple[LayerKv, ...]
    block_tokens: int
    value_type: ValueType = "float16"
    source: str = ""

    def __post_init__(self) -> None:
        if not self.layers:
            raise self._bad("has no layers", "give it at least one layer")
        if min(self.q_heads, self.block_tokens) < 1:
            raise self._bad("q_heads and block_tokens must be at least 1", "correct the number")
        for number, layer in enumerate(self.layers):
            self._check_layer(number, layer)

    def _check_layer(self, number: int, layer: LayerKv) -> None:
        if min(layer.kv_heads, layer.head_dim, layer.tokens_per_entry) < 1:
            raise self._bad(f"layer {number} has a size below 1", "correct the number")
        if min(layer.window_tokens, layer.index_dim, layer.value_dim) < 0:
            raise self._bad(f"layer {number} has a negative size", "correct the number")
        if layer.value_dim > (layer.head_dim if layer.planes == 1 else 0):
            raise self._bad(
                f"layer {number} reads {layer.value_dim} values as a value, and stores "
                f"{layer.head_dim} ({layer.form})",
                "give value_dim to a latent only, at most its head_dim",
            )
        if self.q_heads % layer.kv_heads:
            raise self._bad(
                f"layer {number}: {self.q_heads} query heads do not divide into "
                f"{layer.kv_heads} KV heads",
                "make q_heads a multiple of kv_heads",
            )
        if self.block_tokens % layer.tokens_per_entry:
            raise self._bad(
                f"layer {number} stores one entry per {layer.tokens_per_entry} tokens, and "
                f"block_tokens is {self.block_tokens}",
                f"make block_tokens a multiple of {layer.tokens_per_entry}",
            )
        source = layer.selection_layer
        if source >= 0 and (source >= number or self.layers[source].selection_layer >= 0):
            raise self._bad(
                f"layer {number} reuses the selection of layer {source}, which has none yet",
                "name an earlier layer that selects for itself",
            )

    def _bad(self, what: str, fix: str) -> BadInput:
        return BadInput(what, f"geometry {self.name!r}", fix)

    @property
    def value_bytes(self) -> int:
        """Bytes of one number of K or V."""
        return WIDTHS[self.value_type]

    @property
    def layer_count(self) -> int:
        """Layers of the model."""
        return len(self.layers)

    def entry_bytes(self, layer: int) -> int:
        """Bytes of one entry of `layer`, without its index key."""
        return self.layers[layer].entry_values * self.value_bytes

    def index_entry_bytes(self, layer: int) -> int:
        """Bytes of the index key of one entry of `layer`; 0 where it has no indexer."""
        return self.layers[layer].index_dim * self.value_bytes

    def bytes_per_token(self) -> int:
        """Bytes by which a long session grows with each token: entries and index keys of all
        layers, without windows, whose size does not depend on the length. A fraction of a byte
        counts as one."""
        return math.ceil(
            sum(
                Fraction(
                    self.entry_bytes(number) + self.index_entry_bytes(number),
                    layer.tokens_per_entry,
                )
                for number, layer in enumerate(self.layers)
            )
        )

    def block_bytes(self, layer: int, block_tokens: int | None = None) -> int:
        """Bytes of one block of `layer`: `block_tokens` tokens (default: the geometry's own).

        Raises `BadInput` when a block would hold a fraction of an entry."""
        tokens = self.block_tokens if block_tokens is None else block_tokens
        per_entry = self.layers[layer].tokens_per_entry
        if tokens < 1 or tokens % per_entry:
            raise self._bad(
                f"a block of {tokens} tokens does not hold whole entries of layer {layer}",
                f"use a multiple of {per_entry}",
            )
        return tokens // per_entry * self.entry_bytes(layer)

    def block_count(self, tokens: int) -> int:
        """Blocks per layer that hold `tokens` tokens; the last may be partly filled."""
        return -(-tokens // self.block_tokens)

    def session_bytes(self, tokens: int) -> int:
        """Bytes of one session of `tokens` tokens: entries (a begun one counts whole), index keys
        and windows of every layer."""
        total = 0
        for number, layer in enumerate(self.layers):
            entries = -(-tokens // layer.tokens_per_entry)
            total += entries * (self.entry_bytes(number) + self.index_entry_bytes(number))
            total += min(layer.window_tokens, tokens) * self.entry_bytes(number)
        return total

    def selection_source(self, layer: int) -> int:
        """The layer that makes `layer`'s selection: itself, or an earlier one it reuses."""
        source = self.layers[layer].selection_layer
        return layer if source < 0 else source

    def block_shape(self, layer: int = 0) -> tuple[int, int, int, int]:
        """The array inside a block: `(planes, kv_heads, block_tokens, head_dim)`, K before V or the
        latent alone.

        Raises `BadInput` for a layer that compresses several tokens into one entry: the paged
        kernels read an entry for each token."""
        form = self.layers[layer]
        if form.form not in ("gqa", "mla"):
            raise self._bad(
                f"layer {layer} stores {form.form} entries of {form.tokens_per_entry} tokens",
                "decode a geometry whose layers are gqa or mla, such as 'demo'",
            )
        return form.planes, form.kv_heads, self.block_tokens, form.head_dim

    def value_dim(self, layer: int = 0) -> int:
        """Values of what a query head of `layer` gets from attention."""
        form = self.layers[layer]
        return form.value_dim or form.head_dim
