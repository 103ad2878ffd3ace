"""How the numbers of a block are stored: types by name, and blocks' bytes as arrays of numbers.

numpy has no bfloat16: there its bits stand in a uint16. Pure functions, nothing can fail.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["WIDTHS", "ValueType", "stored", "widen"]

ValueType = Literal["float16", "bfloat16", "float32"]

WIDTHS: dict[ValueType, int] = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of one number."""

_NUMPY: dict[ValueType, Any] = {
    "float16": np.float16, "bfloat16": np.uint16, "float32": np.float32,
}  # fmt: skip


def stored(content: npt.NDArray[np.uint8], value_type: ValueType) -> npt.NDArray[Any]:
    """Bytes as the numbers they are: a view, `[..., bytes]` as `[..., numbers]`."""
    return content.view(_NUMPY[value_type])


def widen(out: npt.NDArray[Any], numbers: npt.NDArray[Any], value_type: ValueType) -> None:
    """Write what `stored` gave into `out`, float32 or wider, each number exactly."""
    if value_type == "bfloat16":
        out[...] = (numbers.astype(np.uint32) << 16).view(np.float32)
    else:
        out[...] = numbers
