"""Bytes of KV by model and format: of one token, and of a whole session.

Model: the geometry gives a token's number of values (`host/model/models.py`); a format gives their
bytes. In 16 bits that is exact. In 8 and 4 bits it depends on what the kernels store with the
values: scales, and rotary parts that stay in 16 bits. So a format gives a range: `low` has the bare
values, `high` all that published row layouts add, `value` what is common.

What can fail: `BadInput` for a model that is neither published nor described, an unknown format.
"""

from functools import lru_cache
from pathlib import Path

from offstage.asic_model.blocks import Number
from offstage.asic_model.tables.numbers import read_numbers
from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import geometry
from offstage.testbeds.plan.model import described, find_config

__all__ = ["DTYPES", "parameters", "session_bytes", "token_bytes"]

DTYPES = {"fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Bytes of one value or weight, without scales."""
MODELS = Path(__file__).resolve().parent / "models.toml"

SCALE_FP4 = 1.0 / 16
"""NVFP4: a byte of scale for 16 values. MXFP4 has one for 32."""
SOURCES = {
    "fp16": "values of two bytes",
    "fp8": "low: bare values; else rows of published kernels: 656 B of an MLA entry (512 values, 4 "
    "scales, 64 rotary values in 16 bits: FlashMLA), 584 B of a DeepSeek-V4 entry; a scale of 4 B "
    "for each head's vector at the high end of GQA",
    "fp4": "low: bare values; else a byte of scale for 16 values (NVFP4); high: rotary values in "
    "16 bits",
}

Row = tuple[float, float, float]
"""Bytes at low, value and high."""


def _entry(layer: LayerKv, dtype: str) -> Row:
    """Bytes that one layer stores for `tokens_per_entry` tokens, without its index key."""
    values = layer.entry_values
    bare = values * DTYPES[dtype]
    if dtype == "fp16":
        return bare, bare, bare
    if layer.form == "gqa":
        scales = 4.0 * layer.planes * layer.kv_heads if dtype == "fp8" else values * SCALE_FP4
        return bare, bare if dtype == "fp8" else bare + scales, bare + scales
    rotary = 64.0
    if dtype == "fp8":
        # 64 rotary values in 16 bits; scales as the two published layouts have them.
        row = (values - rotary) + 2 * rotary + (16.0 if layer.form == "mla" else 8.0)
        return bare, row, row
    row = (values - rotary) * (0.5 + SCALE_FP4) + 2 * rotary
    return bare, values * (0.5 + SCALE_FP4), row


def _index(layer: LayerKv, dtype: str) -> Row:
    """Bytes of one entry's index key. DeepSeek-V4 keeps it in 4 bits next to KV in 8."""
    values = float(layer.index_dim)
    if dtype == "fp16" or not values:
        return 2 * values, 2 * values, 2 * values
    if dtype == "fp8" and layer.form == "mla":
        return values, values + 4.0, values + 4.0
    return values / 2, values / 2 + values / 32, values / 2 + values / 32


def _sum(shape: KvGeometry, dtype: str, tokens: float | None) -> Row:
    """Bytes of one token of a long session, or of a session of `tokens` tokens with its windows."""
    total = [0.0, 0.0, 0.0]
    for layer in shape.layers:
        entry, index = _entry(layer, dtype), _index(layer, dtype)
        entries = (1.0 if tokens is None else tokens) / layer.tokens_per_entry
        window = 0.0 if tokens is None else min(layer.window_tokens, tokens)
        for at in range(3):
            total[at] += entries * (entry[at] + index[at]) + window * entry[at]
    return total[0], total[1], total[2]


def token_bytes(shape: KvGeometry, dtype: str) -> Number:
    """A session's growth in bytes per token, all layers and index keys."""
    return _number(shape, dtype, _sum(shape, dtype, None))


def session_bytes(shape: KvGeometry, dtype: str, tokens: float) -> Number:
    """A session of `tokens` tokens, with windows that do not grow with it."""
    return _number(shape, dtype, _sum(shape, dtype, tokens))


def _number(shape: KvGeometry, dtype: str, row: Row) -> Number:
    low, value, high = row
    source = f"{SOURCES[dtype]}; {shape.source}"
    return Number(value=value, unit="B", low=low, high=high, source=source, tag="derived")


@lru_cache(maxsize=1)
def _parameters() -> dict[str, dict[str, Number]]:
    return read_numbers(MODELS, {"1e9": 1e9})


def parameters(model: str) -> tuple[KvGeometry, Number, Number]:
    """A model's geometry, its parameters, and those that are active for a token. `model`: a name
    of our table, or its id at Hugging Face, in any case; else as `model.find_config`."""
    known = _parameters()
    name = next((one for one in known if model.lower() in _names(one, known[one])), None)
    if name is not None:
        return geometry(name), known[name]["all"], known[name]["active"]
    path = find_config(model)
    if path is None:
        raise BadInput(
            f"no published geometry of {model!r}",
            "model",
            f"{nearest(model, known)}; or give a config.json, or [model] in a SPEC",
        )
    return described(path).shape(model, f"computed from {path}")


def _names(name: str, numbers: dict[str, Number]) -> tuple[str, str]:
    """How a model of our table may be called: its sources begin with its id."""
    return name, numbers["all"].source.split(",")[0].lower()
