"""Do copies follow load: as many as it needs, placed by ranking, read by load?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.dpu.pod.heat import (
    COLD,
    HALF_LIFE_NS,
    CopyRule,
    copies_wanted,
    hot_rate,
    is_quiet,
    is_spent,
    less_loaded,
    next_place,
    rate,
    warmed,
)

S = 1_000_000_000
RATES = st.floats(0, 1e9)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 60 * S)), max_size=20))
def test_heat_is_the_sum_of_what_decayed(demands: list[tuple[int, int]]) -> None:
    """However demands are split into reports, heat is their sum, each halved once per half-life."""
    heat, now_ns = COLD, 0
    for count, gap_ns in demands:
        now_ns += gap_ns
        heat = warmed(heat, count, now_ns)
    at_ns = np.cumsum([gap for _, gap in demands])
    exact = sum(
        count * 0.5 ** ((now_ns - at) / HALF_LIFE_NS)
        for (count, _), at in zip(demands, at_ns, strict=True)
    )
    assert rate(heat, now_ns) == pytest.approx(exact * np.log(2) / (HALF_LIFE_NS / S))


def test_a_steady_rate_is_found() -> None:
    heat = COLD
    for tick in range(600):
        heat = warmed(heat, 50, tick * S // 10)
    assert rate(heat, 60 * S) == pytest.approx(500, rel=0.02)
    assert rate(heat, 60 * S + 3 * HALF_LIFE_NS) == pytest.approx(500 / 8, rel=0.02)


@given(RATES, RATES, st.floats(1, 1e9), st.integers(0, 16))
def test_more_heat_means_no_fewer_copies(one: float, other: float, hot: float, most: int) -> None:
    """With the wanted copies each place serves at most the limit, unless all are used."""
    low, high = (copies_wanted(rate, hot, most) for rate in sorted((one, other)))
    assert 0 <= low <= high <= most
    assert high == most or max(one, other) / (high + 1) <= hot * (1 + 1e-9)


@given(RATES, st.floats(1, 1e9), st.integers(1, 16))
def test_what_was_just_made_is_not_quiet(rate: float, hot: float, most: int) -> None:
    assert not is_quiet(rate, copies_wanted(rate, hot, most), hot, most)
    assert is_quiet(0.0, 1, hot, most)


def test_hot_is_a_share_of_the_mean_load() -> None:
    rule = CopyRule(hot_percent=50, hot_blocks_per_s=1000)
    assert hot_rate([40_000, 0, 0, 0], rule) == 5000
    assert hot_rate([400, 0, 0, 0], rule) == 1000 == hot_rate([], rule)
    assert not is_spent(0, 99 * S, 1 * S) and not is_spent(98 * S + 1, 99 * S, S)
    assert is_spent(98 * S, 99 * S, S)


def test_the_next_place_is_the_best_without_a_copy() -> None:
    assert next_place("abcd", ["b", "a"]) == "c"
    assert next_place("ab", ["b", "a"]) == ""


def test_two_random_choices_balance() -> None:
    """The most loaded of 8 places exceeds the mean by far less than with one choice."""
    drawn = np.random.default_rng(1).integers(0, 2**62, 8000)
    two, one = [0.0] * 8, [0.0] * 8
    for draw in drawn:
        two[less_loaded(range(8), two, int(draw))] += 1
        one[int(draw) % 8] += 1
    assert max(two) - 1000 < 5 < max(one) - 1000
    assert less_loaded([4], [0.0] * 5, 12345) == 4
    assert {less_loaded([1, 3], [0, 9, 0, 1], draw) for draw in range(64)} == {3}
