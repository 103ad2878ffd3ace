"""Does the schedule weigh prefix against load as documented, and does no request starve?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.host.decode.schedule import KINDS, Begin, Rule, begin_next, scores


def begin(kind: Any, matched: list[list[int]], total: list[int], **given: Any) -> Begin | None:
    hosts = len(matched[0]) if matched else 2
    rule = Rule(kind=kind, weight=given.pop("weight", 1.0), patience=given.pop("patience", 4))
    values = {"passed": [0] * len(total), "ahead": [0] * hosts, "room": [True] * hosts} | given
    kinds = {"room": np.bool_}
    arrays = {
        name: np.array(values[name], kinds.get(name, np.int64))
        for name in ("passed", "ahead", "room")
    }
    return begin_next(
        rule,
        np.array(matched, np.int64).reshape(len(total), hosts),
        np.array(total, np.int64),
        turn=given.get("turn", 0),
        **arrays,
    )


def test_weight_one_is_where_the_first_token_comes_first() -> None:
    """The score is largest at the host with the least queued work and the least left to compute."""
    matched, ahead = np.array([[0, 3000, 6000]]), np.array([0, 2000, 7000])
    total = np.array([8000])
    waits = ahead + (total[0] - matched[0])
    assert np.argsort(-scores(matched, total, ahead, 1.0)[0]).tolist() == np.argsort(waits).tolist()


def test_a_prefix_is_followed_into_load_as_far_as_its_weight_says() -> None:
    load = {"ahead": [0, 1500]}
    assert begin("reuse", [[0, 1000]], [2000], **load) == Begin(0, 0)
    assert begin("reuse", [[0, 1000]], [2000], weight=2.0, **load) == Begin(0, 1)


def test_least_loaded_looks_at_load_and_round_robin_at_nothing() -> None:
    assert begin("least-loaded", [[9, 0]], [9], ahead=[5, 4]) == Begin(0, 1)
    assert begin("least-loaded", [[9, 0]], [9], ahead=[5, 4], room=[True, False]) == Begin(0, 0)
    assert [begin("round-robin", [[0, 0]], [9], turn=turn) for turn in range(3)] == [
        Begin(0, 0),
        Begin(0, 1),
        Begin(0, 0),
    ]
    assert begin("round-robin", [[0, 0]], [9], room=[False, True]) == Begin(0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_session_begins_without_room_or_a_request(kind: str) -> None:
    assert begin(kind, [[1, 1]], [9], room=[False, False]) is None
    assert begin(kind, [], []) is None


def test_requests_that_share_what_a_host_holds_begin_first() -> None:
    assert begin("reuse", [[0, 0], [0, 500], [900, 0]], [1000, 1000, 1000]) == Begin(2, 0)
    # A prefix that only a full host holds is worth nothing now.
    assert begin("reuse", [[0, 0], [0, 500], [900, 0]], [1000] * 3, room=[False, True]) == Begin(
        1, 1
    )


@given(st.integers(0, 6), st.lists(st.integers(0, 100), min_size=3, max_size=3), st.data())
def test_a_request_is_passed_over_only_so_often(
    patience: int, shares: list[int], data: st.DataObject
) -> None:
    """While others that share more keep arriving, the k-th in the queue still begins after at most
    k * (patience + 1) of them."""
    waiting = [[number, share, 0] for number, share in enumerate(shares)]
    begun: list[int] = []
    for number in range(3, 3 + 3 * (patience + 1) + 1):
        found = begin(
            "reuse",
            [[one[1]] for one in waiting],
            [100] * len(waiting),
            passed=[one[2] for one in waiting],
            patience=patience,
        )
        assert found is not None
        for one in waiting[: found.waiting]:
            one[2] += 1
        begun.append(waiting.pop(found.waiting)[0])
        waiting.append([number, data.draw(st.integers(0, 100)), 0])
    for k in range(3):
        assert begun.index(k) < (k + 1) * (patience + 1)
