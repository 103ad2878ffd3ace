"""Tasks on all cores of this machine, or on a dask cluster; finished parts are kept as they come.

Model: the caller's process hands out tasks and writes the parts that come back; it computes only
where there is one job. A worker that dies takes nobody with it (`pool.py`, `cluster.py`). Progress
is counted in session-steps: workers of a local pool add to one shared counter; a cluster's tasks
count when they end.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.cluster import on_cluster
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.pool import on_machine
from offstage.testbeds.lab.run.task import Failure, TaskResult, run_task
from offstage.testbeds.progress import Progress

__all__ = ["default_jobs", "execute", "steps_of"]


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

    `stop_at_failure`: after the first failure nothing new begins. RunFailed where a part cannot be
    written or a cluster cannot be reached, Incompatible where its workers run other code.
    """
    failures: list[Failure] = []
    if not tasks:
        return failures
    with closing(_results(tasks, code, progress, jobs, cluster)) as results:
        for result in results:
            for name, part in result.parts.items():
                parts.write(folder / f"{name}.npz", part)
            failures += result.failures
            if failures and stop_at_failure:
                break
    return failures


def steps_of(task: Task) -> int:
    """Session-steps of a task."""
    return task.spec.workload.sessions * task.spec.workload.steps


def _results(
    tasks: Sequence[Task], code: str, progress: Progress, jobs: int, cluster: str
) -> Generator[TaskResult, None, None]:
    if cluster:
        yield from on_cluster(tasks, code, progress, cluster)
    elif jobs == 1 or len(tasks) == 1:
        for task in tasks:
            yield run_task(task, code, progress.advance)
    else:
        yield from on_machine(tasks, code, progress, min(jobs, len(tasks)))
