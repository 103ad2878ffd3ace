"""A link that survives the loss of its daemon: login and attach, repeated after a loss.

Owned by the mover's thread. While the daemon is lost a separate thread retries every RETRY_S; the
owner adopts the new connection.
"""

import threading
from collections.abc import Callable

from offstage.bindings.errors import OffstageError
from offstage.bindings.value_io import ValueIO
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control

__all__ = ["Link"]

RETRY_S = 1.0
AGAIN_S = 1.5  # timeout of each reply while reconnecting


class Link:
    """`connect` logs in and attaches, given the timeout of a reply. `control`, `fabric`, `values`,
    `sessions_max`, and whether targets must be registered (`pins`) are those of the current
    daemon."""

    values: ValueIO

    def __init__(
        self, connect: Callable[[float], tuple[Control, Fabric]], timeout_s: float
    ) -> None:
        """BadInput, RunFailed: no daemon, or it refuses."""
        self._connect, self._timeout_s = connect, timeout_s
        self.lost = False
        self._found: tuple[Control, Fabric] | None = None
        self._back: threading.Thread | None = None
        self._stopped = threading.Event()
        found = connect(timeout_s)
        try:
            self._take(found)
        except BaseException:
            self.fabric.close()
            self.control.close()
            raise

    @property
    def busy(self) -> bool:
        """Whether there is something to do without a new request."""
        return self._found is not None if self.lost else self.values.busy

    @property
    def holds(self) -> bool:
        """Whether objects are leased."""
        return not self.lost and self.values.held > 0

    def lose(self) -> None:
        """The daemon no longer answers: end all tasks, close the connection and start to reconnect.
        Nothing is written into the tasks' memory after that."""
        self.lost = True
        self.values.close()
        self._back = threading.Thread(target=self._come_back, name="ofs-objects-back", daemon=True)
        self._back.start()

    def adopt(self) -> bool:
        """Adopt a new connection; returns whether there was one."""
        if self._found is None:
            return False
        found, self._found = self._found, None
        self.lost = False
        self._take(found)
        return True

    def close(self) -> None:
        """Close the connection."""
        self._stopped.set()
        if self._back is not None:
            self._back.join()
        if self._found is not None:
            self.control, self.fabric = self._found
        self.fabric.close()
        self.control.close()

    def _take(self, found: tuple[Control, Fabric]) -> None:
        self.control, self.fabric = found
        self.pins = self.fabric.pins
        self.sessions_max = max(1, min(64, self.control.limits.session_max // 2))
        self.values = self.fabric.value_io(self.sessions_max, self._timeout_s)

    def _come_back(self) -> None:
        self.fabric.close()
        self.control.close()
        while not self._stopped.wait(RETRY_S):
            try:
                self._found = self._connect(AGAIN_S)
            except OffstageError:
                continue
            return
