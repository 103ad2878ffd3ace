"""Tasks on all cores of this machine, or on a dask cluster; finished parts are kept as they come.

Model: the caller's process hands out groups of tasks and writes the parts that come back; it
computes only where there is one job. A worker that dies takes nobody with it. Progress is counted
in session-steps: workers of a local pool add to one shared counter; a cluster's groups count when
they end.
"""

import concurrent.futures
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

from offstage.bindings.durable import write_bytes
from offstage.bindings.errors import BadInput, Incompatible, Missing, OffstageError, RunFailed
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.plan import Group
from offstage.testbeds.lab.run.task import Failure, TaskResult, failures_of, run_together
from offstage.testbeds.progress import Progress

__all__ = ["default_jobs", "execute", "on_cluster", "on_machine", "open_cluster", "steps_of"]


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


def steps_of(group: Group) -> int:
    """Session-steps that are made for it."""
    work = group[0].spec.workload
    return work.sessions * work.steps


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


def _smaller(group: Group) -> list[Group]:
    """Its tasks one by one, or of one task its points; nothing where it is a single one."""
    if len(group) > 1:
        return [(task,) for task in group]
    (task,) = group
    points = task.points if len(task.points) > 1 else ()
    return [(replace(task, points=(point,)),) for point in points]


# Tasks on several processes of this machine, where one that dies takes no other with it.
#
# Model: no more tasks are handed out than there are processes, so that when a pool breaks, what
# was handed out is what ran. Those groups are run again one by one, each in a process of its own;
# one that kills it once more is cut into its tasks and these into their points, and a point that
# kills its own is the one at fault. So a machine that was short of memory for all of them still
# gets every result, and a policy that crashes costs its own points.

POOL_POLL_S = 0.2

_counter: Any = None


class _Pool:
    """Worker processes, ended at the end of the block whether they are done or not."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        context = multiprocessing.get_context("spawn")
        self._counter = context.Value("q", 0)
        self._seen = 0
        self._progress = progress
        self._others = set(multiprocessing.active_children())
        self._executor = concurrent.futures.ProcessPoolExecutor(
            jobs, context, _begin, (self._counter,)
        )
        self.running: dict[concurrent.futures.Future[TaskResult], Group] = {}

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *error: object) -> None:
        # Interrupted, or stopped at a failure: what runs now is of no more use.
        if self.running:
            for child in set(multiprocessing.active_children()) - self._others:
                child.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def submit(self, group: Group, code: str) -> bool:
        """Hand it out; False where a process has died, and the pool with it."""
        try:
            with _interrupts_blocked(), _script_hidden():
                self.running[self._executor.submit(_work, group, code)] = group
        except BrokenProcessPool:
            return False
        return True

    def ended(self) -> list[tuple[Group, TaskResult | None]]:
        """What has ended after at most `POOL_POLL_S`; without a result where its process died."""
        done, _ = concurrent.futures.wait(
            self.running, POOL_POLL_S, concurrent.futures.FIRST_COMPLETED
        )
        now = int(self._counter.value)
        self._progress.advance(now - self._seen)
        self._seen = now
        return [(self.running.pop(future), _pool_outcome(future)) for future in done]


def on_machine(
    groups: Sequence[Group], code: str, progress: Progress, jobs: int
) -> Generator[TaskResult, None, None]:
    """Results in the order in which they come."""
    waiting = deque(groups)
    while waiting:
        died: list[Group] = []
        with _Pool(jobs, progress) as pool:
            whole = True
            while (waiting or pool.running) and whole:
                while whole and waiting and len(pool.running) < jobs:
                    whole = pool.submit(waiting[0], code)
                    if whole:
                        waiting.popleft()
                for group, result in pool.ended():
                    if result is not None:
                        yield result
                    else:
                        died.append(group)
                        whole = False
            died += pool.running.values()
            pool.running.clear()
        for group in died:
            yield from _alone(group, code, progress)


def _alone(group: Group, code: str, progress: Progress) -> Iterator[TaskResult]:
    """One group after a death, in a process of its own; then task by task, point by point."""
    ended: list[tuple[Group, TaskResult | None]] = []
    with _Pool(1, progress) as pool:
        pool.submit(group, code)
        while pool.running:
            ended = pool.ended()
    if ended and ended[0][1] is not None:
        yield ended[0][1]
    elif smaller := _smaller(group):
        for one in smaller:
            yield from _alone(one, code, progress)
    else:
        error = RunFailed(
            "the process that ran it died, alone as well",
            "lab",
            "give it more memory, or see the kernel's log",
        )
        yield failures_of(group, error)


def _pool_outcome(future: "concurrent.futures.Future[TaskResult]") -> TaskResult | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return None


@contextmanager
def _script_hidden() -> Iterator[None]:
    """A process begun here does not run the caller's script once more, as spawned ones do: it needs
    nothing of it, and a script of three lines needs no guard."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process begun here never sees Ctrl-C, not even before it can say so; ours is only late."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(counter: Any) -> None:
    """A worker of the pool: it ends with the process that hands out tasks, however that ends."""
    global _counter
    _counter = counter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(group: Group, code: str) -> TaskResult:
    def advance(steps: int) -> None:
        with _counter.get_lock():
            _counter.value += steps

    return run_together(group, code, advance)


# Tasks on a dask cluster: the scheduler's address is all that is known of it.
#
# Model: when a worker dies, dask tries its group on others. One that has killed as many as dask
# allows is cut into its tasks, and these into their points, so that only the point at fault fails.
# What a worker computes with must be what the experiment was planned with. Whatever is wrong with
# the cluster as a whole is RunFailed: what came before is kept.

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
                if _killed(distributed, future) and (smaller := _smaller(group)):
                    for one in smaller:
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
    """Those that have ended, after at most `CLUSTER_POLL_S`; RunFailed where nobody is left."""
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
