"""Bounds in 8 bits: whole numbers of -127 to 127, and one power of two for each 32 channels.

The form is that of MXINT8 (OCP Microscaling Formats specification 1.0); what is ours is that least
and greatest share their power, and that rounding goes outwards, so that what was a bound stays one.
A scaling by a power of two is exact, so nothing else is rounded. The largest magnitude of a group
only grows when tokens are added, and the coarser grid is part of the finer one: bounds that grow
token by token end as those of all tokens at once.

Here for the host's selector; `offstage.host.gpu.bounds` does the same on a device. Pure.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXPONENTS", "GROUP", "MOST", "rounded_outwards"]

GROUP = 32
"""Neighbouring channels of one head that share a power of two; fewer at the end."""
MOST = 127
EXPONENTS = (-100, 122)
"""Beyond them nothing is finer, or larger than float32 holds."""


def rounded_outwards(
    least: NDArray[Any], greatest: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The nearest bounds of the form that are at most `least` and at least `greatest`, each
    `[..., head_dim]`."""
    size = least.shape[-1]
    wide = np.zeros((2, *least.shape[:-1], -(-size // GROUP) * GROUP))
    wide[0, ..., :size], wide[1, ..., :size] = least, np.negative(greatest)
    groups = wide.reshape(2, *least.shape[:-1], -1, GROUP)
    most = np.minimum(np.abs(groups).max(axis=(0, -1), keepdims=True), np.finfo(np.float32).max)
    fraction, exponent = np.frexp(most)  # most = fraction * 2 ** exponent, fraction below 1
    exponent = np.clip(exponent - np.where(fraction <= MOST / 128, 7, 6), *EXPONENTS)
    whole = np.clip(np.floor(np.ldexp(groups, -exponent)), -MOST, MOST)
    with np.errstate(over="ignore"):  # an infinite bound is infinite
        found = np.ldexp(whole, exponent).astype(np.float32).reshape(wide.shape)[..., :size]
    return found[0], -found[1]
