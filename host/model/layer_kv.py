"""What one layer of a model keeps of a session: entries that grow with it, a window, a state.

An *entry* is what a layer stores for `tokens_per_entry` consecutive tokens. Index keys (the small
keys a learned indexer scores) are counted beside it. A state has one size whatever the length.

Owns nothing, immutable, any thread. A shape that cannot exist raises `BadInput`.
"""

from dataclasses import dataclass, replace
from typing import Literal

from offstage.bindings.errors import BadInput

__all__ = ["UNPUBLISHED", "KvForm", "LayerKv", "Layout"]

KvForm = Literal["gqa", "mla", "csa", "hca", "window", "entries", "state", "index", "none"]
Layout = Literal["heads", "latent", "compressed"]
"""Of an entry: K and V of each KV head; a latent of MLA; an entry of DeepSeek-V4."""
UNPUBLISHED = -1
"""As `top_k`: the layer selects, and no source that we have says how many entries."""
ENTRIES: tuple[KvForm, ...] = ("gqa", "mla", "csa", "hca", "window", "entries")
"""Forms that store entries."""


@dataclass(frozen=True)
class LayerKv:
    """What one layer stores.

    form: `gqa` (grouped or full multi-head: K and V per KV head), `mla` (one latent per token, read
    as key and as value), `csa` and `hca` (DeepSeek-V4's compressed sparse and heavily compressed
    attention: one latent per `tokens_per_entry` tokens, and a window of uncompressed ones),
    `window` (entries of the last `window_tokens` tokens and no others), `entries` (of a `csa` or
    `hca` the compressed ones alone: its window is the layer before), `state` (a recurrent state and
    no entries), `index` (no layer of the model, but the keys of some layers' indexers, one in the
    place of each KV head: `index_blocks.py`), `none` (an MLP alone).
    head_dim: values of one KV head in one entry; for a latent, its rank and its rotary values.
    value_dim: of a latent: how many of those, from the front, are read as its value; 0: all. A
    `window` that has one stores latents.
    rotary_dim: of a latent: its rotary values, which kernels keep in 16 bits where others have 8.
    window_tokens: uncompressed entries kept per session whatever its length; 0 without a window.
    index_dim: values of the indexer's key per entry; 0 where the layer has no indexer of its own.
    selection_layer: the layer whose selection this one reuses; -1 where it selects for itself.
    top_k: the most entries that the model itself reads in a step; 0: all; or `UNPUBLISHED`.
    granule_entries: how many neighbouring entries are selected together.
    state_bytes: a session's state, in types of its own: recurrent, of convolutions, of compressors.
    """

    form: KvForm
    kv_heads: int
    head_dim: int
    tokens_per_entry: int = 1
    window_tokens: int = 0
    index_dim: int = 0
    selection_layer: int = -1
    value_dim: int = 0
    rotary_dim: int = 0
    top_k: int = 0
    granule_entries: int = 1
    state_bytes: int = 0

    @property
    def planes(self) -> int:
        """2 where K and V are stored apart, 1 where one latent serves as both."""
        if self.form == "window":
            return 1 if self.value_dim else 2
        return 2 if self.form == "gqa" else 1

    @property
    def layout(self) -> Layout:
        """How kernels lay out an entry in few bits."""
        if self.planes == 2:
            return "heads"
        whole = self.form == "window" and self.value_dim == self.head_dim
        return "compressed" if whole or self.form in ("csa", "hca", "entries") else "latent"

    @property
    def entry_values(self) -> int:
        """Values of one entry, K and V of all heads."""
        return self.planes * self.kv_heads * self.head_dim

    @property
    def token_top_k(self) -> int:
        """The most tokens that the model reads in a step where it selects single ones; else 0."""
        alone = self.tokens_per_entry == self.granule_entries == 1
        return max(self.top_k, 0) if alone else 0

    @property
    def has_entries(self) -> bool:
        """Whether it stores any: no recurrent layer does."""
        return self.form in ENTRIES

    def in_tier(self) -> tuple["LayerKv", ...]:
        """The layers that a tier holds of it: itself, or of one that compresses its window, and
        then its entries with their index keys and states; none of one without entries."""
        if self.form not in ("csa", "hca"):
            return (self,) if self.has_entries else ()
        own = {"value_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        window = LayerKv("window", 1, self.head_dim, window_tokens=self.window_tokens, **own)
        return window, replace(self, form="entries", window_tokens=0)

    def check(self, number: int, where: str) -> None:
        """BadInput, which calls it layer `number`, for a number out of range or out of place."""
        sizes = (self.kv_heads, self.head_dim) if self.has_entries else (1,)
        rest = (self.window_tokens, self.index_dim, self.value_dim, self.rotary_dim)
        if min(*sizes, self.tokens_per_entry, self.granule_entries) < 1:
            raise BadInput(f"layer {number} has a size below 1", where, "correct the number")
        if min(*rest, self.state_bytes, self.top_k - UNPUBLISHED) < 0:
            raise BadInput(f"layer {number} has a negative size", where, "correct the number")
        if max(self.value_dim, self.rotary_dim) > (self.head_dim if self.planes == 1 else 0):
            raise BadInput(
                f"layer {number} reads {self.value_dim} values as a value and rotates "
                f"{self.rotary_dim}, and stores {self.head_dim} ({self.form})",
                where,
                "give value_dim and rotary_dim to a latent only, at most its head_dim",
            )
        if self.form == "window" and not self.window_tokens:
            raise BadInput(f"layer {number} has a window of 0 tokens", where, "give its length")
