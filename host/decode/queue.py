"""The agent's request queue: arrivals, admission and refusals.

Requests arrive at given times. `offstage.host.decode.schedule`, called for one host, picks the
next one to start. The prefixes that the host has are the contexts of the sessions that decode now,
since their blocks are staged. Used on the agent's thread; the caller passes the time.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from offstage.host.decode.schedule import Rule, begin_next
from offstage.host.decode.session import Context

__all__ = ["WAITING_MAX", "Admission", "Request"]

WAITING_MAX = 1 << 20


class Request(Protocol):
    """Fields of a request; `start_s` counts from the start of the run."""

    @property
    def number(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def context(self) -> Context: ...


R = TypeVar("R", bound=Request)


class Admission(Generic[R]):
    """Requests of one run. `refused`: requests that arrived while `waiting_max` were waiting;
    `passed_over`: how often a later request started before an earlier one."""

    def __init__(self, requests: Sequence[R], rule: Rule, waiting_max: int = WAITING_MAX) -> None:
        self._coming = deque(sorted(requests, key=lambda one: (one.start_s, one.number)))
        self._waiting: list[R] = []
        self._passed: list[int] = []
        self._rule, self._waiting_max = rule, waiting_max
        self.refused = 0
        self.passed_over = 0

    def __bool__(self) -> bool:
        """Whether a request has yet to start."""
        return bool(self._coming or self._waiting)

    @property
    def next_s(self) -> float | None:
        """Time of the next arrival; None: there is none."""
        return self._coming[0].start_s if self._coming else None

    def arrive(self, now_s: float, room: int) -> None:
        """Queue the requests that have arrived; `room`: how many could start immediately."""
        while self._coming and self._coming[0].start_s <= now_s:
            one = self._coming.popleft()
            if len(self._waiting) >= self._waiting_max + room:
                self.refused += 1
                continue
            self._waiting.append(one)
            self._passed.append(0)

    def take(self, running: Sequence[Context]) -> R | None:
        """The next request to start, given the running contexts; None: the queue is empty."""
        held = [one.identities for one in running]
        own = [one.context.identities for one in self._waiting]
        reuse = self._rule.kind == "reuse" and len(own) > 1
        matched = [
            max((_common(one, other) for other in held), default=0) if reuse else 0 for one in own
        ]
        found = begin_next(
            self._rule,
            np.array(matched, np.int64).reshape(-1, 1),
            np.array([len(one) for one in own], np.int64),
            np.array(self._passed, np.int64),
            np.zeros(1, np.int64),
            np.ones(1, np.bool_),
            0,
        )
        if found is None:
            return None
        self.passed_over += found.waiting
        for before in range(found.waiting):
            self._passed[before] += 1
        self._passed.pop(found.waiting)
        return self._waiting.pop(found.waiting)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix, in chunks."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
