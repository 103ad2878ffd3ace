"""Are numbers written so that their rounding misleads no reader?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.settings import declared
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import SECTIONS
from offstage.testbeds.report.page import numbers


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (numbers.percent, 0.973, "97.3 %"),
        (numbers.percent, 0.99996, "99.996 %"),
        (numbers.percent, 1 - 1e-15, "99.999999 %"),
        (numbers.percent, -0.021, "−2.1 %"),
        (numbers.percent, 0.0002, "< 0.1 %"),
        (numbers.ratio, 1.239, "1.24×"),
        (numbers.size, 3.2 * 2**30, "3.20 GiB"),
        (numbers.size, 65_536, "64 KiB"),
        (numbers.milliseconds, 0.84, "0.84 ms"),
        (numbers.milliseconds, 12.34, "12.3 ms"),
        (numbers.milliseconds, 0.004, "4 µs"),
        (numbers.clock_ns, 32e6, "32 ms"),
        (numbers.clock_ns, 1_050, "1.1 µs"),
        (numbers.seconds, 131, "2 min 11 s"),
        (numbers.count, 5_404_221, "5,404,221"),
    ],
)
def test_known_values(form: object, value: float, text: str) -> None:
    assert form(value) == text  # type: ignore[operator]


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_all_and_nothing_are_never_rounded_to(share: int, more: int) -> None:
    """Only exactly all and nothing read 100 % and 0 %: one miss in millions still shows."""
    shown = numbers.percent(share / (share + more))
    assert not shown.startswith(("100", "0.0 "))
    assert numbers.percent(1.0) == "100.0 %" and numbers.percent(0.0) == "0.0 %"


def test_what_is_per_second_is_never_a_time() -> None:
    """Rates of the configuration, of results and of a node's links have their own unit under every
    key, never a time's; times have one."""
    rates = [
        one.name
        for kind in (*SECTIONS.values(), Tenant)
        for one in declared(kind).values()
        if one.unit is not None and one.unit.base == "B/s"
    ]
    rates += ["bytes_per_s", "demand_bytes_per_s", "prefetch_bytes_per_s_max", "read_bytes_per_s"]
    assert len(rates) >= 6
    for key in rates:
        assert numbers.show(key, 2_000_000_000) == "2 GB/s", key
    assert numbers.show("tokens_per_s", 12.34) == "12.3"
    assert numbers.show("lease_ns", 200_000_000) == "200 ms"
    assert numbers.show("took_s", 12.34) == "12.3 s"
