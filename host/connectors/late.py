"""A bound on waiting: when what was asked for is given up, whatever the daemon does meanwhile.

A daemon that is frozen answers nothing, and its sockets stay open: only time tells. The deadline of
a read or a lookup runs from when it is asked for; the mover looks at it in each turn, and every few
ms while it waits for an answer itself. So no thread is needed for it. What was late is counted in
the metrics that the engine's own process serves, since a daemon that is frozen serves none.
"""

import heapq
import itertools
import time
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from offstage.host.connectors.moves import Kind, Move

__all__ = ["Deadlines", "counters"]


class Deadlines:
    """Of moves that are bounded. They are kept by those who ask for them alone: what has ended is
    not held in memory until its deadline."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Move]]] = []
        self._numbers = itertools.count()

    def add(self, moves: Iterable[Move]) -> None:
        """From now on."""
        now_s = time.monotonic()
        for move in moves:
            if move.within_s > 0:
                one = (now_s + move.within_s, next(self._numbers), weakref.ref(move))
                heapq.heappush(self._heap, one)

    def past(self) -> list[Move]:
        """Those whose deadline has come, once; also such as have ended."""
        now_s, found = time.monotonic(), list[Move | None]()
        while self._heap and self._heap[0][0] <= now_s:
            found.append(heapq.heappop(self._heap)[2]())
        return [move for move in found if move is not None]


@lru_cache(maxsize=1)
def counters() -> dict[Kind, Any]:
    """Of what was LATE, in the registry of this process's `prometheus_client`, which LMCache and
    SGLang serve; none where that is not installed."""
    try:
        from prometheus_client import Counter
    except ImportError:
        return {}
    return {
        Kind.GET: Counter("offstage_get_late", "objects that were not read in time"),
        Kind.LOOK: Counter("offstage_look_late", "objects that were not looked up in time"),
    }
