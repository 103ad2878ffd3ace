"""Which kind of attention each layer of a config.json has.

Models say it in many ways: a word for each layer (`layer_types`), a number for each
(`compress_ratios`, `attn_type_list`), a letter for each (`hybrid_override_pattern`), which layers
are of one kind (`linear_attn_config`), or that each Nth is (`full_attention_interval`,
`sliding_window_pattern`). Here all of them become one word for each layer, as transformers' classes
read them.

Pure functions. `BadInput` for a word, number or letter that is not known, lists of another length,
and fields that change a cache and are not read here.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

from offstage.bindings.errors import nearest
from offstage.host.model.config_fields import Fields

__all__ = ["Kind", "layer_kinds"]

T = TypeVar("T", str, int)

Kind = Literal[
    "full", "window", "chunk", "indexed", "blocks", "csa", "hca", "linear", "conv", "none"
]
WORDS: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "indexed_attention": "indexed",
    "deepseek_sparse_attention": "indexed",
    "minimax_m3_sparse": "blocks",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "conv",
    "moe": "none",
    "mlp": "none",
}
"""By the words of `layer_types`."""
LETTERS: dict[str, Kind] = {"M": "linear", "*": "full", "-": "none", "E": "none"}
"""By the letters of `hybrid_override_pattern` (Nemotron-H)."""
RATIOS: dict[int, Kind] = {0: "window", 4: "csa", 128: "hca"}
"""By the numbers of `compress_ratios` (DeepSeek-V4)."""
SOFTMAX: dict[int, Kind] = {0: "linear", 1: "full"}
"""By the numbers of `attn_type_list` (MiniMax)."""
WINDOWED = ("mistral", "mixtral", "ministral", "phi3", "starcoder2")
"""Models in which `sliding_window` alone means every layer."""
NOT_READ = (
    "attention_k_eq_v",
    "block_configs",
    "cla_share_factor",
    "cross_attention_layers",
    "global_head_dim",
    "index_kpool",
    "is_encoder_decoder",
    "kv_sharing_modes",
    "multi_query",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
)
"""Fields that change what a layer keeps, in ways that no cache group describes yet."""
STATEFUL = (
    "conv_L_cache",
    "linear_attn",
    "linear_head",
    "linear_key",
    "linear_num",
    "linear_value",
    "mamba_",
    "rwkv",
    "ssm_",
)
"""How fields begin that only a model with recurrent layers has."""
LAYERS_MAX = 10_000
BY_LAYER = "write layer_types, a word for each layer"


def layer_kinds(of: Fields) -> list[Kind]:
    """The kind of every layer."""
    for name in NOT_READ:
        value = of.get(name)
        if value not in (None, 0, []) and (name, value) != ("index_kpool", 1):
            raise of.bad(
                f"{name} changes what layers keep, in a way that is not known here",
                "give a model without it",
            )
    listed = _listed(of)
    if listed:
        return listed
    kinds = _placed(of) or _every_nth(of) or _windowed(of) or ["full"] * _count(of)
    if not {"linear", "conv"} & set(kinds):
        for name in sorted(of.names):
            if name.startswith(STATEFUL) and of.get(name) not in (None, 0):
                raise of.bad(
                    f"{name} is of layers that keep a state, and no field says which those are",
                    BY_LAYER,
                )
    return kinds


def _count(of: Fields) -> int:
    layers = of.count("num_hidden_layers")
    if layers > LAYERS_MAX:
        raise of.bad(f"num_hidden_layers is {layers:,}", f"write at most {LAYERS_MAX:,}")
    return layers


def _listed(of: Fields) -> list[Kind] | None:
    """From a field that has something for each layer."""
    for name in ("layer_types", "layers_block_type"):
        words = of.words(name)
        if words is not None:
            return _mapped(of, name, words, WORDS)
    pattern = of.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return _mapped(of, "hybrid_override_pattern", list(pattern), LETTERS)
    for name, meaning in (("compress_ratios", RATIOS), ("attn_type_list", SOFTMAX)):
        numbers = of.numbers(name)
        if numbers is not None:
            return _mapped(of, name, numbers, meaning)
    sparse = of.inside("sparse_attention_config")
    chosen = None if sparse is None else sparse.numbers("sparse_attention_freq")
    if sparse is None or chosen is None:
        return None
    return _mapped(of, "sparse_attention_freq", chosen, {0: "full", 1: "blocks"})


def _mapped(of: Fields, name: str, found: Sequence[T], meaning: Mapping[T, Kind]) -> list[Kind]:
    """A kind for each layer. A list of DeepSeek-V4 goes on with the layers that draft."""
    drafts = name == "compress_ratios" or of.model_type == "deepseek_v4"
    count = _count(of) if of.get("num_hidden_layers") is not None else len(found)
    if not count or len(found) < count or (len(found) > count and not drafts):
        raise of.bad(
            f"{name} has {len(found)} entries, and num_hidden_layers is {count}",
            "write one for each layer",
        )
    for one in found[:count]:
        if one not in meaning:
            fix = nearest(one, map(str, meaning)) if isinstance(one, str) else ""
            known = ", ".join(map(str, meaning))
            raise of.bad(
                f"{name} has {one!r:.60}, a kind of layer that is not known here",
                fix or f"known are {known}",
            )
    return [meaning[one] for one in found[:count]]


def _placed(of: Fields) -> list[Kind] | None:
    """From fields that name the layers of one kind."""
    table = of.inside("linear_attn_config")
    if table is not None and {"full_attn_layers", "kda_layers"} <= set(table.given):
        full, linear = table.numbers("full_attn_layers"), table.numbers("kda_layers")
        return _kimi(of, full or [], linear or [])
    for name, other in (("attn_layer_indices", "linear"), ("full_attn_idxs", "conv")):
        places = of.numbers(name)
        if places is not None:
            rest: Kind = "linear" if other == "linear" else "conv"
            if beyond := [at for at in places if at >= _count(of)]:
                raise of.bad(
                    f"{name} has layer {beyond[0]}, and num_hidden_layers is {_count(of)}",
                    f"write layers of 0 to {_count(of) - 1}",
                )
            return ["full" if at in places else rest for at in range(_count(of))]
    if of.get("attn_layer_period") is not None:
        period = of.count("attn_layer_period")
        offset = of.count("attn_layer_offset", default=0, least=0)
        return ["full" if at % period == offset else "linear" for at in range(_count(of))]
    return None


def _kimi(of: Fields, full: list[int], linear: list[int]) -> list[Kind]:
    """Kimi Linear's two lists, which count layers from 1."""
    count = _count(of)
    if sorted([*full, *linear]) != list(range(1, count + 1)):
        raise of.bad(
            "full_attn_layers and kda_layers of linear_attn_config are not each layer once",
            f"write 1 to {count}, each in one of them",
        )
    return ["full" if at + 1 in full else "linear" for at in range(count)]


def _every_nth(of: Fields) -> list[Kind] | None:
    """From a field that says that each Nth layer reads everything."""
    for name in ("full_attention_interval", "sliding_window_pattern"):
        if of.get(name) is not None:
            period = of.count(name)
            rest: Kind = "window" if name == "sliding_window_pattern" else "linear"
            return [rest if (at + 1) % period else "full" for at in range(_count(of))]
    return None


def _windowed(of: Fields) -> list[Kind] | None:
    """From a window alone."""
    if of.get("attention_chunk_size") is not None:
        raise of.bad("attention_chunk_size, and no field says which layers have it", BY_LAYER)
    window, used = of.get("sliding_window"), of.flag("use_sliding_window")
    if window is None or used is False:
        return None
    if used is None and of.model_type not in WINDOWED:
        raise of.bad(
            f"sliding_window is {window!r:.40}, and no field says which layers have it",
            f"{BY_LAYER}, or null for sliding_window",
        )
    first = of.count("max_window_layers", default=0, least=0) if used else 0
    return ["window" if at >= first else "full" for at in range(_count(of))]
