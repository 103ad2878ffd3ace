"""Run tasks on a dask cluster, given the address of its scheduler.

Model: when a worker dies, dask retries its group on others. A group that has killed as many workers
as dask allows is split into its tasks, and these into their points, so that only the point at fault
fails. A worker must run the same code that planned the experiment. A failure of the cluster as a
whole is NoAnswer; earlier results are kept.
"""

import concurrent.futures
import logging
import re
from collections.abc import Generator, Sequence
from typing import Any

from offstage.bindings.errors import (
    BadInput,
    Incompatible,
    Missing,
    NoAnswer,
    OffstageError,
    RunFailed,
)
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.plan import Group, smaller, steps_of
from offstage.testbeds.lab.run.task import TaskResult, failures_of, run_together
from offstage.testbeds.progress import Progress

__all__ = ["on_cluster", "open_cluster"]


CONNECT_S = 10
"""Time limit for the scheduler to answer, and for the first worker to be present."""
CLUSTER_POLL_S = 2.0
ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def on_cluster(
    groups: Sequence[Group], code: str, progress: Progress, address: str
) -> Generator[TaskResult, None, None]:
    """Results in order of completion."""
    distributed, opened = open_cluster(address)
    with opened as client, client.as_current():
        waiting = {client.submit(_remote, one, code, pure=False): one for one in groups}
        while waiting:
            for future in _ended(distributed, client, list(waiting), address):
                group = waiting.pop(future)
                if _killed(distributed, future) and (cut := smaller(group)):
                    for one in cut:
                        waiting[client.submit(_remote, one, code, pure=False)] = one
                    continue
                yield _cluster_outcome(future, group, address)
                progress.advance(steps_of(group))


def open_cluster(address: str) -> tuple[Any, Any]:
    """dask.distributed, and a client of the scheduler at `address`. NoAnswer without a worker."""
    if not ADDRESS.fullmatch(address):
        raise BadInput(
            "not the address of a scheduler",
            f"--cluster {address}",
            "give one such as tcp://host:8786",
        )
    try:
        import distributed
    except ImportError:
        raise Missing("cluster", "dask.distributed is not installed", "--cluster") from None
    # We report a lost connection in one line; dask would log a page.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    return distributed, _connected(distributed, address)


def _connected(distributed: Any, address: str) -> Any:
    """A client of the scheduler. NoAnswer if it does not answer or has no worker."""
    fix = "start dask scheduler and dask worker there, or leave --cluster out"
    try:
        client = distributed.Client(address, timeout=f"{CONNECT_S}s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise NoAnswer(
            f"the scheduler does not answer ({error})", f"--cluster {address}", fix
        ) from None
    if not _has_worker(client):
        client.close()
        raise NoAnswer("the cluster has no worker", f"--cluster {address}", fix)
    return client


def _has_worker(client: Any) -> bool:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        return False
    return True


def _ended(distributed: Any, client: Any, waiting: list[Any], address: str) -> list[Any]:
    """Futures that have ended, after at most `CLUSTER_POLL_S`; NoAnswer if no worker is left."""
    fix = "fix it and repeat the command: finished parts are kept"
    try:
        done = distributed.wait(waiting, timeout=CLUSTER_POLL_S, return_when="FIRST_COMPLETED").done
        return [future for future in waiting if future in done]
    except TimeoutError:
        if _has_worker(client):
            return []
        what = "the cluster has lost all workers"
    except (concurrent.futures.CancelledError, OSError):
        what = "the scheduler stopped answering"
    raise NoAnswer(what, f"--cluster {address}", fix)


def _killed(distributed: Any, future: Any) -> bool:
    return future.status == "error" and isinstance(
        future.exception(), distributed.scheduler.KilledWorker
    )


def _remote(group: Group, code: str) -> TaskResult:
    """Run a group on a worker; Incompatible if the worker's code differs."""
    if parts.code_version() != code:
        return failures_of(
            group,
            Incompatible(
                "the worker runs different code",
                "--cluster",
                "install the same Offstage everywhere",
            ),
        )
    return run_together(group, code, _nothing)


def _nothing(steps: int) -> None:
    """The submitting process counts progress."""


def _cluster_outcome(future: Any, group: Group, address: str) -> TaskResult:
    """The group's result; if its workers died or cannot run it, all its points have failed."""
    try:
        found: TaskResult = future.result()
        return found
    except OffstageError as error:
        return failures_of(group, error)
    except Exception as error:  # any error of the worker: other groups continue
        what = type(error).__name__
        if what != "KilledWorker":  # its text has only dask's internal names
            what += f": {error}"
        return failures_of(
            group,
            RunFailed(
                f"no worker could run the point ({what:.200})",
                f"--cluster {address}",
                "see the workers' logs",
            ),
        )
