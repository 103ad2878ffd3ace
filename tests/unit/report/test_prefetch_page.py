"""Does `offstage bench prefetch` say that prefetch pays where its figures say so, and does its page
show every arm?"""

from pathlib import Path

import pytest
from bench_results import PREFETCH, moment
from msgspec.structs import replace

from offstage.testbeds.bench.engines.moment_result import (
    Cost,
    LiveLoad,
    LiveMoment,
    LivePrefetchResult,
)
from offstage.testbeds.bench.hint_arms import PAYS_MIN, HintArm, HintCase
from offstage.testbeds.report.prefetch import write_page


def arm(
    name: str, gained: float | None, ends: tuple[float, float] | None = None, wasted: float = 0.0
) -> HintArm:
    return HintArm(
        name=name,
        mean_s=0.2 * (1 - (gained or 0.0)),
        p50_s=0.1,
        p99_s=0.9,
        gained=gained,
        gained_range=ends,
        on_time=0.5,
        late=0.1,
        missing=0.4,
        wasted=wasted,
    )


NOTHING, MUCH = arm("none", 0.0), arm("perfect", 0.3)


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (
            [NOTHING, arm("a", 0.1), MUCH],
            "Prefetch pays here (t); at load 1 hints a gain 10.0 %: a",
        ),
        ([NOTHING, arm("a", PAYS_MIN / 2), MUCH], "Prefetch does not pay here"),
        ([NOTHING, arm("a", 0.1, (-0.01, 0.2)), MUCH], "Prefetch does not pay here"),
        ([NOTHING, arm("a", 0.1, (0.01, 0.2)), MUCH], "Prefetch does not pay here"),
        ([NOTHING, arm("a", 0.1, (0.03, 0.2)), MUCH], "takes 180 ms instead of 200 ms"),
        (
            [NOTHING, arm("a", 0.1, (0.03, 0.2)), arm("perfect", 0.3, (-0.1, 0.7))],
            "Prefetch does not pay here",
        ),
        ([NOTHING, arm("a", 0.3, (-0.1, 0.5)), arm("b", 0.1), MUCH], "hints b gain 10.0 %"),
        ([arm("recompute", -3.0), NOTHING, MUCH], "No hint was sent"),
        ([arm("none", None), arm("a", None)], "No hint was sent"),
    ],
)
def test_prefetch_pays_where_a_hint_gains_for_certain(arms: list[HintArm], said: str) -> None:
    """Enough, and as far as it was timed beyond the chance of its requests and of perfect ones'."""
    assert said in HintCase("t", {1.0: arms}).said()


def test_loads_are_judged_one_by_one() -> None:
    """And said with the times of each, bounds last."""
    yes, no = [NOTHING, arm("a", 0.1), MUCH], [NOTHING, arm("a", 0.0), MUCH]
    told = HintCase("t", {0.25: yes, 1.0: yes, 4.0: no}).said()
    assert told.startswith("Prefetch pays here at load 0.25 and 1, and not at 4 (t); at load 0.25 ")
    assert told.endswith("and perfect hints gain 30.0 %")


def live(first_s: list[float]) -> LiveLoad:
    moments = [
        LiveMoment(name="recompute", first_s=[9.0 * one for one in first_s]),
        LiveMoment(name="none", first_s=first_s, missing=9),
        LiveMoment(
            name="on <arrival>", first_s=[0.9 * one for one in first_s], on_time=9, read=4, wasted=1
        ),
        LiveMoment(name="perfect", first_s=[0.8 * one for one in first_s], on_time=9),
    ]
    found = LiveLoad(load=0.25, speed=1.0, moments=moments)
    found.compare()
    return found


LIVE = LivePrefetchResult(
    provenance="measured",
    storage="io_uring",
    model="m",
    trace="<t>.jsonl",
    requests=3,
    scale=0.5,
    tokens=[32, 64, 96],
    sessions=1,
    arena_bytes=1 << 20,
    stored_bytes=1 << 21,
    engine_tokens=64,
    cost=Cost([32, 96], [0.01, 0.03]),
    loads=[live([0.02, 0.5, 0.03])],
    left_out={},
    load_before=0.5,
)


def test_a_gain_of_every_request_is_certain() -> None:
    """Requests are paired: that they differ widens no interval."""
    _, none, hinted, _ = LIVE.loads[0].moments
    assert none.gained == 0 and hinted.gained == pytest.approx(0.1)
    assert hinted.gained_range == pytest.approx((0.1, 0.1))
    assert LIVE.about()[0].startswith("Prefetch pays here (<t>.jsonl)")


def test_the_page_shows_every_arm(tmp_path: Path) -> None:
    """Both kinds: the finding first, times and fates by arm and load. Names are text."""
    write_page(LIVE, tmp_path / "live.html", "1")
    page = (tmp_path / "live.html").read_text(encoding="utf-8")
    assert "Prefetch pays here (&lt;t&gt;.jsonl)" in page and "<t>" not in page
    for name in ("recompute", "none", "on &lt;arrival&gt;", "perfect"):
        assert page.count(name) > 3, name
    assert "on time: 100.0 %" in page and "wasted 25.0 %" in page and "−800.0 %" not in page
    load = replace(
        PREFETCH.cases[0].loads[0], moments=[moment(one) for one in ("none", "on arrival")]
    )
    two = [replace(PREFETCH.cases[0], trace=one, loads=[load]) for one in ("first", "second")]
    write_page(replace(PREFETCH, cases=two), tmp_path / "virtual.html", "1")
    page = (tmp_path / "virtual.html").read_text(encoding="utf-8")
    assert "Prefetch pays here (first)" in page and "Prefetch pays here (second)" in page
    assert 'id="staged-0"' in page and 'id="staged-1"' in page and "wasted 72.8 %" in page


def test_a_page_of_nothing_served_has_no_times(tmp_path: Path) -> None:
    """Absent figures are no points, and no division by them."""
    idle = {"first_ms_mean": 0.0, "first_ms_p50": 0.0, "first_ms_p99": 0.0, "gained": None}
    gone = idle | dict.fromkeys(("on_time", "late", "missing", "absent", "wasted"))
    load = replace(PREFETCH.cases[0].loads[0], moments=[replace(moment("none"), **gone)])
    write_page(
        replace(PREFETCH, cases=[replace(PREFETCH.cases[0], loads=[load])]), tmp_path / "p", "1"
    )
    assert "nothing says if prefetch pays" in (tmp_path / "p").read_text(encoding="utf-8")
