"""A link that survives the loss of its daemon: login and attach, repeated after a loss.

Owned by the mover's thread. While the daemon is lost a separate thread retries every RETRY_S; the
owner adopts the new connection.
"""

import threading
from collections.abc import Callable

from offstage.bindings.errors import OffstageError
from offstage.host.connectors.memory import READS_MAX
from offstage.host.connectors.moves import Move, Shape, shape_of
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control

__all__ = ["Link"]

RETRY_S = 1.0
AGAIN_S = 1.5  # timeout of each reply while reconnecting


class Link:
    """`connect` logs in and attaches, given the timeout of a reply. `control`, `fabric`, the sizes
    of blocks and messages, the limit of calls in flight, and whether targets must be registered
    (`pins`) are those of the current daemon."""

    def __init__(
        self, connect: Callable[[float], tuple[Control, Fabric]], timeout_s: float
    ) -> None:
        """BadInput, RunFailed: no daemon, or it refuses."""
        self._connect = connect
        self.lost = False
        self._found: tuple[Control, Fabric] | None = None
        self._back: threading.Thread | None = None
        self._stopped = threading.Event()
        self._take(connect(timeout_s))

    def shape(self, move: Move) -> Shape:
        """The layout of an object in this daemon's blocks."""
        return shape_of(move.size, self.payload, self.layers)

    def lose(self) -> None:
        """The daemon no longer answers: close the connection and start to reconnect."""
        self.lost = True
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
        calls_max = self.fabric.calls_max
        self.calls_max = min(calls_max, READS_MAX) if self.pins else calls_max
        geometry, limits = self.control.geometry, self.control.limits
        self.payload, self.layers = geometry.payload_size_bytes, geometry.layer_count
        self.chunks_max = limits.session_chunk_max
        self.sessions_max = max(1, min(64, limits.session_max // 2))
        self.message_max = limits.message_size_bytes_max // 4

    def _come_back(self) -> None:
        self.fabric.close()
        self.control.close()
        while not self._stopped.wait(RETRY_S):
            try:
                self._found = self._connect(AGAIN_S)
            except OffstageError:
                continue
            return
