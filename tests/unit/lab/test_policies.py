"""Does each component of the laboratory's policies guess as its page says?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_views import guesses_of, setting, view

from offstage.bindings.engine import ABSENT
from offstage.bindings.layouts import CAUSES
from offstage.testbeds.lab.policies.adaptive import Stability
from offstage.testbeds.lab.policies.base import (
    Averages,
    Shares,
    best,
    marked,
    marked_cells,
    overlap,
)
from offstage.testbeds.lab.policies.registry import parse

PATTERN = CAUSES.index("pattern")
ROWS = st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1, max_size=4)


@given(ROWS, st.integers(-1, 9))
def test_best_is_the_highest_and_of_equals_the_first(rows: list[list[int]], count: int) -> None:
    expected = [
        {i for i in sorted(range(7), key=lambda i: (-row[i], i))[: max(count, 0)] if row[i]}
        for row in rows
    ]
    marks = best(np.array(rows, np.uint16), count)
    assert [set(np.flatnonzero(row)) for row in marks] == expected
    found = list(zip(*marked_cells(marks), strict=True))
    assert found == list(zip(*np.nonzero(marks), strict=True))


@given(ROWS, st.integers(0, 15))
def test_averages_are_the_cores(rows: list[list[int]], shift: int) -> None:
    """`a += s / 2^n - a / 2^n` in integers, starting at the first score: see `prefetch_ema.c`."""
    averages, expected = Averages(shift), [0] * 7
    for row in rows:
        scores = [value * 13_000 for value in row]
        expected = [
            score if old == 0 else old - (old >> shift) + (score >> shift)
            for old, score in zip(expected, scores, strict=True)
        ]
        assert averages.take(np.array([scores], np.uint16)).tolist() == [expected]


def test_averages_grow_with_the_session() -> None:
    averages = Averages(1)
    averages.take(np.array([[4]], np.uint16))
    assert averages.take(np.array([[8, 6]], np.uint16)).tolist() == [[6, 6]]


def test_shares_move_towards_what_came_true() -> None:
    shares = Shares(2, 0.5)
    marks = np.array([[True, True, False], [False, False, False]])
    selected = np.array([[1, 3, ABSENT], [0, 1, ABSENT]], np.uint32)
    shares.learn(marks, selected)  # one of two marks was right; block 3 is newer than the marks
    assert shares.share.tolist() == [0.5, 0.5]
    shares.learn(marks, np.array([[0, 1], [0, 1]], np.uint32))
    assert shares.share.tolist() == [0.5 + 0.5 / 16, 0.5]
    assert overlap(marks, selected).tolist() == [0.5, 0.0]
    assert marked(selected[:, :1], 3).tolist() == [[False, True, False], [True, False, False]]


# Components


def test_lookahead_tells_shared_selections_and_the_drafts() -> None:
    opened = parse("lookahead").open(setting(3, sources=[0, 0, 2], draft=0.75))
    scores = [[9, 8, 0, 0], [9, 8, 0, 0], [0, 0, 7, 7]]
    answer = opened.step(view(0, scores, draft=scores[::-1]))
    exact = answer[answer["probability"] == 65535]
    assert guesses_of(exact) == {(0, 1, 0, 0), (0, 1, 0, 1)}
    drafted = answer[answer["probability"] < 65535]
    assert guesses_of(drafted) == {(0, 1, 0, 0), (0, 1, 0, 1), (0, 2, 0, 0), (0, 2, 0, 1)}
    assert set(drafted["probability"]) == {int(0.75 * 65535)}
    assert set(answer["cause"]) == {CAUSES.index("lookahead")}


def test_the_capped_draft_adds_the_best_new_block() -> None:
    opened = parse("oasiskv-draft").open(setting(2, draft=0.9))
    drafted = [[9, 0, 5, 4], [9, 0, 5, 4]]
    answer = opened.step(view(0, [[9, 8, 0, 0]] * 2, draft=drafted))
    assert guesses_of(answer) == {(0, 1, 0, 0)}, "nothing was selected before"
    answer = opened.step(view(1, [[0, 0, 9, 8]] * 2, draft=drafted))
    assert guesses_of(answer) == {(0, 1, 0, 2)}, "block 0 was selected, block 3 is not of the best"


def test_predicted_blocks_are_told_two_layers_ahead_and_the_first_of_the_next_step() -> None:
    """The best 1.5 k predicted blocks are guessed, but none for the second layer, whose prediction
    comes too late."""
    opened = parse("lookahead-query").open(setting(4, k=2, predicts=True))
    predicted = [[5, 9, 8, 1, 1], [9, 9, 9, 9, 9], [0] * 5, [1, 2, 9, 0, 0]]
    answer = opened.step(view(0, [[9, 8, 0, 0, 0]] * 4, predicted=predicted))
    assert guesses_of(answer) == {
        (2, 0, 1, 0),
        (2, 0, 1, 1),
        (2, 0, 1, 2),
        (1, 3, 0, 0),
        (1, 3, 0, 1),
        (1, 3, 0, 2),
    }
    assert set(answer["cause"]) == {CAUSES.index("lookahead")}


def test_a_band_that_fails_is_silenced_and_still_watched() -> None:
    """The best half of k is right, the rest never: probabilities diverge until the rest is no
    longer guessed. Once it becomes right, it is guessed again."""
    opened = parse("lookahead-query").open(setting(3, k=2, predicts=True))
    right, wrong = [9, 8, 0, 0, 0, 0], [9, 0, 0, 0, 8, 0]
    shown = [view(step, [right] * 3, predicted=[[0] * 6, [0] * 6, wrong]) for step in range(40)]
    told = [opened.step(one) for one in shown]
    assert guesses_of(told[0]) == {(0, 2, 0, 0), (0, 2, 0, 4)}
    assert guesses_of(told[-1]) == {(0, 2, 0, 0)} and told[-1]["probability"][0] > 0.9 * 65535
    later = [view(40 + step, [right] * 3, predicted=[[0] * 6, [0] * 6, right]) for step in range(9)]
    assert guesses_of([opened.step(one) for one in later][-1]) == {(0, 2, 0, 0), (0, 2, 0, 1)}


def test_the_first_layer_learns_from_the_step_that_it_was_predicted_for() -> None:
    """The prediction for layer 0 is the next step's selection: it is right each time, so its
    probability rises, though it never matches the step in which it is made."""
    opened = parse("lookahead-query").open(setting(3, k=1, predicts=True))
    rows = [[9, 0, 0, 0], [0, 9, 0, 0]]
    for step in range(30):
        scores, ahead = rows[step % 2], rows[(step + 1) % 2]
        answer = opened.step(view(step, [scores] * 3, k=1, predicted=[ahead, [0] * 4, [0] * 4]))
    assert guesses_of(answer) == {(1, 0, 1, 0)} and answer["probability"][0] > 0.9 * 65535


def test_warmup_votes_of_the_last_windows() -> None:
    opened = parse("warmup").open(setting(1, buffer=2))
    windows = [[[0, 0, 0, 9]]] * 5 + [[[9, 8, 1, 0]]] * 24 + [[[9, 0, 8, 0]]] * 8
    answer = opened.begin(0, 4, np.array(windows, np.uint16))
    assert guesses_of(answer) == {(0, 0, 0, 0), (0, 0, 0, 1)}, "32 and 24 votes; 2 have 8, 3 is old"
    assert answer["probability"].tolist() == [65535, 65535 * 24 // 32]
    assert len(opened.begin(1, 4, None)) == 0


def test_strided_loads_at_the_end_what_the_second_step_chose() -> None:
    for name, stride in (("ucm-strided", 5), ("ucm-strided-3", 3)):
        opened = parse(name).open(setting(1))
        for step in range(2 * stride):
            scores = np.zeros((1, 12), np.uint16)
            scores[0, [step, step + 1]] = 9
            expected = set()
            if step % stride == stride - 1:
                retrieved = step - stride + 2
                expected = {(0, 0, 1, retrieved), (0, 0, 1, retrieved + 1)}
            assert guesses_of(opened.step(view(step, scores))) == expected


def test_the_step_before() -> None:
    shown = [view(0, [[9, 0, 0], [0, 9, 0]], k=1), view(1, [[0, 0, 9], [9, 0, 0]], k=1)]
    step = parse("solidattention-prev-step").open(setting(k=1))
    assert guesses_of(step.step(shown[0])) == {(1, 0, 1, 0)}, "layer 0 of the next step"
    assert guesses_of(step.step(shown[1])) == {(0, 1, 0, 1), (1, 0, 1, 2)}


def test_prr_tells_two_bands_with_their_own_probability() -> None:
    opened = parse("prr-ema").open(setting(1, buffer=6))
    for step in range(64):
        answer = opened.step(view(step, [[9000, 8000, 7000, 6000, 5000]]))
    assert guesses_of(answer) == {(0, 0, 1, ordinal) for ordinal in range(4)}
    near, far = answer["probability"][:2], answer["probability"][2:]
    assert near.min() > 0.95 * 65535 and far.max() < 0.05 * 65535


def test_boundary_speaks_for_eight_steps_after_a_turn() -> None:
    """Layer 0 has a turn of its own at step 20; both turn with the conversation at step 40."""
    opened = parse("boundary").open(setting(k=2, buffer=8))
    spoke: dict[int, set[int]] = {0: set(), 1: set()}
    for step in range(60):
        scores = np.zeros((2, 9), np.uint16)
        scores[:, :2] = 9
        if step >= 20:
            scores[0] = [0, 0, 9, 9, 3, 2, 1, 1, 1]
        answer = opened.step(view(step, scores, turn=step == 40))
        for layer in set(answer["layer"].tolist()):
            spoke[layer].add(step)
        if step == 20:
            assert guesses_of(answer) == {(0, 0, 1, ordinal) for ordinal in range(2, 8)}
    assert spoke == {0: {*range(20, 28), *range(40, 48)}, 1: set(range(40, 48))}


def test_stability_ranks_stable_layers_seldom() -> None:
    """One of four layers changes at every step; only that one is ranked at each, with 4 k."""
    policy = Stability(setting(4, k=1, buffer=5))
    counts = []
    for step in range(96):
        scores = np.tile(np.arange(16, 0, -1, dtype=np.uint16) * 1000, (4, 1))
        scores[2] = np.roll(scores[2], 5 * step)
        answer = policy.step(view(step, scores, k=1))
        counts.append(np.bincount(answer["layer"], minlength=4).tolist())
    assert counts[:32] == [[2, 2, 2, 2]] * 32
    after = np.array(counts[32:])
    assert (after[:, 2] == 4).all()
    for layer in (0, 1, 3):
        ranked = np.flatnonzero(after[:, layer])
        assert (after[ranked, layer] == 2).all() and np.diff(ranked).tolist() == [16, 16, 16]
    firsts = {int(np.flatnonzero(after[:, layer])[0]) for layer in (0, 1, 3)}
    assert len(firsts) == 3, "they take turns"


@pytest.mark.parametrize("name", ["prr-ema", "stability", "boundary"])
@pytest.mark.parametrize("buffer", [2, 3, 5, 20])
def test_a_set_of_guesses_fits_beside_the_selection(name: str, buffer: int) -> None:
    """Whatever multiple of k a policy wants, blocks that the buffer cannot hold are not guessed."""
    rng = np.random.default_rng(1)
    opened = parse(name).open(setting(3, k=2, buffer=buffer))
    most = 0
    for step in range(64):
        answer = opened.step(view(step, rng.integers(1, 9999, (3, 24)), turn=step % 16 == 3))
        most = max([most, *np.bincount(answer["layer"], minlength=3).tolist()])
    wanted = {"prr-ema": 4, "stability": 8, "boundary": 6}[name]
    assert most == min(wanted, buffer - 2)


# The page
