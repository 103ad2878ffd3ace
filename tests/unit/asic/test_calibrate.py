"""Does the calibration fit costs by work and reads by cause, and judge only what it may?"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from asic_logs import moments, recorded, written

from offstage.asic_model.account import Device
from offstage.asic_model.calibrate import fit, write_preset
from offstage.asic_model.judge import (
    FIGURES,
    Figure,
    Judged,
    Observed,
    StageError,
    judge,
    mean_stages,
    measured_of,
    predicted_of,
    status_of,
    structure,
)
from offstage.asic_model.pace import Pace
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, own_times
from offstage.asic_model.result import times_of
from offstage.asic_model.samples import (
    COSTS,
    Samples,
    cost_of,
    pooled,
    read_samples,
    samples_of,
    samples_of_log,
)
from offstage.asic_model.services import Services, rows_of
from offstage.asic_model.trace import Trace, read_trace
from offstage.asic_model.units.nvme import medium
from offstage.bindings.chip import Chip, Network, Stage, make_requests
from offstage.bindings.errors import BadInput
from offstage.bindings.moments import MOMENT, Moments
from offstage.bindings.stages import StageTimes

STAGES = {
    "answer": StageTimes(count=900, ns_p50=50_000),
    "copy": StageTimes(count=900, ns_p50=7_192),
    "check": StageTimes(count=900, ns_p50=1_000),
}
DEMAND, WINDOW = 1, 3
MS = 10**9  # in ps


def own() -> Preset:
    return read_preset("dpu_x86_measured")


@pytest.fixture
def run(tmp_path: Path) -> tuple[Trace, Samples]:
    """A log with moments: demands take 300 us and window reads 900; costs are in `moments`."""
    folder = written(tmp_path, recorded())
    trace = read_trace(folder)
    (folder / "moments.bin").write_bytes(moments(trace).tobytes())
    return trace, read_samples(folder)


def fitted(trace: Trace, samples: Samples) -> Preset:
    return fit(own(), samples, STAGES, "run", block_bytes=trace.block_bytes, least=40)


def test_costs_are_found_again_from_processor_time_and_work(run: tuple[Trace, Samples]) -> None:
    """Turns with known costs give these costs, whatever the order of turns; turns in which the
    reactor was off its processor, which took 50 times as long, are not among them."""
    found = {name: number.base for name, number in fitted(*run).numbers()}
    assert found["cores.command"] == pytest.approx(5_000_000, rel=0.01)
    assert found["cores.demand"] == pytest.approx(700_000, rel=0.01)
    assert found["cores.score"] == pytest.approx(8_000, rel=0.01)
    assert found["cores.read"] == pytest.approx(4_000_000, rel=0.01)
    assert found["cores.publish"] == pytest.approx(6_000_000, rel=0.01)
    assert found["cores.start"] == pytest.approx(60_000_000, rel=0.01)
    assert found["cores.wake"] == pytest.approx(20_000_000, rel=0.01)
    assert found["cores.cold"] == pytest.approx(9_000_000, rel=0.01)
    assert found["front_end.latency"] == pytest.approx(70_000_000), "median wait 20 us, and answer"
    assert found["front_end.lane_rate"] == pytest.approx(run[0].block_bytes / 8.192e-6)


def test_a_wait_is_what_reads_and_their_costs_leave_of_it(run: tuple[Trace, Samples]) -> None:
    """Commands that waited for two reads were 60 us on the device beside them: 4 us are the cost of
    the first read, 12 that of their ends, and the rest has no other name."""
    samples = replace(run[1], around=np.full(100, 60_000), awaited=np.full(100, 2))
    found = dict(fitted(run[0], samples).numbers())["cores.answer"]
    assert found.base == pytest.approx(44e6, rel=0.02)


def test_runs_tell_apart_what_one_cannot(run: tuple[Trace, Samples]) -> None:
    """Of a run whose commands all have 500 scores nothing says what the scores cost; pooled with a
    run of 900 each, it is found."""
    found = []
    for scores in (500, 900):
        turns = run[1].turns.copy()
        turns["at_ns"][:, 1] = 5_000 + 700 * turns["demands"] + 8 * scores
        turns["rested_us"] = 0
        turns["scores"] = scores
        found.append(replace(run[1], turns=turns))
    both = pooled(found)
    assert both.costs["commands"] == pytest.approx(5_000, rel=0.01)
    assert both.costs["scores"] == pytest.approx(8, rel=0.01)
    assert found[0].costs["scores"] != pytest.approx(8, rel=0.2)
    assert both.work == {name: 2 * done for name, done in run[1].work.items()}


def test_what_interrupts_a_turn_from_outside_is_no_cost(run: tuple[Trace, Samples]) -> None:
    """One turn in seven is held up by 150 us, which no clock of the guest shows: the costs are
    those of the others, and the share that was left out is said."""
    whole = run[1]
    turns = whole.turns.copy()
    turns["at_ns"][::7, 0] += 150_000
    held = replace(whole, turns=turns)
    assert whole.interrupted == 0.0
    for name, cost in held.costs.items():
        assert cost == pytest.approx(whole.costs[name], rel=0.02, abs=1.0)
    extra = 150_000 * len(turns[::7])
    took = turns["at_ns"][:, :4].sum()
    assert extra / took < held.interrupted < 1.5 * extra / took


def test_a_cost_is_never_below_zero_and_has_its_interval() -> None:
    draw = np.random.default_rng(3)
    work = np.stack([np.ones(400), draw.integers(0, 9, 400)], 1)
    took = work @ (100.0, 0.0) + draw.normal(0, 30, 400)
    fixed, each = cost_of(work, took)
    assert each.value >= 0 and each.low >= 0 and fixed.low < 100 < fixed.high
    assert fixed.count == 400 and (work @ (fixed.value, each.value)).sum() == pytest.approx(
        took.sum()
    )


def test_reads_are_drawn_by_cause_and_load_as_they_were() -> None:
    """Mean and median of each cause and load come out: none beside them, 1, 2, to 4, to 8. A band
    of few reads is drawn with the one before it, and a cause of few from all of that load."""
    draw = np.random.default_rng(5)
    cause = np.repeat([DEMAND, WINDOW, 5], [4000, 600, 20])
    beside = np.where(cause == DEMAND, draw.choice([0, 1, 3, 4, 8, 30], len(cause)), 0)
    few = (cause == DEMAND) & (beside == 30)
    beside[np.flatnonzero(few)[50:]] = 8
    few = (cause == DEMAND) & (beside == 30)
    took = draw.lognormal(0, 0.5, len(cause)) * np.where(cause == DEMAND, 3e5, 12e5)
    took = (took * (1 + beside / 4)).astype(np.int64)
    rows = rows_of(cause, beside, took)
    assert [row[:2] for row in rows] == [
        (of, most) for of in (0, DEMAND, WINDOW) for most in (0, 1, 4, 1e9)
    ]
    disk = own().disk
    assert disk is not None
    service = msgspec.structs.replace(
        disk.service.set(took.mean() / 1e6), spread=rows
    )  # the preset's unit is ms
    services = Services(msgspec.structs.replace(disk, service=service), seed=1)
    demanded = cause == DEMAND
    for mine, kind, load in (
        (demanded & (beside == 0), DEMAND, 0),
        (demanded & (beside == 1), DEMAND, 1),
        (demanded & ((beside == 3) | (beside == 4)), DEMAND, 2),
        ((demanded & (beside == 8)) | few, DEMAND, 5),
        (cause == WINDOW, WINDOW, 0),
        ((demanded & (beside == 8)) | few, WINDOW, 30),
        (beside == 0, 5, 0),
    ):
        drawn = [services.draw_ns(kind, load, at * 10**10) for at in range(4000)]
        assert np.mean(drawn) == pytest.approx(took[mine].mean(), rel=0.1)
        assert np.median(drawn) == pytest.approx(np.median(took[mine]), rel=0.1)
    at_once = {services.draw_ns(DEMAND, 0, 10**12 + after) for after in range(5)}
    assert len(at_once) == 1, "a slow moment is slow for all"


def test_the_fit_predicts_the_run_that_it_was_made_of(run: tuple[Trace, Samples]) -> None:
    """In closed loop bytes, decisions and processor time of the run come out."""
    trace, samples = run
    preset = fitted(*run)
    ran = closed_loop(trace, preset)
    found = predicted_of(ran, preset, trace)
    drawn = {"starts": ran.starts, "wakes": ran.wakes, "rests": ran.rests}  # not of these times
    measured = measured_of(trace, replace(samples, work=samples.work | drawn))
    assert found.cpu_ns == pytest.approx(measured.cpu_ns, rel=0.05)
    assert found.bytes_read == pytest.approx(measured.bytes_read, rel=0.1)
    assert found.hit == pytest.approx(measured.hit, abs=0.1)


def test_the_model_counts_what_wakes_a_drive_and_a_core(run: tuple[Trace, Samples]) -> None:
    """Of four reads three find none in flight, two of them after 1 ms without: one joins the first,
    one begins 0.2 ms after the last end. Of four commands the second follows the first while the
    reactor wakes up, so that one turn takes both, and the third when it is awake."""
    device = Device(own(), run[0], drive="", seed=0)

    def read(now_ps: int, done: Callable[[int], None] = lambda end_ps: None) -> None:
        device.ask("read", now_ps, done, cause=DEMAND)

    def command(now_ps: int) -> None:
        device.ask("command", now_ps, lambda end_ps: None, score_count=100)

    def soon(end_ps: int) -> None:
        device.at(end_ps + MS // 5, read)

    for at_ps, call in (
        (5 * MS, command),
        (5 * MS + 1, command),
        (5 * MS + MS // 2, command),
        (6 * MS, read),
        (6 * MS + 1, read),
    ):
        device.at(at_ps, call)
    device.at(900 * MS, command)
    device.at(900 * MS, lambda now_ps: read(now_ps, soon))
    device.run()
    assert (device.starts, device.wakes) == (3, 2)
    assert (device.rests, device.cold_scores) == (2, 300)


def paced(run: Samples, wake_us: float, slower: float) -> Samples:
    """The run, with wake-ups of that length and turns so much longer."""
    turns = run.turns.copy()
    turns["at_ns"][:, :4] = turns["at_ns"][:, :4] * slower
    return replace(run, turns=turns, woke=np.full(200, wake_us * 1000, np.int64))


def test_a_slow_hour_is_told_by_its_wake_ups(run: tuple[Trace, Samples]) -> None:
    """Two workloads, of which one has longer wake-ups for a reason of its own: within each, costs
    go with their root. A run at the fit's pace keeps the fitted numbers; one with wake-ups four
    times as long pays twice as much for work, and no other number changes. What grows faster than
    the wake-ups, or falls, is not believed."""
    fits = [[paced(run[1], of * at, (at / 60) ** 0.5) for at in (40, 60, 90)] for of in (1, 2)]
    found = Pace.of(fits)
    assert found.power == pytest.approx(0.5, abs=0.02)
    preset = fitted(*run)
    before = {name: number.value for name, number in preset.numbers()}
    same = found.in_run(preset, paced(run[1], found.wake_ns / 1000, 1))
    assert {name: one.value for name, one in same.numbers()} == pytest.approx(before, rel=1e-4)
    slow = found.in_run(preset, paced(run[1], found.wake_ns / 250, 1))
    for name, number in slow.numbers():
        factor = 2 if name in {f"cores.{one}" for one in COSTS} else 1
        assert number.value == pytest.approx(before[name] * factor, rel=0.06)
    for grows, power in ((3, 1.0), (-1, 0.0)):
        fits = [[paced(run[1], at, (at / 60) ** grows) for at in (40, 60, 90)]]
        assert Pace.of(fits).power == power


def test_a_run_that_never_slept_has_no_pace(run: tuple[Trace, Samples]) -> None:
    """And a fit with such a run leaves every prediction as it was."""
    awake = replace(run[1], woke=np.zeros(0, np.int64))
    preset, fits = fitted(*run), [paced(run[1], at, at / 60) for at in (40, 90)]
    assert Pace.of([fits]).in_run(preset, awake) is preset
    assert Pace.of([[*fits, awake]]).in_run(preset, fits[0]) is preset


def test_a_wake_up_is_of_a_command_after_a_rest_alone() -> None:
    """Of seven commands: the first, with nothing before it; one after a rest of 5 ms, and the next,
    which the same turn takes; one 0.2 ms after that; one that found the reactor awake; one that
    waited 0.4 ms for a processor; one 0.3 ms after a read's end."""
    rows = np.zeros(9, MOMENT)
    rows["kind"] = [1, 1, 1, 1, 1, 1, 0, 1, 2]
    sent = [1, 6_000, 6_010, 6_300, 12_000, 18_000, 0, 24_300]
    taken = [80, 6_070, 6_071, 6_340, 12_005, 18_400, 0, 24_380]
    for row, (one, other) in enumerate(zip(sent, taken, strict=True)):
        rows["at_ns"][row, :2] = one * 1000, other * 1000
    rows["at_ns"][6, 3] = 24_000_000  # reaped
    rows["demands"] = 1
    found = samples_of(Moments(rows))
    assert found.woke.tolist() == [70_000]


@pytest.mark.parametrize(
    ("rows", "least", "what"),
    [
        (slice(0, 0), 50, "has no moments"),
        (slice(None), 5_000, "has 77 undisturbed turns with commands, and a fit needs 5000"),
    ],
)
def test_too_few_samples_are_refused(tmp_path: Path, rows: slice, least: int, what: str) -> None:
    folder = written(tmp_path, recorded())
    trace = read_trace(folder)
    (folder / "moments.bin").write_bytes(moments(trace)[rows].tobytes())
    with pytest.raises(BadInput, match=what):
        fit(own(), read_samples(folder), STAGES, "run", block_bytes=65536, least=least)


def test_a_hole_in_the_moments_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, recorded())
    rows = moments(read_trace(folder))
    rows["lost"][len(rows) // 2] = 3
    (folder / "moments.bin").write_bytes(rows.tobytes())
    with pytest.raises(BadInput, match="lacks 3 moments"):
        read_samples(folder)


def test_a_log_without_moments_still_says_how_long_reads_took(tmp_path: Path) -> None:
    """Costs of the reactor stay the preset's own."""
    trace = read_trace(written(tmp_path, recorded()))
    found = fit(own(), samples_of_log(trace), {}, "run", block_bytes=65536, least=0)
    took = np.mean([one.ended_ns - one.at_ns for one in trace.reads])
    assert found.disk is not None and found.disk.service.base == pytest.approx(took * 1000)
    assert found.cores == own().cores


def test_a_window_in_which_the_reactor_was_away_is_told() -> None:
    """Two windows of two turns; in the second a half of the time was somebody else's."""
    rows = np.zeros(7, MOMENT)
    rows["kind"] = [2, 2, 3, 2, 2, 3, 2]
    rows["at_ns"][2, :2] = 100_000, 99_000
    rows["at_ns"][5, :2] = 100_000, 50_000
    assert Moments(rows).undisturbed.tolist() == [True, True, False, False, False]


def test_what_is_drawn_of_a_disk_has_the_fitted_mean_and_spread() -> None:
    """In the engine, which knows no cause: reads far apart have the mean `service`, and a tenth
    takes longer than p90. Reads of one moment take the same time."""
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


def test_a_fitted_preset_can_be_read_again(tmp_path: Path, run: tuple[Trace, Samples]) -> None:
    """With its rows of services, so that it predicts alike."""
    preset = fitted(*run)
    write_preset(preset, tmp_path / "fit.toml", "run")
    again = read_preset(str(tmp_path / "fit.toml"))
    assert {name: number.base for name, number in again.numbers()} == pytest.approx(
        {name: number.base for name, number in preset.numbers()}
    )
    assert again.calibrated is False and again.disk is not None and preset.disk is not None
    assert np.allclose(again.disk.service.spread, preset.disk.service.spread, rtol=1e-5)


@pytest.mark.parametrize("spread", ["[1]", "[[-1.0, 5.0]]", "[[1.0, 5.0, 1.0]]", "7"])
def test_a_broken_spread_is_refused(tmp_path: Path, spread: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        'extends = "dpu_x86_measured"\n[disk]\nservice = { value = 1, unit = "ms", low = 1, '
        f'high = 1, tag = "guess", source = "none", spread = {spread} }}\n'
    )
    with pytest.raises(BadInput, match="spread"):
        read_preset(str(path))


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
        figure="on the device, mean",
        measured=1.0,
        predicted=1.0 + error,
        error=error,
        tolerance=0.10,
        spread=spread,
        repeats=4,
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
            repeats=4,
            points=False,
        )
        for figure, verdict in zip(FIGURES, (*verdicts, *["met"] * len(FIGURES)), strict=False)
    ]
    assert status_of(judged) == status
    again = [msgspec.structs.replace(one, run="b", spread=1.0) for one in judged]
    assert status_of(judged + again) == status


def test_a_structure_that_is_off_by_a_nanosecond_is_a_miss(run: tuple[Trace, Samples]) -> None:
    """This rung has no tolerance: any error rules out `calibrated`."""
    modelled, measured = own_times(run[0])
    assert {one.verdict for one in structure("a", modelled, measured)} == {"met"}
    off = msgspec.structs.replace(modelled, max=modelled.max + 1)
    assert status_of(structure("a", off, measured)) == "uncalibrated"


def observed(hit: float, mean_ns: float, cpu_ns: float = 100.0) -> Observed:
    return Observed(
        hit=hit,
        late=0.0,
        miss=1 - hit,
        bytes_read=4e6,
        cpu_ns=cpu_ns,
        device_ns=times_of([mean_ns] * 5),
        tokens_per_s=10.0,
    )


def test_stages_are_those_of_all_repeats() -> None:
    """As the figures are: one repeat may lie a third off."""
    runs = [
        [StageError(run="", stage=stage, measured_ns=ns, modelled_ns=8.0) for stage in ("a", "b")]
        for ns in (4.0, 10.0)
    ]
    found = mean_stages("2x32k", runs)
    assert [(one.run, one.stage, one.measured_ns, one.modelled_ns) for one in found] == [
        ("2x32k", "a", 7.0, 8.0),
        ("2x32k", "b", 7.0, 8.0),
    ]


def test_each_repeat_is_held_to_its_own_prediction() -> None:
    """What moves both sides alike leaves nothing open; the rest is Student's interval of the mean
    error: of two repeats whose errors are 0.02 and -0.02, 12.71 times 0.02."""
    measured = [observed(0.70, 900), observed(0.74, 1100)]
    predicted = [observed(0.72, 1050, 106), observed(0.72, 1250, 106)]
    found = {one.figure: one for one in judge("a", predicted, measured)}
    assert list(found) == [figure.text for figure in FIGURES]
    assert found["hit"].error == pytest.approx(0.0)
    assert found["hit"].spread == pytest.approx(12.71 * 0.02, rel=1e-3)
    assert found["hit"].verdict == "not measurable here"
    assert found["on the device, mean"].error == pytest.approx(0.15)
    assert found["on the device, mean"].spread == pytest.approx(0.0)
    assert found["on the device, mean"].verdict == "missed"
    assert judge("a", predicted[:1], measured[:1])[0].spread is None
    assert found["bytes read"].verdict == "met" and found["bytes read"].spread == 0
    assert found["reactor's processor time"].verdict == "missed"
    assert Figure("hit", "hit", 0.01, True).error(0.5, 0.4) == pytest.approx(0.1)
