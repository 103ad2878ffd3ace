"""What one process computes: a task's points side by side over one workload, or its bounds.

Model: a task goes in, parts and failures come out; nothing is written and nothing is kept, so that
a task runs the same in this process, in a pool, or on another machine. A point that fails, by its
spec or by its policy, ends alone: the others go on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.bounds_task import bounds_of
from offstage.testbeds.lab.run.build import build
from offstage.testbeds.lab.run.feed import Feed
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.point import Runner

__all__ = ["Failure", "TaskResult", "failures_of", "run_task"]


@dataclass(frozen=True)
class Failure:
    """A point that gave no result: its number (-1: the bounds), the line, and the exit code."""

    point: int
    message: str
    exit_code: int


@dataclass
class TaskResult:
    """Parts by name, and what failed."""

    parts: dict[str, bytes] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def failures_of(task: Task, error: OffstageError) -> TaskResult:
    """The result of a task that gave none: every point of it, or its bounds, failed alike."""
    numbers = [point.number for point in task.points] or [-1]
    return TaskResult(failures=[Failure(one, str(error), error.exit_code) for one in numbers])


def run_task(task: Task, code: str, advance: Callable[[int], None]) -> TaskResult:
    """Compute the task. `advance` is told how many session-steps have been made."""
    result = TaskResult()
    names = task.parts(code)
    try:
        workload = build(task.spec, task.seed)
        if not task.points:
            found = bounds_of(task.spec, task.seed, workload, advance)
            result.parts[names[0]] = parts.pack_bounds(found)
            return result
    except OffstageError as error:
        return failures_of(task, error)
    grains = [point.grain(task.spec) for point in task.points]
    feed = Feed(workload, task.spec, dict(enumerate(grains)))
    runners: list[Runner] = []

    def failed(number: int, error: OffstageError) -> None:
        feed.leave(number)
        result.failures.append(Failure(task.points[number].number, str(error), error.exit_code))

    for number, point in enumerate(task.points):
        try:
            runners.append(Runner(number, point, task.spec, workload, feed, task.seed))
        except OffstageError as error:
            failed(number, error)
    while runners:
        for runner in list(runners):
            try:
                if runner.advance():
                    result.parts[names[runner.number]] = parts.pack_run(runner.result())
                    runners.remove(runner)
            except OffstageError as error:
                failed(runner.number, error)
                runners.remove(runner)
        made = feed.make()
        if runners and not made:
            raise RunFailed("points wait for steps that nobody makes", "lab", "report it")
        advance(made)
    return result
