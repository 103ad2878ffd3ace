"""Does every end of a task on a value become the state that an engine is to see? And does a task
that waited ask for what is right by then?"""

import errno

import numpy as np
import pytest

from offstage.host.connectors.moves import Batch, Kind, Move, State, outcome

DONE, ABSENT, UNREADABLE, REFUSED = State.DONE, State.ABSENT, State.UNREADABLE, State.REFUSED
PUT, GET, LOOK, DELETE = Kind.PUT, Kind.GET, Kind.LOOK, Kind.DELETE


@pytest.mark.parametrize(
    ("kind", "code", "length", "state", "word"),
    [
        (GET, 0, 9, DONE, ""),
        (GET, errno.ENOENT, 0, ABSENT, ""),
        (GET, errno.ENOENT, 9, UNREADABLE, "lost"),  # it was there, and a block is not any more
        (LOOK, errno.ENOENT, 9, ABSENT, ""),
        (DELETE, errno.ENOENT, 0, ABSENT, ""),
        (PUT, errno.ECANCELED, 9, ABSENT, ""),
        (GET, errno.EBADMSG, 9, UNREADABLE, "EBADMSG"),
        (GET, errno.EMSGSIZE, 9, UNREADABLE, "9 bytes are there, and 5"),
        (LOOK, errno.EMSGSIZE, 9, UNREADABLE, "9 bytes are there, and 5"),
        (PUT, errno.EMSGSIZE, 0, REFUSED, "limits.context_tokens"),
        (PUT, errno.ENOSPC, 0, REFUSED, "limits.values"),
        (PUT, errno.EDQUOT, 0, REFUSED, "quota"),
        (PUT, errno.EIO, 0, REFUSED, "EIO"),
        (PUT, errno.ETIMEDOUT, 0, REFUSED, "drive"),
        (GET, errno.ETIMEDOUT, 9, State.LATE, "frozen"),
        (LOOK, errno.ETIMEDOUT, 0, State.LATE, "frozen"),
        (GET, errno.EBUSY, 0, REFUSED, "limits.sessions"),
        (LOOK, errno.ENOTSUP, 0, REFUSED, "limits.values"),
        (GET, errno.EPIPE, 9, State.AWAY, "lost"),
    ],
)
def test_of_each_end(kind: Kind, code: int, length: int, state: State, word: str) -> None:
    """What was wrong is said, unless the state says it."""
    memory = np.zeros(5, np.uint8) if kind in (PUT, GET) else None
    move = Move(Batch(1, [b"key"]), 0, kind, bytes(16), 5, memory)
    move.c.rc, move.c.value_length = -code, length
    found, why = outcome(move)
    assert found is state and bool(why) == bool(word) and word in why


def test_a_move_that_waited_asks_for_what_is_right_by_then() -> None:
    """More of it may be filled, and its deadline is nearer; without its lease too."""
    batch = Batch(1, [b"key"])
    put = Move(batch, 0, PUT, bytes(16), 5, np.zeros(5, np.uint8), filled=0)
    for size, commit, filled in ((3, False, 3), (-1, True, 5)):
        put.fill(size, commit=commit)
        put.begin()
        assert (put.c.filled, put.c.committed) == (filled, commit)
    look = Move(batch, 0, LOOK, bytes(16), 0, hold_s=9.0, within_s=2.0)
    assert look.verb == "retrieve" and look.c.timeout_ns == 2 * 10**9
    look.begun_s -= 1.0
    plain = look.unheld()
    assert plain.verb == "exist" and 0 < plain.c.timeout_ns <= 10**9 and plain.within_s == 2.0
