"""Requests of other threads to the mover's thread."""

import threading
from collections import deque

from offstage.host.connectors.late import Deadlines
from offstage.host.connectors.memory import U8, Memory
from offstage.host.connectors.moves import Move

__all__ = ["Inbox"]


class Inbox:
    """Any thread may call its methods; the owner takes the requests under `_wake`."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._asked: deque[Move] = deque()
        self._unlease: deque[bytes] = deque()
        self._filled: list[Move] = []
        self._memory = Memory(self._wake)
        self._deadlines = Deadlines()
        self._stop = False

    def submit(self, moves: list[Move]) -> None:
        """Submit moves; each `ended` is called once, on the mover's thread."""
        with self._wake:
            self._asked.extend(moves)
            self._deadlines.add(moves)
            self._wake.notify()

    def fill(self, moves: list[Move], size: int, *, commit: bool = False) -> None:
        """The first `size` bytes of these puts' buffers may be sent; `commit`: and the head."""
        with self._wake:
            for move in moves:
                move.filled, move.committed = size, commit
            self._filled.extend(moves)
            self._wake.notify()

    def drop(self, moves: list[Move]) -> None:
        """End puts that were not committed as ABSENT."""
        with self._wake:
            for move in moves:
                move.dropped = not move.committed
            self._filled.extend(moves)
            self._wake.notify()

    def unlease(self, names: list[bytes]) -> None:
        """Release leases before they expire."""
        with self._wake:
            self._unlease.extend(names)
            self._wake.notify()

    def register(self, array: U8, keep: bool = True) -> None:
        """Register memory before it is read into, or (not `keep`) unregister it before it is freed.
        Raises the fabric's error."""
        if not self._stop:
            self._memory.ask(array, keep).result()
