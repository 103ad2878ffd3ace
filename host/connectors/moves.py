"""One operation on an object: its parameters, its outcome, and the words for it.

An object is a value under 16 bytes, and an operation on it is a task of the fabric
(`bindings.value_io`) that belongs to a batch.
"""

import errno
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.layouts import HIT_ENDS
from offstage.bindings.value_io import ValueTask, nanoseconds

__all__ = [
    "U8",
    "Batch",
    "Completion",
    "Kind",
    "Landed",
    "Move",
    "State",
    "guarded",
    "outcome",
    "tier_of",
]

U8 = NDArray[np.uint8]
Landed = Callable[[int, frozenset[int]], None]
log = logging.getLogger("offstage.connectors")
SOON_S = 1e-6  # time left of a deadline that has passed


class State(StrEnum):
    """Outcome of an operation on one object."""

    DONE = "done"
    ABSENT = "absent"  # the tier does not have it
    UNREADABLE = "unreadable"  # it has another size, or a block failed its check or was lost
    REFUSED = "refused"  # the tier has no room, or does not take such an object
    AWAY = "away"  # no daemon answers
    LATE = "late"  # it missed its deadline; late blocks are not written anywhere


class Kind(StrEnum):
    """Kind of operation."""

    PUT = "put"
    GET = "get"
    LOOK = "look"
    DELETE = "delete"


@dataclass
class Completion:
    """A completed batch: `states` of its objects in the given order, and the reasons of those that
    are neither DONE nor ABSENT. `first_s`: when the first of them was DONE, of the monotonic clock;
    None: none was."""

    ticket: int
    states: Sequence[State]
    reasons: Sequence[str]
    first_s: float | None = None

    @property
    def done(self) -> list[bool]:
        """Which of them are DONE."""
        return [state is State.DONE for state in self.states]


class Batch(Completion):
    """A batch under way, which is its own completion at the end. `keys` are the engine's; `parts`:
    objects that have each part still to come; `lost`: those that have ended otherwise than DONE."""

    def __init__(
        self,
        ticket: int,
        keys: Sequence[bytes],
        tell: Callable[[Completion], None] | None = None,
        parts: int = 0,
        landed: Landed | None = None,
    ) -> None:
        count = len(keys)
        super().__init__(ticket, (), ())
        self.keys, self.tell, self.landed = keys, tell, landed
        self.ends, self.whys, self.left = [State.AWAY] * count, [""] * count, count
        self.parts, self.lost = [count] * parts, set[int]()

    def end(self, index: int, state: State, why: str) -> None:
        """An object has ended."""
        self.ends[index], self.whys[index] = state, why
        self.left -= 1
        if state is not State.DONE:
            self.lost.add(index)
        elif self.first_s is None:
            self.first_s = time.monotonic()
        if self.left == 0:
            self.states, self.reasons = tuple(self.ends), tuple(self.whys)


class Move(ValueTask):
    """One operation on an object, the `index`th of its batch. `size` 0: unknown, for LOOK and
    DELETE."""

    def __init__(
        self,
        batch: Batch,
        index: int,
        kind: Kind,
        name: bytes,
        size: int,
        memory: U8 | None = None,
        *,
        hold_s: float = 0.0,
        once: bool = False,
        ahead: float = 0.0,
        due_s: float = 0.0,
        within_s: float = 0.0,
        cuts: Sequence[int] = (),
        filled: int = -1,
    ) -> None:
        """`hold_s`, of a LOOK: length of the lease, which `once` the next read or put ends too;
        `ahead`: the probability of a read in `due_s`, for the prefetch, 0: no prefetch. `within_s`,
        of a GET or LOOK: deadline from now on, then LATE; 0: none. `cuts`, of a GET: ends of the
        parts that are reported as they land. `filled`, of a PUT: how many bytes may be sent; -1:
        all, and it may be committed."""
        self.batch, self.index, self.kind, self.size = batch, index, kind, size
        self.within_s, self.cuts, self.told = within_s, cuts, 0
        self.filled, self.committed = size if filled < 0 else filled, filled < 0
        self.dropped = False
        self.pinned: Sequence[U8] = ()  # registered for this read alone
        self.begun_s = time.monotonic()
        if kind is Kind.LOOK:
            told: dict[str, Any] = {}
            if hold_s > 0:
                told = {"hold_s": hold_s, "once": once, "due_s": due_s, "chance": ahead}
            verb = "retrieve" if told else "exist"
            super().__init__(verb, name, length=size or -1, timeout_s=within_s, **told)
        else:
            super().__init__(
                VERBS[kind],
                name,
                memory,
                parts=len(cuts) > 0,
                filled=filled,
                timeout_s=within_s,
            )

    def fill(self, size: int, *, commit: bool) -> None:
        """Of a PUT: so many bytes may be sent; `commit`: all of them, and it may be committed. The
        fabric learns of it by `begin`, or by its own `fill`."""
        self.filled, self.committed = self.size if commit else size, commit

    def begin(self) -> None:
        """It has waited until now: its deadline is nearer, and more of it may be filled."""
        self.c.filled, self.c.committed = self.filled, self.committed
        if self.within_s > 0:
            left_s = self.begun_s + self.within_s - time.monotonic()
            self.c.timeout_ns = nanoseconds(max(left_s, SOON_S))

    def unheld(self) -> "Move":
        """The same lookup without its lease."""
        move = Move(self.batch, self.index, self.kind, self.key, self.size, within_s=self.within_s)
        move.begun_s = self.begun_s
        move.begin()
        return move

    def land(self, size: int, *, ended: bool = False) -> None:
        """Report the parts that end within the first `size` bytes, in order; at the end all of
        them, whatever the outcome. The batch reports a part when no object of it has that still to
        come."""
        batch = self.batch
        while self.told < len(self.cuts) and (ended or self.cuts[self.told] <= size):
            part, self.told = self.told, self.told + 1
            batch.parts[part] -= 1
            if batch.parts[part] == 0 and batch.landed is not None:
                guarded(batch.landed, part, frozenset(batch.lost))


def guarded(call: Callable[..., None], *arguments: Any) -> None:
    """Tell an engine. If that fails it is the engine's fault, and no reason to lose the daemon or
    not to tell of the rest."""
    try:
        call(*arguments)
    except Exception:
        log.exception("an engine did not take what it was told")


VERBS = {Kind.PUT: "store", Kind.GET: "retrieve", Kind.DELETE: "delete"}


def outcome(move: Move) -> tuple[State, str]:
    """How a move ended, and why, unless that says itself."""
    code = -move.rc
    if code == 0:
        return State.DONE, ""
    if code == errno.ENOENT and move.kind is Kind.GET and move.value_length:
        return State.UNREADABLE, "a block of it is lost, as when its check failed a moment ago"
    if code in (errno.ENOENT, errno.ECANCELED):
        return State.ABSENT, ""
    if code == errno.EPIPE:
        return State.AWAY, "the daemon was lost"
    if code == errno.ETIMEDOUT and move.kind in (Kind.GET, Kind.LOOK):
        return State.LATE, (
            f"it did not come within {move.within_s:.3g} s: is the daemon frozen, or its "
            "drive slow?"
        )
    if code == errno.EMSGSIZE and move.kind is not Kind.PUT:
        return State.UNREADABLE, (
            f"{move.value_length:,} bytes are there, and {move.size:,} were asked for"
        )
    if move.kind is Kind.GET and code not in REFUSALS:
        return State.UNREADABLE, f"a block could not be read: {errno.errorcode.get(code, code)}"
    why = REFUSALS.get(code, f"a block was not taken: {errno.errorcode.get(code, code)}")
    return State.REFUSED, why.format(size=move.size)


REFUSALS = {
    errno.ENOSPC: "there is no room: raise storage.size or limits.values, or set store.ttl",
    errno.EDQUOT: "the tenant's quota is used up: raise its quota, or set store.ttl",
    errno.EBUSY: "the daemon had no free session: raise limits.sessions",
    errno.ENOTSUP: "the daemon stores nothing by key: set limits.values",
    errno.EMSGSIZE: "an object of {size:,} bytes is longer than a session: raise "
    "limits.context_tokens",
    errno.ETIMEDOUT: "its blocks did not get onto the drive in time: see the daemon's log",
}


def tier_of(worst: int) -> str:
    """State in the tier of an object that was read, by the last of the ends (`ENDS`) of its blocks:
    `on_time`, all of it in memory; `late`, part of it still being staged; `missing`, part of it
    only in the store."""
    if worst < HIT_ENDS:
        return "on_time"
    return "late" if worst == HIT_ENDS else "missing"
