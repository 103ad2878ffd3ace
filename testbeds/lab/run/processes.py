"""Run tasks in several processes of this machine; the death of one does not affect the others.

Model: no more groups are submitted than there are processes, so that when a pool breaks, exactly
the submitted groups were running. They are run again one by one, each in a separate process. A
group that kills its process again is split into its tasks, and these into their points; a point
that kills its process is the one at fault. So a machine without memory for all groups together
still computes every result, and a policy that crashes loses only its points.
"""

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any

from offstage.bindings.errors import RunFailed
from offstage.testbeds.lab.run.plan import Group, smaller
from offstage.testbeds.lab.run.task import TaskResult, failures_of, run_together
from offstage.testbeds.progress import Progress

__all__ = ["on_machine"]


POOL_POLL_S = 0.2

_counter: Any = None


class _Pool:
    """Worker processes, terminated at the end of the `with` block, finished or not."""

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
        # Interrupted, or stopped at a failure: the running groups are not needed.
        if self.running:
            for child in set(multiprocessing.active_children()) - self._others:
                child.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def submit(self, group: Group, code: str) -> bool:
        """Submit a group; False if a process has died, which breaks the pool."""
        try:
            with _interrupts_blocked(), _script_hidden():
                self.running[self._executor.submit(_work, group, code)] = group
        except BrokenProcessPool:
            return False
        return True

    def ended(self) -> list[tuple[Group, TaskResult | None]]:
        """Groups that have ended, after at most `POOL_POLL_S`; result None: the process died."""
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
    """Results in order of completion."""
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
    """Run one group in a separate process; if that dies, its tasks, and then its points."""
    ended: list[tuple[Group, TaskResult | None]] = []
    with _Pool(1, progress) as pool:
        pool.submit(group, code)
        while pool.running:
            ended = pool.ended()
    if ended and ended[0][1] is not None:
        yield ended[0][1]
    elif cut := smaller(group):
        for one in cut:
            yield from _alone(one, code, progress)
    else:
        error = RunFailed(
            "its process died, even when it ran alone",
            "lab",
            "give it more memory, or check the kernel log",
        )
        yield failures_of(group, error)


def _pool_outcome(future: "concurrent.futures.Future[TaskResult]") -> TaskResult | None:
    try:
        return future.result()
    except BrokenProcessPool:
        return None


@contextmanager
def _script_hidden() -> Iterator[None]:
    """Keep a spawned process from running the caller's script again: it needs nothing from it, and
    the script needs no `__main__` guard."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes started here, from their start; in ours it is only delayed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(counter: Any) -> None:
    """Initialize a worker: it exits when the submitting process ends, for any reason."""
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
