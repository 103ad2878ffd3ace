"""What policies answer, made once for all points of a pass that would be answered alike.

Model: a component's answer follows from its setting and what it has been shown of a session, never
from what is resident. So points that differ in their HBM pool or in what stands beside a component
have one object of it: the first that comes to a step asks, the others take what was answered, and
when all had it, it is dropped. That holds for components of ours, which keep nothing across
sessions; one of another package serves one point alone. A component that fails, fails at that step
for every point that has it.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import OffstageError
from offstage.testbeds.lab.policies import BUILT_IN
from offstage.testbeds.lab.policies.checked import Opened, joined
from offstage.testbeds.lab.policies.policy import PolicyComponent, Setting, View
from offstage.testbeds.lab.policies.registry import Combined

__all__ = ["Answers", "Asking"]

Guesses = npt.NDArray[np.void]
BEGIN = -1
"""In place of a step, for what is guessed before the first."""


@dataclass
class _Held:
    """An answer that not all have had."""

    answer: Guesses | OffstageError
    unread: set[int]


class _Shared:
    """One component and those who read it."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.readers: set[int] = set()
        self._held: dict[tuple[int, int], _Held] = {}

    def answer(self, reader: int, at: tuple[int, int], ask: Callable[[], Guesses]) -> Guesses:
        """What it answers at (session, step): asked where this reader is the first."""
        if at not in self._held:
            self._held[at] = _Held(_asked(ask), set(self.readers))
        held = self._held[at]
        self._read(reader, at, held)
        if isinstance(held.answer, OffstageError):
            raise held.answer
        return held.answer

    def leave(self, reader: int) -> None:
        """The reader asks no more."""
        self.readers.discard(reader)
        for at, held in list(self._held.items()):
            self._read(reader, at, held)

    def _read(self, reader: int, at: tuple[int, int], held: _Held) -> None:
        held.unread.discard(reader)
        if not held.unread:
            del self._held[at]


class Answers:
    """All components of a pass. Open all points before the first of them asks."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, _Shared] = {}

    def open(self, combined: Combined, setting: Setting, reader: int) -> "Asking":
        """The policy of one point, by its number. BadInput where a component cannot work here."""
        parts = []
        for component in combined.asked:
            key = _key(component, setting, reader)
            if key not in self._shared:
                self._shared[key] = _Shared(Opened((component,), setting))
            parts.append(self._shared[key])
        for part in parts:
            part.readers.add(reader)
        return Asking(parts, reader)

    def leave(self, reader: int) -> None:
        """The point has ended before its time."""
        for shared in self._shared.values():
            shared.leave(reader)


class Asking:
    """A policy as one point sees it; as `registry.Opened`."""

    def __init__(self, parts: list[_Shared], reader: int) -> None:
        self._parts, self._reader = parts, reader

    def begin(self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None) -> Guesses:
        """All components' guesses for a session's first steps."""
        return joined(
            [
                one.answer(
                    self._reader,
                    (session, BEGIN),
                    partial(one.opened.begin, session, blocks, prefill),
                )
                for one in self._parts
            ]
        )

    def step(self, view: View) -> Guesses:
        """All components' guesses after a step."""
        return joined(
            [
                one.answer(self._reader, (view.session, view.step), partial(one.opened.step, view))
                for one in self._parts
            ]
        )


def _asked(ask: Callable[[], Guesses]) -> Guesses | OffstageError:
    try:
        answer = ask()
    except OffstageError as error:
        return error
    answer = answer.view()  # another package may go on with its own
    answer.setflags(write=False)
    return answer


def _key(component: type[PolicyComponent], setting: Setting, reader: int) -> Hashable:
    """Equal where the component answers alike; another package's is one point's own."""
    values = (getattr(setting, one.name) for one in fields(setting))
    known = tuple(one.tobytes() if isinstance(one, np.ndarray) else one for one in values)
    return component, known, None if component in BUILT_IN else reader
