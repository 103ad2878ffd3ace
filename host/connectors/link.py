"""The way to a daemon that goes and comes: one log-in, one attach, and another when they are lost.

Owned by the thread that moves objects. While the daemon is lost a thread of its own tries to come
back, once in RETRY_S; what it found is adopted by the owner.
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
AGAIN_S = 1.5  # for each answer of a daemon that may not be there


class Link:
    """`connect` logs in and attaches, with so long for an answer. `control` and `fabric` are those
    of the daemon of now, and so are the sizes of its blocks and messages, how many calls may be
    under way, and whether what is read into must be registered (`pins`)."""

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
        """The parts of an object, in this daemon's blocks."""
        return shape_of(move.size, self.payload, self.layers)

    def lose(self) -> None:
        """Nobody answers any more: leave, and try to come back."""
        self.lost = True
        self._back = threading.Thread(target=self._come_back, name="ofs-objects-back", daemon=True)
        self._back.start()

    def adopt(self) -> bool:
        """Whether there is a daemon again; from then on it is that one."""
        if self._found is None:
            return False
        found, self._found = self._found, None
        self.lost = False
        self._take(found)
        return True

    def close(self) -> None:
        """Leave."""
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
