"""Bytes of the state that one recurrent layer keeps of a session, by the fields of a config.json.

A state has one size whatever the length: what the recurrence carries from token to token, and the
last inputs of a short convolution. Sizes and types are those of transformers' implementations,
which keep the recurrence in float32 (lightning attention: in the model's type) and the
convolution's inputs in the model's type, here two bytes. An engine that keeps the recurrence in 16
bits needs half of it.

Pure functions. `BadInput` for a field that is missing, or for a state that no field describes.
"""

from offstage.host.model.config_fields import Fields

__all__ = ["compressor_bytes", "conv_bytes", "state_bytes"]

WIDE, OWN = 4, 2
"""Bytes of a float32, and of a number of the model's own type."""


def state_bytes(of: Fields) -> int:
    """One layer of linear attention or Mamba."""
    if of.find("linear_num_value_heads") is not None:
        return _delta(of)
    if of.get("linear_attn_config") is not None or of.get("linear_num_heads") is not None:
        return _kimi(of)
    if of.find("mamba_n_heads", "mamba_num_heads") is not None:
        return _mamba2(of)
    if of.get("mamba_d_state") is not None:
        return _mamba(of)
    if of.model_type.startswith("minimax") or of.get("attn_type_list") is not None:
        return _lightning(of)
    raise of.bad(
        "layers with linear_attention, and no field that gives the size of their state",
        "write linear_num_value_heads, linear_num_heads or mamba_n_heads and their like",
    )


def _delta(of: Fields) -> int:
    """Gated delta nets (Qwen3-Next, Qwen3.5): a matrix for each value head, and the inputs of a
    convolution over queries, keys and values."""
    key, value = of.count("linear_key_head_dim"), of.count("linear_value_head_dim")
    values, keys = of.count("linear_num_value_heads"), of.count("linear_num_key_heads")
    if values % keys:
        raise of.bad(
            f"linear_num_value_heads is {values}, and {keys} of linear_num_key_heads do not divide "
            "it",
            "write as many key heads as share the value heads evenly",
        )
    channels = 2 * keys * key + values * value
    return WIDE * values * key * value + OWN * channels * of.count("linear_conv_kernel_dim")


def _kimi(of: Fields) -> int:
    """Kimi delta attention: a matrix for each head, and the inputs of three convolutions."""
    table = of.inside("linear_attn_config")
    if table is None:
        dim, heads = of.count("linear_head_dim"), of.count("linear_num_heads")
        kernel = of.count("linear_conv_kernel_dim")
    else:
        dim, heads = table.count("head_dim"), table.count("num_heads")
        kernel = table.count("short_conv_kernel_size")
    return WIDE * heads * dim * dim + OWN * 3 * heads * dim * kernel


def _mamba2(of: Fields) -> int:
    """Mamba-2 (Bamba, Granite 4, Nemotron-H): a matrix for each head, and the inputs of a
    convolution over its channels and those of all groups."""
    heads = of.count("mamba_n_heads", "mamba_num_heads")
    dim = of.find("mamba_d_head", "mamba_head_dim")
    if dim in (None, "auto"):
        dim = of.count("mamba_expand") * of.count("hidden_size") // heads
    else:
        dim = of.count("mamba_d_head", "mamba_head_dim")
    state = of.count("mamba_d_state", "ssm_state_size")
    channels = heads * dim + 2 * of.count("mamba_n_groups", "n_groups") * state
    kernel = of.count("mamba_d_conv", "conv_kernel")
    return WIDE * heads * dim * state + OWN * channels * kernel


def _mamba(of: Fields) -> int:
    """Mamba (Jamba): a vector for each channel, and the inputs of a convolution over them."""
    channels = of.count("mamba_expand") * of.count("hidden_size")
    return channels * (WIDE * of.count("mamba_d_state") + OWN * of.count("mamba_d_conv"))


def _lightning(of: Fields) -> int:
    """Lightning attention (MiniMax): a matrix for each head."""
    heads = of.count("num_attention_heads")
    dim = of.count("head_dim", default=of.count("hidden_size") // heads)
    return OWN * heads * dim * dim


def conv_bytes(of: Fields) -> int:
    """One layer that is a gated convolution (LFM2)."""
    return OWN * of.count("hidden_size") * of.count("conv_L_cache")


def compressor_bytes(tokens_per_entry: int, dim: int, *, overlaps: bool) -> int:
    """The buffer of one compressor of DeepSeek-V4: for each token of an entry its latent and its
    gate in float32. Where entries overlap (CSA), of two entries, and for both halves of each.

    V4-Pro: 30 CSA layers with a compressor of 512 values and one of 128 for index keys, 31 HCA
    layers: 30 x (65,536 + 16,384) + 31 x 524,288 = 18,710,528 B, the published 17.84 MiB."""
    parts = 2 if overlaps else 1
    return 2 * WIDE * parts * tokens_per_entry * parts * dim
