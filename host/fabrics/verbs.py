"""The verbs fabric: the daemon's memory by one-sided RDMA, from any machine of its network.

The attach returns the daemon's end as a blob; the driver opens this end from it, and its answer
goes back over the control connection. From then on a hit does not involve the daemon's processor.

The call that finds the connection lost reconnects: the daemon keeps the port and its sessions, and
calls in flight are submitted again. That is safe: a fetch only reads, and a put writes the same
bytes. RunFailed if the daemon has closed the port, or cannot be reached for `AGAIN_S`.
"""

import errno
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, DeviceTimeout, OffstageError, RunFailed
from offstage.bindings.fabric import Fetch, Put
from offstage.bindings.value_io import ValueIO
from offstage.bindings.verbs import Rdma, by_route, check_memlock, prepare
from offstage.host.link.control import Control

__all__ = ["VerbsDriver", "connect"]

AGAIN_S = 30.0
PAUSE_S = 0.05
LOST = (errno.EHOSTUNREACH, errno.EACCES, errno.EPROTO, errno.EIO, errno.EPIPE)
"""Errors that end a connection; the daemon says whether it has closed the port."""
FOR_NOW = (errno.EAGAIN, errno.EHOSTUNREACH, errno.EBUSY, errno.ESTALE)


class VerbsDriver(Driver):
    """A driver that reconnects. Owned by one thread, like every driver."""

    pins = True

    def __init__(self, control: Control, rdma: Rdma) -> None:
        """Attach from the adapter on the route to the daemon. Raises the daemon's error reply."""
        self._control = control
        self._reported: set[int] = set()
        self.connections = 0
        attachment = Attachment(control.attach("verbs").blob)
        try:
            prepare(by_route(attachment.blob, rdma))
        except BadInput as error:
            if error.errno != errno.EBUSY:
                raise  # a process uses one adapter, which cannot change while it has connections
        super().__init__(attachment)
        try:
            self._introduce()
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """See Driver; calls that were submitted again after a report are not reported twice."""
        ended = [one for one in super().poll(timeout_ns) if id(one) not in self._reported]
        self._reported.update(map(id, ended))
        return ended

    def fetch_cancel(self, fetch: Fetch) -> None:
        """See Driver."""
        self._reported.discard(id(fetch))
        super().fetch_cancel(fetch)

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send guesses; those in flight on a lost connection are not sent again."""
        sent = 0

        def once() -> None:
            nonlocal sent
            sent = super(VerbsDriver, self).hint(session, guesses)

        self._unless_lost(once)
        return sent

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._unless_lost(lambda: super(VerbsDriver, self).release(session))

    def value_io(self, sessions_max: int, timeout_s: float) -> ValueIO:
        """Over a connection that has just answered; tasks in flight on one that is lost end."""

        def once() -> None:
            super(VerbsDriver, self).bench_nop(1)

        self._unless_lost(once)
        return super().value_io(sessions_max, timeout_s)

    def _begin(self, call: Fetch | Put, begin: Any, doing: str) -> None:
        self._unless_lost(lambda: super(VerbsDriver, self)._begin(call, begin, doing))

    def _end(self, call: Fetch | Put, end: Any, doing: str) -> None:
        def once() -> None:
            try:
                super(VerbsDriver, self)._end(call, end, doing)
            except RunFailed:
                self._calls[call.ticket] = call  # still in flight, unless this is its completion
                raise

        self._reported.discard(id(call))
        try:
            self._unless_lost(once)
        finally:
            self._calls.pop(call.ticket, None)

    def _unless_lost(self, do: Callable[[], None]) -> None:
        """Call `do`; if the connection is lost, reconnect and call it again."""
        until_s = time.monotonic() + AGAIN_S
        while True:
            try:
                do()
                return
            except RunFailed as error:
                if error.errno not in LOST or time.monotonic() > until_s:
                    raise
                self._connect_again(error, until_s)

    def _connect_again(self, lost: RunFailed, until_s: float) -> None:
        """Reconnect to the same port. Raises `lost` if the daemon has closed the port or the time
        is up."""
        while True:
            try:
                self.reopen(Attachment(self._control.attach("verbs", again=True).blob))
                self._introduce()
                self.resume()
                return
            except OffstageError as error:
                for_now = isinstance(error, DeviceTimeout) or error.errno in FOR_NOW
                if not for_now or time.monotonic() > until_s:
                    raise lost from error
                time.sleep(PAUSE_S)

    def _introduce(self) -> None:
        answer = self.answer()
        assert answer is not None
        self._control.connect(answer)
        self.connections += 1


def connect(control: Control, rdma: Rdma | None = None) -> VerbsDriver:
    """Attach over the adapter that `rdma` names, or over that of the kernel's route to the daemon.
    BadInput if the adapter, a GID, an MTU or a route is missing; RunFailed, Incompatible: error
    replies of the daemon."""
    prepare(rdma or Rdma())
    limits, geometry = control.limits, control.geometry
    check_memlock(limits.put_slot_count * geometry.payload_size_bytes)
    return VerbsDriver(control, rdma or Rdma())
