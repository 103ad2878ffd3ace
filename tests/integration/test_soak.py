"""Do eight hosts of three tenants under users of their own live well beside a hostile one?

Seconds of what `offstage bench soak` does for minutes. Nothing of it is timed: everybody has come
to work before the time begins.
"""

import os

import pytest

from offstage.bindings.layouts import ENDS
from offstage.testbeds.bench.soak import HONEST, bench_soak, judge
from offstage.testbeds.bench.soak_hostile import ATTACKS, GRANTED


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
    """Growth of 1 MiB a sample is a leak; in two seconds nobody can tell."""
    samples = [{"rss_bytes": (100 << 20) + number * step, "hosts": 1} for number in range(40)]
    level = {"threads": 1, "descriptors": 1}
    judged = judge(
        {
            "samples": samples,
            "seconds": seconds,
            "hosts": [],
            "attacks": {GRANTED: 0},
            "complaints": "",
            "before": level,
            "after": level,
            "exits": [],
            "daemon_exit": 0,
            "daemon_said": [],
            "ledgers": {name: {"ends": [0] * len(ENDS)} for name in HONEST},
        }
    )
    assert judged["verdicts"]["memory flat"] is flat
    assert judged["verdicts_met"] is (flat is not False)


@pytest.mark.slow
def test_honest_hosts_get_their_bytes_whatever_a_hostile_one_does() -> None:
    """Every block right and there, nothing refused to the other tenants, the ledgers equal, the
    daemon as small as before, the operator let in, nothing of the operator's granted."""
    if os.getuid() != 0:
        pytest.skip("takes five users; run it as root")
    found = bench_soak(seconds=2.0)
    assert found["verdicts_met"], (found["verdicts"], found["daemon_said"])
    assert len(found["hosts"]) == 7 and set(ATTACKS) < set(found["attacks"])
    assert sum(one["checked"] for one in found["hosts"]) >= 7 * 32
