"""Fetches and puts of a mover: those that wait for their turn, and those in flight."""

import heapq
from collections.abc import Callable, Iterable

from offstage.bindings.fabric import Fetch, Put
from offstage.host.connectors.moves import Move

__all__ = ["Begin", "Calls", "End"]

Begin = Callable[[], Fetch | Put]
End = Callable[[Fetch | Put, bool], None]
"""Ends a call, or (True) gives it up."""


class Calls:
    """Owned by the mover's thread."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, Move, Begin, End]] = []  # a heap: first parts first
        self._count = 0
        self._flying: dict[int, tuple[Move, End, Fetch | Put]] = {}

    @property
    def ready(self) -> bool:
        """Whether one waits for its turn."""
        return bool(self._ready)

    @property
    def flying(self) -> int:
        """How many are in flight."""
        return len(self._flying)

    def queue(self, move: Move, part: int, begin: Begin, end: End) -> None:
        """To be begun, calls of first parts before others."""
        self._count += 1
        heapq.heappush(self._ready, (part, self._count, move, begin, end))
        move.calls += 1

    def begun(self, move: Move, call: Fetch | Put, end: End) -> None:
        """In flight already."""
        self._flying[id(call)] = (move, end, call)
        move.calls += 1

    def begin(self, calls_max: int) -> None:
        """As many as may be in flight."""
        while self._ready and len(self._flying) < calls_max:
            _, _, move, begin, end = self._ready[0]
            call = begin()
            heapq.heappop(self._ready)
            self._flying[id(call)] = (move, end, call)

    def end(self, call: Fetch | Put) -> Move:
        """The fabric says that it has ended: take its outcome. Whose it was."""
        move, end, _ = self._flying.pop(id(call))
        end(call, False)
        move.calls -= 1
        return move

    def give_up(self, moves: Iterable[Move]) -> None:
        """All calls of these, without waiting: their memory is written no more."""
        gone = set(map(id, moves))
        self._ready = [one for one in self._ready if id(one[2]) not in gone]
        heapq.heapify(self._ready)
        for move, end, call in list(self._flying.values()):
            if id(move) in gone:
                del self._flying[id(call)]
                end(call, True)

    def clear(self) -> None:
        """The daemon is lost, and all of them with it."""
        self._flying.clear()
        self._ready.clear()
