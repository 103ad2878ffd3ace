"""Sessions over the members of a pod: the `Sessions` of a host that has several daemons.

A session is split into shards as the map says. Each has a home, computed from the map (see
`offstage.dpu.pod.placement`), where it is a separate session. Its chain begins with the shard's
name: a hash of all chunks before it and of its first. A shard that two sessions share therefore
has one home and the same blocks there, also while it grows.

If the home does not answer, the shard gets another home among the members that do, and starts
with what that member has stored: the rest is a miss, recomputed and put again. If the home lacks
part of a shard, the shard is read at a member that has more: its home before the last map
change, or the home that it would have without a drain. A shard with copies is read at the less
loaded of two randomly drawn places. `offstage.host.pod.upkeep` moves shards home and makes
copies.
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
from offstage.dpu.pod.placement import former_homes, ranked, shard_key
from offstage.dpu.pod.shards import ShardGrid
from offstage.host.decode.timeline import Clock
from offstage.host.link.tier_sessions import ALL_SCORES
from offstage.host.pod.joined import Joined, Silent

__all__ = ["PodSessions", "Shard"]

RECENT_MAX = 1024


@dataclass
class Shard:
    """Consecutive chunks of a session, from chunk `first` on, and the member that has them."""

    name: bytes
    first: int
    window_blocks: int
    contents: list[bytes] = field(default_factory=list)
    at: Joined | None = None
    handle: int = -1
    chunk_keys: list[bytes] = field(default_factory=list)
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 0, 2), np.uint64))
    """Keys of its blocks at that member, uint64 `[layers, chunks, 2]`."""
    to_fill: bool = False
    """It is read at a previous home, since its home lacks part of it."""
    been: set[str] = field(default_factory=set)
    """Members where it was open before."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it is open, for saving and restoring."""
        return self.at, self.handle, self.keys, self.chunk_keys

    @place.setter
    def place(self, place: tuple[Any, ...]) -> None:
        self.at, self.handle, self.keys, self.chunk_keys = place

    @property
    def chain(self) -> list[bytes]:
        """Names of its chunks in a member's chain; the first is the shard's name."""
        return [self.name, *self.contents[1:]]


@dataclass
class _Session:
    select_blocks: int
    sink_blocks: int
    window_blocks: int
    step_ns: int
    generating: bool = False
    shards: list[Shard] = field(default_factory=list)


class PodSessions:
    """`Sessions` over members that all have the same geometry."""

    def __init__(
        self, members: Sequence[Joined], grid: ShardGrid, clock: Clock | None = None
    ) -> None:
        """`grid`: shape of the chunks. `clock`: the members' clock."""
        self.members, self.grid = list(members), grid
        self.clock = clock or Clock()
        self.map: PodMap | None = None
        """The newest known map; None without one: then no previous homes are known."""
        self.wall_s: Callable[[], float] = time.time
        self.copies: dict[bytes, tuple[str, ...]] = {}
        """Members that have a copy, by shard, as the homes last reported."""
        self.demanded: Counter[bytes] = Counter()
        """Demanded blocks by shard, since the last report to the homes."""
        self.asked: dict[bytes, int] = {}
        """Stored blocks of each shard when it was last opened."""
        self.recent: dict[bytes, Shard] = {}
        """The most recently opened shards, open or closed."""
        self.lacking: dict[bytes, tuple[list[bytes], Joined, Joined]] = {}
        """Shards that were incomplete at their home: chain, the member that has more, and the
        home; kept until `Upkeep` takes them."""
        self._random = random.Random(0)
        self.hints = ALL_SCORES
        self.rehomed = 0
        """How many shards got another home because the first did not answer."""
        self._layers = members[0].control.geometry.layer_count
        self._sessions: dict[int, _Session] = {}
        self._number = 0

    def admit(self, coming: Joined) -> Joined | None:
        """Add a member that joined or came back. Returns the previous `Joined` of that member, if
        any; it must be lost."""
        before = next((one for one in self.members if one.member.name == coming.member.name), None)
        assert before is None or before.lost, "two connections to one member"
        if before is not None:
            coming.inherit(before)
        self.members = [one for one in self.members if one is not before] + [coming]
        return before

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; members learn of it with its first shard."""
        self._number += 1
        self._sessions[self._number] = _Session(select_blocks, sink_blocks, window_blocks, step_ns)
        return self._number

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """Append chunks, shard by shard. RunFailed where no member answers."""
        one = self._sessions[session]
        keys: list[bytes] = []
        stored: list[int] = []
        left = list(contents)
        while left:
            shard = self._open_end(one, left)
            room = self.grid.size(len(one.shards) - 1) - len(shard.contents)
            batch, left = left[:room], left[room:]
            shard.contents += batch
            found = self._append(one, shard, batch)
            keys += found.keys
            stored += found.stored_layers
        return p.Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks, at every member."""
        one = self._sessions[session]
        one.generating = generating
        for shard in one.shards:
            self._tell(shard, "set_generating", generating)

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session. Members that do not answer close it later; without `keep`, every
        member that may have a copy deletes it. With an `Upkeep`, call its `delete` instead."""
        for shard in self._sessions.pop(session).shards:
            if shard.at is not None:
                shard.at.close_session(shard.handle, () if keep else shard.chain)
                shard.at.shards -= 1
            if not keep:
                self._delete_elsewhere(shard)

    def _delete_elsewhere(self, shard: Shard) -> None:
        """Delete it where it was read or put, at copies, and at its current and previous home."""
        names = {*shard.been, *self.copies.pop(shard.name, ())}
        homes = [one for one in self.members if one.member.state == "up"]
        likely = [*([_best(homes, shard)] if homes else []), *self._before(shard, self.members)]
        for one in self.members:
            if one is not shard.at and (one.member.name in names or one in likely):
                one.delete(shard.chain)
        self.lacking.pop(shard.name, None)
        self.recent.pop(shard.name, None)

    def parts(
        self, session: int, ordinals: NDArray[np.uint32]
    ) -> list[tuple[Shard, NDArray[np.intp]]]:
        """The shards of the blocks, each with its indices into `ordinals`."""
        shards = self._sessions[session].shards
        of = self.grid.numbers(ordinals)
        return [(shards[number], np.flatnonzero(of == number)) for number in np.unique(of)]

    def shards(self, session: int) -> list[Shard]:
        """The shards of a session, in order."""
        return self._sessions[session].shards

    def each(self) -> Iterator[tuple[int, Shard]]:
        """All shards of open sessions, each with its session number."""
        return ((number, shard) for number, one in self._sessions.items() for shard in one.shards)

    def generating(self, session: int) -> bool:
        """Whether the session is generating."""
        return self._sessions[session].generating

    def homes(self, now_ns: int) -> list[Joined]:
        """Members that take new shards and answer."""
        return [one for one in self.members if one.usable(now_ns) and one.member.state == "up"]

    def switch(self, session: int, shard: Shard, to: Joined) -> bool:
        """Read the shard at `to` from now on, if `to` has all of it. No call may be in flight for
        it."""
        place = shard.place
        try:
            found = self._open_at(to, self._sessions[session], shard)
            if not self._lacks(found):
                shard.to_fill = False
                to.shards += 1
                if place[0] is not None:
                    place[0].close_session(place[1])
                    place[0].shards -= 1
                return True
            to.close_session(shard.handle)
        except Silent:
            _leave(shard)
        shard.place = place
        return False

    def home(self, session: int, shard: Shard) -> Joined:
        """The member where the shard is open and that answers; gives it another home if needed.
        RunFailed if no member answers."""
        if shard.at is None or not shard.at.usable(self.clock.now_ns()):
            self._rehome(self._sessions[session], shard)
        assert shard.at is not None
        return shard.at

    def _open_end(self, one: _Session, coming: list[bytes]) -> Shard:
        """The shard that gets the next chunk."""
        number = len(one.shards)
        if number and len(one.shards[-1].contents) < self.grid.size(number - 1):
            return one.shards[-1]
        before = one.shards[-1] if number else None
        named = b"" if before is None else shard_key(_numbers(before.contents), before.name)
        last = len(coming) <= self.grid.size(number)
        shard = Shard(
            shard_key(_numbers(coming[:1]), named),
            self.grid.start(number),
            one.window_blocks if last else 0,
        )
        one.shards.append(shard)
        return shard

    def _append(self, one: _Session, shard: Shard, batch: list[bytes]) -> p.Appended:
        """Append the batch at the shard's home; the shard's contents have it already."""
        if shard.at is not None and shard.at.usable(self.clock.now_ns()):
            try:
                return self._told(shard, batch)
            except Silent:
                pass
        found = self._rehome(one, shard)
        count = len(batch)
        return p.Appended(
            keys=found.keys[-count:], store_keys=[], stored_layers=found.stored_layers[-count:]
        )

    def _rehome(self, one: _Session, shard: Shard) -> p.Appended:
        """Open the shard at the best member that answers, with all its chunks."""
        rehomed = shard.at is not None
        if shard.at is not None:
            shard.at.shards -= 1
            self.rehomed += 1
        _leave(shard)
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
                    "check which are up: offstage pod status",
                )
            try:
                found = self._open_where(homes, usable, one, shard)
            except Silent:
                _leave(shard)
                continue
            assert shard.at is not None
            shard.at.shards += 1
            shard.at.came += rehomed
            self.asked[shard.name] = sum(found.stored_layers)
            self.recent.pop(shard.name, None)
            self.recent[shard.name] = shard
            if len(self.recent) > RECENT_MAX:
                del self.recent[next(iter(self.recent))]
            return found

    def _open_where(
        self, homes: list[Joined], usable: list[Joined], one: _Session, shard: Shard
    ) -> p.Appended:
        """Open it at its home or at a copy; if that member lacks part of it, at one that has more.
        Silent: the first member does not answer."""
        home = _best(homes, shard)
        held = self.copies.get(shard.name, ())
        copies = [each for each in homes if each is not home and each.member.name in held]
        loads, draw = [each.load for each in (home, *copies)], self._random.getrandbits(32)
        places = read_places(home, copies, self._before(shard, usable), loads, draw)
        shard.to_fill = False
        found = self._open_at(next(places), one, shard)
        if not self._lacks(found):
            return found
        for other in places:
            place = shard.place
            if other is shard.at:
                continue
            try:
                more = self._open_at(other, one, shard)
            except Silent:
                _leave(shard)
                shard.place = place
                continue
            if sum(more.stored_layers) <= sum(found.stored_layers) and other is not home:
                other.close_session(shard.handle)
                shard.place = place
                continue
            place[0].close_session(place[1])
            found, shard.to_fill = more, other is not home
            home.stale += shard.to_fill
            if shard.to_fill and len(self.lacking) < RECENT_MAX:
                self.lacking[shard.name] = shard.chain, other, home
        return found

    def _lacks(self, found: p.Appended) -> bool:
        return any(stored < self._layers for stored in found.stored_layers)

    def _before(self, shard: Shard, usable: list[Joined]) -> Iterator[Joined]:
        """Members that may still have it: the previous home, and the home without a drain."""
        names = []
        if self.map is not None and self.map.former and self.map.homes:
            names = former_homes(self.map, [shard.name], int(self.wall_s()))[0]
        found = [one for name in names for one in usable if one.member.name == name]
        drained = _best(usable, shard)
        yield from found
        if drained not in found and drained.member.state != "up":
            yield drained

    def _open_at(self, at: Joined, one: _Session, shard: Shard) -> p.Appended:
        """Open the shard there as a separate session, with all its chunks."""
        shard.at, shard.handle, shard.chunk_keys = at, -1, []
        shard.been.add(at.member.name)
        at.settle()
        shard.handle = at.ask(
            at.control.session_open,
            select_blocks=one.select_blocks,
            sink_blocks=0 if shard.first else one.sink_blocks,
            window_blocks=shard.window_blocks,
            step_ns=one.step_ns,
        )
        self.hints = at.control.hints
        found = self._told(shard, shard.contents)
        if one.generating:
            at.ask(at.control.set_generating, shard.handle, True)
        return found

    def _told(self, shard: Shard, batch: list[bytes]) -> p.Appended:
        """Append chunks at the shard's home; the first gets the shard's name."""
        assert shard.at is not None
        named = batch if shard.chunk_keys else shard.chain
        found: p.Appended = shard.at.ask(shard.at.control.append, shard.handle, named)
        shard.chunk_keys += found.keys
        shard.keys = block_keys(shard.chunk_keys, self._layers)
        return found

    def _tell(self, shard: Shard, name: str, *args: object, **words: Any) -> None:
        """Make a call that may be lost: if the member is silent, the shard reopens elsewhere."""
        at = shard.at
        if at is not None and at.usable(self.clock.now_ns()):
            try:
                at.ask(getattr(at.control, name), shard.handle, *args, **words)
            except Silent:
                pass


def _leave(shard: Shard) -> None:
    """Leave a member that did not answer; its session is closed once it answers again."""
    if shard.at is not None and shard.handle >= 0:
        shard.at.left.append((shard.handle, ()))
    shard.at, shard.handle = None, -1


def _best(members: Sequence[Joined], shard: Shard) -> Joined:
    return members[int(ranked([one.member for one in members], [shard.name], 1)[0, 0])]


def _numbers(contents: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(one, "little") for one in contents]
