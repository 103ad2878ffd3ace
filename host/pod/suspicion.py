"""Whether a host sends requests to a member: a state machine.

    state      FAILED           ENDED    ANSWERED   OVERDUE
    TRUSTED    SUSPECT, probe   LOST     -          -
    SUSPECT    SUSPECT, probe   LOST     TRUSTED    probe again
    LOST       -                -        -          -

A member that failed gets a probe, which blocks nothing and is repeated until it answers. The member
is trusted again once it has answered and SUSPECT_NS have passed since its last failure. A
connection that has ended is lost; the host makes a new one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["SUSPECT_NS", "Event", "State", "Suspicion"]

SUSPECT_NS = 2_000_000_000


class State(Enum):
    """State of a member for this host."""

    TRUSTED = "trusted"
    SUSPECT = "suspect"
    LOST = "lost"


class Event(Enum):
    """Events that change the state."""

    FAILED = "it did not answer in time, or with an error that it must not have"
    ENDED = "its connection has ended"
    ANSWERED = "it has answered the question"
    OVERDUE = "it has not, for SUSPECT_NS"


@dataclass
class Suspicion:
    """State of one connection; `ask` sends the probe and returns its number, or 0 on failure."""

    ask: Callable[[], int]
    state: State = State.TRUSTED
    count: int = 0
    """How often it became suspect, or was lost while trusted."""
    until_ns: int = 0
    """Earliest time at which it is trusted again."""
    question: int = 0
    overdue_ns: int = 0
    why: str = ""
    """Reason of the last failure."""
    lost_why: str = ""

    def move(self, event: Event, now_ns: int, why: str = "") -> None:
        """Only this function changes the state."""
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
