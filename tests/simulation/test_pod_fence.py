"""Does the fence of a pod hold under every delay, loss, stop and restart, and is each of its rules
needed? Explores every order of events of a small pod, over the product's own functions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pod_model import LATE, TTL, Broken, Rules, State, explore

from offstage.dpu.pod import fence
from offstage.dpu.pod.fence import Standing


@pytest.mark.slow
def test_the_fence_holds_where_clocks_run_alike() -> None:
    """Excludes restarts and slow clocks, for a quicker run."""
    assert explore(begin=State(slow=False, incarnation=1), restarts=False) > 10_000


@pytest.mark.slow
def test_the_fence_holds() -> None:
    """No read is served past a fence, no memory of another key is taken for the block, and no block
    is read after its deletion was acknowledged."""
    assert explore() > 1_000_000


def _full_lease(standing: Standing, now: int, *more: Any, **writes: Any) -> Any:
    longer = replace(standing, ttl=2 * standing.ttl)
    return fence.refusal(longer, now, *more, **writes)


def _any_incarnation(
    standing: Standing, now: int, incarnation: int, epoch: int, *, writes: bool
) -> Any:
    return fence.refusal(standing, now, standing.incarnation, epoch, writes=writes)


def _any_epoch(standing: Standing, now: int, incarnation: int, epoch: int, *, writes: bool) -> Any:
    return fence.refusal(standing, now, incarnation, epoch, writes=False)


LONG = pytest.mark.slow  # the shortest path to a violation is long
RULES: list[tuple[str, Callable[..., Any], str]] = [
    ("refusal", _full_lease, "past a fence"),
    ("refusal", _any_incarnation, "another incarnation"),
    ("refusal", _any_epoch, "after its deletion"),
    ("asked_age", lambda age: 0, "past a fence"),
    ("reads_memory", lambda asked, now, ttl: True, "past a fence"),
    ("reads_memory", lambda asked, now, ttl: now - asked <= 3 * ttl // 4, "past a fence"),
    ("names", lambda content: True, "another key"),
    ("same_incarnation", lambda region, wanted: True, "another incarnation"),
    ("adopts", lambda written, deleted: True, "after its deletion"),
    ("deletion_holds", lambda epoch, members, done: True, "after its deletion"),
]


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [pytest.param(*one, marks=LONG if at in (2, 3) else ()) for at, one in enumerate(RULES)],
)
def test_each_rule_is_needed(name: str, wrong: Callable[..., Any], said: str) -> None:
    """Without the rule an invariant fails, and the error lists the steps that lead there."""
    rules = type("Without", (Rules,), {name: staticmethod(wrong)})
    with pytest.raises(Broken, match=said) as broken:
        explore(rules)
    assert "ask" in str(broken.value) or "look up" in str(broken.value)


def test_the_shares_of_a_lease_leave_room_for_clocks() -> None:
    """Of any lease, a daemon uses half and a host three eighths: one eighth is left."""
    for ttl in (1, 3, 7, 8, 1000, 5_000_000_001):
        own, host = ttl // 2, 3 * ttl // 8
        assert fence.serves(Standing(1, 1, ttl, 0), own) and fence.reads_memory(0, host, ttl)
        assert not fence.serves(Standing(1, 1, ttl, 0), own + 1)
        assert not fence.reads_memory(0, host + 1, ttl)
        assert own + host <= 7 * ttl / 8
    assert fence.serves(Standing(0, 1, 0, 0), 10**18) and fence.reads_memory(0, 10**18, 0)
    assert LATE > TTL // 2, "ages are counted beyond their bounds"
