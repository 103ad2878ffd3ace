"""A model that our table does not have: given in a SPEC's `[model]`, or described by a config.json.

A config.json is in Hugging Face's format: a path, that of a model's folder, of a model that
`offstage models get` brought, or of an id in the local cache of Hugging Face. Nothing is ever
fetched. It says what a token's KV is; its parameters are counted from the matrices it describes,
with gated MLPs and one router for each layer of experts, which leaves out norms and biases.

What can fail: `BadInput` for a name that is none of these, a file without the fields of an
attention model, and layers with a sliding window, whose KV does not grow as a plan assumes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json
from offstage.bindings.settings import convert
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.testbeds.models.known import KNOWN
from offstage.testbeds.models.resolve import resolve

__all__ = ["Model", "described", "find_config"]

AGAIN = "give another, or write [model] in a SPEC"
HUB = "models--"
"""How the cache of Hugging Face begins the folder of a model: models--ORG--NAME."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A user-defined model. `head`: values of one KV head, or of the latent. Parameters in 10^9."""

    layers: Annotated[int, Meta(ge=1, le=10**4)]
    form: str = "gqa"
    heads: Annotated[int, Meta(ge=1, le=10**5)]
    kv_heads: Annotated[int, Meta(ge=0, le=10**5)] = 0
    head: Annotated[int, Meta(ge=1, le=10**5)]
    index: Annotated[int, Meta(ge=0, le=10**5)] = 0
    parameters: Annotated[float, Meta(gt=0, le=1e6)]
    active: Annotated[float, Meta(ge=0, le=1e6)] = 0.0

    def shape(
        self, name: str, source: str = "given in [model]"
    ) -> tuple[KvGeometry, Number, Number]:
        """As `kv.parameters` gives it for a published one."""
        if self.form not in ("gqa", "mha", "mla"):
            raise BadInput(f"form = {self.form!r}", "[model]", "choose gqa, mha or mla")
        form = {"mla": "mla"}.get(self.form, "gqa")
        heads = 1 if form == "mla" else self.heads if self.form == "mha" else self.kv_heads
        if not heads:
            raise BadInput("kv_heads is missing", "[model]", "give the heads that have K and V")
        layer = LayerKv("mla" if form == "mla" else "gqa", heads, self.head, index_dim=self.index)
        shape = KvGeometry(name, self.heads, (layer,) * self.layers, 64, source=source)
        return (
            shape,
            _given(self.parameters, source),
            _given(self.active or self.parameters, source),
        )


def _given(value: float, source: str) -> Number:
    return Number(
        value=value, unit="1e9", low=value, high=value, source=source, tag="cited", scale=1e9
    )


def find_config(name: str) -> Path | None:
    """The config.json that a name leads to, None where there is none. An id of Hugging Face may be
    in any case. BadInput for a known model that is not there."""
    path = Path(name).expanduser()
    if name in KNOWN:
        return resolve(name) / "config.json"
    if path.is_file() and path.suffix == ".json":
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    wanted = HUB + name.replace("/", "--").lower()
    for folder in sorted(hub.glob(f"{HUB}*")):
        if folder.name.lower() == wanted:
            found = sorted(
                folder.glob("snapshots/*/config.json"), key=lambda one: one.stat().st_mtime
            )
            return found[-1] if found else None
    return None


def described(path: Path) -> Model:
    """The model of a config.json."""
    config = read_json(path, AGAIN)
    text = config.get("text_config", config) if isinstance(config, dict) else None
    if not isinstance(text, dict):
        raise BadInput("not a model's config.json", str(path), AGAIN)
    kinds = text.get("layer_types") or ()
    if "sliding_attention" in kinds or text.get("use_sliding_window"):
        raise BadInput(
            "it has layers with a sliding window, whose KV stops growing", str(path), AGAIN
        )
    fields = _Fields(text, str(path))
    layers, heads = fields("num_hidden_layers"), fields("num_attention_heads")
    size = text.get("head_dim") or fields("hidden_size") // heads
    everything, active = _parameters(fields, layers, heads, size)
    latent = text.get("kv_lora_rank")
    return convert(
        {
            "layers": layers,
            "form": "mla" if latent else "gqa",
            "heads": heads,
            "kv_heads": text.get("num_key_value_heads") or heads,
            "head": latent + fields("qk_rope_head_dim") if latent else size,
            "index": text.get("index_head_dim") or 0,
            "parameters": everything / 1e9,
            "active": active / 1e9,
        },
        Model,
        str(path),
    )


class _Fields:
    """Whole numbers of a config.json by name. BadInput for one that is missing or is none."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where

    def __call__(self, *names: str, default: int | None = None) -> int:
        found = next(
            (self.config[one] for one in names if self.config.get(one) is not None), default
        )
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 40:
            raise BadInput(f"no whole number {names[0]} in it", self.where, AGAIN)
        return found


def _parameters(of: _Fields, layers: int, heads: int, size: int) -> tuple[int, int]:
    """All of a model's parameters, and those that one token passes."""
    width, dense = of("hidden_size"), 3 * of("hidden_size") * of("intermediate_size", default=0)
    tied = bool(of.config.get("tie_word_embeddings"))
    embedded = of("vocab_size") * width
    both = layers * _attention(of, width, heads, size) + embedded * (1 if tied else 2)
    experts = of("n_routed_experts", "num_local_experts", "num_experts", default=0)
    if not experts:
        return both + layers * dense, both + layers * dense
    inner = of("moe_intermediate_size", "intermediate_size")
    one = 3 * width * inner
    shared = of("n_shared_experts", default=0) * one
    shared += 3 * width * of("shared_expert_intermediate_size", default=0)
    first = min(layers, of("first_k_dense_replace", default=0))
    both += first * dense + (layers - first) * (shared + width * experts)
    used = of("num_experts_per_tok", "num_experts_per_token")
    routed = (layers - first) * one
    return both + routed * experts, both + routed * used


def _attention(of: _Fields, width: int, heads: int, size: int) -> int:
    """Parameters of one layer's projections."""
    latent = of("kv_lora_rank", default=0)
    if not latent:
        kv_heads = of("num_key_value_heads", default=heads)
        return 2 * width * size * (heads + kv_heads)
    rotary, plain = of("qk_rope_head_dim"), of("qk_nope_head_dim")
    value, rank = of("v_head_dim"), of("q_lora_rank", default=0)
    asked = heads * (rotary + plain)
    query = width * rank + rank * asked if rank else width * asked
    keys = width * (latent + rotary) + latent * heads * (plain + value)
    return query + keys + heads * value * width
