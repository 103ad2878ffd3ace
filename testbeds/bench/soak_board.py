"""What the processes of a soak say to each other while it runs: counts, and when to stop.

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
        """Of the one process that counts this."""
        self._words[self._places[name]] += np.uint64(count)

    def counts(self) -> dict[str, int]:
        """All, as they are now."""
        return {name: int(self._words[place]) for name, place in self._places.items()}

    def stop(self) -> None:
        """Everybody ends the turn it is in, and then itself."""
        self._words[0] = 1

    def stopped(self) -> bool:
        """Whether to end."""
        return bool(self._words[0])


class Turns:
    """An `Until` that counts how often it was asked."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name

    def is_set(self) -> bool:
        """Whether to end; one more turn."""
        self._board.add(self._name)
        return self._board.stopped()
