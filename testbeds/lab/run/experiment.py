"""An experiment from its spec to its results: missing parts are computed, the others are read.

Model: OUT holds `parts/`, one file for each point and seed, and the results computed from them:
`ledger.parquet`, `summary.json`, `report.html`, `manifest.json`. The name of a part is a digest of
everything it depends on, so the same command continues after an interruption, and a changed spec
computes only the changed parts. Results are rebuilt every time, in the order of the spec,
independent of the process that computed a part.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, OffstageError, RunFailed, needs
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.execute import execute
from offstage.testbeds.lab.run.plan import Point, Task, points_of, steps_of, tasks_of, together
from offstage.testbeds.lab.run.source import build, fitted
from offstage.testbeds.lab.run.task import Failure
from offstage.testbeds.lab.spec.load import load
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.sweep import variants
from offstage.testbeds.progress import Progress

__all__ = ["Experiment", "Variant", "compute", "plan"]


POINTS_MAX = 65535
"""Most points that a ledger's column can number."""


@dataclass(frozen=True)
class Variant:
    """One combination of the sweep's axes; `label` is empty without axes."""

    label: str
    spec: Spec
    points: tuple[Point, ...]


@dataclass
class Experiment:
    """The variants and points to run, and those that could not be planned. `sweep`: the spec has
    axes; then a point that fails ends nothing."""

    path: Path
    spec: Spec
    variants: list[Variant]
    code: str
    sweep: bool = False
    refused: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def point(self, number: int) -> tuple[Variant, Point]:
        """Point `number` and its variant."""
        for variant in self.variants:
            for point in variant.points:
                if point.number == number:
                    return variant, point
        raise KeyError(number)


def plan(path: Path, changes: Mapping[str, Any]) -> Experiment:
    """The spec's variants and points. BadInput for a bad spec; a variant of a sweep that
    contradicts itself is recorded as refused."""
    base = load(path, changes)
    sweep = bool(base.sweep)
    found = Experiment(path, Spec(name=""), [], parts.code_version(), sweep)
    first = 0
    if sweep and "workload.file" not in base.sweep:  # else no variant uses the base's file
        fitted(base, str(path))  # a base that cannot be opened fails the whole sweep
    for label, spec in _opened(path, changes, sweep):
        if isinstance(spec, OffstageError):
            found.refused.append((label, str(spec)))
            continue
        try:
            points = []
            if spec.workload.kind != "requests":
                build(spec, spec.seeds[0])  # raises its errors before the run
                points = points_of(spec, len(found.variants), first)
        except BadInput as error:
            if not sweep:
                raise BadInput(error.what, f"{path}: {error.where}", error.fix) from None
            found.refused.append((label, str(error)))
            continue
        first += len(points)
        if first > POINTS_MAX:
            raise BadInput(f"more than {POINTS_MAX} points", f"{path}: [sweep]", "shorten the axes")
        found.variants.append(Variant(label, spec, tuple(points)))
        found.spec = spec
    if not found.variants:
        raise BadInput(f"no variant can run; the first: {found.refused[0][1]}", str(path))
    return found


def _opened(
    path: Path, changes: Mapping[str, Any], sweep: bool
) -> Iterator[tuple[str, Spec | BadInput]]:
    """The variants, completed from their files of selections. Opens data for the first time."""
    for label, spec in variants(path, changes):
        try:
            yield label, spec if isinstance(spec, BadInput) else fitted(spec, str(path))
        except BadInput as error:
            if not sweep:
                raise
            yield label, error


def compute(
    experiment: Experiment,
    folder: Path,
    progress: Progress,
    *,
    jobs: int,
    cluster: str = "",
    bounds_only: bool = False,
    stop_at_failure: bool = False,
) -> None:
    """Compute the parts that are missing in `folder`. With `stop_at_failure` the first failure is
    raised as its original error; otherwise failures are recorded in the experiment."""
    if not bounds_only:
        needs("pyarrow", "parquet", "the ledger of a lab run")
    _make(folder)
    groups = together(_missing(experiment, folder, bounds_only), jobs)
    progress.start("virtual time", sum(steps_of(group) for group in groups), "decode steps")
    experiment.failures = execute(
        groups,
        folder,
        experiment.code,
        progress,
        jobs=jobs,
        cluster=cluster,
        stop_at_failure=stop_at_failure,
    )
    if stop_at_failure and experiment.failures:
        failure = experiment.failures[0]
        raise _Told(failure.message, failure.exit_code)


class _Told(RunFailed):
    """A failure with the message and exit code of another process."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.exit_code = exit_code


def _missing(experiment: Experiment, folder: Path, bounds_only: bool) -> list[Task]:
    """Tasks of all missing parts, in order of variants, seeds and points."""
    tasks = []
    code = experiment.code
    for variant in experiment.variants:
        if variant.spec.workload.kind == "requests":
            continue
        for seed in variant.spec.seeds:
            bounds = Task(variant.spec, seed, ())
            if _lacks(folder, bounds.parts(code)[0]):
                tasks.append(bounds)
            if bounds_only:
                continue
            whole = Task(variant.spec, seed, variant.points)
            lacking = [
                point
                for point, name in zip(variant.points, whole.parts(code), strict=True)
                if _lacks(folder, name)
            ]
            tasks += tasks_of(variant.spec, seed, lacking)
    return tasks


def _lacks(folder: Path, name: str) -> bool:
    """Whether the part is missing; an unreadable part is deleted."""
    path = folder / f"{name}.npz"
    if parts.readable(path):
        return False
    with contextlib.suppress(OSError):
        path.unlink()
    return True


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            error.strerror or "cannot be created", str(folder), "give --out another folder"
        ) from None
