"""Reasons why an acknowledged block was missed, from one run over a live pod.

A reason concerns one of the two members of the miss, the one that acknowledged the block last or
the one that was asked, and has a time:

- one of the two was away during the request: faulty and not restored, suspected or lost by some
  host and not back, or changed in the map, each with the time that hosts need to find out;
- the block was written elsewhere while the member that was asked was away, and not to it since: the
  first request there writes it;
- the member that had it left the pod afterwards;
- it was written elsewhere, and the map has changed so often since that the location is unknown.

So a fault of one member explains no miss at another member, none after hosts have had time to
find out, and for each block only one.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from offstage.dpu.pod.map import FORMER_MAX
from offstage.host.pod.follow import LOOK_S
from offstage.host.pod.suspicion import SUSPECT_NS
from offstage.testbeds.bench.pod.faults import Done, Look
from offstage.testbeds.bench.pod.host import Miss, Sample, Seen

__all__ = ["Reasons"]

PUT_DEADLINES = 4
"""A put's deadline, in deadlines of a fetch."""
WATCH_S = 1.0
"""The longest delay of the map's watch."""
Span = tuple[float, float]


class Reasons:
    """The reasons in one run; times since the bench began."""

    def __init__(
        self, done: Sequence[Done], seen: Sequence[Seen], looks: Sequence[Look], deadline_s: float
    ) -> None:
        """`deadline_s`: of a fetch."""
        self.grace_s = SUSPECT_NS / 1e9 + LOOK_S + PUT_DEADLINES * deadline_s
        """Time until each host has noticed the fault, and requests in flight have ended."""
        self._away: dict[str, list[Span]] = defaultdict(list)
        self._left: dict[str, list[float]] = defaultdict(list)
        self._changes: list[float] = []
        for name, (begin_s, end_s) in [*_struck(done), *_suspected(seen)]:
            self._away[name].append((begin_s, end_s + self.grace_s))
        for before, after in pairwise(looks):
            self._changed(before, after)

    def has(self, sample: Sample, miss: Miss) -> bool:
        """Whether there is one for this miss of the request."""
        was, now, error, acked_s = miss
        if any(self._is_away(name, sample.begin_s, sample.end_s) for name in (was, now)):
            return True
        if error:
            return False
        if any(
            acked_s <= at_s + self.grace_s and at_s - WATCH_S <= sample.end_s
            for at_s in self._left[was]
        ):
            return True
        changes = sum(acked_s <= at_s <= sample.end_s for at_s in self._changes)
        return was != now and (self._is_away(now, acked_s, acked_s) or changes >= FORMER_MAX)

    def _is_away(self, name: str, begin_s: float, end_s: float) -> bool:
        return any(first <= end_s and begin_s <= last for first, last in self._away[name])

    def _changed(self, before: Look, after: Look) -> None:
        for name in {*before.members, *after.members}:
            was, now = before.members.get(name), after.members.get(name)
            if was == now:
                continue
            self._away[name].append((after.at_s - WATCH_S, after.at_s + self.grace_s))
            if was is not None and was[0] != "gone" and (now is None or now[0] == "gone"):
                self._left[name].append(after.at_s)
        if _up(before) != _up(after):
            self._changes.append(after.at_s)


def _up(look: Look) -> set[str]:
    return {name for name, (state, _) in look.members.items() if state == "up"}


def _struck(done: Iterable[Done]) -> Iterator[tuple[str, Span]]:
    """Members that did not answer; a member that joins or is drained does."""
    open_s: dict[str, float] = {}
    for one in done:
        if one.fault not in ("death", "stop"):
            continue
        if not one.healed:
            open_s.setdefault(one.member, one.at_s)
        elif one.member in open_s:
            yield one.member, (open_s.pop(one.member), one.at_s)
    yield from ((name, (begin_s, math.inf)) for name, begin_s in open_s.items())


def _suspected(seen: Iterable[Seen]) -> Iterator[tuple[str, Span]]:
    """Spans in which some host suspected a member, from the earliest possible begin."""
    open_s: dict[tuple[str, str], float] = {}
    for one in seen:
        who = one.host, one.member
        if one.what != "back":
            open_s.setdefault(who, min(one.at_s, one.since_s))
        elif who in open_s:
            yield one.member, (open_s.pop(who), one.at_s)
    yield from ((member, (begin_s, math.inf)) for (_, member), begin_s in open_s.items())
