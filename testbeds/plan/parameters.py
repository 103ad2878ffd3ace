"""A model's parameters, counted from the matrices that its config.json describes.

Projections of every layer by its kind, gated MLPs, one router for each layer of experts, and
embeddings. Norms, biases, convolutions and indexers are left out: below a hundredth.

Pure. `BadInput` for a field that is missing, and for layers whose projections are not known here.
"""

from offstage.host.model.config_fields import Fields
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.layer_kv import LayerKv

__all__ = ["counted"]

AGAIN = "name a model of our table, or write [model] in a SPEC"


def counted(of: Fields, shape: KvGeometry) -> tuple[int, int]:
    """All of a model's parameters, and those that one token passes."""
    layers, width = shape.layer_count, of.count("hidden_size")
    dense = 3 * width * _count(of, "intermediate_size")
    embedded = of.count("vocab_size") * width
    both = sum(_projections(of, layer, width) for layer in shape.layers)
    both += embedded * (1 if of.get("tie_word_embeddings") else 2)
    experts = _count(of, "n_routed_experts", "num_local_experts", "num_experts")
    if not experts:
        return both + layers * dense, both + layers * dense
    one = 3 * width * of.count("moe_intermediate_size", "intermediate_size")
    shared = _count(of, "n_shared_experts", "num_shared_experts") * one
    shared += 3 * width * _count(of, "shared_expert_intermediate_size")
    first = min(layers, _count(of, "first_k_dense_replace"))
    both += first * dense + (layers - first) * (shared + width * experts)
    used = of.count("num_experts_per_tok", "num_experts_per_token")
    routed = (layers - first) * one
    return both + routed * experts, both + routed * used


def _count(of: Fields, *names: str) -> int:
    """A number that is 0 where a model has none."""
    return of.count(*names, default=0, least=0)


def _projections(of: Fields, layer: LayerKv, width: int) -> int:
    """Parameters of one layer's attention, or of what it has in its place."""
    if layer.layout == "heads" and layer.has_entries:
        heads = of.count("num_attention_heads")
        return 2 * width * layer.head_dim * (heads + layer.kv_heads)
    if layer.form == "mla":
        return _latent(of, width)
    if layer.form == "state" and of.find("linear_num_value_heads") is not None:
        keys = of.count("linear_num_key_heads") * of.count("linear_key_head_dim")
        values = of.count("linear_num_value_heads")
        wide = values * of.count("linear_value_head_dim")
        return width * (2 * keys + 2 * wide + 2 * values) + wide * width
    if layer.form == "state" and of.find("linear_attn_config", "linear_num_heads") is not None:
        table = of.inside("linear_attn_config")
        heads = of.count("linear_num_heads") if table is None else table.count("num_heads")
        dim = of.count("linear_head_dim") if table is None else table.count("head_dim")
        return 4 * width * heads * dim + 2 * dim * (width + heads * dim) + width * heads
    if layer.form == "state" and of.model_type == "minimax":
        heads = of.count("num_attention_heads")
        return 5 * width * of.count("head_dim", default=width // heads) * heads
    raise of.bad(f"the parameters of layers of its kind ({layer.form}) are not counted here", AGAIN)


def _latent(of: Fields, width: int) -> int:
    """One layer of MLA."""
    heads, latent = of.count("num_attention_heads"), of.count("kv_lora_rank")
    rotary, plain = _count(of, "qk_rope_head_dim"), of.count("qk_nope_head_dim")
    value, rank = of.count("v_head_dim"), _count(of, "q_lora_rank")
    asked = heads * (rotary + plain)
    query = width * rank + rank * asked if rank else width * asked
    keys = width * (latent + rotary) + latent * heads * (plain + value)
    return query + keys + heads * value * width
