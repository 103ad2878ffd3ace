"""Tasks on all cores of this machine, or on a dask cluster; finished parts are kept as they come.

Model: the caller's process hands out tasks, writes the parts that come back, and never computes. A
worker that dies fails its task, not the experiment. Progress is counted in session-steps: workers
of a local pool add to one shared counter; a cluster's tasks count when they end.
"""

import concurrent.futures
import multiprocessing
import os
import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from offstage.bindings.errors import Incompatible, Missing, RunFailed
from offstage.testbeds.drive.progress import Progress
from offstage.testbeds.lab import parts
from offstage.testbeds.lab.plan import Task
from offstage.testbeds.lab.task import Failure, TaskResult, run_task

__all__ = ["default_jobs", "execute"]

POLL_S = 0.2

_counter: Any = None


def default_jobs() -> int:
    """Processes that this machine has cores for."""
    return len(os.sched_getaffinity(0))


def execute(
    tasks: Sequence[Task],
    folder: Path,
    code: str,
    progress: Progress,
    *,
    jobs: int,
    cluster: str = "",
    stop_at_failure: bool = False,
) -> list[Failure]:
    """Run every task, keep its parts in `folder`, and give what failed.

    `stop_at_failure`: after the first failure nothing new begins. RunFailed where a cluster cannot
    be reached, Incompatible where its workers run other code.
    """
    failures: list[Failure] = []
    results = _on_cluster(tasks, code, progress, cluster) if cluster else _on_machine(
        tasks, code, progress, max(1, min(jobs, len(tasks)))
    )  # fmt: skip
    for result in results:
        for name, part in result.parts.items():
            parts.write(folder / f"{name}.npz", part)
        failures += result.failures
        if failures and stop_at_failure:
            results.close()
            break
    return failures


def _on_machine(
    tasks: Sequence[Task], code: str, progress: Progress, jobs: int
) -> Generator[TaskResult, None, None]:
    if jobs == 1:
        for task in tasks:
            yield run_task(task, code, progress.advance)
        return
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _begin, (counter,))
    whole = False
    try:
        waiting = {pool.submit(_work, task, code): task for task in tasks}
        seen = 0
        while waiting:
            done, _ = concurrent.futures.wait(waiting, POLL_S, concurrent.futures.FIRST_COMPLETED)
            now = int(counter.value)
            progress.advance(now - seen)
            seen = now
            for future in done:
                yield _outcome(future, waiting.pop(future))
        whole = True
    finally:
        if not whole:  # interrupted, or stopped at a failure: what runs now is of no more use
            for child in multiprocessing.active_children():
                child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(counter: Any) -> None:
    """A worker of the pool: an interrupt is for the process that hands out the tasks."""
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(task: Task, code: str) -> TaskResult:
    def advance(steps: int) -> None:
        with _counter.get_lock():
            _counter.value += steps

    return run_task(task, code, advance)


def _on_cluster(
    tasks: Sequence[Task], code: str, progress: Progress, address: str
) -> Generator[TaskResult, None, None]:
    try:
        import distributed
    except ImportError:
        raise Missing("cluster", "dask.distributed is not installed", "--cluster") from None
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise RunFailed(
            f"no cluster answers ({error})", f"--cluster {address}",
            "start dask scheduler and dask worker there, or leave --cluster out",
        ) from None  # fmt: skip
    with client:
        futures = {client.submit(_remote, task, code, pure=False): task for task in tasks}
        for future in distributed.as_completed(list(futures)):
            task = futures[future]
            yield _outcome(future, task)
            progress.advance(steps_of(task))


def _remote(task: Task, code: str) -> TaskResult:
    """On a worker: what it computes with must be what the experiment was planned with."""
    own = parts.code_version()
    if own != code:
        error = Incompatible(
            "the worker runs other code", "--cluster", "install the same Offstage everywhere"
        )
        numbers = [point.number for point in task.points] or [-1]
        return TaskResult(failures=[Failure(one, str(error), error.exit_code) for one in numbers])
    return run_task(task, code, _nothing)


def _nothing(steps: int) -> None:
    """Progress is counted where the task was handed out."""


def steps_of(task: Task) -> int:
    """Session-steps of a task."""
    return task.spec.workload.sessions * task.spec.workload.steps


def _outcome(future: Any, task: Task) -> TaskResult:
    """The task's result; a worker that died has failed every point of it."""
    try:
        found: TaskResult = future.result()
        return found
    except (concurrent.futures.process.BrokenProcessPool, MemoryError) as error:
        line = f"the worker died ({type(error).__name__}): give --jobs 1, or fewer sessions"
        numbers = [point.number for point in task.points] or [-1]
        return TaskResult(failures=[Failure(one, line, RunFailed.exit_code) for one in numbers])
