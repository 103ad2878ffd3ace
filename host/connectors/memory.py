"""Registration of memory into which a fabric writes objects directly.

An engine registers its memory once; reads into it need no copy. Any other target is registered for
the duration of its read. A range stays registered across the loss of the daemon.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError
from offstage.host.fabrics import Fabric

__all__ = ["READS_MAX", "Memory"]

READS_MAX = 64  # at once, each with a range of its own: a fabric has room for four times as many
U8 = NDArray[np.uint8]


class Memory:
    """Owned by the thread that moves objects, but for `ask`. `lock` guards what is asked of that
    thread; `stir`, with the lock held, makes it look."""

    def __init__(self, lock: threading.Condition, stir: Callable[[], None]) -> None:
        self._lock, self._stir = lock, stir
        self._asked: deque[tuple[U8, bool, Future[None]]] = deque()
        self._ranges: list[U8] = []

    def ask(self, array: U8, keep: bool) -> Future[None]:
        """Any thread: register `array`, or (not `keep`) unregister it before it is freed."""
        answer: Future[None] = Future()
        with self._lock:
            self._asked.append((array, keep, answer))
            self._stir()
        return answer

    @property
    def asked(self) -> bool:
        """Whether a request waits."""
        return bool(self._asked)

    def answer(self, fabric: Fabric | None) -> None:
        """Serve the requests; with `fabric` None, without a daemon, once there is one."""
        while self._asked:
            array, keep, answer = self._asked.popleft()
            try:
                self._register(fabric, array) if keep else self._unregister(fabric, array)
                answer.set_result(None)
            except OffstageError as error:
                answer.set_exception(error)

    def again(self, fabric: Fabric) -> None:
        """Register all ranges over the fabric of a new connection."""
        for array in self._ranges:
            fabric.register(array)

    def to_pin(self, *targets: U8 | None) -> list[U8]:
        """Those of these targets that lie in none of the ranges."""
        return [one for one in targets if one is not None and not self._covers(one)]

    def _covers(self, target: U8) -> bool:
        first = _address(target)
        return any(
            _address(one) <= first and first + target.nbytes <= _address(one) + one.nbytes
            for one in self._ranges
        )

    def _register(self, fabric: Fabric | None, array: U8) -> None:
        if fabric is not None:
            fabric.register(array)
        self._ranges.append(array)

    def _unregister(self, fabric: Fabric | None, array: U8) -> None:
        place = next((i for i, one in enumerate(self._ranges) if _place(one) == _place(array)), -1)
        if place >= 0:
            kept = self._ranges.pop(place)
            if fabric is not None:
                fabric.unregister(kept)


def _address(array: U8) -> int:
    return int(array.__array_interface__["data"][0])


def _place(array: U8) -> tuple[int, int]:
    return _address(array), array.nbytes
