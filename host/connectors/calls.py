"""Fetches and puts of a mover: queued and in flight."""

import heapq
from collections.abc import Callable, Iterable

from offstage.bindings.fabric import Fetch, Put
from offstage.host.connectors.moves import Move

__all__ = ["Begin", "Calls", "End"]

Begin = Callable[[], Fetch | Put]
End = Callable[[Fetch | Put, bool], None]
"""Ends a call, or (True) cancels it."""


class Calls:
    """Owned by the mover's thread."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, Move, Begin, End]] = []  # a heap: first parts first
        self._count = 0
        self._flying: dict[int, tuple[Move, End, Fetch | Put]] = {}

    @property
    def ready(self) -> bool:
        """Whether a call is queued."""
        return bool(self._ready)

    @property
    def flying(self) -> int:
        """How many are in flight."""
        return len(self._flying)

    def queue(self, move: Move, part: int, begin: Begin, end: End) -> None:
        """Queue a call; calls of first parts come first."""
        self._count += 1
        heapq.heappush(self._ready, (part, self._count, move, begin, end))
        move.calls += 1

    def begun(self, move: Move, call: Fetch | Put, end: End) -> None:
        """Record a call that is already in flight."""
        self._flying[id(call)] = (move, end, call)
        move.calls += 1

    def begin(self, calls_max: int) -> None:
        """Submit queued calls, up to `calls_max` in flight."""
        while self._ready and len(self._flying) < calls_max:
            _, _, move, begin, end = self._ready[0]
            call = begin()
            heapq.heappop(self._ready)
            self._flying[id(call)] = (move, end, call)

    def end(self, call: Fetch | Put) -> Move:
        """Process a completion of the fabric; returns the call's move."""
        move, end, _ = self._flying.pop(id(call))
        end(call, False)
        move.calls -= 1
        return move

    def give_up(self, moves: Iterable[Move]) -> None:
        """Cancel all calls of these moves without waiting: their memory is no longer written."""
        gone = set(map(id, moves))
        self._ready = [one for one in self._ready if id(one[2]) not in gone]
        heapq.heapify(self._ready)
        for move, end, call in list(self._flying.values()):
            if id(move) in gone:
                del self._flying[id(call)]
                end(call, True)

    def clear(self) -> None:
        """Drop all calls, since the daemon is lost."""
        self._flying.clear()
        self._ready.clear()
