"""Does an agent admit requests that share blocks with decoding ones first, without starving others,
and refuse those beyond its limits?"""

from dataclasses import dataclass

import numpy as np

from offstage.host.decode.queue import Admission
from offstage.host.decode.schedule import Rule
from offstage.host.decode.session import Context


@dataclass
class Asked:
    number: int
    start_s: float
    context: Context


def asked(number: int, start_s: float, *identities: int) -> Asked:
    return Asked(number, start_s, Context(list(identities), np.zeros((1, 0), np.uint64), []))


def test_by_arrival_unless_reuse_is_asked_for() -> None:
    """Requests are taken as they arrive; with `reuse`, one that shares a prefix with a running
    session goes first. One that has not arrived is never taken."""
    for kind, order in (("least-loaded", [0, 1, 2, 3]), ("reuse", [1, 2, 0, 3])):
        jobs = [asked(2, 0.5, 7, 8), asked(0, 0, 1, 2), asked(3, 9, 7), asked(1, 0, 7, 8, 9)]
        queue = Admission(jobs, Rule(kind=kind))  # type: ignore[arg-type]
        queue.arrive(1.0, 1)
        running = [asked(9, 0, 7, 8, 9).context]
        begun = [one.number for _ in range(3) if (one := queue.take(running)) is not None]
        assert queue.take(running) is None and queue.next_s == 9
        queue.arrive(9.0, 1)
        last = queue.take(running)
        assert last is not None and [*begun, last.number] == order
        assert not queue and queue.refused == 0
        assert queue.passed_over == (2 if kind == "reuse" else 0)


def test_what_finds_no_place_to_wait_is_refused() -> None:
    queue = Admission([asked(at, 0, at) for at in range(5)], Rule(), waiting_max=2)
    queue.arrive(0.0, 1)
    assert queue.refused == 2
    assert [one.number for _ in range(3) if (one := queue.take([])) is not None] == [0, 1, 2]
    assert not queue
