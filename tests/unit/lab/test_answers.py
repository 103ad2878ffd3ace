"""Is a policy called once for all points with one answer, and each answered as if alone?"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies import checked, registry
from offstage.testbeds.lab.policies.base import BASELINE, Component, best, guess_next_step
from offstage.testbeds.lab.policies.policy import Setting, View, no_guesses
from offstage.testbeds.lab.policies.registry import parse
from offstage.testbeds.lab.run import answers as answers_module
from offstage.testbeds.lab.run.answers import Answers

LAYERS, BLOCKS = 3, 20


class Counting(Component):
    """Guesses the best of each layer, and counts its calls."""

    name: ClassVar[str] = "counting"
    uses: ClassVar[str] = "scores"
    source: ClassVar[str] = "this test"
    asked: ClassVar[int] = 0

    def step(self, view: View) -> npt.NDArray[np.void]:
        """Fail at step 3."""
        type(self).asked += 1
        if view.step == 3:
            raise ValueError("no step 3")
        marks = best(view.scores, self.setting.select_blocks)
        return guess_next_step(marks, np.ones(LAYERS, np.float32), BASELINE)


@pytest.fixture
def component(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A component registered as built in."""
    monkeypatch.setitem(registry._BUILT_IN, "counting", Counting)
    monkeypatch.setattr(answers_module, "BUILT_IN", (Counting,))
    monkeypatch.setattr(checked, "due", lambda view: None)  # a check would call a copy
    monkeypatch.setattr(Counting, "asked", 0)
    return Counting


def setting(buffer: int = 8) -> Setting:
    return Setting(LAYERS, 4, buffer, 1, 1, 64, np.arange(LAYERS))


def view(step: int) -> View:
    scores = np.random.default_rng(step).integers(1, 60000, (LAYERS, BLOCKS)).astype(np.uint16)
    return View(0, step, BLOCKS, np.zeros((LAYERS, 4), np.uint32), scores, None, False)


def test_points_of_one_setting_share_what_is_answered(component: Any) -> None:
    answers, alone = Answers(), parse("counting").open(setting())
    points = [answers.open(parse("counting"), setting(), number) for number in range(3)]
    for step in (0, 1, 2):
        expected = alone.step(view(step))
        assert all(np.array_equal(one.step(view(step)), expected) for one in points)
    assert component.asked == 3 + 3
    shared = next(iter(answers._shared.values()))
    assert not shared._held, "an answer that all have had is kept"


def test_another_buffer_is_another_policy(component: Any) -> None:
    answers = Answers()
    points = [answers.open(parse("counting"), setting(buffer), buffer) for buffer in (8, 16)]
    for one in points:
        one.step(view(0))
    assert component.asked == 2


def test_a_component_of_another_package_serves_one_point_alone(
    component: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "BUILT_IN", ())
    answers = Answers()
    for number in range(2):
        answers.open(parse("counting"), setting(), number).step(view(0))
    assert component.asked == 2


def test_a_component_of_another_package_changes_nothing_of_the_others(
    component: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does what it writes reach another point? torch writes into read-only memory; here the array
    that the view is of is found, as anybody can."""

    def write(self: Any, *shown: Any) -> Any:
        told = [self.setting.index_source, *shown]
        told += [shown[0].selected, shown[0].scores] if isinstance(shown[0], View) else []
        for array in told:
            while isinstance(array, np.ndarray) and array.base is not None:
                array = array.base
            if isinstance(array, np.ndarray):
                array.flags.writeable = True
                array[...] = 7
        return no_guesses()

    monkeypatch.setattr(answers_module, "BUILT_IN", ())
    monkeypatch.setattr(Counting, "step", write)
    monkeypatch.setattr(Counting, "begin", write)
    given, seen, prefill = setting(), view(0), np.zeros((2, LAYERS, BLOCKS), np.uint16)
    opened = Answers().open(parse("counting"), given, 0)
    assert len(opened.begin(0, BLOCKS, prefill)) == len(opened.step(seen)) == 0
    same = [seen.scores, seen.selected, given.index_source, prefill]
    before = [view(0).scores, view(0).selected, setting().index_source, np.zeros_like(prefill)]
    assert all(np.array_equal(one, other) for one, other in zip(same, before, strict=True))


def test_it_fails_for_each_point_at_the_same_step_and_frees_everything(
    component: Any,
) -> None:
    answers = Answers()
    points = [answers.open(parse("counting"), setting(), number) for number in range(3)]
    for one in points[:2]:
        with pytest.raises(BadInput, match="no step 3"):
            one.step(view(3))
    assert component.asked == 1
    answers.leave(2)
    shared = next(iter(answers._shared.values()))
    assert not shared._held
