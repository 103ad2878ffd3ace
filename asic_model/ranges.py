"""Presets within the ranges of their parameters: all drawn together, or one varied at a time.

Model: a parameter with a range may have any value in it. If the range spans more than a factor of
two and does not begin at 0, the logarithm is drawn uniformly. All parameters together are drawn as
a Latin hypercube: each has exactly one value in each of `count` equally probable stretches, so few
draws cover every range. It is three lines of numpy; `scipy.stats.qmc` has it too, and would add
114 MB to every installation and a second to each `offstage plan`. A draw that contradicts itself
(more lanes than the link has) is skipped.

What can fail: only a count below 1, which is a programming error.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from offstage.asic_model.blocks import Number
from offstage.asic_model.parameters import Preset
from offstage.bindings.errors import BadInput

__all__ = ["across", "at_ends", "draws", "hypercube", "value_at", "varied"]

LOG_FROM = 2.0


def varied(preset: Preset) -> dict[str, Number]:
    """The parameters that have a range."""
    return {name: number for name, number in preset.numbers() if number.low < number.high}


def hypercube(dimensions: int, count: int, seed: int) -> npt.NDArray[np.float64]:
    """A Latin hypercube in [0, 1), `[count, dimensions]`."""
    assert count >= 1
    draw = np.random.default_rng(seed)
    strata = np.tile(np.arange(count), (dimensions, 1))
    return ((draw.permuted(strata, axis=1) + draw.random((dimensions, count))) / count).T


def value_at(number: Number, share: float) -> float:
    """The value at a share of the range from low to high, in the parameter's unit."""
    if number.low > 0 and number.high > LOG_FROM * number.low:
        value = math.exp(
            math.log(number.low) + share * (math.log(number.high) - math.log(number.low))
        )
    else:
        value = number.low + share * (number.high - number.low)
    whole = all(one == int(one) for one in (number.value, number.low, number.high))
    value = float(round(value)) if whole and number.unit == "1" else value
    return min(max(value, number.low), number.high)


def across(number: Number, count: int) -> list[float]:
    """`count` values evenly over the range, plus the preset's value, so that a map drawn over them
    has no step at the preset."""
    even = (value_at(number, at / (count - 1)) for at in range(count))
    return sorted({*even, number.value})


def draws(preset: Preset, count: int, seed: int = 0) -> Iterator[Preset]:
    """At most `count` presets, with all parameters drawn together."""
    known = varied(preset)
    for row in hypercube(len(known), count, seed):
        values = {
            name: value_at(number, share)
            for (name, number), share in zip(known.items(), row.tolist(), strict=True)
        }
        if (found := _changed(preset, values)) is not None:
            yield found


def at_ends(preset: Preset) -> Iterator[tuple[str, Number, Preset | None, Preset | None]]:
    """Each parameter at its low and its high end, all others unchanged; None where that contradicts
    another parameter."""
    for name, number in varied(preset).items():
        yield (
            name,
            number,
            _changed(preset, {name: number.low}),
            _changed(preset, {name: number.high}),
        )


def _changed(preset: Preset, values: dict[str, float]) -> Preset | None:
    try:
        return preset.with_(values)
    except BadInput:
        return None
