"""Are draws within the ranges and repeatable, and do a few of them cover each range?"""

import msgspec
import numpy as np
import pytest

from offstage.asic_model.parameters import names, read_preset
from offstage.asic_model.ranges import across, at_ends, draws, hypercube, value_at, varied


def test_a_hypercube_has_one_value_in_each_stretch_of_each_dimension() -> None:
    found = hypercube(5, 16, seed=3)
    assert found.shape == (16, 5)
    for column in found.T:
        assert sorted(np.floor(column * 16).astype(int)) == list(range(16))
    assert np.array_equal(found, hypercube(5, 16, seed=3))
    assert not np.array_equal(found, hypercube(5, 16, seed=4))


@pytest.mark.parametrize("name", names())
def test_draws_lie_within_the_ranges_and_contradict_nothing(name: str) -> None:
    preset = read_preset(name)
    known = varied(preset)
    found = list(draws(preset, 24, seed=1))
    assert len(found) > 12, "most draws are presets"
    for one in found:
        for key, number in one.numbers():
            if key in known:
                assert known[key].low <= number.value <= known[key].high
            else:
                assert number == dict(preset.numbers())[key]


def test_a_wide_range_is_drawn_by_its_logarithm_and_a_count_is_whole() -> None:
    preset = read_preset("asic_7nm")
    known = dict(preset.numbers())
    rate = known["codec.decode_rate"]
    assert value_at(rate, 0.5) == pytest.approx((rate.low * rate.high) ** 0.5)
    assert value_at(known["codec.lanes"], 0.37) == int(value_at(known["codec.lanes"], 0.37))
    ratio = known["front_end.efficiency"]
    assert value_at(ratio, 0.5) == pytest.approx((ratio.low + ratio.high) / 2)


def test_one_at_a_time_changes_one() -> None:
    preset = read_preset("asic_7nm")
    before = dict(preset.numbers())
    for name, number, low, high in at_ends(preset):
        for end, value in ((low, number.low), (high, number.high)):
            if end is not None:
                after = dict(end.numbers())
                assert after[name].value == value
                assert [key for key in after if after[key] != before[key]] in ([name], [])


def test_values_across_a_range_hold_its_ends_and_the_presets_own() -> None:
    """Each appears once and in order, even if the preset's value is one of the even steps."""
    ratio = dict(read_preset("asic_7nm").numbers())["codec.ratio"]
    values = across(ratio, 5)
    assert values == sorted(set(values)) and ratio.value in values and len(values) == 6
    assert (values[0], values[-1]) == (ratio.low, ratio.high)
    middle = msgspec.structs.replace(ratio, low=0.5, high=0.9, value=0.7)
    assert across(middle, 3) == [0.5, 0.7, 0.9]
