"""The queue in front of an agent: who has come, who is next, and who is refused.

Requests come at their times. Which of them begins when there is room is the affair of
`offstage.host.decode.schedule`, for one host: what it holds already is the context of the sessions
that decode now, since their blocks are staged. Belongs to the agent's thread; told the time.
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
    """What is asked of a request; `start_s` counts from the run's begin."""

    @property
    def number(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def context(self) -> Context: ...


R = TypeVar("R", bound=Request)


class Admission(Generic[R]):
    """Requests of one run. `refused`: that found `waiting_max` before them; `passed_over`: how
    often one that came earlier was."""

    def __init__(self, requests: Sequence[R], rule: Rule, waiting_max: int = WAITING_MAX) -> None:
        self._coming = deque(sorted(requests, key=lambda one: (one.start_s, one.number)))
        self._waiting: list[R] = []
        self._passed: list[int] = []
        self._rule, self._waiting_max = rule, waiting_max
        self.refused = 0
        self.passed_over = 0

    def __bool__(self) -> bool:
        """Whether anybody is still to begin."""
        return bool(self._coming or self._waiting)

    @property
    def next_s(self) -> float | None:
        """When the next one comes; None: nobody does."""
        return self._coming[0].start_s if self._coming else None

    def arrive(self, now_s: float, room: int) -> None:
        """Take in who has come by now; `room`: how many could begin at once."""
        while self._coming and self._coming[0].start_s <= now_s:
            one = self._coming.popleft()
            if len(self._waiting) >= self._waiting_max + room:
                self.refused += 1
                continue
            self._waiting.append(one)
            self._passed.append(0)

    def take(self, running: Sequence[Context]) -> R | None:
        """Who begins beside those that run; None: nobody waits."""
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
    """Chunks that both begin with."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
