"""What other threads ask of the thread that moves objects."""

import threading
from collections import deque

from offstage.host.connectors.late import Deadlines
from offstage.host.connectors.memory import U8, Memory
from offstage.host.connectors.moves import Move

__all__ = ["Inbox"]


class Inbox:
    """Any thread may call its methods; whoever owns it takes what they left, under `_wake`."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._asked: deque[Move] = deque()
        self._unlease: deque[bytes] = deque()
        self._filled: list[Move] = []
        self._memory = Memory(self._wake)
        self._deadlines = Deadlines()
        self._stop = False

    def submit(self, moves: list[Move]) -> None:
        """Begin; each `ended` is called once, on the mover's thread."""
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
        """Puts that were not committed end as ABSENT."""
        with self._wake:
            for move in moves:
                move.dropped = not move.committed
            self._filled.extend(moves)
            self._wake.notify()

    def unlease(self, names: list[bytes]) -> None:
        """Let go of leases, now and not at their end."""
        with self._wake:
            self._unlease.extend(names)
            self._wake.notify()

    def register(self, array: U8, keep: bool = True) -> None:
        """Have memory registered before it is read into, or (not `keep`) no longer so before it
        goes. Raises what the fabric says."""
        if not self._stop:
            self._memory.ask(array, keep).result()
