"""If etcd is down for all, may a pod's members serve on by promises to each other, and is each of
the rules needed? Explores every order of events, over the product's own functions."""

from collections.abc import Callable
from typing import Any

import pytest
from frozen_model import CAP, LATE, TTL, Broken, Other, Rules, State, explore

from offstage.dpu.pod import fence


def test_alone_in_its_map() -> None:
    """A daemon that knows no other member serves on, and one that joins later cannot remove it."""
    states, lasting = explore(begin=State(p=Other(0)))
    assert states > 5_000 and lasting


@pytest.mark.slow
def test_it_holds_and_lasts() -> None:
    """A removed daemon is never read and serves no host; one may serve long after its lease
    ended."""
    states, lasting = explore()
    assert states > 300_000 and lasting


def _later(joined: int, reported: int, promised: int | None, now: int, ttl: int) -> bool:
    return fence.takes_out(joined, reported, promised, now, ttl // 2)


LONG = pytest.mark.slow  # the shortest path to a violation is long
ENDED = State(lease=CAP, own=LATE, slow=False)
"""D's lease has ended and etcd is down: a state that the first five ticks can lead to."""
RULES: list[tuple[str, Callable[..., Any], State]] = [
    ("promises", lambda taking: True, ENDED),
    ("asked_age", lambda age: 0, ENDED),
    ("takes_out", lambda joined, reported, promised, now, ttl: True, ENDED),
    ("takes_out", lambda joined, reported, *more: fence.takes_out(joined, joined, *more), ENDED),
    ("takes_out", _later, ENDED._replace(slow=True)),
    ("held_since", lambda promises, others, now: now, ENDED),
    ("held_since", lambda promises, others, now: max(promises.values(), default=None), State()),
    ("serves", lambda standing, now: now - standing.asked <= standing.ttl, State()),
    ("reads_memory", lambda asked, now, ttl: now - asked <= 3 * TTL // 4, State()),
]


@pytest.mark.parametrize(
    ("name", "wrong", "begin"),
    [pytest.param(*one, marks=LONG if at in (1, 3, 4, 6) else ()) for at, one in enumerate(RULES)],
)
def test_each_rule_is_needed(name: str, wrong: Callable[..., Any], begin: State) -> None:
    """Without the rule a removed daemon serves or is read; the error lists the steps."""
    rules = type("Without", (Rules,), {name: staticmethod(wrong)})
    with pytest.raises(Broken, match="takes D out"):
        explore(rules, begin)
