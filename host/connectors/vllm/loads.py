"""Loads of vLLM's connector: objects in flight into vLLM's blocks, and their deadlines."""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import Condition

import numpy as np

from offstage.host.connectors.objects import Completion, ObjectClient, State
from offstage.host.connectors.vllm.steps import Landed, There

__all__ = ["LOAD_BYTES", "Apart", "Load", "parts_of"]

LOAD_BYTES = 256 << 20  # limit in flight; more is read in pieces of this size
PART_BYTES = 64 << 10  # of an object, at least: a smaller part takes longer to ask for than to copy


def parts_of(cuts: Sequence[int]) -> list[int]:
    """Where the parts of an object end that a step waits for one by one, in bytes: after layers, of
    which each ends at one of `cuts`, and so that each part but the last has PART_BYTES."""
    ends = list[int]()
    for cut in cuts[:-1]:
        if cut - (ends[-1] if ends else 0) >= PART_BYTES:
            ends.append(cut)
    return [*ends, cuts[-1]]


class Load:
    """Objects in flight into vLLM's blocks. They land in separate memory, which the object client
    keeps until they have ended, at `until_s` at the latest. The worker does not wait longer than
    that either, even if the client's thread is blocked: late bytes land only in that memory.
    """

    def __init__(
        self,
        client: ObjectClient,
        keys: list[bytes],
        blocks: list[int],
        ends: list[int],
        until_s: float,
    ) -> None:
        """`ends`: of the parts of an object that are waited for one by one, in bytes."""
        self.blocks, self._until_s, self.late = blocks, until_s, False
        self.ended_s: float | None = None
        self.first_s: float | None = None
        self.memory = np.empty((len(keys), ends[-1]), np.uint8)
        self._ends = ends
        self._there = Condition()
        self._lost: list[frozenset[int]] = []
        self._done: list[bool] | None = None
        client.get(
            keys,
            list(self.memory),
            cuts=ends,
            landed=self._landed,
            tell=self._ended,
            within_s=until_s - time.monotonic(),
        )

    def _landed(self, part: int, lost: frozenset[int]) -> None:
        with self._there:
            self._lost.append(lost)
            self._there.notify()

    def _ended(self, completion: Completion) -> None:
        with self._there:
            self._done, self.ended_s = completion.done, time.monotonic()
            self.first_s = completion.first_s
            self.late |= State.LATE in completion.states
            self._there.notify()

    def rows(self, end: int) -> list[int]:
        """Wait for the first `end` bytes: the objects that have them."""
        part = bisect_left(self._ends, end)
        with self._there:
            if not self._wait(lambda: len(self._lost) > part):
                return []
            return [row for row in range(len(self.blocks)) if row not in self._lost[part]]

    def is_over(self) -> bool:
        """Whether it has ended, or its deadline has passed."""
        with self._there:
            return self._done is not None or time.monotonic() > self._until_s

    def there(self) -> There:
        """When its blocks were there, seconds before now; of one that is late nothing is known."""
        now_s = time.monotonic()
        with self._there:
            if self.late or self.first_s is None or self.ended_s is None:
                return There()
            return There(now_s - self.first_s, now_s - self.ended_s)

    def lost(self) -> set[int]:
        """Wait for the end: blocks that did not load."""
        with self._there:
            if not self._wait(lambda: self._done is not None) or self._done is None:
                return set(self.blocks)
            ends = zip(self.blocks, self._done, strict=True)
            return {block for block, done in ends if not done}

    def _wait(self, true: Callable[[], bool]) -> bool:
        """Whether it came in time; once late it stays late, since parts of it were skipped."""
        left_s = max(0.0, self._until_s - time.monotonic())
        came = self._there.wait_for(true, left_s)  # `_ended` may say meanwhile that it is late
        self.late = self.late or not came
        return not self.late


class Apart:
    """Asynchronous loads, used while other requests run: vLLM continues with those, and schedules a
    request when its load has ended. Until then the request keeps its blocks, whatever happens to
    it. Owned by the worker's thread."""

    def __init__(self, client: ObjectClient, size: int) -> None:
        """`size`: bytes of an object. Nobody waits for a part of one: it is read in one call."""
        self._client, self._size = client, size
        self._waiting: deque[tuple[str, Sequence[bytes], Sequence[int], float]] = deque()
        self._flying: list[tuple[str, Load]] = []
        self._pieces = Counter[str]()
        self._begun_s: dict[str, float] = {}
        self._free_s = 0.0  # when the last load that has ended did

    def add(
        self, request: str, keys: Sequence[bytes], blocks: Sequence[int], patience_s: float
    ) -> None:
        """Read objects for the request's `blocks`, within `patience_s` all together."""
        self._begun_s[request] = time.monotonic()
        until_s = self._begun_s[request] + patience_s
        count = max(1, LOAD_BYTES // self._size)
        pieces = [
            (request, keys[at : at + count], blocks[at : at + count], until_s)
            for at in range(0, len(keys), count)
        ]
        self._pieces[request] = len(pieces)
        self._waiting.extend(pieces)
        self._go_on()

    def ended(self) -> list[tuple[Load, Landed]]:
        """Pieces that have ended since the last call, whole or late. A load's time ends with its
        last block, not with the step that runs then."""
        over = [one for one in self._flying if one[1].is_over()]
        self._flying = [one for one in self._flying if one not in over]
        found = []
        for request, load in over:
            self._pieces[request] -= 1
            whole = self._pieces[request] == 0
            took_s = alone_s = -1.0
            if whole:
                begun_s, ended_s = self._begun_s.pop(request), load.ended_s or time.monotonic()
                took_s = max(0.0, ended_s - begun_s)
                alone_s = max(0.0, ended_s - max(begun_s, self._free_s))
                self._free_s = max(self._free_s, ended_s)
            found.append((load, Landed(request, load.memory.nbytes, took_s, alone_s, load.there())))
        self._go_on()
        return found

    def _go_on(self) -> None:
        flying = sum(load.memory.nbytes for _, load in self._flying)
        while self._waiting:
            request, keys, blocks, until_s = self._waiting[0]
            flying += len(keys) * self._size
            if self._flying and flying > LOAD_BYTES:
                return
            self._waiting.popleft()
            load = Load(self._client, list(keys), list(blocks), [self._size], until_s)
            self._flying.append((request, load))
