"""Tasks on a dask cluster: the scheduler's address is all that is known of it.

Model: when a worker dies, dask tries its group on others. One that has killed as many as dask
allows is cut into its tasks, and these into their points, so that only the point at fault fails.
What a worker computes with must be what the experiment was planned with. Whatever is wrong with
the cluster as a whole is RunFailed: what came before is kept.
"""

import concurrent.futures
import logging
import re
from collections.abc import Generator, Sequence
from typing import Any

from offstage.bindings.errors import BadInput, Incompatible, Missing, OffstageError, RunFailed
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.plan import Group, smaller, steps_of
from offstage.testbeds.lab.run.task import TaskResult, failures_of, run_together
from offstage.testbeds.progress import Progress

__all__ = ["on_cluster", "open_cluster"]


CONNECT_S = 10
"""A scheduler answers, and a worker is there, within so long, or there is no cluster."""
CLUSTER_POLL_S = 2.0
ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")


def on_cluster(
    groups: Sequence[Group], code: str, progress: Progress, address: str
) -> Generator[TaskResult, None, None]:
    """Results in the order in which they come."""
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
    """dask.distributed, and a client of the scheduler at an address, which has a worker."""
    if not ADDRESS.fullmatch(address):
        raise BadInput(
            "no address of a scheduler", f"--cluster {address}", "write one such as tcp://host:8786"
        )
    try:
        import distributed
    except ImportError:
        raise Missing("cluster", "dask.distributed is not installed", "--cluster") from None
    # A connection that is lost is one line of ours; dask would log a page.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    return distributed, _connected(distributed, address)


def _connected(distributed: Any, address: str) -> Any:
    """A client of a scheduler that has a worker."""
    mend = "start dask scheduler and dask worker there, or leave --cluster out"
    try:
        client = distributed.Client(address, timeout=f"{CONNECT_S}s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise RunFailed(f"no cluster answers ({error})", f"--cluster {address}", mend) from None
    if not _has_worker(client):
        client.close()
        raise RunFailed("the cluster has no worker", f"--cluster {address}", mend)
    return client


def _has_worker(client: Any) -> bool:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError:
        return False
    return True


def _ended(distributed: Any, client: Any, waiting: list[Any], address: str) -> list[Any]:
    """Those that have ended, after at most `CLUSTER_POLL_S`; RunFailed if no worker is left."""
    mend = "mend it and start again: the same command goes on from what is done"
    try:
        done = distributed.wait(waiting, timeout=CLUSTER_POLL_S, return_when="FIRST_COMPLETED").done
        return [future for future in waiting if future in done]
    except TimeoutError:
        if _has_worker(client):
            return []
        what = "the cluster has no worker any more"
    except (concurrent.futures.CancelledError, OSError):
        what = "the scheduler is gone"
    raise RunFailed(what, f"--cluster {address}", mend)


def _killed(distributed: Any, future: Any) -> bool:
    return future.status == "error" and isinstance(
        future.exception(), distributed.scheduler.KilledWorker
    )


def _remote(group: Group, code: str) -> TaskResult:
    """On a worker."""
    if parts.code_version() != code:
        return failures_of(
            group,
            Incompatible(
                "the worker runs other code", "--cluster", "install the same Offstage everywhere"
            ),
        )
    return run_together(group, code, _nothing)


def _nothing(steps: int) -> None:
    """Progress is counted where the task was handed out."""


def _cluster_outcome(future: Any, group: Group, address: str) -> TaskResult:
    """The group's result; where its workers died or cannot run it, every point of it has failed."""
    try:
        found: TaskResult = future.result()
        return found
    except OffstageError as error:
        return failures_of(group, error)
    except Exception as error:  # another process's: whatever it was, others go on
        what = type(error).__name__
        if what != "KilledWorker":  # whose text is about dask's own names
            what += f": {error}"
        return failures_of(
            group,
            RunFailed(
                f"no worker could run it ({what:.200})",
                f"--cluster {address}",
                "see the workers' logs",
            ),
        )
