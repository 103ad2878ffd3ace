"""Do the lossy modes round as their formats say, with errors within the bound of their bits?"""

import numpy as np
import pytest

from offstage.host.model import lossy


@pytest.mark.parametrize("dtype", lossy.FP8)
def test_every_fp8_value_is_itself(dtype: str) -> None:
    """All finite bit patterns survive a round trip, both zeros included."""
    bits = np.arange(256).astype(np.uint8)
    values = lossy.from_fp8(bits, dtype)
    finite = np.isfinite(values)
    assert finite.sum() == {"fp8_e4m3": 254, "fp8_e5m2": 248}[dtype]
    assert (lossy.to_fp8_lossy(values[finite], dtype) == bits[finite]).all()
    assert values[finite].max() == lossy.FP8[dtype].largest


@pytest.mark.parametrize("dtype", lossy.FP8)
def test_rounding_is_to_the_nearest_and_saturates(dtype: str) -> None:
    """Results equal those of a search over all values; ties go to the even one."""
    random = np.random.default_rng(1)
    values = (random.normal(size=500) * 2.0 ** random.integers(-12, 8, 500)).astype(np.float32)
    every = lossy.from_fp8(np.arange(256).astype(np.uint8), dtype)
    every = every[np.isfinite(every)]
    found = lossy.from_fp8(lossy.to_fp8_lossy(values, dtype), dtype)
    nearest = np.abs(every[None] - values[:, None]).min(axis=1)
    assert (np.abs(found - values) == nearest).all()
    beyond = np.array([1e9, -1e9, np.inf], np.float32)
    largest = lossy.FP8[dtype].largest
    assert lossy.from_fp8(lossy.to_fp8_lossy(beyond, dtype), dtype).tolist() == [
        largest,
        -largest,
        largest,
    ]
    tie = np.array([1.0, 1.0 + 2.0 ** -lossy.FP8[dtype].mantissa_bits], np.float32).mean()
    assert lossy.from_fp8(lossy.to_fp8_lossy(np.array([tie]), dtype), dtype)[0] == 1.0


def test_bfloat16_rounds_to_even() -> None:
    """Half a step rounds to even from an even and an odd mantissa; NaN stays NaN."""
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FC00001], np.uint32)
    assert lossy.to_bfloat16_lossy(bits.view(np.float32)).tolist() == [
        0x3F80,
        0x3F82,
        0x3F81,
        0x7FC0,
    ]


@pytest.mark.parametrize("per", ["channel", "token"])
def test_int4_is_within_half_a_step(per: str) -> None:
    """Keys with one loud channel need a step for each channel, as in KIVI."""
    random = np.random.default_rng(2)
    values = random.normal(size=(4, 64, 32)).astype(np.float32)
    values[..., 3] *= 40
    back, bits = lossy.int4_lossy(values, per)
    axis = -2 if per == "channel" else -1
    spread = values.max(axis, keepdims=True) - values.min(axis, keepdims=True)
    assert (np.abs(back - values) <= spread / 30 * 1.02 + 1e-3).all()
    assert bits == {"channel": 4.5, "token": 5.0}[per]
    other = lossy.int4_lossy(values, "token" if per == "channel" else "channel")[0]
    quiet = np.arange(32) != 3
    ours, theirs = (lossy.errors(values[..., quiet], one[..., quiet]) for one in (back, other))
    assert (ours.norm < theirs.norm / 4) == (per == "channel")


def test_errors_of_nothing_lost_are_zero() -> None:
    values = np.array([[0.0, 1.0, -2.0]], np.float32)
    assert lossy.errors(values, values) == lossy.Errors(0.0, 0.0, 0.0)
    assert lossy.errors(values, values * np.float32(1.5)).relative_max == 0.5
