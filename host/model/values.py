"""How the numbers of a block are stored: types by name, and blocks' bytes as arrays of numbers.

numpy has no bfloat16 and no float8: there their bits stand in a uint16 or uint8. Pure functions,
nothing can fail.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from offstage.host.model.lossy import from_fp8, to_bfloat16_lossy, to_fp8_lossy

__all__ = ["WIDTHS", "ValueType", "narrowed", "stored", "widen"]

ValueType = Literal["float16", "bfloat16", "float32", "float8_e4m3fn"]

WIDTHS: dict[ValueType, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1}
"""Bytes of one number."""

_NUMPY: dict[ValueType, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float8_e4m3fn": np.uint8,
}


def stored(content: npt.NDArray[np.uint8], value_type: ValueType) -> npt.NDArray[Any]:
    """Bytes as the numbers they are: a view, `[..., bytes]` as `[..., numbers]`."""
    return content.view(_NUMPY[value_type])


def widen(out: npt.NDArray[Any], numbers: npt.NDArray[Any], value_type: ValueType) -> None:
    """Write what `stored` gave into `out`, float32 or wider, each number exactly."""
    if value_type == "bfloat16":
        out[...] = (numbers.astype(np.uint32) << 16).view(np.float32)
    elif value_type == "float8_e4m3fn":
        out[...] = _FLOAT8[numbers]
    else:
        out[...] = numbers


def narrowed(values: npt.NDArray[np.float32], value_type: ValueType) -> npt.NDArray[Any]:
    """Values rounded to the nearest numbers of a type, as `stored` gives them."""
    if value_type == "bfloat16":
        return to_bfloat16_lossy(values)
    if value_type == "float8_e4m3fn":
        return to_fp8_lossy(values, "fp8_e4m3")
    return values.astype(_NUMPY[value_type])


_FLOAT8 = from_fp8(np.arange(256).astype(np.uint8), "fp8_e4m3")
