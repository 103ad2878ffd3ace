"""Turns of a reactor: which commands it decides together, and which reads it submits together.

Model: a turn takes commands, and then submits all reads that these decided. Commands that are sent
while the reactor wakes up for the first of them, or decides it, are of one turn; the reads of the
earlier ones wait for the later. The reads of a turn are a batch, submitted one after another,
demands first; the second waits for the system call that starts an idle drive, and what that takes
of a lone read is within its service. All of a batch take the one drawn time from the submission of
the last (`samples.py`), so they end together. Reads for which the ends of others made room are
submitted one by one.

One thread; nothing here can fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from offstage.asic_model.parameters import Preset
from offstage.asic_model.samples import DEMAND
from offstage.asic_model.services import Services

__all__ = ["Asked", "Turns"]

PS = 1000  # in a ns
Done = Callable[[int], None]
Asked = tuple[int, str, Done, dict[str, Any]]
"""A request to the chip: its tag, its kind, what its end calls, and the rest."""


@dataclass(slots=True)
class _Turn:
    """Commands of a turn: how many are not decided, when the last arrives, and whether the turn
    takes no more."""

    left: int = 0
    last_ps: int = 0
    full: bool = False


class Turns:
    """Those of one run. A chip has no turns, and its reads of one moment are a batch. `at` calls at
    a time; `enter` gives a request to the chip, at a time."""

    def __init__(
        self,
        preset: Preset,
        services: Services,
        at: Callable[[int, Done], None],
        enter: Callable[[Asked, int], None],
    ) -> None:
        self._services, self._at, self._enter = services, at, enter
        self._cores = cores = preset.cores
        self._read_ps = 0 if cores is None else cores.read.whole
        self._start_ps = 0 if cores is None else cores.start.whole
        self._wake_ps = 0 if cores is None else cores.wake.whole
        self._way_ps = preset.front_end.latency.whole
        self._next = _Turn(full=True)
        self._now: _Turn | None = None
        self._batch: list[Asked] = []
        self._starts_ps = 0

    def command(self, now_ps: int, done: Done, *, rested: bool) -> Done:
        """Whom to tell of the end of a command that is sent now; `rested`: it wakes the reactor."""
        if self._cores is None:
            return done
        if self._next.full:
            self._next = _Turn(full=not rested)
        of = self._next
        of.left += 1
        of.last_ps = now_ps + self._way_ps
        return partial(self._decided, of, done)

    def starts(self, rested: bool) -> None:
        """The next read finds the drive idle; `rested`: for long."""
        self._starts_ps = self._start_ps + rested * self._wake_ps

    def read(self, tag: int, done: Done, request: dict[str, Any]) -> None:
        """A read that is decided now."""
        self._batch.append((tag, "read", done, request))

    def submit(self, now_ps: int, reading: int) -> None:
        """Submit what was decided, unless the turn goes on. `reading`: reads that have not ended,
        these among them."""
        if not self._batch or (self._now is not None and self._now.left):
            return
        batch, starts_ps = sorted(self._batch, key=_after_demands), self._starts_ps
        self._batch, self._starts_ps = [], 0
        drawn_ns = self._services.draw_ns(batch[0][3]["cause"], reading - 1, now_ps)
        for place, asked in enumerate(batch):
            held_ps = (len(batch) - 1 - place) * self._read_ps
            held_ps += starts_ps if place == 0 < len(batch) - 1 else 0
            asked[3]["score_count"] = drawn_ns + held_ps // PS
            if place and starts_ps:
                self._at(now_ps + self._read_ps + starts_ps, partial(self._enter, asked))
            else:
                self._enter(asked, now_ps)

    def _decided(self, of: _Turn, done: Done, now_ps: int) -> None:
        of.full = True
        if of.last_ps > now_ps:
            self._at(of.last_ps, partial(self._told, of, done))
        else:
            self._told(of, done, now_ps)

    def _told(self, of: _Turn, done: Done, now_ps: int) -> None:
        of.left -= 1
        self._now = of
        done(now_ps)


def _after_demands(asked: Asked) -> bool:
    return bool(asked[3]["cause"] != DEMAND)
