"""The shape of a model's KV cache: what one token, one block and one session cost in bytes.

A `KvGeometry` is a tuple of layers, because layers differ: a DeepSeek-V4 model alternates two
kinds that compress the sequence by 4 and by 128. What they keep in the same way is one cache group
(`groups.py`), and every sum of bytes is over groups. A *block* is `block_tokens` tokens of one
layer, all its KV heads. Index keys are counted, but belong to no block of their layer: every
selection reads all of them, so they stay in the HBM pool's memory with the weights, unless blocks
of their own hold them (`index_blocks.py`).

In a tier all blocks have one size. A layer that compresses is two layers there (`in_tier`), its
window and its entries, and a block of either holds as many entries: one of compressed entries
spans several chunks, and is the last one's. Blocks of such a layer are counted, and tokens in them,
in entries.

Owns nothing, immutable, any thread. A shape that cannot exist raises `BadInput`.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.host.model.formats import entry_bytes
from offstage.host.model.groups import CacheGroup, groups_of
from offstage.host.model.layer_kv import KvForm, LayerKv
from offstage.host.model.rows import Row, row_of
from offstage.host.model.values import WIDTHS, ValueType

__all__ = ["KvForm", "KvGeometry", "LayerKv"]


SPANNING: tuple[KvForm, ...] = ("entries", "index")
"""Forms whose blocks hold as many entries as a chunk has tokens, and so span several chunks where
an entry is of several tokens."""


@dataclass(frozen=True)
class KvGeometry:
    """A model's KV cache, its numbers stored as `value_type`; `source` says where the sizes are
    published; `context_tokens`: the longest session that the model takes, 0 where none is stated.
    `scaled`: entries and index keys are FP8 rows of these numbers (`rows.py`). `absent`: of a tier,
    the model's layers that it holds nothing of, ascending: they keep states. Raises `BadInput`
    when a number is out of range, when `block_tokens` is not a multiple of each layer's
    `tokens_per_entry`, when a layer reuses the selection of a layer that comes later or that does
    not select, or when a layer cannot be FP8 rows."""

    name: str
    q_heads: int
    layers: tuple[LayerKv, ...]
    block_tokens: int
    value_type: ValueType = "float16"
    source: str = ""
    context_tokens: int = 0
    scaled: bool = False
    absent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise self._bad("has no layers", "give it at least one layer")
        if min(self.q_heads, self.block_tokens) < 1:
            raise self._bad("q_heads and block_tokens must be at least 1", "correct the number")
        for number, layer in enumerate(self.layers):
            self._check_layer(number, layer)
            if self.scaled and layer.has_entries:
                row_of(layer, number, self._where)

    def _check_layer(self, number: int, layer: LayerKv) -> None:
        layer.check(number, self._where)
        if layer.has_entries and self.q_heads % layer.kv_heads:
            raise self._bad(
                f"layer {number}: {self.q_heads} query heads do not divide into "
                f"{layer.kv_heads} KV heads",
                "make q_heads a multiple of kv_heads",
            )
        if layer.form not in SPANNING and self.block_tokens % layer.tokens_per_entry:
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
        return BadInput(what, self._where, fix)

    @property
    def _where(self) -> str:
        return f"geometry {self.name!r}"

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """What its layers keep, by kind: the description behind every sum of bytes."""
        return groups_of(self.layers)

    @property
    def value_bytes(self) -> int:
        """Bytes of one number of K or V, where it is not in FP8 rows."""
        return WIDTHS[self.value_type]

    @property
    def layer_count(self) -> int:
        """Layers of the model, and those of index keys in the tier."""
        return len(self.layers)

    def entry_bytes(self, layer: int) -> int:
        """Bytes of one entry of `layer`, without its index key."""
        form = self.layers[layer]
        return form.planes * form.kv_heads * self.vector_bytes(layer)

    def row(self, layer: int) -> Row | None:
        """How a vector of `layer` lies in FP8 with its scales; None where it is numbers."""
        return row_of(self.layers[layer], layer, self._where) if self.scaled else None

    def vector_bytes(self, layer: int) -> int:
        """Bytes of K or of V of one head and entry, or of a latent, as they are stored."""
        row = self.row(layer)
        return self.layers[layer].head_dim * self.value_bytes if row is None else row.size_bytes

    def index_entry_bytes(self, layer: int) -> int:
        """Bytes of the index key of one entry of `layer`; 0 where it has no indexer."""
        keys = groups_of([self.layers[layer]])
        return sum(self._stored(one) for one in keys if one.kind == "indexer")

    def _stored(self, group: CacheGroup) -> int:
        """Bytes of one entry of a group's layer."""
        if self.scaled:
            return math.ceil(entry_bytes(group, "fp8").high)
        return group.values * self.value_bytes

    def bytes_per_token(self) -> int:
        """Bytes by which a long session grows with each token: entries and index keys of all
        layers, without windows, whose size does not depend on the length. A fraction of a byte
        counts as one."""
        return math.ceil(
            sum(
                Fraction(one.layer_count * self._stored(one), one.tokens_per_entry)
                for one in self.groups
                if one.grows
            )
        )

    def block_bytes(self, layer: int, block_tokens: int | None = None) -> int:
        """Bytes of one block of `layer`: `block_tokens` tokens (default: the geometry's own).

        Raises `BadInput` when a block would hold a fraction of an entry."""
        tokens = self.block_tokens if block_tokens is None else block_tokens
        form = self.layers[layer]
        per_entry = 1 if form.form in SPANNING else form.tokens_per_entry
        if tokens < 1 or tokens % per_entry:
            raise self._bad(
                f"a block of {tokens} tokens does not hold whole entries of layer {layer}",
                f"use a multiple of {per_entry}",
            )
        return tokens // per_entry * self.entry_bytes(layer)

    def in_tier(self, block_tokens: int, value_type: ValueType) -> "KvGeometry":
        """The layers that a tier holds of this model, in blocks of `block_tokens` entries."""
        layers = tuple(part for layer in self.layers for part in layer.in_tier())
        absent = tuple(number for number, one in enumerate(self.layers) if not one.has_entries)
        return replace(
            self, layers=layers, block_tokens=block_tokens, value_type=value_type, absent=absent
        )

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """By layer of the model, the layers that its attention reads: one, a window and the entries
        beside it, or none where it keeps a state. Behind them, each layer of index keys."""
        found: list[tuple[int, ...]] = []
        for number, layer in enumerate(self.layers):
            if layer.form == "entries":
                found[-1] = (*found[-1], number)
            else:
                found.append((number,))
        for number in self.absent:
            found.insert(number, ())
        return tuple(found)

    def beside(self, layer: int) -> int | None:
        """The layer of entries that is read in one softmax with this window; None without one."""
        after = layer + 1
        found = after < self.layer_count and self.layers[after].form == "entries"
        return after if found else None

    def chunks_per_block(self, layer: int) -> int:
        """Chunks that a block of `layer` spans. The last of them names it."""
        form = self.layers[layer]
        return form.tokens_per_entry if form.form in SPANNING else 1

    def chunks_of(self, layer: int, ordinals: NDArray[np.integer]) -> NDArray[np.int64]:
        """The chunks that name these blocks."""
        return (ordinals.astype(np.int64) + 1) * self.chunks_per_block(layer) - 1

    def entries(self, layer: int, tokens: int) -> int:
        """Entries that `layer` has made of `tokens` tokens."""
        return tokens // self.chunks_per_block(layer)

    def block_count(self, tokens: int, layer: int | None = None) -> int:
        """Blocks of `layer` that hold `tokens` tokens, the last partly filled perhaps; without one,
        of a layer that keeps an entry for each token."""
        entries = tokens if layer is None else self.entries(layer, tokens)
        return -(-entries // self.block_tokens)

    def session_bytes(self, tokens: int) -> int:
        """Bytes of one session of `tokens` tokens: entries (a begun one counts whole), index keys
        and windows of every layer, and states."""
        held = (one.layer_count * one.entries(tokens) * self._stored(one) for one in self.groups)
        return sum(held) + self.state_bytes

    def resident_bytes(self, tokens: int) -> int:
        """Of `session_bytes`, what every step reads whole: it cannot wait in a tier."""
        whole = [one for one in self.groups if one.is_resident]
        entries = sum(one.layer_count * one.entries(tokens) * one.values for one in whole)
        states = sum(one.layer_count * one.state_bytes for one in whole)
        return entries * self.value_bytes + states

    @property
    def state_bytes(self) -> int:
        """Bytes of a session's states, which have types of their own and do not grow."""
        return sum(one.layer_count * one.state_bytes for one in self.groups)

    def selection_source(self, layer: int) -> int:
        """The layer that makes `layer`'s selection: itself, or an earlier one it reuses."""
        source = self.layers[layer].selection_layer
        return layer if source < 0 else source

    def block_shape(self, layer: int = 0) -> tuple[int, int, int, int]:
        """The array inside a block: `(planes, kv_heads, block_tokens, head_dim)`, K before V or the
        latent alone.

        Raises `BadInput` for a layer that compresses beside its window: a tier holds the two
        apart, `in_tier`."""
        form = self.layers[layer]
        if form.form not in ("gqa", "mla", "window", "entries", "index"):
            raise self._bad(
                f"layer {layer} stores {form.form} entries of {form.tokens_per_entry} tokens",
                "decode a geometry whose layers are gqa, mla or window, such as 'demo'",
            )
        return form.planes, form.kv_heads, self.block_tokens, form.head_dim

    def is_window(self, layer: int) -> bool:
        """Whether `layer` reads the last tokens alone, whatever the length."""
        return self.layers[layer].form == "window"

    def is_read_whole(self, layer: int) -> bool:
        """Whether a step reads all that the tier holds of `layer` for it, and selects nothing."""
        form = self.layers[layer]
        return form.form in ("window", "index") or (form.form == "entries" and not form.top_k)

    def is_scored(self, layer: int) -> bool:
        """Whether queries score the blocks of `layer` by summaries of their keys: of compressed
        entries and of index keys none does."""
        return self.layers[layer].form not in ("entries", "index")

    def first_token(self, layer: int, tokens: int) -> int:
        """The first token that `layer` reads for the last of `tokens` tokens."""
        return max(0, tokens - self.layers[layer].window_tokens) if self.is_window(layer) else 0

    def first_block(self, layer: int, tokens: int) -> int:
        """The block that holds `first_token`: no later step reads one before it."""
        return self.first_token(layer, tokens) // self.block_tokens

    def blocks_read(self, tokens: int) -> int:
        """Blocks of all layers that hold what attention can read for the last of `tokens`."""
        return sum(
            self.block_count(tokens, number) - self.first_block(number, tokens)
            for number, layer in enumerate(self.layers)
            if layer.has_entries
        )

    def value_dim(self, layer: int = 0) -> int:
        """Values of what a query head of `layer` gets from attention."""
        form = self.layers[layer]
        return form.value_dim or form.head_dim
