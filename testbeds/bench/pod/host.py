"""One host of a live pod: sends each request when it is due, and compares every byte.

A request opens a session, looks up what the pod has, fetches that, computes and puts the rest, and
closes it. A block's contents derive from its name, so that any other block in its place is
detected. Every block that was acknowledged to some host before and is not found is a miss, and is
recorded with the host's view of it; the judge decides whether there is a reason.

All hosts are threads of one process and share a `Board`: which block was acknowledged, at which
member.
"""

import errno
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.dpu.pod.map import Member
from offstage.dpu.pod.membership import open_membership
from offstage.host.endpoint import Endpoint
from offstage.host.link.tier_sessions import append_chunks
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.follow import Follower
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions
from offstage.host.pod.upkeep import Upkeep
from offstage.testbeds.bench.pod.asks import Ask

__all__ = ["PAYLOAD_BYTES", "Board", "Host", "Sample", "Seen", "content"]

PAYLOAD_BYTES = 4096
WORDS = PAYLOAD_BYTES // 8
PATTERN = np.arange(WORDS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
LOGIN_S = 5.0
Miss = tuple[str, str, str, float]
"""A miss of an acknowledged block: the member that acknowledged it, its owner now, the error
that ended the fetch ("": the member did not have it), and the time of the acknowledgement, to a
tenth of a second."""
Acked = tuple[str, float]
NEVER: Acked = "", 0.0


def content(chunks: Sequence[int]) -> NDArray[np.uint64]:
    """The bytes of blocks by their names, uint64 `[blocks, words]`."""
    names = np.array([one & 0xFFFFFFFFFFFFFFFF for one in chunks], np.uint64)
    made: NDArray[np.uint64] = names[:, None] ^ PATTERN[None, :]
    return made


@dataclass
class Sample:
    """The result of one request; times since the bench began. Counts are of blocks."""

    phase: str
    number: int
    due_s: float
    begin_s: float
    end_s: float = 0.0
    asked: int = 0
    known: int = 0
    """Acknowledged to some host before."""
    hits: int = 0
    wrong: int = 0
    put: int = 0
    again: list[int] = field(default_factory=list)
    """Known blocks that were put again."""
    refused: int = 0
    """Puts that ended with an error."""
    marked: int = 0
    """Blocks whose member had the fault."""
    marked_hits: int = 0
    by_member: Counter[str] = field(default_factory=Counter)
    """Hits, by `NAME/INCARNATION` of the member that served them."""
    misses: Counter[Miss] = field(default_factory=Counter)
    error: str = ""
    """What ended it early; "" if nothing did."""
    chunks: tuple[int, ...] = ()
    """The requested chunks, by name."""


@dataclass(frozen=True)
class Seen:
    """A host's view of a member changed: `suspect`, `lost`, `back`."""

    at_s: float
    host: str
    member: str
    what: str
    why: str
    waited_s: float
    """The total time that this connection has waited for its silence so far."""
    since_s: float = math.inf
    """The earliest time of the change: when the host last looked before."""


class Board:
    """Shared by all hosts; each entry is written whole, under Python's lock."""

    def __init__(self) -> None:
        """Starts the clock."""
        self._begun_ns = time.monotonic_ns()
        self.at: dict[int, Acked] = {}
        """Acknowledged chunks: the last member, and when."""
        self.marked: frozenset[int] = frozenset()
        self.samples: list[Sample] = []
        self.seen: list[Seen] = []
        self.broken: list[str] = []
        """Hosts that ended by an unexpected error, and a pod that was not restored."""
        self.moved: dict[str, tuple[int, int]] = {}
        """Bytes by host so far: copied to their home, and to extra copies."""
        self.phases: dict[str, tuple[int, int]] = {}
        """The same of all hosts in one phase, in blocks."""
        self.waited_s: dict[tuple[str, str, int], float] = {}
        """Time lost to a silent member, by host, member and connection."""

    def now_s(self) -> float:
        """Seconds since the beginning."""
        return (time.monotonic_ns() - self._begun_ns) / 1e9

    def moved_blocks(self) -> tuple[int, int]:
        """Blocks of all hosts so far: copied to their home, and to extra copies."""
        filled, copied = (sum(one[at] for one in self.moved.values()) for at in (0, 1))
        return filled // PAYLOAD_BYTES, copied // PAYLOAD_BYTES

    def mark(self, member: str) -> None:
        """Let requests count their blocks at this member from now on; "": none."""
        self.marked = frozenset(one for one, at in list(self.at.items()) if at[0] == member)


class Host:
    """One host with a connection to each member. Its thread owns it from the start of `run`."""

    def __init__(
        self,
        name: str,
        place: str,
        runtime_dir: Path,
        link: Endpoint,
        deadline_s: float,
        board: Board,
    ) -> None:
        """Log in to all members of the map of `place`. BadInput: one does not answer."""
        self.name, self._board = name, board
        self._link, self._runtime_dir = replace(link, name=name), runtime_dir
        self._deadline_s = deadline_s
        membership = open_membership(place)
        with ExitStack() as undo:
            undo.callback(membership.close)
            found = membership.map()
            members = []
            for member in found.readable:
                members.append(self._login(member, found.epoch))
                undo.callback(members[-1].control.close)
                undo.callback(members[-1].fabric.close)
            grid = found.grid(members[0].control.geometry.block_tokens)
            self._sessions = PodSessions(members, grid)
            self._fabric = PodFabric(self._sessions, int(deadline_s * 1e9))
            self._follower = Follower(membership, self._login, self._fabric, self._sessions)
            self._sessions.map = found
            self._upkeep = Upkeep(self._sessions, self._fabric, 1, self._follower.take)
            undo.pop_all()
        self._rows = np.zeros((self._fabric.demand_max, PAYLOAD_BYTES), np.uint8)
        self._fabric.register(self._rows)
        self._known_as = {one.member.name: "back" for one in members}
        self._connections: Counter[str] = Counter()
        self._suspicions: dict[Joined, int] = {}
        self._looked_s = 0.0
        self._step = 0

    def _login(self, member: Member, epoch: int) -> Joined:
        link = self._link.at(member, self._runtime_dir, epoch)
        control, fabric = link.connect(LOGIN_S)
        control.timeout_s = self._deadline_s
        return Joined(
            member, control, fabric, lease_ns=control.lease_ns, tenant=link.tenant, epoch=epoch
        )

    def run(self, phase: str, asks: Callable[[], tuple[int, Ask] | None], begin_s: float) -> None:
        """Send all requests, each when it is due, or as soon as possible after."""
        try:
            while (given := asks()) is not None:
                number, ask = given
                due_s = begin_s + ask.at_s
                while (left_s := due_s - self._board.now_s()) > 0:
                    time.sleep(min(left_s, 0.05))
                    self._follow()
                self._board.samples.append(self._ask(phase, number, due_s, ask.chunks))
                self._follow()
        except Exception as error:
            self._board.broken.append(f"{self.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Leave every member."""
        self._upkeep.close()
        self._follower.close()
        for one in self._sessions.members:
            one.fabric.close()
        leaving = [threading.Thread(target=one.control.close) for one in self._sessions.members]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()

    def members(self) -> set[str]:
        """The members that it sends requests to now."""
        now_ns = self._sessions.clock.now_ns()
        return {one.member.name for one in self._sessions.members if one.usable(now_ns)}

    def _follow(self) -> None:
        """Adopt the map, and record members whose state has changed."""
        self._upkeep.turn()
        now_s = self._board.now_s()
        total = self._upkeep.total()
        self._board.moved[self.name] = total.filled_bytes, total.copied_bytes
        for one in self._sessions.members:
            name, waited_s = one.member.name, one.waited_ns / 1e9
            standing = "lost" if one.lost else "suspect" if one.suspected and one.away else "back"
            before, suspicions = self._known_as.get(name, ""), self._suspicions.get(one, 0)
            self._suspicions[one] = one.suspected
            if before == "lost" and standing != "lost":
                self._connections[name] += 1
            self._board.waited_s[self.name, name, self._connections[name]] = waited_s
            said = [standing] if standing != before else []
            if not said and standing == "back" and one.suspected > suspicions:
                said = ["suspect", "back"]  # both since this host last looked
            self._known_as[name] = standing
            self._board.seen += [
                Seen(now_s, self.name, name, what, one.suspicion.why, waited_s, self._looked_s)
                for what in said
            ]
        self._looked_s = now_s

    def _ask(self, phase: str, number: int, due_s: float, chunks: tuple[int, ...]) -> Sample:
        board = self._board
        sample = Sample(phase, number, due_s, board.now_s(), asked=len(chunks), chunks=chunks)
        where = [board.at.get(one, NEVER) for one in chunks]
        marked = np.array([one in board.marked for one in chunks], bool)
        sample.known, sample.marked = sum(bool(at) for at, _ in where), int(marked.sum())
        try:
            session = self._sessions.session_open(select_blocks=self._sessions.grid.most)
            try:
                self._served(sample, session, chunks, where, marked)
            finally:
                self._sessions.session_close(session)
        except OffstageError as error:
            sample.error = error.what
        sample.end_s = board.now_s()
        return sample

    def _served(
        self,
        sample: Sample,
        session: int,
        chunks: tuple[int, ...],
        where: list[Acked],
        marked: NDArray[np.bool_],
    ) -> None:
        """Fetch the blocks that are there, put the rest."""
        found = append_chunks(self._sessions, session, chunks, 1)
        there = np.flatnonzero(found.stored_layers)
        rcs = np.ones(len(chunks), np.int32)  # 1: no member has it
        for first in range(0, len(there), self._fabric.demand_max):
            some = there[first : first + self._fabric.demand_max]
            rcs[some] = self._fetched(sample, session, chunks, some, found.keys[0])
        good = rcs == 0
        sample.hits, sample.marked_hits = int(good.sum()), int((good & marked).sum())
        at = self._members_of(session, len(chunks))
        sample.by_member.update(
            f"{one.name}/{one.incarnation}" for one, came in zip(at, good, strict=True) if came
        )
        for ordinal in np.flatnonzero(~good):
            was, acked_s = where[ordinal]
            if was:
                error = "" if rcs[ordinal] == 1 else errno.errorcode[-int(rcs[ordinal])]
                sample.misses[was, at[ordinal].name, error, round(acked_s, 1)] += 1
        self._put(sample, session, chunks, np.flatnonzero(~good), where)

    def _fetched(
        self,
        sample: Sample,
        session: int,
        chunks: tuple[int, ...],
        some: NDArray[np.intp],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.int32]:
        self._step += 1
        self._rows[: len(some)] = 0xFF
        got = self._fabric.fetch(
            FetchRequest(
                session,
                self._step,
                0,
                some.astype(np.uint32),
                np.ascontiguousarray(keys[some]),
                self._rows,
            )
        )
        came = np.flatnonzero(got.rcs == 0)
        rows = self._rows.view(np.uint64)[came]
        sample.wrong += int((rows != content([chunks[some[one]] for one in came])).any(1).sum())
        return got.rcs

    def _put(
        self,
        sample: Sample,
        session: int,
        chunks: tuple[int, ...],
        missing: NDArray[np.intp],
        where: list[Acked],
    ) -> None:
        for first in range(0, len(missing), self._fabric.demand_max):
            some = missing[first : first + self._fabric.demand_max]
            blocks = content([chunks[one] for one in some]).view(np.uint8)
            rcs = self._fabric.put(PutRequest(session, 0, some.astype(np.uint32), blocks))
            at = self._members_of(session, len(chunks))
            for ordinal, rc in zip(some.tolist(), rcs, strict=True):
                if rc:
                    sample.refused += 1
                    continue
                sample.put += 1
                sample.again += [chunks[ordinal]] if where[ordinal][0] else []
                self._board.at[chunks[ordinal]] = at[ordinal].name, self._board.now_s()

    def _members_of(self, session: int, count: int) -> list[Member]:
        """The member that has each block of the session, in this host's view."""
        numbers = self._sessions.grid.numbers(np.arange(count))
        shards = self._sessions.shards(session)
        nobody = Member(name="nobody", endpoint="")
        return [
            nobody if (at := shards[number].at) is None else at.member
            for number in numbers.tolist()
        ]
