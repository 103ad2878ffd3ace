"""Connects a host off the daemon's loop: resolving its address may take a second.

Model: `begin` passes the host's answer to its attach to a separate thread, at most one for each
port. When the thread ends, it calls `wake`, and the loop takes the outcome from `ended`. The
firmware cannot connect and detach a port concurrently, so the detach of a port that is being
connected is deferred until then. All but `_run` belongs to the daemon's loop.
"""

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass

from offstage.bindings.errors import DeviceTimeout, OffstageError, RunFailed
from offstage.dpu.control.replies import Waiting
from offstage.dpu.storage.device import Device

__all__ = ["Connects", "Ended"]

CLOSE_S = 60.0
"""Longer than the kernel takes to give up on an address, a few seconds at most."""


@dataclass
class Ended:
    """How a connect ended: `error` None where the host is connected."""

    waiting: Waiting
    error: Exception | None = None


class Connects:
    """The connects in progress. The registry of hosts detaches ports through it."""

    def __init__(self, device: Device, wake: Callable[[], None]) -> None:
        self._device, self._wake = device, wake
        self._threads: dict[int, tuple[threading.Thread, Ended]] = {}
        self._left: set[int] = set()  # ports to detach when their connect has ended

    def check(self, port: int) -> None:
        """OffstageError (EBUSY) where the port is being connected."""
        if port in self._threads:
            raise OffstageError(
                "this host is being connected", "Connect", "wait for the answer", errno=errno.EBUSY
            )

    def begin(self, port: int, answer: bytes, waiting: Waiting) -> None:
        """Connect the port's host; `ended` returns `waiting` with what came of it."""
        self.check(port)
        ended = Ended(waiting)
        thread = threading.Thread(
            target=self._run, args=(port, answer, ended), name=f"ofs-connect-{port}"
        )
        self._threads[port] = thread, ended
        thread.start()

    def ended(self) -> list[Ended]:
        """What has ended since the last call; detaches what was put off until then."""
        found = []
        for port, (thread, ended) in list(self._threads.items()):
            if thread.is_alive():
                continue
            del self._threads[port]
            found.append(ended)
            if port in self._left:
                self._left.discard(port)
                ended.error = self._detach_late(port)
        return found

    def detach(self, port: int) -> None:
        """Detach the port of a host that left: immediately, or when its connect has ended."""
        if port in self._threads:
            self._left.add(port)
        else:
            self._device.detach(port)

    def close(self) -> None:
        """Wait for connects in progress: they use the device. DeviceTimeout: one still does."""
        for thread, _ in self._threads.values():
            thread.join(CLOSE_S)
            if thread.is_alive():
                raise DeviceTimeout(
                    "an address is still being resolved", thread.name, errno=errno.ETIMEDOUT
                )
        self.ended()

    def _run(self, port: int, answer: bytes, ended: Ended) -> None:
        try:
            self._device.connect(port, answer)
        except Exception as error:
            ended.error = error
        self._wake()

    def _detach_late(self, port: int) -> OffstageError:
        """The error for the host, if it is still connected."""
        try:
            self._device.detach(port)
        except OffstageError as error:
            return error
        return RunFailed("the host has left", "Connect", "log in again", errno=errno.ESHUTDOWN)
