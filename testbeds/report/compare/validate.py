"""Self-prediction: the model of the measured machine, fitted to one run, against other runs.

Runs of the same workload, arm and drive are repeats of each other: each group is predicted once, in
closed loop, and judged against the mean of its runs and their spread. On emulated drives the
drive's time is no evidence, since the same model made it; the table marks those runs.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.asic_model.calibrate import (
    FIGURES,
    Judged,
    StageError,
    Status,
    fit,
    judge,
    stage_errors,
    status_of,
)
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.timed import as_hosts_saw
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.testbeds.report.compare.build import OWN, on_drive
from offstage.testbeds.report.compare.recorded import (
    RECORDS,
    Recorded,
    find_runs,
    read_run,
)
from offstage.testbeds.report.page.numbers import clock_ns, percent

__all__ = ["Validation", "validate"]


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

    def rows(self) -> list[tuple[str, ...]]:
        """The table of figures as text."""
        return [_figure_row(one) for one in self.judged]

    def stage_rows(self) -> list[tuple[str, ...]]:
        """The table of stages as text."""
        return [
            (one.run, one.stage, clock_ns(one.measured_ns), clock_ns(one.modelled_ns))
            for one in self.stages
        ]


def validate(calibrate: Path, predict: Sequence[Path]) -> tuple[Validation, Preset]:
    """Fit, predict, judge. The preset says `calibrated` if every figure was met somewhere and none
    was missed."""
    first = _read(calibrate)
    if first.device:
        raise BadInput(
            f"this is a run of the modelled {first.device}",
            str(first.path),
            "calibrate on a run of the daemon without a modelled device",
        )
    preset = fit(
        on_drive(read_preset(OWN), first), first.stages, read_trace(first.path), str(first.path)
    )
    judged: list[Judged] = []
    stages: list[StageError] = []
    workloads: dict[str, str] = {}
    for what, group in _groups([_read(path) for path in predict], first).items():
        name = ", ".join(_name(run) for run in group)
        workloads[name] = what
        predicted = [run for run in group if run.path != first.path]
        trace = read_trace(predicted[0].path)
        own = on_drive(preset, predicted[0])
        run = closed_loop(trace, own)
        repeats = [as_hosts_saw(read_trace(one.path), one.stages) for one in group]
        judged += judge(name, run, repeats)
        stages += stage_errors(name, run, predicted[0].stages)
    missed = [one for one in judged if one.verdict == "missed"]
    met = {one.figure for one in judged if one.verdict == "met"}
    unseen = [one.text for one in FIGURES if one.text not in met]
    verdicts: dict[str, int] = {}
    for one in judged:
        verdicts[one.verdict] = verdicts.get(one.verdict, 0) + 1
    status = status_of(judged)
    suspects = [one for one in stages if one.run in {miss.run for miss in missed}]
    worst = max(suspects, key=lambda one: abs(one.modelled_ns - one.measured_ns), default=None)
    found = Validation(
        calibrated_on=str(first.path),
        fitted=_fitted(preset),
        judged=judged,
        stages=stages,
        status=status,
        verdicts=verdicts,
        off=worst.stage if worst else "",
        unseen=unseen,
        workloads=workloads,
    )
    return found, msgspec.structs.replace(preset, calibrated=status == "calibrated")


def _read(folder: Path) -> Recorded:
    return read_run(find_runs(folder)[0])


def _groups(runs: Sequence[Recorded], first: Recorded) -> dict[str, list[Recorded]]:
    """Runs by workload. The fitted one counts as a repeat, and is not predicted alone."""
    found: dict[str, list[Recorded]] = {}
    for run in runs:
        if run.path == first.path:
            raise BadInput("the fit uses this run", str(run.path), "predict another run")
        found.setdefault(_what(run), []).append(run)
    if _what(first) in found:
        found[_what(first)].append(first)
    return found


def _what(run: Recorded) -> str:
    """Workload, arm and drive in a few words; the folder name where they are not recorded."""
    if run.summary is None:
        return str(run.path)
    load = run.summary.workload
    return (
        f"{load.session_count} sessions of {load.context_tokens} tokens, "
        f"{load.decode_steps} steps, {run.path.name}"
    )


def _name(run: Recorded) -> str:
    """The user's folder name, shortened."""
    return (run.path.parent.parent if run.path.parent.name == RECORDS else run.path).name


def _fitted(preset: Preset) -> dict[str, str]:
    before = dict(read_preset(OWN).numbers())
    return {
        name: f"{number.value:.4g} {number.unit}".removesuffix(" 1")
        for name, number in preset.numbers()
        if name in before and number.value != before[name].value
    }


def _figure_row(one: Judged) -> tuple[str, ...]:
    error = _points if one.points else _relative
    form = percent if one.points else _rate if one.figure == "bandwidth" else clock_ns
    return (
        one.run,
        one.figure,
        form(one.measured),
        form(one.predicted),
        error(one.error, True),
        error(one.tolerance),
        "–" if one.spread is None else error(one.spread),
        one.verdict,
    )


def _points(value: float, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f} points"


def _relative(value: float, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.0f} %"


def _rate(value: float) -> str:
    return f"{value / 1e6:.3g} MB/s"
