"""The work of one process: points and bounds computed together over one workload.

Model: the input is tasks that draw the same selections, the output is parts and failures. Nothing
is written and no state is kept, so tasks give the same result in this process, in a pool or on
another machine, alone or together. Each selection, and each answer of a built-in policy to it, is
computed once; each point has the same input as if it ran alone. A point that fails, by its spec or
its policy, ends; the others continue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.testbeds.lab.bounds.collect import BOUNDS
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.answers import Answers
from offstage.testbeds.lab.run.bounds import BoundsReader, kinds_of
from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build
from offstage.testbeds.workloads.selections.coarse import PrefillOnce
from offstage.testbeds.workloads.selections.slab import Workload

__all__ = ["Failure", "TaskResult", "failures_of", "run_task", "run_together"]


@dataclass(frozen=True)
class Failure:
    """A point without a result: its number (-1: the bounds), the error line and the exit code."""

    point: int
    message: str
    exit_code: int


@dataclass
class TaskResult:
    """Parts by name, and failures."""

    parts: dict[str, bytes] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def failures_of(tasks: Sequence[Task], error: OffstageError) -> TaskResult:
    """The result of failed tasks: each of their points, or their bounds, fails with `error`."""
    numbers = [point.number for task in tasks for point in task.points]
    numbers += [-1 for task in tasks if not task.points]
    return TaskResult(failures=[Failure(one, str(error), error.exit_code) for one in numbers])


def run_task(task: Task, code: str, advance: Callable[[int], None]) -> TaskResult:
    """Compute one task."""
    return run_together([task], code, advance)


def run_together(tasks: Sequence[Task], code: str, advance: Callable[[int], None]) -> TaskResult:
    """Compute tasks that draw the same selections with one seed. `advance` gets the number of
    session-steps just drawn."""
    try:
        workload = PrefillOnce(build(tasks[0].spec, tasks[0].seed))
    except OffstageError as error:
        return failures_of(tasks, error)
    return _Together(tasks, code, workload).run(advance)


class _Together:
    """The points of all tasks, numbered consecutively, and one reader for all bounds."""

    def __init__(self, tasks: Sequence[Task], code: str, workload: Workload) -> None:
        self._result = TaskResult()
        self._points = [(task, point) for task in tasks for point in task.points]
        self._names = [name for task in tasks if task.points for name in task.parts(code)]
        bounded = [task for task in tasks if not task.points]
        self._bound_names = [task.parts(code)[0] for task in bounded]
        readers: dict[object, Kind] = {
            number: Kind(point.grain(task.spec), task.spec.tier.hbm_pool_over_k)
            for number, (task, point) in enumerate(self._points)
        }
        readers |= {(BOUNDS, kind): kind for task in bounded for kind in kinds_of(task.spec)}
        self._feed = Feed(workload, tasks[0].spec.granules, readers)
        specs, seed = [task.spec for task in bounded], tasks[0].seed
        self._bounds = BoundsReader(specs, seed, workload, self._feed) if specs else None
        self._answers = Answers()
        self._runners: list[Runner] = []
        for number, (task, point) in enumerate(self._points):
            try:
                self._runners.append(
                    Runner(number, point, task.spec, workload, self._feed, task.seed, self._answers)
                )
            except OffstageError as error:
                self._failed(number, error)

    def run(self, advance: Callable[[int], None]) -> TaskResult:
        """Run all points and bounds to their end."""
        while self._runners or self._bounds:
            for runner in list(self._runners):
                self._advance(runner)
            if self._bounds and self._bounds.advance(alone=not self._runners):
                self._end_bounds(self._bounds)
                self._bounds = None
            made = self._feed.make()
            if (self._runners or self._bounds) and not made:
                raise RunFailed(
                    "all points wait for steps that no reader requested", "lab", "report it"
                )
            advance(made)
        return self._result

    def _advance(self, runner: Runner) -> None:
        try:
            if runner.advance():
                self._result.parts[self._names[runner.number]] = parts.pack_run(runner.result())
                self._runners.remove(runner)
        except OffstageError as error:
            self._failed(runner.number, error)
            self._runners.remove(runner)

    def _failed(self, number: int, error: OffstageError) -> None:
        self._feed.leave(number)
        self._answers.leave(number)
        point = self._points[number][1]
        self._result.failures.append(Failure(point.number, str(error), error.exit_code))

    def _end_bounds(self, bounds: BoundsReader) -> None:
        for number, name in enumerate(self._bound_names):
            try:
                if number in bounds.failures:
                    raise bounds.failures[number]
                self._result.parts[name] = parts.pack_bounds(bounds.result(number))
            except OffstageError as error:
                self._result.failures.append(Failure(-1, str(error), error.exit_code))
