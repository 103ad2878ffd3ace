"""Shared state of a soak's processes while it runs: counts, and the stop flag.

A page of shared memory that forks inherit. Each count has one process that adds to it.
"""

import mmap
from collections.abc import Sequence

import numpy as np

__all__ = ["Board", "Turns"]


class Board:
    """A count for each name, and a flag. Made before the processes that use it are forked."""

    def __init__(self, names: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(names, 1)}
        self._words = np.frombuffer(mmap.mmap(-1, 8 * (1 + len(names))), np.uint64)

    def add(self, name: str, count: int = 1) -> None:
        """Only the one process that owns this count calls it."""
        self._words[self._places[name]] += np.uint64(count)

    def counts(self) -> dict[str, int]:
        """All counts now."""
        return {name: int(self._words[place]) for name, place in self._places.items()}

    def stop(self) -> None:
        """Every process ends its current turn, and then itself."""
        self._words[0] = 1

    def stopped(self) -> bool:
        """Whether to end."""
        return bool(self._words[0])


class Turns:
    """An `Until` that counts its calls."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name

    def is_set(self) -> bool:
        """Whether to end; one more turn."""
        self._board.add(self._name)
        return self._board.stopped()
