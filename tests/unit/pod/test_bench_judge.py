"""Does the judge of a live pod notice what must not happen, and count what a fault cost?"""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from offstage.testbeds.bench.pod.asks import Documents
from offstage.testbeds.bench.pod.faults import FAULTS, Done, Look
from offstage.testbeds.bench.pod.host import Board, Sample, Seen, content
from offstage.testbeds.bench.pod.hour import drawn
from offstage.testbeds.bench.pod.judge import held, judged

DEADLINE_S = 0.5
STRUCK_S = 105.0
NAME = "death dpu1"
DONE = [Done(STRUCK_S, "death", "dpu1"), Done(121.0, "death", "dpu1", healed=True)]


def sample(phase: str, number: int, hits: int = 10, **more: Any) -> Sample:
    """Request `number` of a phase: one each second, of ten known blocks."""
    at_s = (100.0 if phase == NAME else 0.0) + number
    given = {"asked": 10, "known": 10, "chunks": tuple(range(10)), **more}
    return Sample(phase, number, at_s, at_s, at_s + 0.1, hits=hits,
                  by_member=Counter({"dpu0/1": hits}), **given)  # fmt: skip


def looks() -> list[Look]:
    """The map: dpu1 is gone two seconds after it died."""
    up = {"dpu0": ("up", 1), "dpu1": ("up", 1)}
    gone = up | {"dpu1": ("gone", 1)}
    return [Look(1.0, True, 5, up), Look(STRUCK_S + 2, True, 6, gone)]


def board_of(*changed: Sample) -> Board:
    """A reference, and a phase in which dpu1 dies after five requests and costs four hits of the
    next three; `changed` stand in the place of others."""
    board, struck = Board(), range(5, 8)
    miss = Counter({("dpu1", "dpu0", ""): 4})
    board.samples = [sample("none", number) for number in range(20)]
    board.samples += [
        sample(NAME, number, 6, misses=miss, again=[1, 2, 3, 4], marked=4, put=4)
        if number in struck else sample(NAME, number, marked=4)
        for number in range(20)
    ]  # fmt: skip
    for one in changed:
        board.samples = [one if (one.phase, one.number) == (old.phase, old.number) else old
                         for old in board.samples]  # fmt: skip
    board.seen = [Seen(STRUCK_S + 0.4, "host0", "dpu1", "suspect", "", 0.3),
                  Seen(STRUCK_S + 0.6, "host1", "dpu1", "lost", "", 0.3)]  # fmt: skip
    board.waited_s = {("host0", "dpu1", 0): 0.3, ("host1", "dpu1", 0): 0.5}
    board.samples[25].begin_s += 0.2  # after the death, and before the first host has noticed
    board.samples[25].end_s += 0.6
    return board


def test_what_a_death_cost() -> None:
    """By the request, against the same request without a fault."""
    found = judged(board_of(), DONE, looks(), DEADLINE_S)
    one = found["phases"][NAME]
    assert one["hits_lost"] == 12 and one["hits_lost_share"] == pytest.approx(12 / 200)
    assert (one["detected_first_s"], one["detected_last_s"]) == pytest.approx((0.4, 0.6))
    assert one["in_map_s"] == pytest.approx(2.0) and one["answer_s"] == pytest.approx(0.7)
    assert one["blocks_put_again"] == 12 and one["blocks_put_again_least"] == 4
    assert one["share_of_member"] == pytest.approx(0.4) and one["waited_s"] == 0.5
    assert one["back_s"] == 0.0, "six of ten is what the others have"
    assert found["aims_met"] and found["verdicts_met"]
    assert found["phases"]["no fault"]["hit_rate"] == 1.0


def test_hits_that_do_not_come_back() -> None:
    """Two seconds below what the others have; and below it to the phase's end."""
    some = [sample(NAME, number, 3, marked=4) for number in (6, 7)]
    found = judged(board_of(*some), DONE, looks(), DEADLINE_S)
    assert found["phases"][NAME]["back_s"] == 3.0 and found["aims_met"]
    late = [sample(NAME, number, 3, marked=4) for number in range(6, 20)]
    found = judged(board_of(*late), DONE, looks(), DEADLINE_S)
    assert not found["aims"][f"{NAME}: hits back within 10 s"]


def test_a_connection_that_waits_twice_misses_the_aim() -> None:
    board = board_of()
    board.waited_s["host0", "dpu1", 0] = 2 * DEADLINE_S
    found = judged(board, DONE, looks(), DEADLINE_S)
    assert not found["aims"][f"{NAME}: costs a connection its deadline at most"]


@pytest.mark.parametrize(
    ("verdict", "one"),
    [
        ("every block right", sample(NAME, 3, wrong=1)),
        ("every miss has a reason", sample(NAME, 7, misses=Counter({("dpu2", "dpu2", ""): 1}))),
        ("every miss has a reason", sample(NAME, 3, misses=Counter({("dpu1", "dpu0", ""): 1}))),
        ("every miss has a reason", sample("none", 3, misses=Counter({("dpu0", "dpu0", ""): 1}))),
    ],
)
def test_what_must_not_happen_is_noticed(verdict: str, one: Sample) -> None:
    """Also a miss whose reason came later than itself."""
    assert all(held(board_of(), DONE, looks()).values())
    found = held(board_of(one), DONE, looks())
    assert [name for name, met in found.items() if not met] == [verdict]


def test_what_is_served_past_a_fence_is_noticed() -> None:
    """By a life that the map no longer had when the request began; by the next life it may be."""
    for life, good in ((1, False), (2, True)):
        one = sample(NAME, 9)
        one.by_member = Counter({f"dpu1/{life}": 10})
        assert held(board_of(one), DONE, looks())["nothing served past a fence"] is good


def test_a_host_that_broke_is_noticed() -> None:
    board = board_of()
    board.broken.append("host0: KeyError")
    assert not held(board, DONE, looks())["every request ended"]


def test_what_is_asked_is_the_seeds() -> None:
    """Every phase asks the same but for what is asked once; another seed asks something else."""
    documents = Documents(1)
    one, other = (documents.asks(name, 10, 20) for name in ("none", NAME))
    same = [a == b for a, b in zip(one, other, strict=True)]
    assert 0.8 < sum(same) / len(same) < 1
    assert [a.at_s for a in one] == [b.at_s for b in other]
    assert Documents(2).all != documents.all
    first, second = content(documents.all[0][:2])
    assert (first != second).all(), "a block in another's place is seen in every word"


def test_faults_come_one_at_a_time() -> None:
    """Within the run, of every kind, and the same for the same seed."""
    found = drawn(1, 3600.0, with_etcd=True)
    assert {one.fault for one in found} == set(FAULTS)
    assert all(before.until_s < after.at_s for before, after in pairwise(found))
    assert found[0].at_s >= 5 and found[-1].until_s <= 3600
    assert found == drawn(1, 3600.0, with_etcd=True) != drawn(2, 3600.0, with_etcd=True)
    assert not {one.fault for one in drawn(1, 3600.0, with_etcd=False)} & {"etcd", "quorum"}
