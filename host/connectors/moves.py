"""One operation on an object: its parameters, its outcome, and the words for it.

An object is a value under 16 bytes, moved by a task of the fabric (`bindings.value_io`).
"""

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.layouts import HIT_ENDS
from offstage.bindings.value_io import ValueTask

__all__ = ["U8", "Kind", "Move", "State", "outcome", "task_of", "tell_landed", "tier_of"]

U8 = NDArray[np.uint8]
SOON_S = 1e-6  # time left of a deadline that has passed


class State(Enum):
    """Outcome of an operation on one object."""

    DONE = "done"
    ABSENT = "absent"  # the tier does not have it
    UNREADABLE = "unreadable"  # it has another size, or a block failed its check or was lost
    REFUSED = "refused"  # the tier has no room, or does not take such an object
    AWAY = "away"  # no daemon answers
    LATE = "late"  # it missed its deadline; late blocks are not written anywhere


class Kind(Enum):
    """Kind of operation."""

    PUT = "put"
    GET = "get"
    LOOK = "look"
    DELETE = "delete"


@dataclass(eq=False, slots=True)
class Move:
    """One operation on an object. `size` 0: unknown, for LOOK and DELETE."""

    kind: Kind
    name: bytes
    label: str  # for log lines
    size: int
    ended: Callable[["Move", State, str], None]
    buffer: U8 | None = None
    hold_s: float = 0.0  # LOOK: length of the lease
    once: bool = False  # LOOK: the next read or put ends the lease too
    ahead: float = 0.0  # LOOK: probability of the read, for the prefetch; 0: no prefetch
    due_s: float = 0.0  # LOOK: when the prefetch is due, from the start of the move
    within_s: float = 0.0  # GET, LOOK: deadline from submission, then LATE; 0: none
    cuts: tuple[int, ...] = ()  # GET: ends of the parts that are reported as they land
    landed: Callable[["Move", int], None] | None = None  # once a part, at the latest at the end
    filled: int = -1  # PUT: how many bytes of the buffer may be sent; -1: all
    committed: bool = True  # PUT: it may be committed
    dropped: bool = False  # PUT: it shall not be stored
    told: int = 0  # GET: parts reported to the caller
    pinned: Sequence[U8] = ()  # GET: registered for this read alone
    begun_s: float = field(default_factory=time.monotonic)


def task_of(move: Move, *, held: bool = True) -> ValueTask:
    """The fabric's task. `held` False: a lookup without its lease."""
    left_s = 0.0
    if move.within_s > 0:
        left_s = max(move.begun_s + move.within_s - time.monotonic(), SOON_S)
    if move.kind is Kind.PUT:
        filled = -1 if move.committed else max(move.filled, 0)
        return ValueTask("store", move.name, move.buffer, filled=filled)
    if move.kind is Kind.GET:
        return ValueTask(
            "retrieve", move.name, move.buffer, parts=bool(move.cuts), timeout_s=left_s
        )
    if move.kind is Kind.DELETE:
        return ValueTask("delete", move.name)
    length = move.size or -1
    if held and move.hold_s > 0:
        return ValueTask(
            "retrieve",
            move.name,
            length=length,
            hold_s=move.hold_s,
            once=move.once,
            due_s=move.due_s,
            chance=move.ahead,
            timeout_s=left_s,
        )
    return ValueTask("exist", move.name, length=length, timeout_s=left_s)


def outcome(move: Move, task: ValueTask) -> tuple[State, str]:
    """How a move ended, and why, unless that says itself."""
    code = -task.rc
    if code == 0:
        return State.DONE, ""
    if code == errno.ENOENT and move.kind is Kind.GET and task.value_length:
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
            f"{task.value_length:,} bytes are there, and {move.size:,} were asked for"
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


def tell_landed(move: Move, landed: int, *, ended: bool = False) -> None:
    """Report the parts that end within `landed` bytes, in order; at the end all of them, whatever
    the outcome."""
    while move.told < len(move.cuts) and (ended or move.cuts[move.told] <= landed):
        move.told += 1
        if move.landed is not None:
            move.landed(move, move.told - 1)


def tier_of(ends: Sequence[int]) -> str:
    """State in the tier of an object that was read, by the ends of its blocks (`ENDS`): `on_time`,
    all of it in memory; `late`, part of it still being staged; `missing`, part of it only in the
    store."""
    worst = max((end for end, count in enumerate(ends) if count), default=0)
    if worst < HIT_ENDS:
        return "on_time"
    return "late" if worst == HIT_ENDS else "missing"
