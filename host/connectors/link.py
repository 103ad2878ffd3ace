"""A link that survives the loss of its daemon: login and attach, repeated after a loss, and where
asked for also until there is a first daemon.

Owned by the mover's thread. While the daemon is lost a separate thread retries every RETRY_S; the
owner adopts the new connection.
"""

import threading
from collections.abc import Callable

from offstage.bindings.errors import OffstageError, Unreachable
from offstage.bindings.value_io import ValueIO
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control

__all__ = ["Link"]

RETRY_S = 1.0
AGAIN_S = 1.5  # timeout of each reply while reconnecting


class Link:
    """`connect` logs in and attaches, given the timeout of a reply. `control`, `fabric`, `values`,
    `sessions_max`, and whether targets must be registered (`pins`) are those of the current
    daemon. `why`: why there was none at first."""

    values: ValueIO
    control: Control
    fabric: Fabric

    def __init__(
        self,
        connect: Callable[[float], tuple[Control, Fabric]],
        timeout_s: float,
        tell: Callable[[], None],
        *,
        late: bool = False,
    ) -> None:
        """`tell` is called from another thread when there is a new connection. `late`: where no
        daemon answers yet the link begins as lost. BadInput, RunFailed: it refuses, or there is
        none."""
        self._connect, self._timeout_s, self._tell = connect, timeout_s, tell
        self.lost, self.why = False, ""
        self.pins, self.sessions_max = False, 1
        self._found: tuple[Control, Fabric] | None = None
        self._open: tuple[Fabric | Control, ...] = ()
        self._back: threading.Thread | None = None
        self._stopped = threading.Event()
        try:
            self._take(connect(timeout_s))
        except Unreachable as error:
            if not late:
                raise
            self.lost, self.why = True, str(error)
            self._try_again()
        except BaseException:
            self._shut()
            raise

    @property
    def found(self) -> bool:
        """Whether there is a new connection to adopt."""
        return self._found is not None

    def lose(self) -> None:
        """The daemon no longer answers: end all tasks, close the connection and start to reconnect.
        Nothing is written into the tasks' memory after that."""
        self.lost = True
        self.values.close()
        self._try_again()

    def _try_again(self) -> None:
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
            self._open = self._found[::-1]
        self._shut()

    def _shut(self) -> None:
        for one in self._open:
            one.close()

    def _take(self, found: tuple[Control, Fabric]) -> None:
        self.control, self.fabric = found
        self._open = self.fabric, self.control
        self.pins = self.fabric.pins
        self.sessions_max = max(1, self.control.limits.session_max // 2)
        self.values = self.fabric.value_io(self.sessions_max, self._timeout_s)

    def _come_back(self) -> None:
        self._shut()
        while not self._stopped.wait(RETRY_S):
            try:
                self._found = self._connect(AGAIN_S)
            except OffstageError:
                continue
            self._tell()
            return
