"""Enumerations and record layouts of the C headers, for Python: read from the extension.

No header definition is repeated in Python. A structure becomes a numpy dtype with the offsets
that the compiler chose; an enumeration becomes its names in lower case, in the order of its
numbers.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.firmware import ffi, lib

__all__ = [
    "CAUSES",
    "ENDS",
    "EVICTIONS",
    "FATES",
    "HIT_ENDS",
    "PREFETCHERS",
    "VALUE_ASK",
    "VALUE_TOLD",
    "bit_counts",
    "constant",
    "layout",
    "names",
    "numbered",
    "offset_of",
]

_NUMBERS = {
    f"{sign}int{bits}_t": f"<{letter}{bits // 8}"
    for sign, letter in (("", "i"), ("u", "u"))
    for bits in (8, 16, 32, 64)
} | {"char": "S1"}


def layout(struct: str, source: Any = ffi) -> "np.dtype[np.void]":
    """`struct ofs_...` as a dtype: names, types and offsets of its fields. `source` is the `ffi` of
    the extension that knows it."""
    return np.dtype(_dtype(source.typeof(struct)))


def offset_of(dtype: "np.dtype[np.void]", name: str) -> int:
    """Bytes before a field."""
    assert dtype.fields is not None
    return dtype.fields[name][1]


def bit_counts(masks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """How many bits each has."""
    bits = np.unpackbits(masks.view(np.uint8)).reshape(len(masks), 32)
    return np.asarray(bits.sum(1), np.uint32)


def constant(name: str) -> int:
    """A `#define` of a header."""
    return int(getattr(lib, name))


def numbered(enum: str, prefix: str, source: Any = ffi) -> dict[int, str]:
    """Numbers and names of `enum ofs_...`, without the one that counts them."""
    elements: dict[int, str] = source.typeof(enum).elements
    found = {number: name.removeprefix(prefix).lower() for number, name in elements.items()}
    return {number: name for number, name in sorted(found.items()) if name != "count"}


def names(enum: str, prefix: str, source: Any = ffi) -> tuple[str, ...]:
    """The names of an enumeration that counts from 0, indexed by number."""
    found = numbered(enum, prefix, source)
    assert list(found) == list(range(len(found))), f"{enum} does not count from 0"
    return tuple(found.values())


def _dtype(kind: Any) -> "np.dtype[Any]":
    if kind.kind == "array":
        return np.dtype((_dtype(kind.item), (kind.length,)))
    if kind.kind == "pointer":
        return np.dtype("<u8")
    if kind.kind == "primitive":
        return np.dtype(_NUMBERS[kind.cname])
    fields = kind.fields
    packed = np.dtype([(name, _dtype(field.type)) for name, field in fields])
    size = _size(kind)
    if packed.itemsize == size:
        return packed
    return np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [_dtype(field.type) for _, field in fields],
            "offsets": [field.offset for _, field in fields],
            "itemsize": size,
        }
    )


def _size(kind: Any) -> int:
    return int(ffi.sizeof(kind))  # of any extension's type


def _flags(prefix: str) -> dict[str, int]:
    """Name and bit of every `#define` of one prefix that is a single bit, in order of bits."""
    bits = {
        name.removeprefix(prefix).lower(): int(getattr(lib, name))
        for name in dir(lib)
        if name.startswith(prefix)
    }
    single = [(bit, name) for name, bit in bits.items() if bit.bit_count() == 1]
    return {name: bit for bit, name in sorted(single)}


CAUSES = names("enum ofs_cause", "OFS_CAUSE_")
ENDS = names("enum ofs_end", "OFS_END_")
FATES = names("enum ofs_fate", "OFS_FATE_")
EVICTIONS = names("enum ofs_evict", "OFS_EVICT_")
PREFETCHERS = _flags("OFS_PREFETCH_")
HIT_ENDS = ENDS.index("late")
"""The ends before `late` are on-time hits."""


VALUE_ASK, VALUE_TOLD = layout("struct ofs_value_ask"), layout("struct ofs_value_told")
"""An entry of a command on values, and what is said of it (region.h)."""
