"""The verbs fabric: the daemon's memory by one-sided RDMA, from any machine of its network.

The attach brings the daemon's end as a blob; the driver opens this end over it, and what it answers
goes back over the control connection. From then on blocks and commands flow without the daemon's
processor on a hit.

A connection that was lost is made again by whatever call finds out: the daemon keeps the port and
its sessions, and what was under way begins anew, which changes nothing: a fetch reads, and a put
writes the same bytes. A daemon that has closed the port, or cannot be reached for `AGAIN_S`, is a
RunFailed that says so.
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
from offstage.bindings.verbs import Rdma, by_route, check_memlock, prepare
from offstage.host.link.control import Control

__all__ = ["VerbsDriver", "connect"]

AGAIN_S = 30.0
PAUSE_S = 0.05
LOST = (errno.EHOSTUNREACH, errno.EACCES, errno.EPROTO, errno.EIO, errno.EPIPE)
"""What ends a connection; the daemon says whether it has closed the port."""
FOR_NOW = (errno.EAGAIN, errno.EHOSTUNREACH, errno.EBUSY, errno.ESTALE)


class VerbsDriver(Driver):
    """A driver that connects again. Owned by one thread, as every driver."""

    pins = True

    def __init__(self, control: Control, rdma: Rdma) -> None:
        """Attach, from the adapter that the way to the daemon takes. Raises what it answers."""
        self._control = control
        self._reported: set[int] = set()
        self.connections = 0
        attachment = Attachment(control.attach("verbs").blob)
        try:
            prepare(by_route(attachment.blob, rdma))
        except BadInput as error:
            if error.errno != errno.EBUSY:
                raise  # a process has one adapter: with connections it stays the one that it is
        super().__init__(attachment)
        try:
            self._introduce()
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """As every driver's; what has begun anew since it was reported is not reported again."""
        ended = [one for one in super().poll(timeout_ns) if id(one) not in self._reported]
        self._reported.update(map(id, ended))
        return ended

    def fetch_cancel(self, fetch: Fetch) -> None:
        """As every driver's."""
        self._reported.discard(id(fetch))
        super().fetch_cancel(fetch)

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send guesses; what was under way on a connection that is lost is not sent again."""
        sent = 0

        def once() -> None:
            nonlocal sent
            sent = super(VerbsDriver, self).hint(session, guesses)

        self._unless_lost(once)
        return sent

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._unless_lost(lambda: super(VerbsDriver, self).release(session))

    def _begin(self, call: Fetch | Put, begin: Any, doing: str) -> None:
        self._unless_lost(lambda: super(VerbsDriver, self)._begin(call, begin, doing))

    def _end(self, call: Fetch | Put, end: Any, doing: str) -> None:
        def once() -> None:
            try:
                super(VerbsDriver, self)._end(call, end, doing)
            except RunFailed:
                self._calls[call.ticket] = call  # it is under way still, if this is not the end
                raise

        self._reported.discard(id(call))
        try:
            self._unless_lost(once)
        finally:
            self._calls.pop(call.ticket, None)

    def _unless_lost(self, do: Callable[[], None]) -> None:
        """Do it; where that finds the connection lost, connect and do it again."""
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
        """Another connection to the same port. `lost` where the daemon has closed the port, or
        there is none in time."""
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
    """Attach over the adapter that `rdma` names, or else over the one that the kernel's way to the
    daemon takes. BadInput where it, a GID, an MTU or a way to the daemon is not there; RunFailed,
    Incompatible: what the daemon answers."""
    prepare(rdma or Rdma())
    limits, geometry = control.limits, control.geometry
    check_memlock(limits.put_slot_count * geometry.payload_size_bytes)
    return VerbsDriver(control, rdma or Rdma())
