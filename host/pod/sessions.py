"""Sessions over the members of a pod: the `Sessions` of a host that has several daemons.

A session is cut into segments of so many chunks. Each has a home, computed from the map (see
`offstage.dpu.pod.placement`), and is there a session of its own, whose chain begins with the
segment's name: a hash of all chunks before it and of its first. So a segment that two sessions
share has one home and the same blocks there, whatever the map put beside it, also while it grows.

Where the home does not answer, the segment gets another one among the members that do, and begins
there with what that member has stored of it: the rest is a miss, computed and put again. Who is
drained is asked only for a segment that its home has nothing of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.keys import block_keys
from offstage.dpu import protocol as p
from offstage.dpu.pod.placement import ranked, segment_key
from offstage.host.clock import Clock
from offstage.host.pod.joined import Joined, Silent
from offstage.host.sessions import ALL_SCORES

__all__ = ["PodSessions", "Segment"]


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
        self, members: Sequence[Joined], segment_chunks: int, clock: Clock | None = None
    ) -> None:
        """`segment_chunks`: chunks of a segment. `clock`: that of the members."""
        self.members, self.segment_chunks = list(members), segment_chunks
        self.clock = clock or Clock()
        self.hints = ALL_SCORES
        self.rehomed = 0
        """Segments that got another home because the first did not answer."""
        self._layers = members[0].control.geometry.layer_count
        self._sessions: dict[int, _Session] = {}
        self._number = 0

    def admit(self, coming: Joined) -> Joined | None:
        """A member that came, or came back: it is asked from now on. The one that it was before,
        if any, which has to be lost."""
        before = next((one for one in self.members
                       if one.member.name == coming.member.name), None)  # fmt: skip
        assert before is None or before.lost, "two connections to one member"
        self.members = [one for one in self.members if one is not before] + [coming]
        return before

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """See `Sessions`; no member hears of it before its first segment."""
        self._number += 1
        self._sessions[self._number] = _Session(select_blocks, sink_blocks, window_blocks, step_ns)
        return self._number

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """See `Sessions`. RunFailed where no member answers."""
        one = self._sessions[session]
        keys: list[bytes] = []
        stored: list[int] = []
        left = list(contents)
        while left:
            segment = self._open_end(one, left)
            room = self.segment_chunks - len(segment.contents)
            batch, left = left[:room], left[room:]
            segment.contents += batch
            found = self._append(one, segment, batch)
            keys += found.keys
            stored += found.stored_layers
        return p.Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        """See `Sessions`."""
        one = self._sessions[session]
        one.generating = generating
        for segment in one.segments:
            self._tell(segment, "set_generating", generating)

    def session_close(self, session: int, *, archive: bool = True) -> None:
        """See `Sessions`."""
        for segment in self._sessions.pop(session).segments:
            self._tell(segment, "session_close", archive=archive)
            if segment.at is not None:
                segment.at.segments -= 1

    def parts(
        self, session: int, ordinals: NDArray[np.uint32]
    ) -> list[tuple[Segment, NDArray[np.intp]]]:
        """The segments of the blocks, each with its indices into `ordinals`."""
        segments = self._sessions[session].segments
        of = ordinals // self.segment_chunks
        return [(segments[number], np.flatnonzero(of == number)) for number in np.unique(of)]

    def segments(self, session: int) -> list[Segment]:
        """All of a session, in order."""
        return self._sessions[session].segments

    def home(self, session: int, segment: Segment) -> Joined:
        """Who has the segment and answers; another home where the first does not. RunFailed where
        nobody answers."""
        if segment.at is None or not segment.at.usable(self.clock.now_ns()):
            self._rehome(self._sessions[session], segment)
        assert segment.at is not None
        return segment.at

    def _open_end(self, one: _Session, coming: list[bytes]) -> Segment:
        """The segment that takes the next chunk."""
        if one.segments and len(one.segments[-1].contents) < self.segment_chunks:
            return one.segments[-1]
        before = one.segments[-1] if one.segments else None
        named = b"" if before is None else segment_key(_numbers(before.contents), before.name)
        last = len(coming) <= self.segment_chunks
        segment = Segment(
            segment_key(_numbers(coming[:1]), named), len(one.segments) * self.segment_chunks,
            one.window_blocks if last else 0,
        )  # fmt: skip
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
        return p.Appended(keys=found.keys[-count:], store_keys=[],
                          stored_layers=found.stored_layers[-count:])  # fmt: skip

    def _rehome(self, one: _Session, segment: Segment) -> p.Appended:
        """Open the segment at the best member that answers, with all its chunks."""
        if segment.at is not None:
            segment.at.segments -= 1
            self.rehomed += 1
        _leave(segment)
        while True:
            now_ns = self.clock.now_ns()
            usable = [each for each in self.members if each.usable(now_ns)]
            homes = [each for each in usable if each.member.state == "up"]
            if not homes:
                why = "; ".join(f"{each.member.name}: {each.lost or 'no answer in time'}"
                                for each in self.members)  # fmt: skip
                raise RunFailed(f"no daemon of the pod answers ({why})", "pod",
                                "offstage pod status says which are there")  # fmt: skip
            try:
                found = self._open_at(_best(homes, segment), one, segment)
                former = _best(usable, segment)
                if former is not segment.at and not any(found.stored_layers):
                    self._tell(segment, "session_close")
                    found = self._open_at(former, one, segment)
                    if not any(found.stored_layers):  # the drained member never had it
                        self._tell(segment, "session_close")
                        found = self._open_at(_best(homes, segment), one, segment)
            except Silent:
                _leave(segment)
                continue
            assert segment.at is not None
            segment.at.segments += 1
            return found

    def _open_at(self, at: Joined, one: _Session, segment: Segment) -> p.Appended:
        """The segment in a session of its own there, with all its chunks."""
        segment.at, segment.handle, segment.chunk_keys = at, -1, []
        while at.left:
            at.ask(at.control.session_close, at.left.pop())
        segment.handle = at.ask(
            at.control.session_open, select_blocks=one.select_blocks,
            sink_blocks=0 if segment.first else one.sink_blocks,
            window_blocks=segment.window_blocks, step_ns=one.step_ns,
        )  # fmt: skip
        self.hints = at.control.hints
        found = self._told(segment, segment.contents)
        if one.generating:
            at.ask(at.control.set_generating, segment.handle, True)
        return found

    def _told(self, segment: Segment, batch: list[bytes]) -> p.Appended:
        """Chunks appended at the segment's home; the first is named by the segment."""
        assert segment.at is not None
        named = batch if segment.chunk_keys else [segment.name, *batch[1:]]
        found: p.Appended = segment.at.ask(segment.at.control.append, segment.handle, named)
        segment.chunk_keys += found.keys
        segment.keys = block_keys(segment.chunk_keys, self._layers)
        return found

    def _tell(self, segment: Segment, name: str, *args: object, **words: object) -> None:
        """What nobody needs an answer to: a member that is silent forgets the session anyway."""
        at = segment.at
        if at is not None and at.usable(self.clock.now_ns()):
            try:
                at.ask(getattr(at.control, name), segment.handle, *args, **words)
            except Silent:
                pass


def _leave(segment: Segment) -> None:
    """Its member did not answer; what is open there is closed when it is asked again."""
    if segment.at is not None and segment.handle >= 0:
        segment.at.left.append(segment.handle)
    segment.at, segment.handle = None, -1


def _best(members: Sequence[Joined], segment: Segment) -> Joined:
    return members[int(ranked([one.member for one in members], [segment.name], 1)[0, 0])]


def _numbers(contents: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(one, "little") for one in contents]
