"""The answers of policies, computed once for all points of a pass with equal answers.

Model: a component's answer depends on its setting and its past views of the session, never on
resident blocks; on the HBM pool only if it has a budget. So points that otherwise differ only in
their HBM pool or in their other components share one object of a component: the first point at a
step calls it, the others reuse the answer, and it is dropped when all have read it. Only built-in
components are shared, because they keep no state across sessions; a component of another package
serves one point, and gets arrays of its own: torch, for one, writes into memory that is read-only
to numpy, and all points of a pass read the same slabs. A component that fails at a step fails there
for every point that shares it.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

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
"""Step number of the guesses before the first step."""


@dataclass
class _Held:
    """An answer that some readers have not read yet."""

    answer: Guesses | OffstageError
    unread: set[int]


class _Shared:
    """One component and its readers. `apart`: it gets arrays of its own."""

    def __init__(self, opened: Opened, apart: bool) -> None:
        self.opened = opened
        self.apart = apart
        self.readers: set[int] = set()
        self._held: dict[tuple[int, int], _Held] = {}

    def answer(self, reader: int, at: tuple[int, int], ask: Callable[[], Guesses]) -> Guesses:
        """The answer at (session, step); the first reader calls `ask`."""
        if at not in self._held:
            self._held[at] = _Held(_asked(ask), set(self.readers))
        held = self._held[at]
        self._read(reader, at, held)
        if isinstance(held.answer, OffstageError):
            raise held.answer
        return held.answer

    def begin(self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None) -> Guesses:
        """The component's guesses before the first step."""
        return self.opened.begin(session, blocks, _own(prefill) if self.apart else prefill)

    def step(self, view: View) -> Guesses:
        """The component's guesses after a step."""
        return self.opened.step(_apart(view) if self.apart else view)

    def leave(self, reader: int) -> None:
        """Remove the reader: it reads no further answers."""
        self.readers.discard(reader)
        for at, held in list(self._held.items()):
            self._read(reader, at, held)

    def _read(self, reader: int, at: tuple[int, int], held: _Held) -> None:
        held.unread.discard(reader)
        if not held.unread:
            del self._held[at]


class Answers:
    """All components of a pass. Open all points before the first call of any of them."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, _Shared] = {}

    def open(self, combined: Combined, setting: Setting, reader: int) -> "Asking":
        """The policy of point `reader`. BadInput if a component cannot work on this workload."""
        parts = []
        for component in combined.asked:
            key = _key(component, setting, reader)
            if key not in self._shared:
                apart = component not in BUILT_IN
                own = replace(setting, index_source=_own(setting.index_source))
                opened = Opened((component,), own if apart else setting)
                self._shared[key] = _Shared(opened, apart)
            parts.append(self._shared[key])
        for part in parts:
            part.readers.add(reader)
        return Asking(parts, reader)

    def leave(self, reader: int) -> None:
        """Remove a point that ended early."""
        for shared in self._shared.values():
            shared.leave(reader)


class Asking:
    """The policy of one point, with the interface of `checked.Opened`."""

    def __init__(self, parts: list[_Shared], reader: int) -> None:
        self._parts, self._reader = parts, reader

    def begin(self, session: int, blocks: int, prefill: npt.NDArray[np.uint16] | None) -> Guesses:
        """All components' guesses for a session's first steps."""
        return joined(
            [
                one.answer(
                    self._reader,
                    (session, BEGIN),
                    partial(one.begin, session, blocks, prefill),
                )
                for one in self._parts
            ]
        )

    def step(self, view: View) -> Guesses:
        """All components' guesses after a step."""
        return joined(
            [
                one.answer(self._reader, (view.session, view.step), partial(one.step, view))
                for one in self._parts
            ]
        )


def _asked(ask: Callable[[], Guesses]) -> Guesses | OffstageError:
    try:
        answer = ask()
    except OffstageError as error:
        return error
    answer = answer.view()  # another package may modify its array later
    answer.setflags(write=False)
    return answer


def _own(values: Any) -> Any:
    """A read-only copy of an array; anything else as it is."""
    if not isinstance(values, np.ndarray):
        return values
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def _apart(view: View) -> View:
    return replace(view, **{one.name: _own(getattr(view, one.name)) for one in fields(view)})


def _key(component: type[PolicyComponent], setting: Setting, reader: int) -> Hashable:
    """Equal for components with equal answers; unique per point for another package's."""
    if not getattr(component, "budgets", False):
        setting = replace(setting, pool_blocks=0, traffic=0.0)
    values = (getattr(setting, one.name) for one in fields(setting))
    known = tuple(one.tobytes() if isinstance(one, np.ndarray) else one for one in values)
    return component, known, None if component in BUILT_IN else reader
