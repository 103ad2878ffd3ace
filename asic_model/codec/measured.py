"""The measured ratios of the codec: reads and checks `measured.toml`.

The codec has no single ratio: it depends on the dtype, on what a layer stores, and on keys or
values. Every ratio names the KV that it was measured on.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from offstage.asic_model.blocks import Number
from offstage.asic_model.tables.numbers import finite
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known

__all__ = ["MODEL", "TABLE", "Rate", "Ratio", "Table", "block_ratio", "ratio", "read_table"]

TABLE = Path(__file__).with_name("measured.toml")
MODEL = "pycode-3m"
"""The origin that is a trained model; `synthetic` is the demo's generated KV."""


class Ratio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coded size over size of one dtype's keys or values. `form`: what a layer stores, as in the
    host's geometries; `value` is the mean of `layers`, `low` and `high` the least and most.
    `heads`: by layer, each KV head coded separately."""

    origin: str
    form: Literal["gqa", "mla", "csa", "hca"]
    dtype: str
    half: Literal["K", "V"]
    value: float
    unit: Literal["1"]
    low: float
    high: float
    tag: Literal["measured"]
    source: str
    layers: tuple[float, ...]
    heads: tuple[tuple[float, ...], ...]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates of the C codec on one core, in MB of KV a second, with memcpy in the same run."""

    dtype: str
    origin: str
    encode_mb_per_s: float
    decode_mb_per_s: float
    memcpy_mb_per_s: float
    tag: Literal["measured"]
    source: str


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; `origin` says how each KV was made."""

    origin: tuple[dict[str, str | int], ...]
    ratio: tuple[Ratio, ...]
    rate: tuple[Rate, ...]


@lru_cache
def read_table(path: Path = TABLE) -> Table:
    """Raises BadInput for a file that is no such table or has unknown keys."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Table)
    except OSError as error:
        raise BadInput(error.strerror or "cannot be read", str(path), "give a table") from None
    except msgspec.MsgspecError as error:
        raise BadInput(
            str(error), str(path), "make it again with `offstage bench codec --table`"
        ) from None


def ratio(dtype: str, half: str, form: str = "gqa", origin: str = MODEL) -> Ratio:
    """The ratio of keys (`K`) or values (`V`) of a dtype. BadInput where it was not measured."""
    wanted = (origin, form, dtype, half)
    for row in read_table().ratio:
        if (row.origin, row.form, row.dtype, row.half) == wanted:
            return row
    raise BadInput(
        f"no ratio of {' '.join(wanted)} was measured",
        str(TABLE),
        "measure it with `offstage bench codec --table`, or set a ratio in the preset",
    )


def block_ratio(wanted: dict[str, Any], where: str) -> Number:
    """A preset's number for `{ measured = DTYPE, form = FORM }`: the ratio of a block, which holds
    keys and values in equal parts. Its range covers all layers; the preset's `low`, `high` and
    `source` only widen or extend it. `spread`: by layer, of the keys of each head and then the
    values, over the value. BadInput for another key or an unmeasured combination."""
    for key in wanted:
        check_known(key, ("measured", "form", "low", "high", "source"), where)
        if not isinstance(wanted[key], (int, float) if key in ("low", "high") else str):
            raise BadInput(f"{wanted[key]!r} is no {key}", where, "give text in quotes")
    try:
        halves = [ratio(wanted["measured"], half, wanted.get("form", "")) for half in ("K", "V")]
    except BadInput as error:
        raise BadInput(error.what, where, error.fix) from None
    shown = "; ".join(
        f"{one.half} {one.value:.3f}, {one.low:.3f} to {one.high:.3f} by layer" for one in halves
    )
    source = f"codec/measured.toml, {halves[0].origin}, {wanted['measured']}: {shown}"
    value = round(sum(one.value for one in halves) / 2, 4)
    low, high = finite(wanted.get("low", 1), where), finite(wanted.get("high", 0), where)
    return Number(
        value=value,
        unit="1",
        low=min(low, *(one.low for one in halves)),
        high=max(high, *(one.high for one in halves)),
        source="; ".join(filter(None, (source, wanted.get("source", "")))),
        tag="measured",
        spread=tuple(
            tuple(share / value for share in (*keys, *values))
            for keys, values in zip(halves[0].heads, halves[1].heads, strict=True)
        ),
    )
