"""Lossy modes: KV in fewer bits, and the resulting error. The store uses none; a host that stores
its blocks in fewer bits does (`offstage.host.model.quantized`).

Every function here loses information, which the lossless codec never does; the `errors` figures say
how much. Rounds to nearest, ties to even; values beyond the largest finite value saturate. Shapes:
`[..., tokens, channels]`, float32.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "FP8",
    "Errors",
    "Fp8",
    "Levels",
    "errors",
    "from_fp8",
    "int4_lossy",
    "to_bfloat16_lossy",
    "to_fp8_lossy",
    "to_levels_lossy",
]

Floats = npt.NDArray[np.float32]

_FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class Fp8:
    """An 8-bit float: bits of exponent and mantissa, bias, largest finite value (OCP OFP8 1.0)."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: float


FP8 = {"fp8_e4m3": Fp8(4, 3, 7, 448.0), "fp8_e5m2": Fp8(5, 2, 15, 57344.0)}


@dataclass(frozen=True)
class Errors:
    """Errors relative to each non-zero value: the maximum and the mean; and the norm of all
    differences over the norm of all values, which a few small values do not dominate."""

    relative_max: float
    relative_mean: float
    norm: float


def errors(values: Floats, approximate: Floats) -> Errors:
    """The errors of `approximate` against `values`."""
    exact = values.astype(np.float64)
    difference = np.abs(approximate.astype(np.float64) - exact)
    nonzero = exact != 0
    relative = difference[nonzero] / np.abs(exact[nonzero])
    norm = float(np.linalg.norm(exact))
    return Errors(
        float(relative.max(initial=0.0)),
        float(relative.mean()) if relative.size else 0.0,
        float(np.linalg.norm(difference)) / norm if norm else 0.0,
    )


def to_bfloat16_lossy(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16. Loses 16 bits of mantissa; NaN stays NaN."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def to_fp8_lossy(values: Floats, dtype: str) -> npt.NDArray[np.uint8]:
    """The bits of the nearest value of a dtype of `FP8`, saturating. Loses mantissa bits, and
    values smaller than half the smallest denormal. NaN becomes the dtype's NaN."""
    kind = FP8[dtype]
    magnitude = np.minimum(np.abs(values.astype(np.float64)), kind.largest)
    exponent = np.floor(np.log2(np.where(magnitude > 0, magnitude, 1.0)))
    step = 2.0 ** (np.maximum(exponent, 1 - kind.bias) - kind.mantissa_bits)
    # A multiple of the step; rounding up to the next power of two carries into the exponent.
    code = np.rint(np.nan_to_num(magnitude) / step)
    normal = np.maximum(exponent + kind.bias - 1, 0) * 2**kind.mantissa_bits
    bits = np.where(magnitude > 0, code + normal, 0).astype(np.uint8)
    bits = np.where(np.isnan(values), np.uint8(0x7F), bits).astype(np.uint8)
    return (bits | (np.signbit(values).astype(np.uint8) << 7)).astype(np.uint8)


def from_fp8(bits: npt.NDArray[np.uint8], dtype: str) -> Floats:
    """The values of FP8 bits, exactly."""
    kind = FP8[dtype]
    exponent = (bits >> kind.mantissa_bits & ((1 << kind.exponent_bits) - 1)).astype(np.int32)
    mantissa = (bits & ((1 << kind.mantissa_bits) - 1)).astype(np.float64)
    leading = np.where(exponent > 0, 2.0**kind.mantissa_bits, 0.0)
    scale = 2.0 ** (np.maximum(exponent, 1) - kind.bias - kind.mantissa_bits)
    sign = np.where(bits >> 7, -1.0, 1.0)
    found = sign * (leading + mantissa) * scale
    top = exponent == (1 << kind.exponent_bits) - 1
    if kind.exponent_bits == 4:
        found = np.where((bits & 0x7F) == 0x7F, np.nan, found)
    else:
        found = np.where(top, np.where(mantissa == 0, sign * np.inf, np.nan), found)
    return found.astype(np.float32)


@dataclass(frozen=True)
class Levels:
    """Values as whole numbers of steps above the lowest: uint8 `levels` `[..., tokens, channels]`;
    float16 `low` and `step`, of size 1 along the axis whose values share them."""

    levels: npt.NDArray[np.uint8]
    low: npt.NDArray[np.float16]
    step: npt.NDArray[np.float16]

    def values(self) -> Floats:
        """The values that remain."""
        found: Floats = self.low.astype(np.float32) + self.levels * self.step.astype(np.float32)
        return found


def to_levels_lossy(values: Floats, per: str, bits: int) -> Levels:
    """The values rounded to `2**bits` levels, at most 256.

    One lowest value and one step in float16 for each channel of all its tokens (`per` "channel", as
    KIVI does for keys, arXiv:2402.02750) or for each token of all its channels ("token", as it does
    for values).
    """
    axis, top = -2 if per == "channel" else -1, 2**bits - 1
    bounded = values.clip(-_FLOAT16_MAX, _FLOAT16_MAX)
    low = bounded.min(axis=axis, keepdims=True).astype(np.float16)
    high = bounded.max(axis=axis, keepdims=True)
    step = ((high - low.astype(np.float32)) / top).astype(np.float16)
    wide = step.astype(np.float32)
    level = np.rint((bounded - low.astype(np.float32)) / np.where(wide > 0, wide, 1.0))
    return Levels(level.clip(0, top).astype(np.uint8), low, step)


def int4_lossy(values: Floats, per: str) -> tuple[Floats, float]:
    """The values after `to_levels_lossy` in 4 bits, and the bits per value with its scales."""
    bits = 4 + 32 / values.shape[-2 if per == "channel" else -1]
    return to_levels_lossy(values, per, 4).values(), bits
