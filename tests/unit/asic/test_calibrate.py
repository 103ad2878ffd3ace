"""Does the calibration fit its parameters right, and judge error, tolerance and spread?"""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from offstage.asic_model.calibrate import (
    FIGURES,
    Figure,
    Judged,
    fit,
    judge,
    status_of,
    write_preset,
)
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.result import Logged, times_of
from offstage.asic_model.units.nvme import medium
from offstage.bindings.chip import Chip, Network, Stage, make_requests
from offstage.bindings.errors import BadInput
from offstage.bindings.stages import StageTimes

STAGES = {
    "ring_wait": StageTimes(count=9, ns_mean=40_000),
    "decide": StageTimes(count=9, ns_mean=26_000),
    "read_queue": StageTimes(count=9, ns_mean=30_000),
    "publish": StageTimes(count=9, ns_mean=2_500),
    "read_service": StageTimes(count=9, ns_mean=900_000),
    "answer": StageTimes(count=9, ns_mean=50_000),
    "copy": StageTimes(count=9, ns_mean=7_192),
    "check": StageTimes(count=9, ns_mean=1_000),
}


def own() -> Preset:
    return read_preset("dpu_x86_measured")


def trace(demands: int = 10, scores: int = 1000) -> Any:
    """Return two commands, and reads in batches of one and three: places 1, 1, 2, 3."""
    command = SimpleNamespace(demands=demands, scores=scores)
    reads = [
        SimpleNamespace(at_ns=at, ended_ns=at + took)
        for at, took in ((1, 100), (2, 200), (2, 200), (2, 500))
    ]
    return SimpleNamespace(fetches=[command, command], reads=reads, block_bytes=32768)


def test_the_fit_is_what_the_timers_say() -> None:
    found = {name: number.base for name, number in fit(own(), STAGES, trace(), "run").numbers()}
    command = found["cores.command"] + 10 * found["cores.demand"] + 1000 * found["cores.score"]
    assert command == pytest.approx(26_000_000), "a command of the run's mean work takes `decide`"
    assert found["cores.read"] == pytest.approx(30_000_000 / 1.75)
    assert found["cores.publish"] == pytest.approx(2_500_000)
    assert found["front_end.latency"] == pytest.approx(90_000_000)
    assert found["front_end.lane_rate"] == pytest.approx(32768 / 8.192e-6)
    assert found["disk.service"] == pytest.approx(900_000_000)
    assert found["disk.together"] == found["disk.service"]
    assert [found[f"disk.{name}"] for name in ("least", "p50", "most")] == [0.4, 0.8, 2.0]
    before = dict(own().numbers())
    ratio = before["cores.demand"].base / before["cores.score"].base
    assert found["cores.demand"] / found["cores.score"] == pytest.approx(ratio)


def test_what_is_drawn_of_a_disk_has_the_fitted_mean_and_spread() -> None:
    """Reads far apart have the mean `service`, and a tenth takes longer than p90. Reads of one
    moment take the same time."""
    disk = own().with_({"disk.p90": 2.0, "disk.together": 1.0, "disk.depth": 64})
    chip = Chip(Network((medium(disk),), {"only": (Stage("drive"),)}), seed=3)
    at_ps = np.repeat(np.arange(4000, dtype=np.uint64) * 10**11, 2)
    done = chip.run(make_requests(8000, at_ps=at_ps, size_bytes=32768))
    took = np.sort((done["end_ps"] - done["at_ps"]).reshape(-1, 2), axis=1)
    assert (took[:, 0] == took[:, 1]).all()
    mean = disk.disk.service.base if disk.disk else 0
    assert took.mean() == pytest.approx(mean, rel=0.05)
    quantiles = np.quantile(took, (0.5, 0.9)) / took.mean()
    assert quantiles[1] / quantiles[0] == pytest.approx(2.0 / 0.82, rel=0.05)


def test_a_run_without_stage_times_is_refused() -> None:
    timed = {name: stage for name, stage in STAGES.items() if name != "read_service"}
    with pytest.raises(BadInput, match="run: has no stage times of read_service"):
        fit(own(), timed, trace(), "run")


def test_a_fitted_preset_can_be_read_again(tmp_path: Any) -> None:
    fitted = fit(own(), STAGES, trace(), "run")
    write_preset(fitted, tmp_path / "fit.toml", "run")
    again = read_preset(str(tmp_path / "fit.toml"))
    assert {name: number.base for name, number in again.numbers()} == pytest.approx(
        {name: number.base for name, number in fitted.numbers()}
    )
    assert again.calibrated is False


@pytest.mark.parametrize(
    ("error", "spread", "verdict"),
    [
        (0.09, None, "met"),
        (-0.11, None, "missed"),
        (-0.11, 0.1, "missed"),
        (0.09, 0.05, "met"),
        (0.0, 0.11, "not measurable here"),
        (0.5, 0.11, "not measurable here"),
    ],
)
def test_a_verdict(error: float, spread: float | None, verdict: str) -> None:
    one = Judged(
        run="a",
        figure="fetch mean",
        measured=1.0,
        predicted=1.0 + error,
        error=error,
        tolerance=0.10,
        spread=spread,
        points=False,
    )
    assert one.verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (("met", "missed", "met"), "uncalibrated"),
        (("met", "missed", "unseen"), "uncalibrated"),
        (("met", "unseen", "met"), "not measurable here"),
        (("met", "met", "met"), "calibrated"),
    ],
)
def test_only_a_miss_is_uncalibrated_and_only_all_met_is_calibrated(
    verdicts: tuple[str, ...], status: str
) -> None:
    """A figure that cannot be judged rules out calibration and gives the third status. A figure
    that one run met and another could not judge is met."""
    errors = {"met": (0.0, None), "missed": (1.0, None), "unseen": (0.0, 1.0)}
    judged = [
        Judged(
            run="a",
            figure=figure.text,
            measured=1,
            predicted=1,
            error=errors[verdict][0],
            tolerance=0.1,
            spread=errors[verdict][1],
            points=False,
        )
        for figure, verdict in zip(FIGURES, (*verdicts, *["met"] * len(FIGURES)), strict=False)
    ]
    assert status_of(judged) == status
    again = [msgspec.structs.replace(one, run="b", spread=1.0) for one in judged]
    assert status_of(judged + again) == status


def logged(hits: int, mean_ns: float) -> Logged:
    return Logged(
        provenance="measured",
        storage="disk",
        hits=hits,
        late=0,
        misses=100 - hits,
        fetch_ns=times_of([mean_ns] * 5),
        stall_ns=times_of([]),
        seconds=2.0,
        bytes_read=4_000_000,
    )


def test_a_prediction_is_judged_against_the_mean_of_the_repeats() -> None:
    predicted: Any = logged(72, 1_150.0)
    found = {one.figure: one for one in judge("a", predicted, [logged(70, 900), logged(74, 1100)])}
    assert list(found) == [figure.text for figure in FIGURES]
    assert found["hit"].error == pytest.approx(0.0)
    assert found["hit"].spread == pytest.approx(0.04)
    assert found["fetch mean"].error == pytest.approx(0.15)
    assert found["fetch mean"].spread == pytest.approx(0.2)
    assert found["bandwidth"].verdict == "met" and found["bandwidth"].measured == 2_000_000
    assert Figure("hits", "hit", 0.01, True).error(0.5, 0.4) == pytest.approx(0.1)
