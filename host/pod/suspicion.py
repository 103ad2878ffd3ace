"""Whether a host asks a member: a state machine.

    state      FAILED           ENDED    ANSWERED   OVERDUE
    TRUSTED    SUSPECT, asks    LOST     -          -
    SUSPECT    SUSPECT, asks    LOST     TRUSTED    asks again
    LOST       -                -        -          -

A member that failed once is asked one question that nobody waits for, and again for as long as it
does not answer. It is trusted again when it has answered, and not before SUSPECT_NS have passed
since its last failure. A connection that has ended is lost: another is made in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["SUSPECT_NS", "Event", "State", "Suspicion"]

SUSPECT_NS = 2_000_000_000


class State(Enum):
    """What a host thinks of a member."""

    TRUSTED = "trusted"
    SUSPECT = "suspect"
    LOST = "lost"


class Event(Enum):
    """What changes that."""

    FAILED = "it did not answer in time, or with an error that it must not have"
    ENDED = "its connection has ended"
    ANSWERED = "it has answered the question"
    OVERDUE = "it has not, for SUSPECT_NS"


@dataclass
class Suspicion:
    """Of one connection; `ask` sends the question and returns its number, 0: it could not."""

    ask: Callable[[], int]
    state: State = State.TRUSTED
    count: int = 0
    """How often it became suspect, or was lost while it was trusted."""
    until_ns: int = 0
    """It is not trusted before."""
    question: int = 0
    overdue_ns: int = 0
    why: str = ""
    """Of the last failure."""
    lost_why: str = ""

    def move(self, event: Event, now_ns: int, why: str = "") -> None:
        """The one function that changes the state."""
        if event in (Event.ANSWERED, Event.OVERDUE):
            if self.state is not State.SUSPECT:
                return
            if event is Event.ANSWERED:
                self.state = State.TRUSTED
                return
        else:
            self.why = why
            self.count += now_ns >= self.until_ns
            self.until_ns = now_ns + SUSPECT_NS
        if event is Event.ENDED and self.state is not State.LOST:
            self.state, self.lost_why = State.LOST, why
        if self.state is not State.LOST:
            self.state = State.SUSPECT
            self.question, self.overdue_ns = self.ask(), now_ns + SUSPECT_NS
