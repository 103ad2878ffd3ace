"""How much of a stretch of time this process waited for a processor, and how busy the machine was.

The kernel counts for each thread how long it ran and how long it stood in the run queue
(`/proc/self/task/*/schedstat`), and for the machine how long some task waited for a processor (PSI,
`/proc/pressure/cpu`). Where the kernel has neither, the figure is None. Nothing here can fail.
"""

import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from offstage.dpu.storage.alone import REACTOR

__all__ = ["Busy", "BusyShares"]


class BusyShares(msgspec.Struct, frozen=True):
    """Over one stretch. `reactor_delay_us`: how long the reactor stood in the run queue, on
    average, each time it wanted a processor; `reactor_waited`: of the time that it wanted one, how
    much it waited; `process_waited`: the same of all threads; `pressure`: share of the stretch in
    which some task of the machine waited (PSI, `some`)."""

    seconds: float = 0.0
    reactor_delay_us: float | None = None
    reactor_waited: float | None = None
    process_waited: float | None = None
    pressure: float | None = None


class _Thread(NamedTuple):
    """A thread's counters: ns that it ran, ns in the run queue, times that it got a processor."""

    name: str
    ran: int
    waited: int
    slices: int


class Busy:
    """The counters as they stood when this was made."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()
        self._threads, self._pressure_us = _threads(), _pressure_us()

    def since(self) -> BusyShares:
        """The shares since then."""
        seconds = time.monotonic() - self._at_s
        spent = [self._spent(thread, now) for thread, now in _threads().items()]
        reactor = [one for one in spent if one.name == REACTOR]
        pressure_us, some = _pressure_us(), None
        if pressure_us is not None and self._pressure_us is not None and seconds:
            some = (pressure_us - self._pressure_us) / 1e6 / seconds
        slices = sum(one.slices for one in reactor)
        return BusyShares(
            seconds=seconds,
            reactor_delay_us=sum(one.waited for one in reactor) / 1e3 / slices if slices else None,
            reactor_waited=_share(reactor),
            process_waited=_share(spent),
            pressure=some,
        )

    def _spent(self, thread: str, now: _Thread) -> _Thread:
        was = self._threads.get(thread, _Thread("", 0, 0, 0))
        return _Thread(
            now.name, now.ran - was.ran, now.waited - was.waited, now.slices - was.slices
        )


def _share(threads: list[_Thread]) -> float | None:
    ran, waited = sum(one.ran for one in threads), sum(one.waited for one in threads)
    return waited / (ran + waited) if ran + waited else None


def _threads() -> dict[str, _Thread]:
    """The threads of this process by their numbers."""
    found = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            counts = (int(one) for one in (task / "schedstat").read_text().split()[:3])
            found[task.name] = _Thread((task / "comm").read_text().strip(), *counts)
        except (OSError, ValueError, TypeError):  # it has ended, or the kernel does not count
            continue
    return found


def _pressure_us() -> int | None:
    try:
        return int(Path("/proc/pressure/cpu").read_text().split("\n")[0].rpartition("total=")[2])
    except (OSError, ValueError):
        return None
