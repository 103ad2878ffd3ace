"""Bytes of a cache group by the format of its values: 16, 8 or 4 bits.

In 16 bits the bytes are exact. In fewer they depend on what kernels store with the values: scales,
and rotary parts that stay in 16 bits. So a format gives three figures: `low` is bare values, `high`
has all that published row layouts add, `value` what is common. States keep the types that they
have: no kernel that we know stores them in fewer bits than their own.

Pure functions, nothing can fail.
"""

import math
from typing import NamedTuple

from offstage.host.model.groups import CacheGroup

__all__ = ["DTYPES", "SOURCES", "Stored", "entry_bytes", "growth", "held", "read", "total"]

DTYPES = {"fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Bytes of one value or weight, without scales; bfloat16 has two as float16 has."""
SOURCES = {
    "fp16": "values of two bytes",
    "fp8": "low: bare values; else rows of published kernels: 656 B of an MLA entry (512 values, 4 "
    "scales, 64 rotary values in 16 bits: FlashMLA), 584 B of a DeepSeek-V4 entry; a scale of 4 B "
    "for each head's vector at the high end of GQA",
    "fp4": "low: bare values; else a byte of scale for 16 values (NVFP4); high: rotary values in "
    "16 bits",
}
SCALE_FP4 = 1.0 / 16
"""NVFP4: a byte of scale for 16 values. MXFP4 has one for 32."""


class Stored(NamedTuple):
    """Bytes."""

    low: float
    value: float
    high: float

    def times(self, factor: float) -> "Stored":
        """So many of them."""
        return Stored(self.low * factor, self.value * factor, self.high * factor)


def total(parts: "list[Stored]") -> Stored:
    """The sum."""
    low, value, high = (math.fsum(one[at] for one in parts) for at in range(3))
    return Stored(low, value, high)


def entry_bytes(group: CacheGroup, dtype: str) -> Stored:
    """One entry of one layer."""
    bare = group.values * DTYPES[dtype]
    if dtype == "fp16" or not group.values:
        return Stored(bare, bare, bare)
    if group.kind == "indexer":
        return _index(group, dtype)
    if group.layout == "heads":
        scales = 4.0 * group.vectors if dtype == "fp8" else group.values * SCALE_FP4
        return Stored(bare, bare if dtype == "fp8" else bare + scales, bare + scales)
    plain = group.values - group.rotary
    if dtype == "fp8":
        row = plain + 2.0 * group.rotary + _scales(group, plain)
        return Stored(bare, row, row)
    row = plain * (0.5 + SCALE_FP4) + 2.0 * group.rotary
    return Stored(bare, group.values * (0.5 + SCALE_FP4), row)


def _scales(group: CacheGroup, values: int) -> float:
    """Bytes of scales in a row of 8 bits: 4 B for 128 values of a latent (FlashMLA); of DeepSeek-V4
    one for 64 values, in whole words of 8 B (vLLM)."""
    if group.layout == "latent":
        return 4.0 * math.ceil(values / 128)
    return 8.0 * math.ceil(values / 512)


def _index(group: CacheGroup, dtype: str) -> Stored:
    """One index key. DeepSeek-V4 keeps it in 4 bits next to KV in 8."""
    values = float(group.values)
    if dtype == "fp8" and group.layout != "compressed":
        return Stored(values, values + 4.0, values + 4.0)
    return Stored(values / 2, values / 2 + values / 32, values / 2 + values / 32)


def growth(group: CacheGroup, dtype: str) -> Stored:
    """What a token of a long session adds, in all layers of the group."""
    if not group.grows:
        return Stored(0.0, 0.0, 0.0)
    return entry_bytes(group, dtype).times(group.layer_count / group.tokens_per_entry)


def held(group: CacheGroup, dtype: str, tokens: int) -> Stored:
    """A session of `tokens` tokens, in all layers of the group."""
    return _entries(group, dtype, group.entries(tokens))


def read(group: CacheGroup, dtype: str, tokens: int) -> Stored | None:
    """What one step after `tokens` tokens reads at most, in all layers of the group; None where
    the model selects and no source says how much."""
    entries = group.read(tokens)
    return None if entries is None else _entries(group, dtype, entries)


def _entries(group: CacheGroup, dtype: str, entries: int) -> Stored:
    found = entry_bytes(group, dtype).times(entries * group.layer_count)
    state = float(group.state_bytes * group.layer_count)
    return Stored(found.low + state, found.value + state, found.high + state)
