"""Does a spec become the policy it names, and does each component guess what its page says?"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.core import Core, CoreConfig
from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES, EVICTIONS
from offstage.testbeds.lab.policies.adaptive import Stability
from offstage.testbeds.lab.policies.base import (
    Averages,
    Shares,
    best,
    marked,
    marked_cells,
    overlap,
)
from offstage.testbeds.lab.policies.carried import EVICTION_SOURCES
from offstage.testbeds.lab.policies.checked import Opened, checked_begin, checked_step
from offstage.testbeds.lab.policies.policy import (
    GUESS,
    CoreSwitches,
    Setting,
    View,
    guesses,
    no_guesses,
)
from offstage.testbeds.lab.policies.registry import GROUP, find, listing, parse

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/policies.md"
PATTERN = CAUSES.index("pattern")


def setting(
    layers: int = 2,
    k: int = 2,
    *,
    sources: Any = None,
    draft: float | None = None,
    buffer: int = 4,
    foretells: bool = False,
) -> Setting:
    own = np.arange(layers) if sources is None else np.asarray(sources)
    return Setting(layers, k, buffer, 0, 0, 64, own, draft, foretells)


def view(
    step: int,
    scores: Any,
    *,
    k: int = 2,
    draft: Any = None,
    turn: bool = False,
    session: int = 0,
    foretold: Any = None,
) -> View:
    """The k best of each layer are selected."""
    scores = np.asarray(scores, np.uint16)
    selected = np.full((len(scores), k), ABSENT, np.uint32)
    for layer, chosen in enumerate(best(scores, k)):
        selected[layer, : chosen.sum()] = np.flatnonzero(chosen)
    drafted = None if draft is None else np.asarray(draft, np.uint16)
    ahead = None if foretold is None else np.asarray(foretold, np.uint16)
    return View(session, step, scores.shape[1], selected, scores, drafted, turn, ahead)


def guesses_of(answer: Any) -> set[tuple[int, int, int, int]]:
    """(after_layer, layer, steps, ordinal) of every guess."""
    names = ("after_layer", "layer", "steps", "ordinal")
    return {tuple(int(one[name]) for name in names) for one in answer}  # type: ignore[misc]


# Specs


def test_components_are_joined() -> None:
    joined = parse("window + ema+lru+coschedule+granule").core
    assert joined.prefetchers == ("window", "ema")
    assert joined.eviction == "lru", "of ema's score and lru, the last one"
    assert (joined.schedule, joined.granule) == ("together", True)
    assert parse("window").core.eviction == "lru"
    assert not parse("window+ema").guesses and parse("window+warmup").guesses


def test_parameters_are_the_daemons_then_the_components_then_the_runs() -> None:
    from offstage.dpu.options import PolicyOptions as DaemonPolicy

    policy = parse("window+next_n").core_policy(64, degree_max=9)
    assert (policy.prefetchers, policy.window_blocks) == ("window+next_n", 4096 // 64)
    assert (policy.degree_max, policy.ema_shift) == (9, DaemonPolicy().ema_shift)
    assert parse("window").core_policy(64, window_tokens=65).window_blocks == 2
    with pytest.raises(BadInput, match="degree_max"):
        parse("window").core_policy(64, degre_max=1)


@pytest.mark.parametrize("name", [row["name"] for row in listing()])
def test_the_core_takes_every_policy(name: str) -> None:
    config = CoreConfig(slot_count=8, chunk_max=8, session_chunk_max=4)
    assert Core(config, parse(name).core_policy(64)).verify()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("emma", "did you mean 'ema'"),
        ("window+lokahead", "did you mean 'lookahead'"),
        ("", "a name is missing"),
        ("ema++lru", "a name is missing"),
        ("ema+ema", "is named twice"),
        ("nowhere_at_all:X", "cannot be loaded: ModuleNotFoundError"),
        ("json:nothing", "cannot be loaded: AttributeError"),
        ("json:JSONDecoder", "has no text in 'name'"),
        ("os:path", "is no class"),
    ],
)
def test_a_wrong_spec_is_one_line(spec: str, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        parse(spec)


GOOD = """
from offstage.testbeds.lab.policies.policy import CoreSwitches, no_guesses
class Good:
    name, uses, source = "{name}", "nothing", "a test"
    core = CoreSwitches({core})
    def __init__(self, setting): pass
    def begin(self, session, blocks, prefill): return no_guesses()
    def step(self, view): return no_guesses()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package with one module and one entry point."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, code: str, package: str = "acme", target: str = "") -> None:
        module = re.sub(r"\W", "_", f"{package}_{name}_{tmp_path.name}")  # imported only once
        (tmp_path / f"{module}.py").write_text(code)
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        with (folder / "entry_points.txt").open("a") as file:
            file.write(f"[{GROUP}]\n{name} = {target or module + ':Good'}\n")

    return install


def test_an_installed_package_adds_a_name(package: Callable[..., None]) -> None:
    package("acme-one", GOOD.format(name="acme-one", core="eviction='fifo'"))
    assert parse("window+acme-one").core.eviction == "fifo"
    [row] = [row for row in listing() if row["name"] == "acme-one"]
    assert row["from"] == "acme"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("Good = 3", "is no class"),
        (GOOD.format(name="another", core=""), "calls itself 'another'"),
        (GOOD.format(name="acme-bad", core="prefetchers=('emma',)"), "no prefetcher 'emma'"),
        (GOOD.format(name="acme-bad", core="eviction='mru'"), "no eviction 'mru'"),
        (GOOD.format(name="acme-bad", core="schedule='later'"), "no schedule 'later'"),
        (GOOD.format(name="acme-bad", core="parameters={'degree': 1}"), "no parameter 'degree'"),
        (GOOD.format(name="acme-bad", core="parameters={'next_n': -1}"), "next_n is -1"),
        (GOOD.format(name="acme-bad", core="").replace("def step", "def stop"), "no method 'step'"),
        (GOOD.format(name="acme-bad", core="").replace("uses", "used"), "no text in 'uses'"),
    ],
)
def test_a_broken_package_is_named(package: Callable[..., None], code: str, said: str) -> None:
    package("acme-bad", code)
    with pytest.raises(BadInput, match="'acme-bad' of package 'acme'") as caught:
        parse("acme-bad")
    assert said in str(caught.value)
    with pytest.raises(BadInput, match="'acme-bad' of package 'acme'"):
        listing()
    assert parse("window").core.prefetchers == ("window",), "others are not loaded"


def test_a_taken_name_is_refused(package: Callable[..., None]) -> None:
    package("ema", GOOD.format(name="ema", core=""))
    with pytest.raises(BadInput, match=r"'acme'.*also one of Offstage"):
        parse("ema")
    package("mine", GOOD.format(name="mine", core=""), package="one")
    package("mine", GOOD.format(name="mine", core=""), package="two")
    with pytest.raises(BadInput, match="also one of package"):
        parse("mine")


def test_two_values_of_one_parameter_are_refused(package: Callable[..., None]) -> None:
    package("acme-wide", GOOD.format(name="acme-wide", core="parameters={'window_tokens': 8192}"))
    with pytest.raises(BadInput, match="window_tokens to 4096 and to 8192"):
        parse("window+acme-wide")


# Answers


class Answers:
    """A policy that gives one fixed answer, or raises it."""

    name: ClassVar[str] = "fixed"
    uses: ClassVar[str] = "nothing"
    source: ClassVar[str] = "this test"
    core: ClassVar[CoreSwitches] = CoreSwitches()
    answer: ClassVar[Any] = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def begin(self, session: int, blocks: int, prefill: Any) -> Any:
        return self.step(view(0, [[1]]))

    def step(self, view: View) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def fixed(answer: Any) -> Answers:
    kind: type[Answers] = type("Fixed", (Answers,), {"answer": answer})
    return kind(setting())


def one(ordinal: int = 0, layer: int = 1, **more: Any) -> Any:
    more = {"after_layer": 0, "steps": 0, "cause": PATTERN, **more}
    reserved = more.pop("reserved", 0)
    answer = guesses([layer], [ordinal], **more)
    answer["reserved"] = reserved
    return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "no GUESS array"),
        ([], "no GUESS array"),
        (np.zeros(1, np.int64), "no GUESS array"),
        (np.zeros((1, 1), GUESS), "no GUESS array"),
        (one(ordinal=3), "guessed ordinal 3, of 3"),
        (one(layer=2), "guessed layer 2, of 2"),
        (one(layer=1, after_layer=2, steps=1), "passed a guess after layer 2, of 2 layers"),
        (one(layer=1, after_layer=1), "a layer of this step that has run"),
        (one(cause=CAUSES.index("write")), "with a cause that is not of window,"),
        (one(cause=len(CAUSES)), "with a cause that is not of window,"),
        (one(reserved=1), "left 'reserved' not zero"),
        (ValueError("two\nlines"), "raised ValueError: two lines ("),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_wrong_answer_is_one_line(answer: Any, said: str) -> None:
    shown = view(12, [[1, 2, 3], [1, 2, 3]], session=3)
    with pytest.raises(BadInput) as caught:
        checked_step(fixed(answer), shown)
    line = str(caught.value)
    assert "step 12 of session 3: policy 'fixed'" in line and said in line
    assert "\n" not in line and caught.value.mend


def test_a_wrong_beginning_is_one_line() -> None:
    for answer, said in ((one(ordinal=3), "ordinal 3, of 3"), (KeyError("x"), "KeyError")):
        with pytest.raises(BadInput, match=f"begin of session 4: policy 'fixed'.*{said}"):
            checked_begin(fixed(answer), 4, 3, None, 2)
    first = one(layer=0)
    assert checked_begin(fixed(first), 4, 3, None, 2) is first, "no layer has run yet"


def test_components_answer_in_their_order() -> None:
    kinds = [type(fixed(one(ordinal=ordinal))) for ordinal in (2, 0, 1)]
    answer = Opened(kinds, setting()).step(view(0, [[1, 2, 3]] * 2))
    assert answer["ordinal"].tolist() == [2, 0, 1]
    assert len(Opened([], setting()).step(view(0, [[1]] * 2))) == 0


def test_what_fails_to_open_is_bad_input() -> None:
    def fails(self: Any, setting: Setting) -> None:
        raise OSError("no such weights")

    kind: Any = type("Fails", (Answers,), {"__init__": fails})
    with pytest.raises(BadInput, match="'fixed' cannot be opened: OSError: no such weights"):
        Opened([kind], setting())
    names = {row["name"] for row in listing() if "lookahead" in row["name"]} | {"oasiskv-draft"}
    for name in names:
        with pytest.raises(BadInput, match=f"policy '{name}'"):
            parse(name).open(setting())


# Ranking

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
    """`a += s / 2^n - a / 2^n` in integers, the first score as it is: see `prefetch_ema.c`."""
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
    shares.learn(marks, selected)  # of two marks one came true; block 3 is newer than the marks
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


def test_foretold_blocks_are_told_two_layers_ahead_and_the_first_of_the_next_step() -> None:
    """The best 1.5 k of what is foretold; nothing of the second layer, which is known too late."""
    opened = parse("lookahead-query").open(setting(4, k=2, foretells=True))
    foretold = [[5, 9, 8, 1, 1], [9, 9, 9, 9, 9], [0] * 5, [1, 2, 9, 0, 0]]
    answer = opened.step(view(0, [[9, 8, 0, 0, 0]] * 4, foretold=foretold))
    assert guesses_of(answer) == {
        (2, 0, 1, 0),
        (2, 0, 1, 1),
        (2, 0, 1, 2),
        (1, 3, 0, 0),
        (1, 3, 0, 1),
        (1, 3, 0, 2),
    }
    assert set(answer["cause"]) == {CAUSES.index("lookahead")}


def test_a_band_that_does_not_come_true_is_told_no_more_and_still_watched() -> None:
    """The best half of k is right, the rest never: probabilities part, and the rest falls silent.
    When it comes to be right, it is told again."""
    opened = parse("lookahead-query").open(setting(3, k=2, foretells=True))
    right, wrong = [9, 8, 0, 0, 0, 0], [9, 0, 0, 0, 8, 0]
    shown = [view(step, [right] * 3, foretold=[[0] * 6, [0] * 6, wrong]) for step in range(40)]
    told = [opened.step(one) for one in shown]
    assert guesses_of(told[0]) == {(0, 2, 0, 0), (0, 2, 0, 4)}
    assert guesses_of(told[-1]) == {(0, 2, 0, 0)} and told[-1]["probability"][0] > 0.9 * 65535
    later = [view(40 + step, [right] * 3, foretold=[[0] * 6, [0] * 6, right]) for step in range(9)]
    assert guesses_of([opened.step(one) for one in later][-1]) == {(0, 2, 0, 0), (0, 2, 0, 1)}


def test_the_first_layer_learns_from_the_step_that_it_was_foretold_for() -> None:
    """What is foretold of layer 0 is the next step's selection: right each time, so its share
    rises, though it is never that of the step in which it is told."""
    opened = parse("lookahead-query").open(setting(3, k=1, foretells=True))
    rows = [[9, 0, 0, 0], [0, 9, 0, 0]]
    for step in range(30):
        scores, ahead = rows[step % 2], rows[(step + 1) % 2]
        answer = opened.step(view(step, [scores] * 3, k=1, foretold=[ahead, [0] * 4, [0] * 4]))
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
    """Layer 0 turns by itself at step 20; both turn with the conversation at step 40."""
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
    """Of four layers one changes at every step; it alone is ranked at each step, with 4 k."""
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
    """However many times k a policy would have: what the buffer cannot hold is never guessed."""
    rng = np.random.default_rng(1)
    opened = parse(name).open(setting(3, k=2, buffer=buffer))
    most = 0
    for step in range(64):
        answer = opened.step(view(step, rng.integers(1, 9999, (3, 24)), turn=step % 16 == 3))
        most = max([most, *np.bincount(answer["layer"], minlength=3).tolist()])
    wanted = {"prr-ema": 4, "stability": 8, "boundary": 6}[name]
    assert most == min(wanted, buffer - 2)


# The page


def test_the_page_lists_what_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)
    unbuilt = EVICTION_SOURCES.keys() - set(EVICTIONS)  # evictions this core does not have
    rows = [row for row in rows if row[0] not in unbuilt]
    assert rows == [(row["name"], row["uses"], row["source"]) for row in listing()]


def test_every_eviction_is_a_policy() -> None:
    for name in EVICTIONS:
        assert find(name).core == CoreSwitches(eviction=name)
    assert no_guesses().dtype == GUESS and GUESS.itemsize == 16
