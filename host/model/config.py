"""A model's KV cache, read from its config.json: layer by layer, as its transformers class does.

What is read is what sizes a cache: which kind each layer is (`config_layers.py`), heads, latents,
windows, compression, indexers, states (`recurrent.py`). Modules that draft
(`num_nextn_predict_layers`) are no layers of the model and are left out.

Pure. `BadInput` names the field: one that is missing, a window of 0 or longer than the context, an
indexer that selects more than the context has, or that has no keys, a latent whose rotary values
are not stated.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from offstage.host.model.config_fields import Fields, read_fields
from offstage.host.model.config_layers import Kind, layer_kinds
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.layer_kv import LayerKv
from offstage.host.model.recurrent import compressor_bytes, conv_bytes, state_bytes

__all__ = ["geometry_of"]

BLOCK_TOKENS = 64
CONTEXT = ("max_position_embeddings", "model_max_length", "max_sequence_length", "seq_length")
"""Names of the longest context."""


def geometry_of(config: object, name: str, where: str, source: str = "") -> KvGeometry:
    """The geometry that a decoded config.json describes. `where`: its file, for errors."""
    of = read_fields(config, where)
    reader = _Reader(of)
    kinds = reader.with_indexers(layer_kinds(of))
    layers = tuple(reader.layer(kind) for kind in kinds)
    layers = tuple(_shared(of, kinds, layers))
    block = math.lcm(BLOCK_TOKENS, *(2 * one.tokens_per_entry for one in layers))
    return KvGeometry(
        name,
        of.count("num_attention_heads"),
        layers,
        block,
        source=source or f"read from {where}",
        context_tokens=reader.context_tokens,
    )


class _Reader:
    """Makes the layers of one config.json."""

    def __init__(self, of: Fields) -> None:
        self._of = of
        found = of.find(*CONTEXT)
        self.context_tokens = 0 if found is None else of.count(*CONTEXT)
        self._rank = of.count("kv_lora_rank") if of.get("kv_lora_rank") is not None else 0

    def with_indexers(self, kinds: list[Kind]) -> list[Kind]:
        """The same, where an indexer belongs to every layer with latents: those with
        `index_topk` and no word of their own."""
        selects = self._rank and self._of.find("index_topk", "index_head_dim") is not None
        if not selects or "indexed" in kinds:
            return kinds
        return ["indexed" if one == "full" else one for one in kinds]

    def layer(self, kind: Kind) -> LayerKv:
        """One layer of this kind."""
        make: dict[Kind, Callable[[], LayerKv]] = {
            "full": self._full,
            "window": lambda: self._window("sliding_window"),
            "chunk": lambda: self._window("attention_chunk_size"),
            "indexed": self._indexed,
            "blocks": self._blocks,
            "csa": lambda: self._compressed("csa"),
            "hca": lambda: self._compressed("hca"),
            "linear": lambda: LayerKv("state", 0, 0, state_bytes=state_bytes(self._of)),
            "conv": lambda: LayerKv("state", 0, 0, state_bytes=conv_bytes(self._of)),
            "none": lambda: LayerKv("none", 0, 0),
        }
        return make[kind]()

    def _full(self) -> LayerKv:
        """K and V of every token, or its latent."""
        if self._rank:
            return self._latent()
        of = self._of
        heads = of.count("num_attention_heads")
        kv_heads = of.count("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise of.bad(
                f"num_key_value_heads is {kv_heads}, which does not divide the {heads} of "
                "num_attention_heads",
                "write as many KV heads as share the query heads evenly",
            )
        dim = self._head_dim(heads)
        if of.get("v_head_dim") not in (None, dim):
            raise of.bad(
                f"v_head_dim is {of.get('v_head_dim')!r:.40} and head_dim {dim}: K and V of two "
                "sizes are not known here",
                "give a model whose K and V have one size",
            )
        return LayerKv("gqa", kv_heads, dim)

    def _head_dim(self, heads: int) -> int:
        """Values of one head."""
        if self._of.get("head_dim") is not None:
            return self._of.count("head_dim")
        width = self._of.count("hidden_size")
        if width < heads:
            raise self._of.bad(
                f"hidden_size is {width}, less than the {heads} of num_attention_heads",
                "write head_dim, or the sizes as the model has them",
            )
        return width // heads

    def _latent(self) -> LayerKv:
        """A latent of MLA and the rotary values beside it."""
        of = self._of
        if of.has("kv_lora_rank") and not of.has("qk_rope_head_dim"):
            raise of.bad(
                f"kv_lora_rank is {self._rank}, and there is no qk_rope_head_dim",
                "write the rotary values beside a latent in qk_rope_head_dim, 0 for none",
            )
        rotary = of.count("qk_rope_head_dim", least=0)
        return LayerKv("mla", 1, self._rank + rotary, value_dim=self._rank, rotary_dim=rotary)

    def _window(self, name: str) -> LayerKv:
        """Entries of the last tokens alone: of DeepSeek-V4 one latent, of others K and V."""
        whole = self._compressed_entry() if self._is_compressed else self._full()
        latent = whole.planes == 1
        return replace(
            whole,
            form="window",
            value_dim=(whole.value_dim or whole.head_dim) if latent else 0,
            window_tokens=self._window_tokens(name),
        )

    def _window_tokens(self, name: str) -> int:
        of = self._of
        if of.flag("use_sliding_window") is False and name == "sliding_window":
            raise of.bad(
                "layers with sliding_attention, and use_sliding_window is false",
                "write true, or full_attention in layer_types",
            )
        if of.get(name) is None:
            raise of.bad(f"layers with a window, and no {name}", f"write its tokens in {name}")
        tokens = of.count(name)
        if self.context_tokens and tokens > self.context_tokens:
            raise of.bad(
                f"{name} is {tokens:,}, longer than the context of {self.context_tokens:,} tokens",
                f"write a shorter one, or null for {name} where nothing is cut",
            )
        return tokens

    def _indexed(self) -> LayerKv:
        """A token's entries, and the key by which an indexer scores them."""
        keys, whole = self._index_dim("index_topk"), self._full()
        if whole.rotary_dim > keys:
            raise self._of.bad(
                f"index_head_dim is {keys}, less than the {whole.rotary_dim} of qk_rope_head_dim",
                "write the size of an index key, rotary values included, in index_head_dim",
            )
        return replace(whole, index_dim=keys, top_k=self._top_k("index_topk", 1))

    def _blocks(self) -> LayerKv:
        """The same, selected in blocks (MiniMax-M3)."""
        table = self._of.inside("sparse_attention_config")
        if table is not None and table.has("sparse_index_dim"):
            keys = table.count("sparse_index_dim")
            block, count = table.count("sparse_block_size"), table.count("sparse_topk_blocks")
        else:
            keys = self._index_dim("index_topk_blocks")
            block = self._of.count("index_block_size")
            count = self._of.count("index_topk_blocks")
        self._check_top_k("index_topk_blocks", count, block)
        return replace(self._full(), index_dim=keys, top_k=count * block, granule_entries=block)

    def _index_dim(self, selects: str) -> int:
        """Values of an index key. A file that says the one and not the other contradicts itself."""
        of = self._of
        for name, other in ((selects, "index_head_dim"), ("index_head_dim", selects)):
            if of.has(name) and not of.has(other):
                raise of.bad(
                    f"{name} is {of.get(name)!r:.40}, and there is no {other}",
                    f"write {other}: an indexer has keys and selects by them",
                )
        return of.count("index_head_dim")

    def _top_k(self, name: str, tokens_per_entry: int) -> int:
        top_k = self._of.count(name)
        self._check_top_k(name, top_k, tokens_per_entry)
        return top_k

    def _check_top_k(self, name: str, count: int, tokens_each: int) -> None:
        if self.context_tokens and count * tokens_each > self.context_tokens:
            each = f" of {tokens_each} tokens each" if tokens_each > 1 else ""
            raise self._of.bad(
                f"{name} is {count:,}{each}, above the context of {self.context_tokens:,} tokens",
                f"write a smaller {name}",
            )

    @property
    def _is_compressed(self) -> bool:
        """Whether the model is a DeepSeek-V4."""
        return self._of.model_type == "deepseek_v4" or self._of.get("compress_ratios") is not None

    def _compressed_entry(self) -> LayerKv:
        """DeepSeek-V4's latent: one for all heads, its last values rotary."""
        of = self._of
        dim = of.count("head_dim")
        share = of.get("partial_rotary_factor")
        if of.has("qk_rope_head_dim"):
            rotary = of.count("qk_rope_head_dim", least=0)
        else:
            given = isinstance(share, float) and 0 <= share <= 1
            rotary = round(dim * share) if given else dim // 8
        return LayerKv("hca", 1, dim, rotary_dim=min(rotary, dim))

    def _compressed(self, form: str) -> LayerKv:
        """A layer of DeepSeek-V4: compressed entries, a window, and compressors' buffers."""
        whole, window = self._compressed_entry(), self._window_tokens("sliding_window")
        ratio, dim = self._ratio(form), whole.head_dim
        if form == "hca":
            state = compressor_bytes(ratio, dim, overlaps=False)
            return replace(whole, tokens_per_entry=ratio, window_tokens=window, state_bytes=state)
        keys = self._index_dim("index_topk")
        state = compressor_bytes(ratio, dim, overlaps=True)
        return replace(
            whole,
            form="csa",
            tokens_per_entry=ratio,
            window_tokens=window,
            index_dim=keys,
            top_k=self._top_k("index_topk", ratio),
            state_bytes=state + compressor_bytes(ratio, keys, overlaps=True),
        )

    def _ratio(self, form: str) -> int:
        """Tokens of one compressed entry."""
        long = "compressed_sparse" if form == "csa" else "heavily_compressed"
        table = self._of.inside("compress_rates")
        if table is not None and table.has(f"{long}_attention"):
            return table.count(f"{long}_attention", least=2)
        return self._of.count(f"compress_rate_{form}", default=4 if form == "csa" else 128, least=2)


def _shared(of: Fields, kinds: list[Kind], layers: tuple[LayerKv, ...]) -> list[LayerKv]:
    """The layers, those without an indexer of their own with the one whose selection they reuse
    (IndexShare)."""
    types = _indexer_types(of, len(layers))
    found, last = list(layers), -1
    for number, kind in enumerate(kinds):
        if kind != "indexed":
            continue
        if types[number] == "full":
            last = number
        elif last < 0:
            raise of.bad(
                f"layer {number} shares an indexer, and none before it has one",
                "write full for the first layer in indexer_types",
            )
        else:
            found[number] = replace(layers[number], index_dim=0, selection_layer=last)
    return found


def _indexer_types(of: Fields, count: int) -> list[str]:
    """`full` or `shared` for each layer, as transformers' GlmMoeDsaConfig derives them."""
    types, pattern = of.words("indexer_types"), of.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        types = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if types is None:
        each = of.count("index_topk_freq", default=1)
        first = of.count("index_skip_topk_offset", default=2, least=0)
        places = (max(at - first + 1, 0) % each for at in range(count))
        types = ["shared" if place else "full" for place in places]
    unknown = next((one for one in types if one not in ("full", "shared")), None)
    if unknown is not None or len(types) != count:
        what = f"{unknown!r:.40}" if unknown else f"{len(types)} entries for {count} layers"
        raise of.bad(f"indexer_types has {what}", "write full or shared for each layer")
    return types
