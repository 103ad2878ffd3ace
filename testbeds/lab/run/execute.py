"""Tasks on all cores of this machine, or on a dask cluster; finished parts are kept as they come.

Model: the caller's process hands out groups of tasks and writes the parts that come back; it
computes only if there is one job. A worker that dies does not affect the others. Progress is
counted in session-steps: workers of a local pool add to one shared counter; a cluster's groups
count when they end.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

from offstage.bindings.durable import write_bytes
from offstage.testbeds.lab.run.cluster import on_cluster
from offstage.testbeds.lab.run.plan import Group
from offstage.testbeds.lab.run.processes import on_machine
from offstage.testbeds.lab.run.task import Failure, TaskResult, run_together
from offstage.testbeds.progress import Progress

__all__ = ["default_jobs", "execute"]


def default_jobs() -> int:
    """Processes that this machine has cores for."""
    return len(os.sched_getaffinity(0))


def execute(
    groups: Sequence[Group],
    folder: Path,
    code: str,
    progress: Progress,
    *,
    jobs: int,
    cluster: str = "",
    stop_at_failure: bool = False,
) -> list[Failure]:
    """Run every group of tasks that draw the same selections, keep their parts in `folder`, and
    give what failed.

    `stop_at_failure`: after the first failure nothing new begins. RunFailed where a part cannot be
    written or a cluster cannot be reached, Incompatible where its workers run other code.
    """
    failures: list[Failure] = []
    if not groups:
        return failures
    with closing(_results(groups, code, progress, jobs, cluster)) as results:
        for result in results:
            for name, part in result.parts.items():
                write_bytes(folder / f"{name}.npz", part)
            failures += result.failures
            if failures and stop_at_failure:
                break
    return failures


def _results(
    groups: Sequence[Group], code: str, progress: Progress, jobs: int, cluster: str
) -> Generator[TaskResult, None, None]:
    if cluster:
        yield from on_cluster(groups, code, progress, cluster)
    elif jobs == 1 or len(groups) == 1:
        for group in groups:
            yield run_together(group, code, progress.advance)
    else:
        yield from on_machine(groups, code, progress, min(jobs, len(groups)))
