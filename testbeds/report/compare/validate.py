"""Self-prediction: the model of the measured machine, fitted to one run, against other runs.

Judged are held-out workloads alone: another context, number of sessions, arm or buffer than those
of the fit. Runs of one workload, arm and drive are repeats of each other: each is predicted from
its own log, in closed loop, and the mean error is judged, next to what the repeats leave open. On
emulated drives the drive's time is no evidence, since the same model made it. A recording whose
reactor waited for a processor is no measurement, and is refused.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from offstage.asic_model.calibrate import LEAST, fit
from offstage.asic_model.judge import (
    FIGURES,
    Judged,
    Observed,
    StageError,
    Status,
    judge,
    mean_stages,
    measured_of,
    predicted_of,
    stage_errors,
    status_of,
    structure,
)
from offstage.asic_model.pace import Pace
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, own_times
from offstage.asic_model.result import Times
from offstage.asic_model.samples import Samples, pooled, read_samples
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.bindings.stages import Stages, StageTimes
from offstage.testbeds.lab.run.spread import spread
from offstage.testbeds.report.compare.build import OWN, on_drive
from offstage.testbeds.report.compare.recorded import (
    RECORDS,
    Recorded,
    find_runs,
    of_machine,
    read_run,
)
from offstage.testbeds.report.page.numbers import clock_ns, percent

__all__ = ["WAITED_MAX", "Validation", "by_workload", "read_measured", "validate"]

T = TypeVar("T")

STRUCTURE = "structure"
WAITED_MAX = 50.0
"""How long the reactor may wait for a processor in a measurement, each time on average, in us: a
read on a disk takes some hundreds."""


class Validation(msgspec.Struct, kw_only=True):
    """The result of a calibration and its predictions."""

    calibrated_on: str
    fitted: dict[str, str]
    """Parameters that the fit set, with their units."""
    judged: list[Judged]
    stages: list[StageError]
    """For each predicted run, where the modelled time of a fetch differs from the measured."""
    status: Status
    """`uncalibrated` if any figure missed. A model without a miss that could not be judged on all
    figures is neither; its preset keeps `calibrated = false`."""
    verdicts: dict[str, int]
    off: str
    """The stage with the largest error, if any figure missed."""
    unseen: list[str]
    """Figures that were neither missed nor met: no verdict is possible."""
    workloads: dict[str, str]
    """Workload, arm and drive, by the name of a group of runs in the tables."""
    interrupted_percent: float
    """Of the reactor's processor time in the runs that were fitted: turns so far over what their
    work costs that something outside interrupted them. The fit leaves them out."""
    wake_us: dict[str, float]
    """How long the reactor took to wake up, in the mean of the fit and of each group of runs."""
    pace: Pace
    """With which power of its wake-ups a run's costs go, as the fit's runs say."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table of figures as text; of the structure only what is wrong."""
        return [_figure_row(one) for one in self.judged if not _exact(one)]

    def structure(self) -> str:
        """What the rung of the structure says, and what the fit left out, a line each."""
        runs = {one.run for one in self.judged if one.figure.startswith(STRUCTURE)}
        wrong = {one.run for one in self.judged if one.figure.startswith(STRUCTURE)} - {
            one.run for one in self.judged if _exact(one)
        }
        return (
            f"structure: exact in {len(runs) - len(wrong)} of {len(runs)} runs that were fitted\n"
            f"interrupted from outside, and left out: {self.interrupted_percent:.1f} % of the "
            "reactor's processor time\n"
            f"pace: costs go with the power {self.pace.power:.2f} of the reactor's wake-ups, "
            + ", ".join(f"{wake_us:.0f} µs in {name}" for name, wake_us in self.wake_us.items())
        )

    def stage_rows(self) -> list[tuple[str, ...]]:
        """The table of stages as text."""
        return [
            (one.run, one.stage, clock_ns(one.measured_ns), clock_ns(one.modelled_ns))
            for one in self.stages
        ]


def validate(
    calibrate: Sequence[Path], predict: Sequence[Path], *, busy: bool = False
) -> tuple[Validation, Preset]:
    """Fit to the samples of all runs of `calibrate`, predict, judge. The preset says `calibrated`
    if every figure was met somewhere and none was missed. `busy`: takes recordings of a machine
    that was too busy, which calibrate nothing."""
    fits = [read_measured(path, busy=busy) for path in calibrate]
    for one in fits:
        if one.device:
            raise BadInput(
                f"this is a run of the modelled {one.device}",
                str(one.path),
                "calibrate on a run of the daemon without a modelled device",
            )
    groups = by_workload([read_measured(path, busy=busy) for path in predict], fits)
    where = _and_more(str(fits[0].path), len(fits))
    read = _each(_fitted_run, fits)
    preset = _fit(fits, read, where)
    samples = [one.samples for one in read]
    pace = Pace.of(_grouped(fits, samples))
    runs = [run for group in groups.values() for run in group]
    seeds = [seed for group in groups.values() for seed in range(len(group))]
    found = _each(partial(_predicted_run, on_drive(preset, runs[0]), pace), runs, seeds)
    judged = [rung for run, one in zip(fits, read, strict=True) for rung in one.rungs(_name(run))]
    stages: list[StageError] = []
    workloads: dict[str, str] = {}
    paces = {"the fit": pooled(samples).wake_ns}
    for what, group in groups.items():
        name = _and_more(_name(group[0]), len(group))
        mine, found = found[: len(group)], found[len(group) :]
        workloads[name] = what
        judged += judge(name, [one.predicted for one in mine], [one.measured for one in mine])
        stages += mean_stages(name, [one.stages for one in mine])
        paces[name] = sum(one.wake_ns for one in mine) / len(mine)
    status = status_of(judged)
    if status == "calibrated" and any(_waited(run) > WAITED_MAX for run in (*fits, *runs)):
        status = "not measurable here"
    return _found(
        where,
        preset,
        judged,
        stages,
        status,
        workloads=workloads,
        interrupted_percent=100 * pooled(samples).interrupted,
        wake_us={name: wake_ns / 1000 for name, wake_ns in paces.items()},
        pace=pace,
    ), msgspec.structs.replace(preset, calibrated=status == "calibrated")


class _Fitted(NamedTuple):
    """What a fit takes of one run, and its structure: times in the model and in its log."""

    samples: Samples
    block_bytes: int
    times: tuple[Times, Times]

    def rungs(self, name: str) -> list[Judged]:
        return structure(name, *self.times)


class _Predicted(NamedTuple):
    """One run and its prediction."""

    predicted: Observed
    measured: Observed
    stages: list[StageError]
    wake_ns: float


def _fitted_run(run: Recorded) -> _Fitted:
    trace = read_trace(run.path)
    return _Fitted(read_samples(run.path), trace.block_bytes, own_times(trace))


def _predicted_run(preset: Preset, pace: Pace, run: Recorded, seed: int) -> _Predicted:
    trace, samples = read_trace(run.path), read_samples(run.path)
    own = pace.in_run(preset, samples)
    ran = closed_loop(trace, own, seed=seed)
    return _Predicted(
        predicted_of(ran, own, trace),
        measured_of(trace, samples),
        stage_errors("", ran, own, samples, run.stages),
        samples.wake_ns,
    )


def _each(work: Callable[..., T], *items: Sequence[Any]) -> list[T]:
    """Of each item, in order, on the cores that this process may use."""
    pieces = list(enumerate(zip(*items, strict=True)))
    done = spread(
        pieces,
        partial(_piece, work),
        jobs=len(os.sched_getaffinity(0)),
        cluster="",
        there=partial(_piece, work),
        command="asic validate",
        fix="or judge fewer runs",
    )
    found = {number: result for (number, _), result in done}
    return [found[number] for number, _ in pieces]


def _piece(work: Callable[..., T], piece: tuple[int, tuple[Any, ...]]) -> T:
    return work(*piece[1])


def _grouped(runs: Sequence[Recorded], samples: Sequence[Samples]) -> list[list[Samples]]:
    """The runs' samples by workload."""
    found: dict[str, list[Samples]] = {}
    for run, one in zip(runs, samples, strict=True):
        found.setdefault(_what(run), []).append(one)
    return list(found.values())


def _fit(runs: Sequence[Recorded], read: Sequence[_Fitted], where: str) -> Preset:
    sizes = {one.block_bytes for one in read}
    drives = {on_drive(read_preset(OWN), run).nvme.drive for run in runs}
    if len(sizes) > 1 or len(drives) > 1:
        raise BadInput(
            "the runs of one fit differ in block size or drive", where, "fit to runs of one kind"
        )
    return fit(
        on_drive(read_preset(OWN), runs[0]),
        pooled([one.samples for one in read]),
        _stages(runs),
        where,
        block_bytes=sizes.pop(),
        least=LEAST,
    )


def _stages(runs: Sequence[Recorded]) -> Stages:
    """The hosts' own, with the mean of their medians."""
    found: dict[str, StageTimes] = {}
    for name in ("answer", "copy", "check"):
        timed = [run.stages[name] for run in runs if name in run.stages]
        if timed:
            found[name] = StageTimes(
                count=sum(one.count for one in timed),
                ns_p50=round(sum(one.ns_p50 for one in timed) / len(timed)),
            )
    return found


def _found(
    where: str,
    preset: Preset,
    judged: list[Judged],
    stages: list[StageError],
    status: Status,
    **told: Any,
) -> Validation:
    missed = {one.run: one.figure for one in judged if one.verdict == "missed"}
    met = {one.figure for one in judged if one.verdict == "met"}
    verdicts: dict[str, int] = {}
    for one in judged:
        verdicts[one.verdict] = verdicts.get(one.verdict, 0) + 1
    suspects = [one for one in stages if one.run in missed]
    worst = max(suspects, key=lambda one: one.factor, default=None)
    broken = any(figure.startswith(STRUCTURE) for figure in missed.values())
    return Validation(
        calibrated_on=where,
        fitted=_fitted(preset),
        judged=judged,
        stages=stages,
        status=status,
        verdicts=verdicts,
        off="structure" if broken else worst.stage if worst else "",
        unseen=[one.text for one in FIGURES if one.text not in met],
        **told,
    )


def read_measured(folder: Path, *, busy: bool) -> Recorded:
    """The first run of a folder; BadInput for one of a machine that was too busy, if not `busy`."""
    run = of_machine(read_run(find_runs(folder)[0]))
    if _waited(run) > WAITED_MAX and not busy:
        machine = run.record.machine
        pressure = "" if machine.pressure is None else f"; CPU pressure {machine.pressure:.0%}"
        raise BadInput(
            f"the machine was too busy for a measurement: the reactor waited {_waited(run):.0f} µs "
            f"for a processor each time (limit {WAITED_MAX:.0f}){pressure}",
            str(run.path),
            "record it on a quiet machine, or with --isolate",
        )
    return run


def _waited(run: Recorded) -> float:
    return run.record.machine.reactor_delay_us or 0.0


def by_workload(runs: Sequence[Recorded], fits: Sequence[Recorded]) -> dict[str, list[Recorded]]:
    """Runs by workload, none of them that of a fit."""
    found: dict[str, list[Recorded]] = {}
    used = {_what(one) for one in fits} | {str(one.path) for one in fits}
    for run in runs:
        if {str(run.path), _what(run)} & used:
            raise BadInput(
                "the fit uses this workload",
                str(run.path),
                "predict another context, number of sessions, arm or buffer",
            )
        found.setdefault(_what(run), []).append(run)
    return found


def _what(run: Recorded) -> str:
    """Workload, arm and drive in a few words; the folder name where they are not recorded."""
    if run.summary is None:
        return str(run.path)
    load = run.summary.workload
    slots = load.slot_count
    buffer = "" if slots is msgspec.UNSET else f"a buffer of {slots} blocks, "
    return (
        f"{load.session_count} sessions of {load.context_tokens} tokens, "
        f"{load.decode_steps} steps, {buffer}{run.path.name}"
    )


def _name(run: Recorded) -> str:
    """The user's folder name, shortened."""
    return (run.path.parent.parent if run.path.parent.name == RECORDS else run.path).name


def _fitted(preset: Preset) -> dict[str, str]:
    before = dict(read_preset(OWN).numbers())
    return {
        name: f"{number.value:.4g} {number.unit}".removesuffix(" 1")
        + f" ({number.low:.3g} to {number.high:.3g}; {number.source})"
        for name, number in preset.numbers()
        if name in before and number.value != before[name].value
    }


def _and_more(first: str, count: int) -> str:
    return first + (f" and {count - 1} more" if count > 1 else "")


def _exact(one: Judged) -> bool:
    return one.figure.startswith(STRUCTURE) and one.verdict == "met"


def _figure_row(one: Judged) -> tuple[str, ...]:
    error = _points if one.points else _relative
    form = percent if one.points else FORMS.get(one.figure, clock_ns)
    return (
        one.run,
        one.figure,
        form(one.measured),
        form(one.predicted),
        error(one.error, True),
        error(one.tolerance),
        "–" if one.spread is None else f"{one.repeats} ± {error(one.spread)}",
        one.verdict,
    )


def _points(value: float, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f} points"


def _relative(value: float, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f} %"


FORMS = {
    "bytes read": lambda value: f"{value / 1e6:.4g} MB",
    "tokens/s": lambda value: f"{value:.4g}",
}
