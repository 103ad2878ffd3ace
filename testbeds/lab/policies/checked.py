"""Run a policy and check every answer before it is passed to the core.

A policy may come from another package. A wrong answer, or any exception, becomes a BadInput that
names the policy, the step and the session; a correct answer is passed on unchanged.
"""

import sys
import traceback
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES
from offstage.testbeds.lab.policies.causality import copied, due, refuse_future
from offstage.testbeds.lab.policies.policy import GUESS, PolicyComponent, Setting, View, no_guesses

__all__ = ["Opened", "checked_begin", "checked_step", "joined", "placed", "raised"]


_FIRST_CAUSE = CAUSES.index("window")  # those before it are no prefetch
_FIX = "fix the policy: see the contract in offstage.testbeds.lab.policies.policy"


class Opened:
    """The components of one run. Guesses are in the order of the components."""

    def __init__(self, components: Sequence[type[PolicyComponent]], setting: Setting) -> None:
        self.setting = setting
        self.parts = tuple(_opened(one, setting) for one in components)

    def begin(
        self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None
    ) -> npt.NDArray[np.void]:
        """All components' guesses for a session's first steps."""
        layers = self.setting.layer_count
        answers = [checked_begin(one, session, blocks, prefill, layers) for one in self.parts]
        return joined(answers)

    def step(self, view: View) -> npt.NDArray[np.void]:
        """All components' guesses after a step. BadInput for a guess that uses the future."""
        layer = due(view)
        before = [copied(one) for one in self.parts] if layer is not None else []
        answers = [checked_step(one, view) for one in self.parts]
        for policy, answer in zip(before, answers, strict=False):
            assert layer is not None
            refuse_future(policy, view, answer, layer)
        return joined(answers)


def checked_step(policy: PolicyComponent, view: View) -> npt.NDArray[np.void]:
    """The policy's answer to a view; BadInput if it is invalid."""
    where = f"step {view.step} of session {view.session}"
    answer = _called(policy, where, lambda: policy.step(view))
    layers = len(view.selected)
    _check(policy, where, answer, layers, view.blocks)
    if np.any((answer["steps"] == 0) & (answer["layer"] <= answer["after_layer"])):
        raise _bad(policy, where, "guessed for a layer of this step that has already run")
    if np.any(answer["after_layer"] >= layers):
        raise _bad(
            policy,
            where,
            f"gave after_layer {answer['after_layer'].max()}, but there are {layers} layers",
        )
    return answer


def checked_begin(
    policy: PolicyComponent,
    session: int,
    blocks: int,
    prefill: npt.NDArray[np.uint16] | None,
    layer_count: int,
) -> npt.NDArray[np.void]:
    """The policy's answer before a session's first step; BadInput if it is invalid."""
    where = f"begin of session {session}"
    answer = _called(policy, where, lambda: policy.begin(session, blocks, prefill))
    _check(policy, where, answer, layer_count, blocks)
    return answer


def _opened(kind: type[PolicyComponent], setting: Setting) -> PolicyComponent:
    try:
        return kind(setting)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"policy {kind.name!r} cannot be opened: {raised(error, kind)}", "", _FIX
        ) from error


def _called(
    policy: PolicyComponent, where: str, call: Callable[[], npt.NDArray[np.void]]
) -> npt.NDArray[np.void]:
    try:
        with np.errstate():  # what a policy sets by np.seterr is its own
            return call()
    except (Exception, SystemExit) as error:
        raise _bad(policy, where, f"raised {raised(error, type(policy))}") from error


def raised(error: BaseException, kind: type[PolicyComponent] | None = None) -> str:
    """Type, text and place of an error in the policy's file."""
    return placed(error, getattr(sys.modules.get(kind.__module__), "__file__", "") if kind else "")


def placed(error: BaseException, home: str) -> str:
    """Type, text and place of an error: the innermost frame in the file `home`, or the innermost
    of all if none is in that file."""
    if isinstance(error, SyntaxError) and error.filename == home:
        return f"{type(error).__name__}: {error.msg} ({home}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    last = next((one for one in reversed(frames) if one.filename == home), frames[-1])
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _check(policy: PolicyComponent, where: str, answer: object, layers: int, blocks: int) -> None:
    if not isinstance(answer, np.ndarray) or answer.dtype != GUESS or answer.ndim != 1:
        what = f"{answer.dtype} {answer.shape}" if isinstance(answer, np.ndarray) else answer
        raise _bad(policy, where, f"returned {what!r:.80}, not a one-dimensional GUESS array")
    if not len(answer):
        return
    for column, limit in (("layer", layers), ("ordinal", blocks)):
        if answer[column].max() >= limit:
            raise _bad(
                policy, where, f"guessed {column} {answer[column].max()}; the limit is {limit}"
            )
    cause = answer["cause"]
    if cause.min() < _FIRST_CAUSE or cause.max() >= len(CAUSES):
        known = ", ".join(CAUSES[_FIRST_CAUSE:])
        raise _bad(policy, where, f"guessed with a cause that is not one of {known}")
    if answer["reserved"].any():
        raise _bad(policy, where, "did not leave 'reserved' zero")


def _bad(policy: PolicyComponent, where: str, what: str) -> BadInput:
    return BadInput(f"policy {policy.name!r} {what}", where, _FIX)


def joined(answers: list[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """The answers of several components, concatenated."""
    if len(answers) == 1:
        return answers[0]
    return np.concatenate(answers) if answers else no_guesses()
