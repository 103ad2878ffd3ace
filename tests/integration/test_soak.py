"""Do eight hosts of three tenants under separate users work well alongside a hostile one?

A short form of `offstage bench soak`, which takes minutes. Nothing is timed: all hosts are at work
before the measured time begins.
"""

import os

import pytest
from bench_results import SOAK
from msgspec.structs import replace

from offstage.testbeds.bench.soak import Level, Look, bench_soak, judge
from offstage.testbeds.bench.soak_hostile import ATTACKS


@pytest.mark.parametrize(
    ("seconds", "step", "flat"),
    [
        (600.0, 1 << 20, False),
        (600.0, 1 << 14, True),
        (2.0, 1 << 20, None),
    ],
)
def test_memory_is_judged_when_the_run_is_long_enough(
    seconds: float, step: int, flat: bool | None
) -> None:
    """A growth of 1 MiB per sample is a leak; two seconds are too short to judge."""
    held = [Level((100 << 20) + number * step, 1, 1) for number in range(40)]
    found = replace(SOAK, seconds=seconds, samples=[Look(0.0, one, 1, 0.1, 1) for one in held])
    judge(found)
    assert found.verdicts["memory_flat"] is flat
    assert ("memory flat: NO" in found.failures) is (flat is False)


@pytest.mark.slow
def test_honest_hosts_get_their_bytes_whatever_a_hostile_one_does() -> None:
    """Every block is right and there, nothing is refused to the other tenants, the ledgers are
    equal, the daemon has not grown, the operator is admitted, and the hostile one gets no operator
    call."""
    if os.getuid() != 0:
        pytest.skip("takes five users; run it as root")
    found = bench_soak(seconds=2.0)
    assert not found.failures, (found.failures, found.daemon_said)
    assert len(found.hosts) == 7 and set(ATTACKS) < set(found.attacks)
    assert sum(one.checked for one in found.hosts) >= 7 * 32
