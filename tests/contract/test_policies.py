"""Does every policy keep the contract of `testbeds/lab/policies/policy.py`, and are cheats
detected?"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES
from offstage.testbeds.lab.policies.base import best
from offstage.testbeds.lab.policies.causality import PERIOD, due, refuse_future
from offstage.testbeds.lab.policies.checked import Opened
from offstage.testbeds.lab.policies.policy import CoreSwitches, Setting, View, guesses, no_guesses
from offstage.testbeds.lab.policies.registry import listing, parse

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/add-a-policy.md"
CODE = re.compile(r"```python rising\.py\n(.*?)```", re.DOTALL)
COMBINED = ("window+ema+lookahead+warmup", "stability+boundary+lookahead-draft", "prr-ema+granule")
SPECS = [row.name for row in listing() if row.guesses] + [*COMBINED, "rising.py:Rising"]
STEPS = 40
DRAFT_LAYERS = 2
LOOKED_AT = (0, 1, 4, 5, 12, 13, 33, 39)


@dataclass(frozen=True)
class Case:
    """A small workload; a block is written every `grows` steps, never if it is 0."""

    name: str
    layers: int = 6
    blocks: int = 40
    k: int = 6
    sharing: int = 1
    draft: bool = False
    predicted: bool = False
    grows: int = 0
    sliced: bool = False
    score_max: int = 65535

    @property
    def setting(self) -> Setting:
        layers = np.arange(self.layers)
        return Setting(
            self.layers,
            self.k,
            2 * self.k,
            1,
            1,
            64,
            layers // self.sharing * self.sharing,
            0.8 if self.draft else None,
            self.predicted,
            DRAFT_LAYERS,
        )


CASES = [
    Case("usual", sharing=3, draft=True, predicted=True, grows=8),
    Case("sliced to what is written", sharing=3, draft=True, predicted=True, grows=3, sliced=True),
    Case("one layer", layers=1, draft=True, predicted=True),
    Case("one block", layers=3, blocks=1, k=1, sharing=3),
    Case("all selected", blocks=6),
    Case("equal scores", sharing=2, draft=True, predicted=True, score_max=1),
]


def views(case: Case, seed: int = 0, session: int = 0) -> list[View]:
    """Scores move slowly, the best of them are selected, and a new turn begins at step 12."""
    rng = np.random.default_rng([seed, session])
    total = case.blocks + (STEPS // case.grows if case.grows else 0)
    level = rng.random((case.layers, total))
    found = []
    for step in range(STEPS):
        turn = step == 12
        level = rng.random(level.shape) if turn else 0.8 * level + 0.2 * rng.random(level.shape)
        blocks = case.blocks + (step // case.grows if case.grows else 0)
        all_three = []
        like = (0.9 * level + 0.1 * rng.random(level.shape) for _ in range(2))
        for drawn in (level, *like):
            scores = np.ceil(drawn * case.score_max).astype(np.uint16)
            scores[:, blocks:] = 0
            all_three.append(scores[:, :blocks] if case.sliced else scores)
        found.append(view_of(case, session, step, blocks, all_three, turn))
    return found


def view_of(case: Case, session: int, step: int, blocks: int, shown: Any, turn: bool) -> View:
    scores, draft, predicted = shown
    selected = np.full((case.layers, case.k + 2), ABSENT, np.uint32)
    for layer, chosen in enumerate(best(scores, case.k)):
        ordinals = np.flatnonzero(chosen)
        selected[layer, : len(ordinals)] = ordinals
    arrays = [np.ascontiguousarray(one) for one in (selected, scores, draft, predicted)]
    for one in arrays:
        one.flags.writeable = False
    drafted = arrays[2] if case.draft else None
    ahead = arrays[3] if case.predicted else None
    return View(session, step, blocks, arrays[0], arrays[1], drafted, turn, ahead, DRAFT_LAYERS)


def prefill_of(case: Case, session: int = 0) -> Any:
    rng = np.random.default_rng([7, session])
    return rng.integers(1, 65536, (4, case.layers, case.blocks)).astype(np.uint16)


Opener = Callable[[Case], Opened]


def run(opened: Opened, case: Case, shown: list[View]) -> list[bytes]:
    """Return all answers, the one to the prefill first."""
    session = shown[0].session
    answers = [opened.begin(session, case.blocks, prefill_of(case, session)).tobytes()]
    return answers + [opened.step(view).tobytes() for view in shown]


def scrambled(case: Case, shown: list[View]) -> Iterator[View]:
    """Yield the same views in memory that is overwritten once the call has returned."""
    for view in shown:
        arrays = view.selected, view.scores, view.draft, view.predicted
        own = [None if one is None else one.copy() for one in arrays]
        seen = [None if one is None else one.view() for one in own]
        for one in seen:
            if one is not None:
                one.flags.writeable = False
        selected, scores, draft, predicted = seen
        assert selected is not None and scores is not None
        yield replace(view, selected=selected, scores=scores, draft=draft, predicted=predicted)
        for one in own:
            if one is not None:
                one[...] = 3


def check_range(opener: Opener, case: Case) -> None:
    """Every answer passes the checks of `checked.py`, and the view is unchanged."""
    shown = views(case)
    before = [(one.selected.tobytes(), one.scores.tobytes()) for one in shown]
    run(opener(case), case, shown)
    assert before == [(one.selected.tobytes(), one.scores.tobytes()) for one in shown]


def check_determinism(opener: Opener, case: Case) -> None:
    """Two instances give the same bytes; the second gets views in temporary memory."""
    expected = run(opener(case), case, views(case))
    other = opener(case)
    other.begin(0, case.blocks, prefill_of(case))
    answers = [other.step(view).tobytes() for view in scrambled(case, views(case))]
    assert expected[1:] == answers
    assert expected == run(opener(case), case, views(case))


def check_sessions(opener: Opener, case: Case) -> None:
    """Two sessions in turns give the same answers as each alone."""
    first, second = views(case), views(case, seed=1, session=1)
    alone = run(opener(case), case, first), run(opener(case), case, second)
    both = opener(case)
    for session in (0, 1):
        both.begin(session, case.blocks, prefill_of(case, session))
    together = [
        [both.step(one).tobytes() for one in pair] for pair in zip(first, second, strict=True)
    ]
    assert [pair[0] for pair in together] == alone[0][1:]
    assert [pair[1] for pair in together] == alone[1][1:]


def check_causality(opener: Opener, case: Case) -> None:
    """Every guess made after any layer is one that a run would accept."""
    opened = opener(case)
    opened.begin(0, case.blocks, prefill_of(case))
    for view in views(case):
        before = copy.deepcopy(opened.parts)
        for policy in before if view.step in LOOKED_AT else ():
            for layer in range(case.layers - 1):
                answer = copy.deepcopy(policy).step(view)
                refuse_future(copy.deepcopy(policy), view, answer, layer)
        opened.step(view)


CHECKS = (check_range, check_determinism, check_sessions, check_causality)


@pytest.fixture(params=SPECS)
def opener(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Opener:
    """Open a new instance of the policy; `rising` is read from the how-to page."""
    (tmp_path / "rising.py").write_text(CODE.findall(PAGE.read_text(encoding="utf-8"))[0])
    monkeypatch.chdir(tmp_path)
    combined = parse(request.param)
    return lambda case: combined.open(case.setting)


def possible(opener: Opener, case: Case, name: str) -> bool:
    """Return whether the policy takes the workload; only lookahead may refuse one without it."""
    try:
        opener(case)
    except BadInput as refusal:
        assert "ookahead" in name or "draft" in name, refusal
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_contract_is_kept(opener: Opener, case: Case, request: Any) -> None:
    if not possible(opener, case, request.node.name):
        assert not (case.draft and case.predicted) or case.sharing == 1
        return
    for check in CHECKS:
        check(opener, case)


def test_the_policy_of_the_page_is_as_short_as_it_says() -> None:
    """A policy takes under 60 lines; if it needs more, the interface is too complex."""
    [code] = CODE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(code.splitlines()) < 60


def test_every_policy_has_something_to_say(opener: Opener) -> None:
    """Every policy guesses; otherwise the checks above check nothing."""
    case = CASES[0]
    assert any(run(opener(case), case, views(case)))


class Silent:
    """The common part of the cheating policies below; keeps the contract itself."""

    name: ClassVar[str] = "silent"
    uses: ClassVar[str] = "nothing"
    source: ClassVar[str] = "this test"
    core: ClassVar[CoreSwitches] = CoreSwitches()

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.seen: list[Any] = []

    def begin(self, session: int, blocks: int, prefill: Any) -> Any:
        return no_guesses()

    def step(self, view: View) -> Any:
        return no_guesses()


def one_guess(ordinal: int, after_layer: int = 0, layer: int = 0) -> Any:
    return guesses([layer], [ordinal], after_layer=after_layer, cause=CAUSES.index("pattern"))


class OutOfRange(Silent):
    """Guesses one block past the last."""

    def step(self, view: View) -> Any:
        return one_guess(view.blocks)


class Writes(Silent):
    """Uses the scores as scratch space."""

    def step(self, view: View) -> Any:
        view.scores[0, 0] = 1
        return no_guesses()


class KeepsView(Silent):
    """Reads the last step's scores from the view, not from a copy."""

    def step(self, view: View) -> Any:
        self.seen.append(view.scores)
        return one_guess(int(self.seen[-2:][0].argmax(axis=1)[0]))


class Forgets(Silent):
    """Keeps one state for all sessions."""

    def step(self, view: View) -> Any:
        self.seen.append(int(view.selected[0, 0]))
        return one_guess(self.seen[-2:][0])


class Peeks(Silent):
    """Reveals after the first layer what the last one selected."""

    def step(self, view: View) -> Any:
        return one_guess(int(view.selected[-1, 0]))


class PeeksAtNext(Silent):
    """Reveals after each layer the top choice of the next one: an off-by-one row."""

    def step(self, view: View) -> Any:
        best = view.scores.argmax(axis=1)
        return np.concatenate(
            [one_guess(int(best[layer + 1]), layer) for layer in range(len(best) - 1)]
        )


class PeeksAtDraft(Silent):
    """Reveals after the first layer what a draft model finishes only after the second."""

    def step(self, view: View) -> Any:
        assert view.draft is not None
        return one_guess(int(view.draft[0].argmax()))


class PredictsEarly(Silent):
    """Reveals after the first layer what the third one predicts of the fourth."""

    def step(self, view: View) -> Any:
        assert view.predicted is not None
        return one_guess(int(view.predicted[3].argmax()))


class PredictsFirst(Silent):
    """Reveals after the first layer what early exit predicts of the next step's first."""

    def step(self, view: View) -> Any:
        assert view.predicted is not None
        return one_guess(int(view.predicted[0].argmax()))


class LearnsEarly(Silent):
    """Sets a layer's probability from the results of later layers of the same step."""

    def step(self, view: View) -> Any:
        answer = one_guess(0)
        answer["probability"] = int(view.scores[-1].max())
        return answer


@pytest.mark.parametrize(
    ("cheat", "check"),
    [
        (OutOfRange, check_range),
        (Writes, check_range),
        (KeepsView, check_determinism),
        (Forgets, check_sessions),
        (Peeks, check_causality),
        (PeeksAtNext, check_causality),
        (PeeksAtDraft, check_causality),
        (PredictsEarly, check_causality),
        (PredictsFirst, check_causality),
        (LearnsEarly, check_causality),
    ],
    ids=lambda one: one.__name__,
)
def test_the_suite_detects_a_broken_contract(cheat: Any, check: Any) -> None:
    with pytest.raises((AssertionError, BadInput)):
        check(lambda case: Opened((cheat,), case.setting), CASES[0])
    check(lambda case: Opened((Silent,), case.setting), CASES[0])


@pytest.mark.parametrize(
    "cheat",
    [Peeks, PeeksAtNext, PeeksAtDraft, PredictsEarly, LearnsEarly],
    ids=lambda one: one.__name__,
)
def test_a_run_refuses_a_guess_made_of_what_comes_later(cheat: Any) -> None:
    """A run refuses the guess without the suite above, in the early steps that it checks."""
    case = CASES[0]
    with pytest.raises(BadInput, match=r"step [01] of session 0.*used the future"):
        run(Opened((cheat,), case.setting), case, views(case))


class CountsForAll(Silent):
    """Keeps its state in the class, for every run of the process."""

    calls: ClassVar[list[int]] = []

    def step(self, view: View) -> Any:
        self.calls.append(0)
        return one_guess(len(self.calls) % view.blocks)


def test_a_policy_that_is_not_deterministic_is_told_so() -> None:
    """Does the line name the fault? Such a policy has not used the future."""
    case = CASES[0]
    with pytest.raises(BadInput, match="is not deterministic: a copy of it guesses otherwise"):
        run(Opened((CountsForAll,), case.setting), case, views(case))


def test_each_layer_comes_to_be_asked_about() -> None:
    """A cheat in one layer alone is found within as many checks as there are layers."""
    case = CASES[0]
    [first, *_] = views(case)
    asked = {due(replace(first, step=step)) for step in range(PERIOD * case.layers)}
    assert asked == {None, *range(case.layers - 1)}


class HoldsAFile(Silent):
    """Has state that cannot be copied."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.seen.append(PAGE.open())


def test_state_that_cannot_be_copied_is_refused() -> None:
    case = CASES[0]
    with pytest.raises(BadInput, match="cannot be copied"):
        run(Opened((HoldsAFile,), case.setting), case, views(case))
