"""Is the curve computed from the recorded demands, each session within its own context?"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.bindings.sim import DecodePlan, decode
from offstage.host.decode.session import Context, HostSession
from offstage.host.model.models import geometry
from offstage.testbeds.lab.policies.base import PATTERN
from offstage.testbeds.lab.policies.policy import guesses
from offstage.testbeds.live.curve import DemandTrace, hit_versus_traffic
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.progress import Silent

OPTIONS = DemoOptions(out=Path("out"), sessions=2, geometry=geometry("tiny"))
LENGTHS = [256, 150]
STEPS = 6


def recorded() -> DemandTrace:
    """Two sessions of different lengths, each of which also demands a block written in decode."""
    trace = DemandTrace()
    rng = np.random.default_rng(3)
    for number, length in enumerate(LENGTHS):
        for step in range(STEPS):
            for layer in range(OPTIONS.geometry.layer_count):
                old = rng.choice(length, 20, replace=False)
                demands = np.sort(np.append(old, length)).astype(np.uint32)
                session = cast(HostSession, SimpleNamespace(number=number, step=step))
                trace(session, layer, demands, np.full(length + 1, 9, np.uint16))
    return trace


def first_step(trace: DemandTrace, number: int) -> NDArray[np.void]:
    """Correct guesses for the first step."""
    return np.concatenate(
        [
            guesses(layer, blocks[blocks < LENGTHS[number]], after_layer=0, steps=0, cause=PATTERN)
            for layer in range(OPTIONS.geometry.layer_count)
            for blocks in [trace.demands[number, 0, layer]]
        ]
    )


def test_what_decoding_wrote_is_left_out_of_each_session() -> None:
    plan = recorded().plan(OPTIONS, (0, 1), LENGTHS)
    rows = np.split(plan.demands, plan.offsets[1:-1].astype(int))
    assert len(rows) == 2 * STEPS * 2 and {row.size for row in rows} == {20}
    assert [
        max(int(row.max()) < length for row in part)
        for length, part in zip(LENGTHS, (rows[:12], rows[12:]), strict=True)
    ] == [True, True]
    assert plan.score_counts == (256, 150) and plan.scores is not None
    assert plan.scores[1, :, :, :150].min() == 9 and plan.scores[1, :, :, 150:].max() == 0


def test_sessions_of_different_length_make_a_curve() -> None:
    """A trace has sessions of different lengths. A cold arena misses every block at least once."""
    contexts = {
        number: Context([1000 * number + n for n in range(length)], np.zeros((2, length), "u8"), [])
        for number, length in enumerate(LENGTHS)
    }
    trace = recorded()
    trace.guesses = {number: first_step(trace, number) for number in (0, 1)}
    options = replace(OPTIONS, window_tokens=64)
    points = hit_versus_traffic(options, trace, contexts, Silent())
    assert {one.provenance for one in points} == {"modelled"}
    plain = [one for one in points if one.policy.startswith("no prefetch")]
    assert [one.hit for one in plain] == sorted(one.hit for one in plain)
    assert 0.0 < plain[-1].hit < 1.0
    assert next(one.traffic_ratio for one in plain if one.label == "1x") == 1.0
    cold = hit_versus_traffic(replace(options, warm_up=False), trace, contexts, Silent())
    assert cold[: len(plain)] == plain, "an arm without prefetch is told nothing"
    told = dict(zip([one.policy for one in points], points, strict=True))
    untold = dict(zip([one.policy for one in cold], cold, strict=True))
    gained = [told[name].hit - untold[name].hit for name in told if "ema" in name]
    assert gained == pytest.approx([1 / STEPS] * 2, abs=0.02), "all of the first step, in time"


@pytest.mark.parametrize("counts", [(4,), (4, 9), (4, -1)])
def test_scores_that_no_row_holds_are_refused(counts: tuple[int, ...]) -> None:
    plan = DecodePlan(
        (0, 1),
        1,
        np.zeros(3, np.uint64),
        np.zeros(0, np.uint32),
        scores=np.zeros((2, 1, 1, 8), np.uint16),
        score_counts=counts,
    )
    core: Any = SimpleNamespace(config=SimpleNamespace(layer_count=1))
    with pytest.raises(BadInput, match="score_counts"):
        decode(core, plan)
