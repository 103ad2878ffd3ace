"""Sessions over the members of a pod: the `Sessions` of a host that has several daemons.

A session is cut into segments as the map says. Each has a home, computed from the map (see
`offstage.dpu.pod.placement`), and is there a session of its own, whose chain begins with the
segment's name: a hash of all chunks before it and of its first. So a segment that two sessions
share has one home and the same blocks there, whatever the map put beside it, also while it grows.

Where the home does not answer, the segment gets another one among the members that do, and begins
there with what that member has stored of it: the rest is a miss, computed and put again. A segment
that its home lacks something of is read where there is more of it: at who was home before a change
of the map, or would be without a drain. One that has copies is read at the less loaded of two
places drawn. Who brings blocks home, and who makes copies: `offstage.host.pod.upkeep`.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from offstage.dpu.pod.heat import read_places
from offstage.dpu.pod.map import PodMap
from offstage.dpu.pod.placement import former_homes, ranked, segment_key
from offstage.dpu.pod.segments import SegmentGrid
from offstage.host.decode.timeline import Clock
from offstage.host.link.tier_sessions import ALL_SCORES
from offstage.host.pod.joined import Joined, Silent

__all__ = ["PodSessions", "Segment"]

RECENT_MAX = 1024


@dataclass
class Segment:
    """Consecutive chunks of a session, from chunk `first` on, and where they are."""

    name: bytes
    first: int
    window_blocks: int
    contents: list[bytes] = field(default_factory=list)
    at: Joined | None = None
    handle: int = -1
    chunk_keys: list[bytes] = field(default_factory=list)
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 0, 2), np.uint64))
    """Of its blocks there, uint64 `[layers, chunks, 2]`."""
    to_fill: bool = False
    """It is read where it was before, since its home lacks something of it."""
    been: set[str] = field(default_factory=set)
    """Members that it was open at."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it is open, to be put back by the setter."""
        return self.at, self.handle, self.keys, self.chunk_keys

    @place.setter
    def place(self, place: tuple[Any, ...]) -> None:
        self.at, self.handle, self.keys, self.chunk_keys = place

    @property
    def chain(self) -> list[bytes]:
        """What its chunks are called in a member's chain: the first by the segment's name."""
        return [self.name, *self.contents[1:]]


@dataclass
class _Session:
    select_blocks: int
    sink_blocks: int
    window_blocks: int
    step_ns: int
    generating: bool = False
    segments: list[Segment] = field(default_factory=list)


class PodSessions:
    """`Sessions` over members that all have the same geometry."""

    def __init__(
        self, members: Sequence[Joined], grid: SegmentGrid, clock: Clock | None = None
    ) -> None:
        """`grid`: of chunks. `clock`: that of the members."""
        self.members, self.grid = list(members), grid
        self.clock = clock or Clock()
        self.map: PodMap | None = None
        """The newest that is known; None: none that says who was home before."""
        self.wall_s: Callable[[], float] = time.time
        self.copies: dict[bytes, tuple[str, ...]] = {}
        """By segment, members that have a copy, as the homes said last."""
        self.demanded: Counter[bytes] = Counter()
        """Blocks by segment, since the homes were told."""
        self.asked: dict[bytes, int] = {}
        """Blocks that were stored of each segment when it was opened last."""
        self.recent: dict[bytes, Segment] = {}
        """The segments that were opened last, some of which are closed by now."""
        self.lacking: dict[bytes, tuple[list[bytes], Joined, Joined]] = {}
        """Segments that were not whole at their home: their chain, where there is more, the home;
        until somebody brings it home."""
        self._random = random.Random(0)
        self.hints = ALL_SCORES
        self.rehomed = 0
        """Segments that got another home because the first did not answer."""
        self._layers = members[0].control.geometry.layer_count
        self._sessions: dict[int, _Session] = {}
        self._number = 0

    def admit(self, coming: Joined) -> Joined | None:
        """A member that came, or came back: it is asked from now on. The one that it was before,
        if any, which has to be lost."""
        before = next((one for one in self.members if one.member.name == coming.member.name), None)
        assert before is None or before.lost, "two connections to one member"
        if before is not None:
            coming.inherit(before)
        self.members = [one for one in self.members if one is not before] + [coming]
        return before

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; no member hears of it before its first segment."""
        self._number += 1
        self._sessions[self._number] = _Session(select_blocks, sink_blocks, window_blocks, step_ns)
        return self._number

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """Append chunks, segment by segment. RunFailed where no member answers."""
        one = self._sessions[session]
        keys: list[bytes] = []
        stored: list[int] = []
        left = list(contents)
        while left:
            segment = self._open_end(one, left)
            room = self.grid.size(len(one.segments) - 1) - len(segment.contents)
            batch, left = left[:room], left[room:]
            segment.contents += batch
            found = self._append(one, segment, batch)
            keys += found.keys
            stored += found.stored_layers
        return p.Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks, at every member."""
        one = self._sessions[session]
        one.generating = generating
        for segment in one.segments:
            self._tell(segment, "set_generating", generating)

    def session_close(self, session: int, *, archive: bool = True) -> None:
        """Who does not answer now is told when it is asked again; without `archive` all members
        are told that may have a copy. A host with an `Upkeep` deletes by its `delete`."""
        for segment in self._sessions.pop(session).segments:
            if segment.at is not None:
                segment.at.close_session(segment.handle, () if archive else segment.chain)
                segment.at.segments -= 1
            if not archive:
                self._delete_elsewhere(segment)

    def _delete_elsewhere(self, segment: Segment) -> None:
        """Where it was read or put, where a copy is, and at its home of now and of the last map."""
        names = {*segment.been, *self.copies.pop(segment.name, ())}
        homes = [one for one in self.members if one.member.state == "up"]
        likely = [*([_best(homes, segment)] if homes else []), *self._before(segment, self.members)]
        for one in self.members:
            if one is not segment.at and (one.member.name in names or one in likely):
                one.delete(segment.chain)
        self.lacking.pop(segment.name, None)
        self.recent.pop(segment.name, None)

    def parts(
        self, session: int, ordinals: NDArray[np.uint32]
    ) -> list[tuple[Segment, NDArray[np.intp]]]:
        """The segments of the blocks, each with its indices into `ordinals`."""
        segments = self._sessions[session].segments
        of = self.grid.numbers(ordinals)
        return [(segments[number], np.flatnonzero(of == number)) for number in np.unique(of)]

    def segments(self, session: int) -> list[Segment]:
        """All of a session, in order."""
        return self._sessions[session].segments

    def each(self) -> Iterator[tuple[int, Segment]]:
        """All segments of open sessions, with their session."""
        return (
            (number, segment) for number, one in self._sessions.items() for segment in one.segments
        )

    def generating(self, session: int) -> bool:
        """As `set_generating` said last."""
        return self._sessions[session].generating

    def homes(self, now_ns: int) -> list[Joined]:
        """Who takes new segments and answers."""
        return [one for one in self.members if one.usable(now_ns) and one.member.state == "up"]

    def switch(self, session: int, segment: Segment, to: Joined) -> bool:
        """Read the segment there from now on, if all of it is; no call may be in flight for it."""
        place = segment.place
        try:
            found = self._open_at(to, self._sessions[session], segment)
            if not self._lacks(found):
                segment.to_fill = False
                to.segments += 1
                if place[0] is not None:
                    place[0].close_session(place[1])
                    place[0].segments -= 1
                return True
            to.close_session(segment.handle)
        except Silent:
            _leave(segment)
        segment.place = place
        return False

    def home(self, session: int, segment: Segment) -> Joined:
        """Who has the segment and answers; another home where the first does not. RunFailed where
        nobody answers."""
        if segment.at is None or not segment.at.usable(self.clock.now_ns()):
            self._rehome(self._sessions[session], segment)
        assert segment.at is not None
        return segment.at

    def _open_end(self, one: _Session, coming: list[bytes]) -> Segment:
        """The segment that takes the next chunk."""
        number = len(one.segments)
        if number and len(one.segments[-1].contents) < self.grid.size(number - 1):
            return one.segments[-1]
        before = one.segments[-1] if number else None
        named = b"" if before is None else segment_key(_numbers(before.contents), before.name)
        last = len(coming) <= self.grid.size(number)
        segment = Segment(
            segment_key(_numbers(coming[:1]), named),
            self.grid.start(number),
            one.window_blocks if last else 0,
        )
        one.segments.append(segment)
        return segment

    def _append(self, one: _Session, segment: Segment, batch: list[bytes]) -> p.Appended:
        """The batch, which stands in the segment's contents already, is told its home."""
        if segment.at is not None and segment.at.usable(self.clock.now_ns()):
            try:
                return self._told(segment, batch)
            except Silent:
                pass
        found = self._rehome(one, segment)
        count = len(batch)
        return p.Appended(
            keys=found.keys[-count:], store_keys=[], stored_layers=found.stored_layers[-count:]
        )

    def _rehome(self, one: _Session, segment: Segment) -> p.Appended:
        """Open the segment at the best member that answers, with all its chunks."""
        rehomed = segment.at is not None
        if segment.at is not None:
            segment.at.segments -= 1
            self.rehomed += 1
        _leave(segment)
        while True:
            now_ns = self.clock.now_ns()
            usable = [each for each in self.members if each.usable(now_ns)]
            homes = [each for each in usable if each.member.state == "up"]
            if not homes:
                why = "; ".join(
                    f"{each.member.name}: {each.lost or 'no answer in time'}"
                    for each in self.members
                )
                raise RunFailed(
                    f"no daemon of the pod answers ({why})",
                    "pod",
                    "offstage pod status says which are there",
                )
            try:
                found = self._open_where(homes, usable, one, segment)
            except Silent:
                _leave(segment)
                continue
            assert segment.at is not None
            segment.at.segments += 1
            segment.at.came += rehomed
            self.asked[segment.name] = sum(found.stored_layers)
            self.recent.pop(segment.name, None)
            self.recent[segment.name] = segment
            if len(self.recent) > RECENT_MAX:
                del self.recent[next(iter(self.recent))]
            return found

    def _open_where(
        self, homes: list[Joined], usable: list[Joined], one: _Session, segment: Segment
    ) -> p.Appended:
        """Open it at its home or at a copy; where that lacks some of it, at who has more. Silent:
        the first that was asked does not answer."""
        home = _best(homes, segment)
        held = self.copies.get(segment.name, ())
        copies = [each for each in homes if each is not home and each.member.name in held]
        loads, draw = [each.load for each in (home, *copies)], self._random.getrandbits(32)
        places = read_places(home, copies, self._before(segment, usable), loads, draw)
        segment.to_fill = False
        found = self._open_at(next(places), one, segment)
        if not self._lacks(found):
            return found
        for other in places:
            place = segment.place
            if other is segment.at:
                continue
            try:
                more = self._open_at(other, one, segment)
            except Silent:
                _leave(segment)
                segment.place = place
                continue
            if sum(more.stored_layers) <= sum(found.stored_layers) and other is not home:
                other.close_session(segment.handle)
                segment.place = place
                continue
            place[0].close_session(place[1])
            found, segment.to_fill = more, other is not home
            home.stale += segment.to_fill
            if segment.to_fill and len(self.lacking) < RECENT_MAX:
                self.lacking[segment.name] = segment.chain, other, home
        return found

    def _lacks(self, found: p.Appended) -> bool:
        return any(stored < self._layers for stored in found.stored_layers)

    def _before(self, segment: Segment, usable: list[Joined]) -> Iterator[Joined]:
        """Who may have it from before: by the map, and who would be home without a drain."""
        names = []
        if self.map is not None and self.map.former and self.map.homes:
            names = former_homes(self.map, [segment.name], int(self.wall_s()))[0]
        found = [one for name in names for one in usable if one.member.name == name]
        drained = _best(usable, segment)
        yield from found
        if drained not in found and drained.member.state != "up":
            yield drained

    def _open_at(self, at: Joined, one: _Session, segment: Segment) -> p.Appended:
        """The segment in a session of its own there, with all its chunks."""
        segment.at, segment.handle, segment.chunk_keys = at, -1, []
        segment.been.add(at.member.name)
        at.settle()
        segment.handle = at.ask(
            at.control.session_open,
            select_blocks=one.select_blocks,
            sink_blocks=0 if segment.first else one.sink_blocks,
            window_blocks=segment.window_blocks,
            step_ns=one.step_ns,
        )
        self.hints = at.control.hints
        found = self._told(segment, segment.contents)
        if one.generating:
            at.ask(at.control.set_generating, segment.handle, True)
        return found

    def _told(self, segment: Segment, batch: list[bytes]) -> p.Appended:
        """Chunks appended at the segment's home; the first is named by the segment."""
        assert segment.at is not None
        named = batch if segment.chunk_keys else segment.chain
        found: p.Appended = segment.at.ask(segment.at.control.append, segment.handle, named)
        segment.chunk_keys += found.keys
        segment.keys = block_keys(segment.chunk_keys, self._layers)
        return found

    def _tell(self, segment: Segment, name: str, *args: object, **words: Any) -> None:
        """What a member need not know that is silent: the segment is opened anew elsewhere."""
        at = segment.at
        if at is not None and at.usable(self.clock.now_ns()):
            try:
                at.ask(getattr(at.control, name), segment.handle, *args, **words)
            except Silent:
                pass


def _leave(segment: Segment) -> None:
    """Its member did not answer; what is open there is closed when it is asked again."""
    if segment.at is not None and segment.handle >= 0:
        segment.at.left.append((segment.handle, ()))
    segment.at, segment.handle = None, -1


def _best(members: Sequence[Joined], segment: Segment) -> Joined:
    return members[int(ranked([one.member for one in members], [segment.name], 1)[0, 0])]


def _numbers(contents: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(one, "little") for one in contents]
