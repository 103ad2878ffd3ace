"""Does the closed form of a load agree with replays of as many copies, and with sums by hand?"""

from dataclasses import replace

import pytest
from asic_logs import recorded, written

from offstage.asic_model.copies import copies
from offstage.asic_model.load import Work, serve, work_of
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.result import binding
from offstage.asic_model.trace import Trace, read_trace

MADE = Work(tokens=2, units={"link": 1e-3, "core": 4e-3}, device_s=6e-3, host_s=34e-3)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(written(tmp_path_factory.mktemp("log"), recorded()))


def test_a_load_by_hand() -> None:
    """One GPU never waits; many are bound by the slowest unit; the knee is where both lines meet.
    At a knee of ten, a fair share of the lines' value is left."""
    one, many, knee = serve(MADE, 1), serve(MADE, 1000), serve(MADE, 10)
    assert MADE.knee_gpus == pytest.approx(10) and MADE.tokens_per_s_max == 500
    assert one.tokens_per_s == pytest.approx(2 / 40e-3) and one.binds == "nothing"
    assert many.tokens_per_s == pytest.approx(500, rel=1e-3) and many.binds == "core"
    assert 0.6 * 500 < knee.tokens_per_s < 0.95 * 500
    twice = MADE.scaled(sessions=2, layers=3, pace_s=0.1)
    assert twice.units["core"] == pytest.approx(24e-3) and twice.tokens == 4
    assert twice.host_s == 0.1 and twice.device_s == pytest.approx(18e-3)
    assert MADE.slower(2).tokens_per_s_max == 250
    still = serve(replace(MADE, units={}, device_s=0.0), 50)
    assert still.tokens_per_s == pytest.approx(100 / 34e-3) and still.binds == "nothing"
    assert binding({"a": 0.19}) == "nothing" and binding({"a": 0.2, "b": 0.1}) == "a"


@pytest.mark.parametrize("name", ["bluefield3", "asic_7nm"])
def test_a_load_is_what_copies_of_the_run_give(trace: Trace, name: str) -> None:
    """At the knee and beyond, from the run alone: a closed form that left a unit out, or one that
    counted what is read ahead as a wait, would not."""
    preset = read_preset(name)
    alone = decision_replay(trace, preset)
    work = work_of(alone, trace)
    assert serve(work, 1).tokens_per_s == pytest.approx(alone.tokens_per_s, rel=0.01)
    run = decision_replay(copies(trace, 4), preset)
    found = serve(work, 4)
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.15)
    assert found.binds == run.binds_first


def test_copies_do_not_decode_in_unison(trace: Trace) -> None:
    """Each begins at its own moment, the same for the same seed; tenants take turns."""
    made = copies(trace, 3, seed=7, tenants=2)
    sessions = 1 + max(one.session for one in trace.fetches)
    first = [
        min(one.at_ns for one in made.fetches if one.session // sessions == copy)
        for copy in range(3)
    ]
    assert first[0] == trace.fetches[0].at_ns and len(set(first)) == 3
    again, other = copies(trace, 3, seed=7), copies(trace, 3, seed=8)
    begun = [[one.at_ns for one in each.fetches] for each in (made, again, other)]
    assert begun[0] == begun[1] != begun[2]
    assert {(one.session // sessions, one.tenant) for one in made.fetches} == {
        (0, 0),
        (1, 1),
        (2, 0),
    }
    assert made.weights == (1, 1) and len(made.reads) == 3 * len(trace.reads)
