"""Tasks on several processes of this machine, where one that dies takes no other with it.

Model: no more tasks are handed out than there are processes, so that when a pool breaks, what
was handed out is what ran. Those groups are run again one by one, each in a process of its own;
one that kills it once more is cut into its tasks and these into their points, and a point that
kills its own is the one at fault. So a machine that was short of memory for all of them still
gets every result, and a policy that crashes costs its own points.
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
    elif cut := smaller(group):
        for one in cut:
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
