"""Self-prediction: the model of the measured machine, fitted to one run, against other runs.

Judged are held-out workloads alone: another context, number of sessions, arm or buffer than those
of the fit. Runs of one workload, arm and drive are repeats of each other: each is predicted from
its own log, in closed loop, and the mean error is judged, next to what the repeats leave open. On
emulated drives the drive's time is no evidence, since the same model made it. A recording whose
reactor waited for a processor is no measurement, and is refused.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.asic_model.calibrate import LEAST, fit
from offstage.asic_model.judge import (
    FIGURES,
    Judged,
    StageError,
    Status,
    judge,
    measured_of,
    predicted_of,
    stage_errors,
    status_of,
    structure,
)
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, own_times
from offstage.asic_model.samples import pooled, read_samples
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.bindings.stages import Stages, StageTimes
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
            "reactor's processor time"
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
    where = _and_more(str(fits[0].path), len(fits))
    preset = _fit(fits, where)
    rungs = [
        rung for one in fits for rung in structure(_name(one), *own_times(read_trace(one.path)))
    ]
    judged: list[Judged] = []
    stages: list[StageError] = []
    workloads: dict[str, str] = {}
    groups = by_workload([read_measured(path, busy=busy) for path in predict], fits)
    for what, group in groups.items():
        name = _and_more(_name(group[0]), len(group))
        workloads[name] = what
        traces = [read_trace(run.path) for run in group]
        samples = [read_samples(run.path) for run in group]
        own = on_drive(preset, group[0])
        runs = [closed_loop(trace, own, seed=seed) for seed, trace in enumerate(traces)]
        judged += judge(
            name,
            [predicted_of(run, own, trace) for run, trace in zip(runs, traces, strict=True)],
            [measured_of(*pair) for pair in zip(traces, samples, strict=True)],
        )
        stages += stage_errors(name, runs[0], own, samples[0], group[0].stages)
    status = status_of(rungs + judged)
    noisy = [
        run
        for run in (*fits, *(one for group in groups.values() for one in group))
        if _waited(run) > WAITED_MAX
    ]
    if noisy and status == "calibrated":
        status = "not measurable here"
    left_out = 100 * pooled([read_samples(run.path) for run in fits]).interrupted
    return _found(where, preset, rungs + judged, stages, status, workloads, left_out), (
        msgspec.structs.replace(preset, calibrated=status == "calibrated")
    )


def _fit(runs: Sequence[Recorded], where: str) -> Preset:
    sizes = {read_trace(run.path).block_bytes for run in runs}
    drives = {on_drive(read_preset(OWN), run).nvme.drive for run in runs}
    if len(sizes) > 1 or len(drives) > 1:
        raise BadInput(
            "the runs of one fit differ in block size or drive", where, "fit to runs of one kind"
        )
    return fit(
        on_drive(read_preset(OWN), runs[0]),
        pooled([read_samples(run.path) for run in runs]),
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
    workloads: dict[str, str],
    interrupted_percent: float,
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
        workloads=workloads,
        interrupted_percent=interrupted_percent,
    )


def read_measured(folder: Path, *, busy: bool) -> Recorded:
    """The first run of a folder; BadInput for one of a machine that was too busy, if not `busy`."""
    run = of_machine(read_run(find_runs(folder)[0]))
    if _waited(run) > WAITED_MAX and not busy:
        machine = run.record.machine
        pressure = "" if machine.pressure is None else f"; CPU pressure {machine.pressure:.0%}"
        raise BadInput(
            f"the machine was too busy for a measurement: the reactor waited {_waited(run):.0f} us "
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
