"""Run tasks on all cores of this machine or on a dask cluster, and write each part on completion.

Model: the caller's process submits groups of tasks and writes the parts that they return; it
computes only if there is one job. The death of a worker does not affect the others. Progress is
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
    """One process for each core that this process may use."""
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
    """Run all tasks, in groups that draw the same selections, and write their parts to `folder`.
    Returns the failures.

    `stop_at_failure`: after the first failure no further group starts. RunFailed if a part cannot
    be written or a cluster cannot be reached, Incompatible if its workers run other code.
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
