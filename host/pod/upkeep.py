"""Background work of a host for its pod: filling new members, copying hot shards, draining.

Twice a second the host reports to each home its demands for that home's shards; the reply lists
the copies, and may ask the host to make or delete one. If the home lacks a shard, the host reads
it at its previous member and moves it home; once complete, the shard is read at home. All of this
runs in `Upkeep.turn`, on the thread that owns sessions and fabric, with few moves in flight.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec.structs import replace

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.pod.heat import HALF_LIFE_NS, CopyRule, hot_rate, next_place, read_places
from offstage.dpu.pod.map import Former
from offstage.dpu.pod.placement import moved_share, ranked
from offstage.dpu.protocol.pod_calls import CONTENTS_MAX, Answer, ShardReport, Tally
from offstage.host.pod.between_members import Move, Moves
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import LEFT_AT_ONCE, LEFT_MAX, Joined, Silent
from offstage.host.pod.pod_sessions import RECENT_MAX, PodSessions, Shard

__all__ = ["TELL_NS", "Counts", "Upkeep", "in_messages"]

TELL_NS = 500_000_000
REPORTS_MAX = 256
"""Most entries in one message; the daemon also limits its size."""
ENVELOPE_BYTES = 512
"""Upper bound of a message's size without its entries."""
SPREAD_NS = 3 * HALF_LIFE_NS
"""How long reported loads take to reflect a change of placement."""
TRIES_MAX = 8


@dataclass
class Counts:
    """Counters of this host's background work; bytes are payload."""

    filled_bytes: int = 0
    copied_bytes: int = 0
    filled_shards: int = 0
    copied_shards: int = 0
    dropped_copies: int = 0
    copies_held: int = 0
    stale_lookups: int = 0
    rehomed: int = 0
    asked_blocks: int = 0
    """Stored blocks of all shards opened since the last change of homes."""
    refilled_blocks: int = 0
    """Blocks moved home since then."""
    least_share: float = 0.0
    """The least share of all blocks that any placement would move for that change."""

    @property
    def asked_moved_share(self) -> float:
        """`refilled_blocks` as a share of `asked_blocks`."""
        return self.refilled_blocks / self.asked_blocks if self.asked_blocks else 0.0


def in_messages(reports: Sequence[ShardReport], bytes_max: int) -> Iterator[list[ShardReport]]:
    """Split entries into messages, at least one. Contents that do not fit are left out."""
    some: list[ShardReport] = []
    left = bytes_max - ENVELOPE_BYTES
    for one in reports:
        size = _size(one)
        if size > bytes_max - ENVELOPE_BYTES:
            one = replace(one, contents=b"")
            size = _size(one)
        if some and (size > left or len(some) >= REPORTS_MAX):
            yield some
            some, left = [], bytes_max - ENVELOPE_BYTES
        some.append(one)
        left -= size
    yield some


def _size(one: ShardReport) -> int:
    return len(msgspec.msgpack.encode(one))


class Upkeep:
    """Background work of one host; the copy rule comes with the map."""

    def __init__(
        self, sessions: PodSessions, fabric: PodFabric, layers: int, follow: Callable[[], None]
    ) -> None:
        """`layers`: layers of a chunk; `follow` takes over what the map's follower has found."""
        self._sessions, self._fabric, self._layers = sessions, fabric, layers
        self._follow, self._former = follow, Former(until_s=0, weights={})
        self.moves = Moves(fabric, layers)
        self._rule, self._epoch = CopyRule(copies_max=0), -1
        self._next_ns = 0
        self._made: list[ShardReport] = []
        self._wanted: set[bytes] = set()
        """Shards whose contents a home asked for."""
        self._switches: dict[tuple[int, int], tuple[Shard, Joined]] = {}
        self._tries: dict[bytes, int] = {}
        self._told: dict[Joined, dict[str, int]] = {}
        self._moved: dict[Joined, dict[str, int]] = {}
        self._spread_ns: dict[bytes, int] = {}
        self._filled_before = 0
        self.counts = Counts()
        self._draw = np.random.default_rng(0)

    def turn(self) -> None:
        """Do what is due. The agent calls it at every layer of a tick, prefill before it writes;
        always between two calls of the fabric, though fetches and puts may be in flight."""
        now_ns = self._sessions.clock.now_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + TELL_NS
            self._follow()
            self._read_map()
            self._settle(now_ns)
            self._tell_all(now_ns)
            self._fill(now_ns)
        self._switch_some()
        self.moves.turn()

    def delete(self, session: int) -> None:
        """Close a session and delete, at every member, what no other session uses. Ends its moves
        first, and reports its deleted copies to the homes."""
        for one in self._sessions.shards(session):
            self.moves.drop(one.name)
            self._made += [
                ShardReport(one.name, gone=at) for at in self._sessions.copies.get(one.name, ())
            ]
        self._sessions.session_close(session, keep=False)

    def close(self) -> None:
        """Drop the moves, send the last report and the contents that homes asked for, and clean
        up."""
        self.moves.close()
        self._tell_all(self._sessions.clock.now_ns())
        if self._wanted:
            self._tell_all(self._sessions.clock.now_ns())
        self._settle(self._sessions.clock.now_ns(), LEFT_MAX)

    def total(self) -> Counts:
        """The current counters."""
        counts, sessions = self.counts, self._sessions
        counts.stale_lookups = sum(one.stale for one in sessions.members)
        counts.rehomed = sessions.rehomed
        counts.filled_bytes = self.moves.bytes["filled"]
        counts.copied_bytes = self.moves.bytes["copied"]
        counts.copies_held = sum(len(each) for each in sessions.copies.values())
        counts.asked_blocks = sum(sessions.asked.values())
        counts.refilled_blocks = self.moves.blocks["filled"] - self._filled_before
        return counts

    # ---- deferred cleanup ----

    def _settle(self, now_ns: int, most: int = LEFT_AT_ONCE) -> None:
        """Do deferred cleanup at members that answer again."""
        for one in self._sessions.members:
            if (one.left or one.deletes) and one.usable(now_ns):
                with contextlib.suppress(Silent):
                    one.settle(most)

    # ---- the map ----

    def _read_map(self) -> None:
        found = self._sessions.map
        if found is None or found.epoch == self._epoch:
            return
        self._epoch, self._rule = found.epoch, found.copies
        self._tries.clear()
        if not found.former or not found.homes or found.former[0] == self._former:
            return
        self._former = found.former[0]
        self._sessions.asked = {
            one.name: self._layers * len(one.contents) for _, one in self._sessions.each()
        }
        self._filled_before = self.moves.blocks["filled"]
        before = replace(
            found,
            member=tuple(
                replace(one, state="up", weight=self._former.weights[one.name])
                for one in found.member
                if one.name in self._former.weights
            ),
        )
        if before.homes:
            self.counts.least_share = moved_share(before, found)[1]

    # ---- reports to homes ----

    def _tell_all(self, now_ns: int) -> None:
        self._forget_left()
        homes = self._sessions.homes(now_ns)
        if not homes:
            return
        hot = hot_rate([one.load for one in homes], self._rule)
        reports: dict[Joined, list[ShardReport]] = {
            one: [] for one in self._sessions.members if one.usable(now_ns)
        }
        made, self._made = self._made, []
        pinned = {
            one.name: one
            for number, one in self._sessions.each()
            if self._sessions.generating(number)
        }
        demanded = self._sessions.demanded
        names = list({**demanded, **pinned, **self._sessions.copies, **dict.fromkeys(self._wanted)})
        if names:
            for name, index in zip(
                names, ranked([o.member for o in homes], names, 1)[:, 0], strict=True
            ):
                shard = pinned.get(name) or self._sessions.recent.get(name)
                contents = b""
                if shard is not None and name in self._wanted:
                    self._wanted.discard(name)
                    contents = b"".join(shard.chain)[:CONTENTS_MAX]
                told = self._report(name, demanded[name], name in pinned, hot, contents)
                self._at(homes[int(index)], shard, reports).append(told)
        for one in made:
            home = homes[int(ranked([o.member for o in homes], [one.name], 1)[0, 0])]
            reports[home].append(one)
        demanded.clear()
        for at, said in reports.items():
            for some in in_messages(said, at.control.limits.message_size_bytes_max):
                self._tell(at, some, homes)

    def _forget_left(self) -> None:
        """Forget connections that were replaced, and copies that no longer exist."""
        there = set(self._sessions.members)
        for kept in (self._told, self._moved):
            for one in kept.keys() - there:
                del kept[one]
        for name in self._spread_ns.keys() - self._sessions.copies.keys():
            del self._spread_ns[name]

    def _at(
        self, home: Joined, shard: Shard | None, reports: dict[Joined, list[ShardReport]]
    ) -> list[ShardReport]:
        """The entries for the member that gets the report: a draining member while the shard is
        read there, so that the drain knows it is in use; otherwise the home."""
        at = None if shard is None else shard.at
        return reports[at if at in reports and at.member.state == "draining" else home]

    def _report(
        self, name: bytes, demands: int, pinned: bool, hot: float, contents: bytes
    ) -> ShardReport:
        rule = self._rule
        return ShardReport(
            name, demands, pinned, hot, rule.copies_max, rule.cool_s * 10**9, contents=contents
        )

    def _tell(self, at: Joined, reports: list[ShardReport], homes: list[Joined]) -> None:
        moved = self._moved.get(at, {})
        now = {"served": int(at.ends.sum()), "stale": at.stale, "rehomed": at.came, **moved}
        was = self._told.get(at, {})
        tally = {name: max(0, count - was.get(name, 0)) for name, count in now.items()}
        request = p.Shards(served=tally.pop("served"), reports=reports, tally=Tally(**tally))
        try:
            reply: p.ShardsReply = at.ask(at.control.call, request)
        except Silent:
            return
        self._told[at], at.load = now, reply.load
        for one, answer in zip(reports, reply.answers, strict=False):
            self._take(one.name, answer, at, homes)

    # ---- answers of homes ----

    def _take(self, name: bytes, answer: Answer, home: Joined, homes: list[Joined]) -> None:
        if answer.unknown:
            self._wanted.add(name)
        before = self._sessions.copies.get(name, ())
        if answer.copies:
            self._sessions.copies[name] = answer.copies
        else:
            self._sessions.copies.pop(name, None)
        shards = [(number, one) for number, one in self._sessions.each() if one.name == name]
        known = self._sessions.recent.get(name)
        if answer.make and known is not None:
            self._copy(known, home, answer.copies, homes)
        if answer.drop:
            self._drop(name, answer.drop, shards, home)
        elif answer.copies:
            now_ns = self._sessions.clock.now_ns()
            if answer.copies != before or now_ns >= self._spread_ns.get(name, 0):
                self._spread_ns[name] = now_ns + SPREAD_NS
                self._spread(shards, home, answer.copies, homes)

    def _copy(
        self, shard: Shard, home: Joined, copies: tuple[str, ...], homes: list[Joined]
    ) -> None:
        order = ranked([one.member for one in homes], [shard.name], len(homes))[0]
        names = [homes[int(index)].member.name for index in order]
        place = next_place(names, [home.member.name, *copies])
        target = next((one for one in homes if one.member.name == place), None)
        source = shard.at
        if target is None or source is None or source.member.state != "up":
            return
        if source.usable(self._sessions.clock.now_ns()):
            self.moves.add(Move(shard.name, shard.chain, source, target, "copied", self._copied))

    def _note(self, move: Move, what: str) -> None:
        of = self._moved.setdefault(move.target, {})
        of[what] = of.get(what, 0) + move.moved_bytes

    def _copied(self, move: Move) -> None:
        self._note(move, "copied_bytes")
        if move.whole:
            self.counts.copied_shards += 1
            self._made.append(ShardReport(move.name, made=move.target.member.name))

    def _spread(
        self,
        shards: Iterable[tuple[int, Shard]],
        home: Joined,
        copies: tuple[str, ...],
        homes: list[Joined],
    ) -> None:
        """Let each session read at the less loaded of two randomly drawn places; loads are updated
        after each choice."""
        places = [home, *(one for one in homes if one.member.name in copies and one is not home)]
        loads = [one.load for one in places]
        shards = [one for one in shards if one[1].at in places and not one[1].to_fill]
        for number, shard in shards:
            was = places.index(shard.at)  # type: ignore[arg-type]
            share = loads[was] / max(1, places[was].shards)
            draw = int(self._draw.integers(2**32))
            now = places.index(next(read_places(home, places[1:], (), loads, draw)))
            if now != was and loads[now] + share < loads[was]:
                loads[was] -= share
                loads[now] += share
                self._switches[number, shard.first] = shard, places[now]

    def _drop(
        self, name: bytes, member: str, shards: list[tuple[int, Shard]], home: Joined
    ) -> None:
        """Delete a copy, after its readers have switched to the home."""
        at = next((one for one in self._sessions.members if one.member.name == member), None)
        known = self._sessions.recent.get(name)
        self.counts.dropped_copies += 1
        now_ns = self._sessions.clock.now_ns()
        if at is None or known is None or at is home or not at.usable(now_ns):
            return
        for number, shard in shards:
            if shard.at is at and not self._fabric.in_flight(shard):
                self._sessions.switch(number, shard, home)
        if any(shard.at is at for _, shard in shards):
            return  # still read: the copy stays until that member evicts it
        with contextlib.suppress(Silent, OffstageError):
            handle = at.ask(at.control.session_open, select_blocks=1, may_refuse=True)
            try:
                at.ask(at.control.append, handle, known.chain, may_refuse=True)
            finally:
                at.close_session(handle, known.chain)

    # ---- moves home ----

    def _fill(self, now_ns: int) -> None:
        """Move shards home: those that their home lacked, and those that an open session reads at
        a member that is no longer their home."""
        if self._sessions.map is None:
            return
        homes = self._sessions.homes(now_ns)
        lacking = list(self._sessions.lacking.items())
        self._sessions.lacking.clear()
        for name, (chain, at, home) in lacking:
            if home in homes and at.usable(now_ns):
                self._bring(name, chain, at, home)
        shards = [
            (number, one)
            for number, one in self._sessions.each()
            if one.at is not None and one.contents
        ]
        if not homes or not shards:
            return
        members = [one.member for one in homes]
        order = ranked(members, [one.name for _, one in shards], 1)[:, 0]
        for (number, shard), index in zip(shards, order, strict=True):
            home, from_ = homes[int(index)], shard.at
            if from_ is None or from_ is home or not from_.usable(now_ns):
                continue
            if from_.member.name in self._sessions.copies.get(shard.name, ()):
                continue
            if from_.member.state == "draining" and not self._sessions.generating(number):
                continue  # not being read: it stays there
            self._bring(shard.name, shard.chain, from_, home)

    def _bring(self, name: bytes, chain: list[bytes], at: Joined, home: Joined) -> None:
        if self._tries.get(name, 0) >= TRIES_MAX or self.moves.wants(name, home):
            return
        if len(self._tries) >= RECENT_MAX:
            self._tries.clear()
        self._tries[name] = self._tries.get(name, 0) + 1

        def filled(move: Move) -> None:
            self._note(move, "filled_bytes")
            self.counts.filled_shards += bool(move.moved_blocks)
            for each, one in self._sessions.each():
                if move.whole and one.name == move.name and one.at is at:
                    self._switches[each, one.first] = one, home

        self.moves.add(Move(name, chain, at, home, "filled", filled))

    def _switch_some(self) -> None:
        """Switch the shards that have no call in flight."""
        for key, (shard, to) in list(self._switches.items()):
            if self._fabric.in_flight(shard):
                continue
            del self._switches[key]
            open_now = any(
                number == key[0] and one is shard for number, one in self._sessions.each()
            )
            if open_now and shard.at is not to and not to.lost:
                self._sessions.switch(key[0], shard, to)
