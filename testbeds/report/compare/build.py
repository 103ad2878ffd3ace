"""From a recorded run and presets to a `Comparison`: every model runs the log's decisions.

Each device runs the whole log once. Variations (parameters, load, a neighbour) run its beginning;
their speed-up is a ratio of two runs of that part, scaled by the ratio over the whole log.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from offstage import __version__
from offstage.asic_model.calibrate import fit
from offstage.asic_model.judge import stage_errors
from offstage.asic_model.load import work_of
from offstage.asic_model.parameters import Preset, names, read_preset
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.result import ChipRun, Logged
from offstage.asic_model.samples import read_samples, samples_of_log
from offstage.asic_model.timed import as_hosts_saw, deadlines_missed
from offstage.asic_model.trace import Trace, read_trace
from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.ledger import share
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.compare.carried import models_of
from offstage.testbeds.report.compare.columns import Column, Comparison
from offstage.testbeds.report.compare.effect import FEW_DRAWS, Load, figures_at
from offstage.testbeds.report.compare.measured import measured_column
from offstage.testbeds.report.compare.modelled import arm_cores, modelled_column
from offstage.testbeds.report.compare.models_shown import carried_sentence
from offstage.testbeds.report.compare.recorded import (
    Recorded,
    find_runs,
    of_machine,
    read_run,
    with_policy,
)
from offstage.testbeds.report.compare.sentence import BASELINES, answer, is_close
from offstage.testbeds.report.compare.vary import Varied, vary
from offstage.testbeds.report.page.numbers import clock_ns
from offstage.testbeds.report.run.page import setup_line

__all__ = ["Plan", "compare_run", "on_drive", "own_model", "runs_of", "small"]

OWN = "dpu_x86_measured"
"""The preset of the measured machine: fitted to each run that it is compared with."""
CARD = "bluefield3"
"""The card for which the table counts cores."""
SMALL_DEVICES, SMALL_DRAWS = ("asic_7nm",), 4
DEFAULT = ("asic_7nm", "asic_5nm_hbm4")


@dataclass(frozen=True)
class Plan:
    """The options of a comparison, for every run."""

    presets: tuple[Preset, ...]
    own: Preset
    calibrated: bool
    samples: int
    deep: bool
    """Also vary each parameter, the load and a neighbour."""
    command: str
    loads: tuple[Load, ...]
    """One, or several where the source of the load holds several runs; the first is the headline's.
    """

    @property
    def load(self) -> Load:
        """Of the headline."""
        return self.loads[0]

    @staticmethod
    def of(
        presets: Sequence[str],
        *,
        samples: int,
        deep: bool,
        calibration: Path | None,
        command: str,
        load: Load,
    ) -> "Plan":
        """BadInput for an unknown preset; suggests the nearest. The baselines are always there."""
        if load.tenants > 1 and not deep:
            raise BadInput(
                f"tenants={load.tenants} of copies of the run, which --quick does not replay",
                "--load",
                "leave out tenants, or --quick",
            )
        own = read_preset(OWN) if calibration is None else _calibration(calibration)
        own = msgspec.structs.replace(own, name=OWN)  # not the file's: pages know it by this one
        chosen = dict.fromkeys(name for name in (*BASELINES, *(presets or DEFAULT)) if name != OWN)
        return Plan(
            tuple(_preset(name) for name in chosen),
            own,
            calibration is not None and own.calibrated,
            samples,
            deep,
            command,
            tuple(load.each()),
        )

    @property
    def stage_count(self) -> int:
        """Progress phases per run."""
        return 2 + (self.samples > 0) + self.deep + (len(self.loads) > 1)


def runs_of(folders: Sequence[Path], policy: str = "") -> list[Recorded]:
    """A recorded run of each folder: the first, or the first with this policy. BadInput as in
    `recorded`, and for a run of the laboratory, which measured no machine."""
    runs = [with_policy(find_runs(folder), policy)[0] for folder in folders]
    return [of_machine(read_run(run)) for run in runs]


def compare_run(run: Recorded, plan: Plan, progress: Progress) -> Comparison:
    """Compare one run with its own model and all presets."""
    progress.start(f"decisions of {run.path.name}", 1, "")
    trace = read_trace(run.path)
    own = own_model(run, trace, plan.own, plan.calibrated)
    progress.advance(1)
    presets = (own, *(one for one in plan.presets if one.name != own.name))
    presets = tuple(one.for_heads(trace.heads) for one in presets)
    progress.start("every device on the whole log", len(presets), "devices")
    done = []
    for preset in presets:
        done.append(decision_replay(trace, preset))
        progress.advance(1)
    measured = as_hosts_saw(trace, run.stages, run.fetch_ms, run.fetch_count)
    columns = [measured_column(run, measured, done[0].tokens)]
    columns[0].deadlines_missed = deadlines_missed(trace, run.stages)
    columns += [modelled_column(one, plan.calibrated) for one in done]
    if not run.device and not is_close(done[0].fetch_ns, measured.fetch_ns):
        columns[1].off = _furthest(run, done[0], presets[0])
    loaded = plan.load.trace(trace, run)
    found = vary(
        trace, presets, done, measured, (plan.load, loaded), plan.samples, plan.deep, progress
    )
    said, error = _effect(columns, plan.load, (trace, loaded), presets, done, measured, found)
    for column, speed_up in zip(columns[1:], found.speed_ups, strict=False):
        column.speed_up_mean, column.speed_up_p99 = speed_up.mean, speed_up.p99
        column.speed_up_same_drives = speed_up.same_drives
    models = models_of(plan.loads, loaded, (trace, run), presets[1:], plan.samples, error, progress)
    said_of_models = f" {carried_sentence(models)}" if models else ""
    few = plan.samples if plan.samples < FEW_DRAWS else 0
    return Comparison(
        run=str(run.path),
        setup=_setup(run, trace),
        columns=columns,
        sentence=answer(columns, said, few) + said_of_models,
        load=said,
        load_error=error,
        models=models,
        loads=found.loads,
        tornados=found.tornados,
        crossovers=found.crossovers,
        neighbours=found.neighbours,
        neighbours_device=found.neighbours_device,
        workload={} if run.summary is None else msgspec.to_builtins(run.summary.workload),
        samples=plan.samples,
        command=plan.command,
        version=__version__,
    )


def _furthest(run: Recorded, modelled: ChipRun, preset: Preset) -> str:
    """The stage of the model of the measured device that is furthest off, in words."""
    try:
        samples = read_samples(run.path)
    except BadInput:
        return "which stage is off cannot be said: the recording has no moments"
    stages = stage_errors(run.path.name, modelled, preset, samples, run.stages)
    worst = max(stages, key=lambda one: one.factor)
    return (
        f"the stage that is furthest off is {worst.stage}, {clock_ns(worst.measured_ns)} in the "
        f"run and {clock_ns(worst.modelled_ns)} in the model"
    )


def _effect(
    columns: Sequence[Column],
    load: Load,
    traces: tuple[Trace, Trace],
    presets: Sequence[Preset],
    done: Sequence[ChipRun],
    measured: Logged,
    found: Varied,
) -> tuple[str, float]:
    """Fill in every modelled column's figures at the load. Returns the load in words, and the
    model's own error as a factor. `traces`: the run's, and on the blocks of the load's model."""
    trace, loaded = traces
    runs = done
    if loaded is not trace:
        runs = [decision_replay(loaded, one.for_heads(loaded.heads)) for one in presets]
    works = [load.of(work_of(one, loaded), loaded) for one in runs]
    spreads = [
        [(load.of(drawn, loaded), load.of(base, loaded)) for drawn, base in rows]
        for rows in found.works
    ]
    knees = {one.name: work.knee_gpus for one, work in zip(presets, works, strict=True)}
    bounded = [one for one in knees.values() if math.isfinite(one)]
    at_base = next((knees[name] for name in BASELINES if math.isfinite(knees[name])), 1.0)
    gpus = load.gpus or max(1, round(at_base))
    off = share(done[0].fetch_ns.mean, measured.fetch_ns.mean) or 1.0
    error = max(off, 1.0 / off)
    last = max(bounded, default=1.0)
    for column, preset, work, spread in zip(columns[1:], presets, works, spreads, strict=True):
        column.load = figures_at(gpus, last, preset, work, spread, error)
    card = read_preset(CARD)
    for column, preset, one in zip(columns[1:], presets, runs, strict=True):
        if preset.kind == "asic":
            column.arm_cores = arm_cores(one, loaded, card)
    return load.said(gpus, works[0], loaded), error


def own_model(
    run: Recorded, trace: Trace, preset: Preset | None = None, calibrated: bool = False
) -> Preset:
    """The model of the measured device: today's daemon fitted to the run, or the chip that was in
    the loop, which needs no fit. `preset`: the daemon's, if not the shipped one."""
    if run.device:
        return read_preset(run.device)
    own = on_drive(preset or read_preset(OWN), run)
    if calibrated:
        return own
    try:
        samples = read_samples(run.path)
    except BadInput:  # of an older recorder: of the reads the log has the times
        samples = samples_of_log(trace)
    return fit(own, samples, run.stages, str(run.path), block_bytes=trace.block_bytes, least=0)


def on_drive(preset: Preset, run: Recorded) -> Preset:
    """The preset with the run's emulated drive; unchanged where a disk was measured."""
    drive = run.summary.workload.nvme if run.summary is not None else ""
    if run.provenance != "emulated" or not drive:
        return preset
    return msgspec.structs.replace(preset, nvme=msgspec.structs.replace(preset.nvme, drive=drive))


def small(folder: Path, command: str, progress: Progress) -> Comparison:
    """The comparison at the end of a demo: two devices and few draws."""
    plan = Plan.of(
        SMALL_DEVICES,
        samples=SMALL_DRAWS,
        deep=False,
        calibration=None,
        command=command,
        load=Load(),
    )
    return compare_run(runs_of([folder])[0], plan, progress)


def _calibration(path: Path) -> Preset:
    """The preset that `asic validate --out` wrote. BadInput for any other file."""
    try:
        if path.suffix == ".toml":
            return read_preset(str(path))
        what = "not a calibration"
    except BadInput as error:
        what = f"not a calibration ({error.what})" if path.exists() else error.what
    raise BadInput(what, f"--calibration: {path}", "give what `asic validate --out` wrote")


def _preset(name: str) -> Preset:
    if not name.endswith(".toml") and name not in names():
        raise BadInput(f"no preset {name!r}", "--asic", nearest(name, names()))
    return read_preset(name)


def _setup(run: Recorded, trace: Trace) -> str:
    text = setup_line(run.summary) if run.summary is not None else ""
    about = f"Run {run.path.name}, {run.provenance}, storage {run.record.storage}, "
    about += f"{len(trace.fetches):,} commands of one layer each"
    return f"{about}. {text}" if text else f"{about}."
