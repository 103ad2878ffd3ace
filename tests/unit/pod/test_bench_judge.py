"""Does the judge of a live pod detect violations and count what a fault cost?"""

import json
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.testbeds.bench.pod import run as bench_run
from offstage.testbeds.bench.pod.asks import Documents
from offstage.testbeds.bench.pod.faults import FAULTS, Done, Look
from offstage.testbeds.bench.pod.host import Board, Sample, Seen, content
from offstage.testbeds.bench.pod.hour import drawn
from offstage.testbeds.bench.pod.judge import held, judged
from offstage.testbeds.bench.pod.reasons import Reasons
from offstage.testbeds.bench.pod.result import FaultFigures
from offstage.testbeds.cli import run

DEADLINE_S = 0.5
STRUCK_S = 105.0
NAME = "death dpu1"
DONE = [Done(STRUCK_S, "death", "dpu1"), Done(121.0, "death", "dpu1", healed=True)]


def sample(phase: str, number: int, hits: int = 10, **more: Any) -> Sample:
    """Return request `number` of a phase, one each second, with ten known blocks."""
    at_s = (100.0 if phase == NAME else 0.0) + number
    given = {"asked": 10, "known": 10, "chunks": tuple(range(10)), **more}
    return Sample(
        phase,
        number,
        at_s,
        at_s,
        at_s + 0.1,
        hits=hits,
        by_member=Counter({"dpu0/1": hits}),
        **given,
    )


def looks() -> list[Look]:
    """The map: dpu1 is gone two seconds after it died."""
    up = {"dpu0": ("up", 1), "dpu1": ("up", 1)}
    gone = up | {"dpu1": ("gone", 1)}
    return [Look(1.0, True, 5, up), Look(STRUCK_S + 2, True, 6, gone)]


def board_of(*changed: Sample) -> Board:
    """A reference and a phase where dpu1 dies after five requests, which costs four hits in each of
    the next three; `changed` replaces others."""
    board, struck = Board(), range(5, 8)
    miss = Counter({("dpu1", "dpu0", "", 7.0): 4})
    board.samples = [sample("none", number) for number in range(20)]
    board.samples += [
        sample(NAME, number, 6, misses=miss, again=[1, 2, 3, 4], marked=4, put=4)
        if number in struck
        else sample(NAME, number, marked=4)
        for number in range(20)
    ]
    for one in changed:
        board.samples = [
            one if (one.phase, one.number) == (old.phase, old.number) else old
            for old in board.samples
        ]
    board.seen = [
        Seen(STRUCK_S + 0.4, "host0", "dpu1", "suspect", "", 0.3),
        Seen(STRUCK_S + 0.6, "host1", "dpu1", "lost", "", 0.3),
    ]
    board.waited_s = {("host0", "dpu1", 0): 0.3, ("host1", "dpu1", 0): 0.5}
    board.samples[25].begin_s += 0.2  # after the death, before the first host notices
    board.samples[25].end_s += 0.6
    return board


def test_what_a_death_cost() -> None:
    """Each request is compared with the same request without a fault."""
    found = judged(board_of(), DONE, looks(), DEADLINE_S)
    one = found.phases[NAME]
    assert isinstance(one, FaultFigures)
    assert one.hits_lost == 12 and one.hits_lost_share == pytest.approx(12 / 200)
    assert (one.detected_first_s, one.detected_last_s) == pytest.approx((0.4, 0.6))
    assert one.in_map_s == pytest.approx(2.0) and one.answer_s == pytest.approx(0.7)
    assert one.blocks_put_again == 12 and one.blocks_put_again_least == 4
    assert one.share_of_member == pytest.approx(0.4) and one.waited_s == 0.5
    assert one.back_s == 0.0, "six of ten is what the others have"
    assert not found.missed and not found.failures
    assert found.phases["no fault"].hit_rate == 1.0


def test_hits_that_do_not_come_back() -> None:
    """Hits stay below the others' for two seconds, or to the phase's end."""
    some = [sample(NAME, number, 3, marked=4) for number in (6, 7)]
    found = judged(board_of(*some), DONE, looks(), DEADLINE_S)
    assert found.phases[NAME].back_s == 3.0 and not found.missed
    late = [sample(NAME, number, 3, marked=4) for number in range(6, 20)]
    found = judged(board_of(*late), DONE, looks(), DEADLINE_S)
    assert found.missed == [f"{NAME}: hits back <= 10 s"]


def test_a_connection_that_waits_twice_misses_the_aim() -> None:
    board = board_of()
    board.waited_s["host0", "dpu1", 0] = 2 * DEADLINE_S
    found = judged(board, DONE, looks(), DEADLINE_S)
    assert found.missed == [f"{NAME}: a connection waited <= 550 ms"]


def misses(was: str, now: str, error: str = "", acked_s: float = 7.0) -> dict[str, Any]:
    """Return one miss of a sample."""
    return {"misses": Counter({(was, now, error, acked_s): 1})}


@pytest.mark.parametrize(
    ("verdict", "one"),
    [
        ("every_block_right", sample(NAME, 3, wrong=1)),
        ("every_miss_has_a_reason", sample(NAME, 7, **misses("dpu2", "dpu2"))),
        ("every_miss_has_a_reason", sample(NAME, 3, **misses("dpu1", "dpu0"))),
        ("every_miss_has_a_reason", sample("none", 3, **misses("dpu0", "dpu0"))),
    ],
)
def test_what_must_not_happen_is_noticed(verdict: str, one: Sample) -> None:
    """A miss whose reason came after it counts too."""
    assert all(held(board_of(), DONE, looks(), DEADLINE_S).values())
    found = held(board_of(one), DONE, looks(), DEADLINE_S)
    assert [name for name, met in found.items() if not met] == [verdict]


LATER_S = 900.0
"""When the bench ends: the pod has been well for long, and each member was hit once."""
STRUCK = [
    Done(at_s, fault, f"dpu{number}", healed=healed)
    for number, fault in enumerate(("death", "stop", "death", "stop"))
    for at_s, healed in ((100.0 * number + 50, False), (100.0 * number + 60, True))
]


@pytest.mark.parametrize(
    ("miss", "explained"),
    [
        (("dpu1", "dpu1", "", 20.0), False),  # it came back with its store
        (("dpu1", "dpu1", "", 155.0), False),
        (("dpu1", "dpu1", "ETIMEDOUT", 20.0), False),
        (("dpu0", "dpu1", "", 155.0), True),  # put there while dpu1 was away, and not at dpu1 since
        (("dpu0", "dpu1", "", 20.0), False),  # before that
        (("dpu0", "dpu1", "", 800.0), False),  # and after it
        (("dpu0", "dpu1", "EIO", 155.0), False),  # reported as there, but missing
        (("dpu0", "dpu2", "", 155.0), False),  # dpu2 was not away then
    ],
)
def test_a_fault_explains_no_miss_long_after_it(miss: Any, explained: bool) -> None:
    """All members have been struck by then. Only a block written elsewhere meanwhile is explained,
    once."""
    one = Sample("trace", 1, LATER_S, LATER_S, LATER_S + 0.1, misses=Counter({miss: 1}))
    assert Reasons(STRUCK, [], [], DEADLINE_S).has(one, miss) is explained


@pytest.mark.parametrize("what", ["struck", "suspected"])
@pytest.mark.parametrize(
    ("begin_s", "end_s", "explained"),
    [
        (30.0, 49.0, False),
        (30.0, 51.0, True),
        (70.0, 71.0, True),
        (81.0, 82.0, True),
        (95.0, 96.0, False),
    ],
)
def test_a_fault_is_a_reason_for_its_time(
    what: str, begin_s: float, end_s: float, explained: bool
) -> None:
    """It is one from its earliest possible begin until hosts noticed its end, at that member."""
    done = [Done(50.0, "stop", "dpu1"), Done(80.0, "stop", "dpu1", healed=True)]
    seen = [
        Seen(52.0, "host0", "dpu1", "suspect", "", 0.0, since_s=50.0),
        Seen(53.0, "host1", "dpu1", "suspect", "", 0.0, since_s=52.0),
        Seen(60.0, "host1", "dpu1", "back", "", 0.0),
        Seen(61.0, "host0", "dpu1", "lost", "", 0.0),
        Seen(80.0, "host0", "dpu1", "back", "", 0.0),
    ]
    reasons = Reasons(done, [], [], 0.5) if what == "struck" else Reasons([], seen, [], 0.5)
    assert 80 + reasons.grace_s < 95
    one = Sample("trace", 1, begin_s, begin_s, end_s)
    assert reasons.has(one, ("dpu1", "dpu0", "", 1.0)) is explained
    assert reasons.has(one, ("dpu0", "dpu1", "", 1.0)) is explained
    assert not reasons.has(one, ("dpu0", "dpu2", "", 1.0))


def test_a_member_that_left_took_its_blocks() -> None:
    """A member that left took the blocks it had by then; a drained one took none."""
    states = [(10.0, "up", "up"), (20.0, "up", "draining"), (30.0, "gone", "draining")]
    changes = [
        Look(at_s, True, number, {"dpu0": ("up", 0), "dpu4": (joined, 0), "dpu1": (one, 0)})
        for number, (at_s, joined, one) in enumerate(states)
    ]
    reasons = Reasons([], [], changes, DEADLINE_S)
    late = Sample("trace", 1, LATER_S, LATER_S, LATER_S + 1)
    assert reasons.has(late, ("dpu4", "dpu0", "", 25.0))
    assert not reasons.has(late, ("dpu4", "dpu0", "", 40.0))
    assert not reasons.has(late, ("dpu1", "dpu0", "", 15.0))


def test_a_map_that_changed_often_no_longer_names_former_homes() -> None:
    """A map remembers four changes."""
    changes = [
        Look(20.0 * number, True, number, {"dpu0": ("up", 0), "dpu1": (state, 0)})
        for number, state in enumerate(["up", "draining"] * 3)
    ]
    reasons = Reasons([], [], changes, DEADLINE_S)
    late = Sample("trace", 1, LATER_S, LATER_S, LATER_S + 1)
    assert reasons.has(late, ("dpu0", "dpu2", "", 30.0))
    assert not reasons.has(late, ("dpu0", "dpu2", "", 50.0))
    assert not reasons.has(late, ("dpu2", "dpu2", "", 30.0))


def test_a_verdict_without_data_is_not_judged() -> None:
    """Without leases, known blocks or requests, incarnations, misses or blocks are not judged."""
    fence = "nothing_served_past_a_fence"
    without = [
        Look(at_s, True, 5, {"dpu1": (state, 0)})
        for at_s, state in ((1.0, "up"), (STRUCK_S, "gone"))
    ]
    for some in (without, looks()[:1]):
        found = held(board_of(), DONE, some, DEADLINE_S)
        assert [name for name, met in found.items() if met is None] == [fence]
        assert False not in found.values()
    first = Board()
    first.samples = [Sample("none", 0, 0.0, 0.0, 1.0, asked=4, put=4)]
    assert [*held(first, [], [], DEADLINE_S).values()] == [None, True, None, None]
    alone = judged(first, [], [], DEADLINE_S).phases["no fault"]
    assert alone.hit_rate is None, "a rate of nothing"
    assert set(held(Board(), [], [], DEADLINE_S).values()) == {None}
    broken = Board()
    broken.broken.append("host0: KeyError")
    assert False in held(broken, [], [], DEADLINE_S).values()


def test_what_is_served_past_a_fence_is_noticed() -> None:
    """Only the incarnation in the map when the request began may serve it."""
    for incarnation, good in ((1, False), (2, True)):
        one = sample(NAME, 9)
        one.by_member = Counter({f"dpu1/{incarnation}": 10})
        assert held(board_of(one), DONE, looks(), DEADLINE_S)["nothing_served_past_a_fence"] is good


def test_a_host_that_broke_is_noticed() -> None:
    board = board_of()
    board.broken.append("host0: KeyError")
    assert not held(board, DONE, looks(), DEADLINE_S)["every_request_ended"]


def test_what_is_asked_is_the_seeds() -> None:
    """Every phase requests the same blocks except those requested once; another seed differs."""
    documents = Documents(1)
    one, other = (documents.asks(name, 10, 20) for name in ("none", NAME))
    same = [a == b for a, b in zip(one, other, strict=True)]
    assert 0.8 < sum(same) / len(same) < 1
    assert [a.at_s for a in one] == [b.at_s for b in other]
    assert Documents(2).all != documents.all
    first, second = content(documents.all[0][:2])
    assert (first != second).all(), "a block in another's place is seen in every word"


def test_faults_come_one_at_a_time() -> None:
    """They lie within the run, are of every kind, and follow from the seed."""
    found = drawn(1, 3600.0, with_etcd=True)
    assert {one.fault for one in found} == set(FAULTS)
    assert all(before.until_s < after.at_s for before, after in pairwise(found))
    assert found[0].at_s >= 5 and found[-1].until_s <= 3600
    assert found == drawn(1, 3600.0, with_etcd=True) != drawn(2, 3600.0, with_etcd=True)
    assert not {one.fault for one in drawn(1, 3600.0, with_etcd=False)} & {"etcd", "quorum"}


@pytest.mark.parametrize(
    ("wrong", "strict", "code"), [(1, False, 1), (1, True, 1), (0, False, 0), (0, True, 1)]
)
def test_verdict_and_missed_aim_stand_in_one_line(
    wrong: int,
    strict: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A connection waits twice its deadline, perhaps with a wrong byte. The verdict decides the
    exit code with and without `--strict`, the aim only with it; each deciding one is named, and the
    file is written."""
    board = board_of(sample(NAME, 3, wrong=wrong, marked=4))
    board.waited_s["host0", "dpu1", 0] = 2 * DEADLINE_S
    found = judged(board, DONE, looks(), DEADLINE_S)
    monkeypatch.setattr("offstage.testbeds.bench.pod.run.bench_pod", lambda **_: found)
    words = ["bench", "pod", "--folder", str(tmp_path), "--out", str(tmp_path / "found.json")]
    assert run([*words, "--strict"] if strict else words) == code
    said = capsys.readouterr().err
    assert ("bench pod: every block right: NO" in said) is bool(wrong)
    assert ("missed: death dpu1: a connection waited <= 550 ms" in said) is strict
    assert said.count("offstage: ") == code and (tmp_path / "found.json").exists()


def test_a_host_that_breaks_leaves_the_phases_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host breaks in the second phase, before the fault: file, page and table have the first
    phase, and the error says what broke, with exit code 1."""
    asked: list[str] = []

    def ask(board: Board, phase: str, begin_s: float) -> None:
        asked.append(phase)
        board.samples.append(
            Sample(phase, 0, begin_s, begin_s, begin_s + 1, asked=4, known=4, hits=4)
        )
        if phase == NAME:
            board.broken.append("host0: KeyError: 7")

    def live_pod(folder: Path, board: Board) -> Any:
        bed = SimpleNamespace(processes={"dpu0": 1})
        live = SimpleNamespace(
            bed=bed,
            board=board,
            done=[],
            prepare=lambda *_: None,
            strike=lambda *_: None,
            heal=lambda *_: None,
        )
        return nullcontext((live, SimpleNamespace(looks=[])))

    def hosts_of(live: Any, deadline_s: float, board: Board) -> Any:
        def asks(phase: str, left: object, begin_s: float) -> None:
            ask(board, phase, begin_s)

        return nullcontext([SimpleNamespace(name="host0", members=lambda: {"dpu0"}, run=asks)])

    monkeypatch.setattr(bench_run, "live_pod", live_pod)
    monkeypatch.setattr(bench_run, "hosts_of", hosts_of)
    words = [
        "bench",
        "pod",
        "--folder",
        str(tmp_path),
        "--seconds",
        "2",
        "--page",
        str(tmp_path / "page.html"),
        "--out",
        str(tmp_path / "found.json"),
    ]
    assert run(words) == 1
    said = capsys.readouterr()
    assert "bench pod: host0: KeyError: 7; every request ended: NO" in said.err
    assert asked == ["fill", "none", "refill", NAME] and "no fault" in said.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["phases"]) == ["no fault"] and found["broken"] == ["host0: KeyError: 7"]
    assert (tmp_path / "page.html").exists()
