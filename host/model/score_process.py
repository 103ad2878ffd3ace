"""The score process: how strongly a decode step wants each block.

    score_t(i) = w_static |t4|_i 0.6 + slow_t(i) + w_fast fast_t(i) + recency r(i) + sink [i = 0]

`slow` and `fast` are AR(1) in t with unit variance and correlation times tau_slow and tau_fast in
steps; static is a Student-t draw per block with 4 degrees of freedom, as heavy hitters follow a
power law; r(i) falls exponentially with the distance to the end. With probability `burst` a step
the topic changes, and a share BURST_SHARE of the variance of slow is drawn anew. `noise` weighs a
draw that is new at every step.

This module alone says what the process is. It is drawn in two forms, which share the law and not
the numbers: as keys and queries whose product is the score (`host/model/drawn_kv.py`), for a real
decode, and as plain scores of all layers at once (`testbeds/workloads/selections/field.py`), for
virtual time. Where the parameters come from: `testbeds/workloads/selections/process.py`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BURST_SHARE", "STATIC_SCALE", "ProcessParams", "blend", "kept", "moved"]

BURST_SHARE = 0.75
"""Share of the variance of slow that a topic burst replaces."""

STATIC_SCALE = 0.6
"""Of the static component, before its weight."""


@dataclass(frozen=True)
class ProcessParams:
    """One score process, see the module. `tau_slow` and `tau_fast` are in steps, `burst` is a
    probability per step; `noise` is the weight of a component drawn anew at every step."""

    w_static: float
    tau_slow: float
    w_fast: float
    tau_fast: float
    burst: float
    recency: float
    sink: float
    noise: float


def kept(tau: float) -> float:
    """What of a component with correlation time `tau` is left after a step."""
    return math.exp(-1 / tau)


def moved(keep: Any) -> Any:
    """The weight of what is new, so that the variance stays 1. Of a number or an array."""
    return np.sqrt(1 - keep * keep)


def blend(old: npt.NDArray[Any], keep: Any, new: npt.NDArray[Any], weight: Any) -> None:
    """`old` becomes `keep * old + weight * new`, in place; `new` is used up."""
    old *= keep
    new *= weight
    old += new
