"""Cache groups: what the layers of a model keep of a session, by kind.

A *cache group* is what several layers keep in the same way: entries of one size for so many tokens
each, kept for the whole context or for a window, read whole or by a selection; or a state. A layer
may belong to several: one of DeepSeek-V4 has compressed entries, a window, index keys and the
buffer of its compressor. Bytes are what formats make of an entry's values (`formats.py`).

| kind | one entry | kept | a step reads |
|---|---|---|---|
| full | K and V of a token | with the context | all, or what the model selects |
| latent | the latent of a token (MLA) | with the context | all, or the top k |
| compressed | one latent for so many tokens | with the context | all (c128), or the top k (c4) |
| window | as the layer's others, uncompressed | for the last tokens | all |
| indexer | the key by which a selection scores an entry | with the context | all |
| recurrent | none: a state of one size | with the session | all, and writes it |
| compressor | none: the tokens of an entry not yet full | with the session | all, and writes it |

Pure functions of layers, immutable, any thread. Nothing can fail: `KvGeometry` has checked them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from offstage.host.model.layer_kv import UNPUBLISHED, LayerKv, Layout

__all__ = ["CacheGroup", "GroupKind", "Life", "Selected", "groups_of"]

GroupKind = Literal["full", "latent", "compressed", "window", "indexer", "recurrent", "compressor"]
Life = Literal["context", "window", "session"]
"""How long an entry lives: as long as its token is context; until it is behind the window; a state
is replaced at each step, as long as its session lives."""
Selected = Literal["all", "top-k", "window", "state"]
"""What a step reads: every entry; the best by the model's own indexer; the window; the state."""
ORDER: tuple[GroupKind, ...] = (
    "full",
    "latent",
    "compressed",
    "window",
    "indexer",
    "recurrent",
    "compressor",
)


@dataclass(frozen=True)
class CacheGroup:
    """One group.

    layers: their numbers. values: of one entry of one layer. vectors: those that may have a scale:
    K and V of each head; 1 of a latent. rotary: values kept in 16 bits by kernels that store the
    others in fewer. tokens_per_entry: the compression. tokens_max: the window, 0 without one.
    top_k: entries of a layer that a step reads at most; 0: all; `UNPUBLISHED`: some.
    granule_entries: neighbours selected together. selectors: how many of the layers select for
    themselves; the others reuse what an earlier one selected. state_bytes: of one layer.
    """

    kind: GroupKind
    layout: Layout
    values: int = 0
    vectors: int = 0
    rotary: int = 0
    tokens_per_entry: int = 1
    tokens_max: int = 0
    top_k: int = 0
    granule_entries: int = 1
    state_bytes: int = 0
    layers: tuple[int, ...] = ()
    selectors: int = 0

    @property
    def layer_count(self) -> int:
        """Layers that keep it."""
        return len(self.layers)

    @property
    def grows(self) -> bool:
        """Whether each token adds to it, however long the session is."""
        return bool(self.values) and not self.tokens_max

    @property
    def lives(self) -> Life:
        """How long what it holds is kept."""
        if not self.values:
            return "session"
        return "window" if self.tokens_max else "context"

    @property
    def selected(self) -> Selected:
        """What a step reads of it."""
        if not self.values:
            return "state"
        if self.tokens_max:
            return "window"
        return "top-k" if self.top_k else "all"

    @property
    def is_resident(self) -> bool:
        """Whether every step reads all of it: it cannot wait in a tier while its session decodes,
        unless a selection of our own, which approximates, reads less."""
        return self.selected != "top-k"

    def entries(self, tokens: int) -> int:
        """Entries of one layer after `tokens` tokens; a begun one counts whole."""
        if not self.values:
            return 0
        if self.tokens_max:
            return min(tokens, self.tokens_max)
        return -(-tokens // self.tokens_per_entry)

    def read(self, tokens: int) -> int | None:
        """Entries of one layer that a step reads at most; None where that is not published."""
        if self.top_k == UNPUBLISHED:
            return None
        entries = self.entries(tokens)
        return min(self.top_k, entries) if self.top_k else entries


def groups_of(layers: Sequence[LayerKv]) -> tuple[CacheGroup, ...]:
    """The groups of a model's layers, kind by kind, each in the order of their first layers."""
    found: dict[CacheGroup, list[int]] = {}
    for number, layer in enumerate(layers):
        for group in _alone(layer):
            found.setdefault(group, []).append(number)
    made = [
        replace(
            group,
            layers=tuple(numbers),
            selectors=sum(layers[one].selection_layer < 0 for one in numbers) if group.top_k else 0,
        )
        for group, numbers in found.items()
    ]
    return tuple(sorted(made, key=lambda one: (ORDER.index(one.kind), one.layers)))


def _alone(layer: LayerKv) -> Iterator[CacheGroup]:
    """The groups that a layer belongs to, as if there were no other layer."""
    if layer.has_entries and layer.form != "window":
        yield _entries(layer)
    if layer.has_entries and layer.window_tokens:
        window = replace(_entries(layer), kind="window", tokens_per_entry=1)
        yield replace(window, tokens_max=layer.window_tokens, top_k=0, granule_entries=1)
    if layer.index_dim:
        index = replace(_entries(layer), kind="indexer", values=layer.index_dim, vectors=1)
        yield replace(index, rotary=0, top_k=0, granule_entries=1)
    if layer.state_bytes:
        kind: GroupKind = "compressor" if layer.has_entries else "recurrent"
        yield CacheGroup(kind, layer.layout, state_bytes=layer.state_bytes)


def _entries(layer: LayerKv) -> CacheGroup:
    """The entries that grow with the context."""
    kinds: dict[Layout, GroupKind] = {
        "heads": "full",
        "latent": "latent",
        "compressed": "compressed",
    }
    return CacheGroup(
        kinds[layer.layout],
        layer.layout,
        values=layer.entry_values,
        vectors=layer.planes * layer.kv_heads if layer.layout == "heads" else 1,
        rotary=layer.rotary_dim,
        tokens_per_entry=layer.tokens_per_entry,
        top_k=layer.top_k,
        granule_entries=layer.granule_entries,
    )
