"""Deadlines of reads and lookups, which also end when the daemon is frozen.

A frozen daemon does not answer while its sockets stay open: only a timeout detects it. The deadline
of a read or lookup runs from its submission; the mover checks it in each turn, and every few ms
while it waits for a reply, so no extra thread is needed. Late operations are counted in the metrics
of the engine's process, since a frozen daemon serves none.
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
    """Deadlines of moves. Holds no strong references: a move that has ended does not stay in memory
    until its deadline."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Move]]] = []
        self._numbers = itertools.count()

    def add(self, moves: Iterable[Move]) -> None:
        """Start the deadlines of these moves now."""
        now_s = time.monotonic()
        for move in moves:
            if move.within_s > 0:
                one = (now_s + move.within_s, next(self._numbers), weakref.ref(move))
                heapq.heappush(self._heap, one)

    def past(self) -> list[Move]:
        """Moves whose deadline has passed, each once; may include moves that have ended."""
        now_s, found = time.monotonic(), list[Move | None]()
        while self._heap and self._heap[0][0] <= now_s:
            found.append(heapq.heappop(self._heap)[2]())
        return [move for move in found if move is not None]


@lru_cache(maxsize=1)
def counters() -> dict[Kind, Any]:
    """Counters of LATE moves in this process's `prometheus_client` registry, which LMCache and
    SGLang serve; empty if that is not installed."""
    try:
        from prometheus_client import Counter
    except ImportError:
        return {}
    return {
        Kind.GET: Counter("offstage_get_late", "objects that were not read in time"),
        Kind.LOOK: Counter("offstage_look_late", "objects that were not looked up in time"),
    }
