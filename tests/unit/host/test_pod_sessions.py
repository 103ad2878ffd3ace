"""Are shards named and placed so that shared ones are found, even when a member is missing?"""

import dataclasses
import errno
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from offstage.bindings.errors import BadInput, DeviceTimeout, OffstageError, RunFailed, StoreFull
from offstage.bindings.fabric import Put, PutRequest
from offstage.dpu import protocol as p
from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.shards import ShardGrid
from offstage.host.link.tier_sessions import ALL_SCORES
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.follow import Follower
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions

CHUNKS = 4
LAYERS = 2


class Daemon:
    """The control connection and fabric of a daemon that stores what it gets. `silent`: it answers
    nothing; `broken`: its connection ends at the next put; `later`: after that; `slow`: it
    acknowledges no put in time; `fenced`: its lease is not confirmed; `refuses`: its answer."""

    payload_size_bytes, demand_max, calls_max, dilation = 64, 64, 2, 1
    lost = ""
    slow = fenced = False
    refuses: OffstageError | None = None

    def __init__(self) -> None:
        self.geometry, self.hints = SimpleNamespace(layer_count=LAYERS), ALL_SCORES
        self.sessions: dict[int, list[bytes]] = {}
        self.stored: set[bytes] = set()
        self.opened: list[dict[str, int]] = []
        self.puts: Counter[bytes] = Counter()
        self.silent = self.broken = self.later = False
        self._ended: list[Any] = []
        self.registered: list[int] = []
        self.closed = 0

    def _hear(self) -> None:
        if self.silent:
            raise DeviceTimeout("the daemon does not answer")
        if self.refuses is not None:
            raise self.refuses

    def probe(self) -> int:
        return 1

    def probed(self, number: int) -> bool:
        return not self.silent

    def session_open(self, **rule: int) -> int:
        self._hear()
        self.opened.append(rule)
        self.sessions[len(self.opened)] = []
        return len(self.opened)

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        self._hear()
        self.sessions[session] += contents
        keys = [one[:16] for one in contents]
        stored = [LAYERS * (one in self.stored) for one in contents]
        return p.Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        self._hear()

    def session_close(self, session: int, *, keep: bool = True) -> None:
        self._hear()
        self.stored |= set(self.sessions.pop(session))

    def put_begin(self, request: PutRequest) -> Put:
        if self.broken:
            raise RunFailed("the daemon closed this port", errno=errno.EPIPE)
        assert request.session is not None
        put, names = Put(request), self.sessions[request.session]
        for ordinal, row in zip(request.ordinals, request.source, strict=True):
            assert row[0] == names[ordinal][0] or ordinal == 0
            self.puts[names[ordinal]] += 1
        self._ended.append(put)
        return put

    def put_end(self, put: Put) -> Any:
        put.rcs[:] = -errno.ETIMEDOUT if self.slow else -errno.EKEYEXPIRED if self.fenced else 0
        return put.rcs

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        if self.later:
            raise RunFailed("the daemon closed this port", errno=errno.EPIPE)
        ended, self._ended = self._ended, []
        return ended

    def stats(self) -> dict[str, int]:
        return {"fetches": 1}

    def register(self, array: Any) -> None:
        self.registered.append(id(array))

    def close(self) -> None:
        self.closed += 1


def pod(*states: str) -> tuple[PodSessions, list[Daemon]]:
    daemons = [Daemon() for _ in states]
    members = [
        Joined(
            Member(name=f"dpu{n}", endpoint=f"ipc://{n}", state=state),  # type: ignore[arg-type]
            daemon,  # type: ignore[arg-type]
            daemon,  # type: ignore[arg-type]
        )
        for n, (state, daemon) in enumerate(zip(states, daemons, strict=True))
    ]
    return PodSessions(members, ShardGrid(CHUNKS)), daemons


def chunks(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in numbers]


def names(sessions: PodSessions, session: int) -> list[bytes]:
    return [one.name for one in sessions.shards(session)]


def test_a_shard_is_named_by_all_before_it() -> None:
    """Sessions with one prefix share whole shards and the beginning of the next; the same chunks
    after other chunks are another shard. In a daemon a shard's chain begins with its name."""
    sessions, daemons = pod("up", "up", "up")
    opened = [sessions.session_open(select_blocks=8) for _ in range(3)]
    prefix = (1, 2, 3, 4, 5)
    prompts = (*prefix, 6), (*prefix, 7), (9, 2, 3, 4, 5, 6)
    for session, contents in zip(opened, prompts, strict=True):
        sessions.append(session, chunks(*contents))
    assert names(sessions, opened[0]) == names(sessions, opened[1])
    assert not set(names(sessions, opened[0])) & set(names(sessions, opened[2]))
    begun = [contents[0] for one in daemons for contents in one.sessions.values()]
    assert sorted(begun) == sorted(name for one in opened for name in names(sessions, one))
    assert [one.at for one in sessions.shards(opened[0])] == [
        one.at for one in sessions.shards(opened[1])
    ]


def test_chunk_by_chunk_is_as_all_at_once() -> None:
    """A session that grows has the names, homes and chains of one that was appended whole."""
    (whole, first), (grown, second) = pod("up", "up"), pod("up", "up")
    one, other = whole.session_open(select_blocks=8), grown.session_open(select_blocks=8)
    numbers = range(1, 11)
    whole.append(one, chunks(*numbers))
    for number in numbers:
        grown.append(other, chunks(number))
    assert names(whole, one) == names(grown, other)
    assert [list(d.sessions.values()) for d in first] == [list(d.sessions.values()) for d in second]


def test_sinks_are_of_the_first_shard_and_the_window_of_the_last() -> None:
    sessions, daemons = pod("up")
    session = sessions.session_open(select_blocks=8, sink_blocks=2, window_blocks=3)
    sessions.append(session, chunks(*range(1, 11)))
    rules = [(one["sink_blocks"], one["window_blocks"]) for one in daemons[0].opened]
    assert rules == [(2, 0), (0, 0), (0, 3)]


def test_blocks_are_found_in_their_shards() -> None:
    sessions, _ = pod("up", "up")
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 11)))
    found = sessions.parts(session, np.array([9, 0, 4, 3, 8], np.uint32))
    assert [(one.first, at.tolist()) for one, at in found] == [(0, [1, 3]), (4, [2]), (8, [0, 4])]


def test_a_silent_member_loses_its_shards_and_no_others() -> None:
    sessions, daemons = pod("up", "up", "up")
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 41)))
    before = [one.at for one in sessions.shards(session)]
    dead = before[0]
    assert dead is not None
    daemons[sessions.members.index(dead)].silent = True
    dead.suspect(2**62, "stopped")
    after = [sessions.home(session, one) for one in sessions.shards(session)]
    assert all(old is new for old, new in zip(before, after, strict=True) if old is not dead)
    assert dead not in after and dead.shards == 0 and sessions.rehomed == before.count(dead)
    for one in daemons:
        one.silent = True
    for joined in sessions.members:
        joined.suspect(2**62, "stopped")
    with pytest.raises(RunFailed, match="no daemon of the pod answers"):
        sessions.append(session, chunks(50))


def test_a_drained_member_serves_what_it_alone_stores() -> None:
    """Blocks that only it stores are read there; new ones go to other members."""
    sessions, daemons = pod("up", "draining")
    old, new = (sessions.session_open(select_blocks=8) for _ in range(2))
    all_up, _ = pod("up", "up")
    probe = all_up.session_open(select_blocks=8)
    all_up.append(probe, chunks(*range(1, 41)))
    theirs = [one.name for one in all_up.shards(probe) if one.at is all_up.members[1]]
    daemons[1].stored |= set(theirs)
    sessions.append(old, chunks(*range(1, 41)))
    at = {one.name: one.at for one in sessions.shards(old)}
    assert theirs and all(at[name] is sessions.members[1] for name in theirs)
    sessions.append(new, chunks(*range(101, 141)))
    assert all(one.at is sessions.members[0] for one in sessions.shards(new))


@pytest.mark.parametrize("when", ["broken", "later"])
def test_a_put_goes_to_the_next_home_where_the_first_is_lost(when: str) -> None:
    """Every block is put at a member that answers, under its own name, and the put succeeds."""
    sessions, daemons = pod("up", "up")
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 41)))
    fabric = PodFabric(sessions)
    rows = np.repeat(np.arange(1, 41, dtype=np.uint8)[:, None], 64, axis=1)
    setattr(daemons[1], when, True)
    put = fabric.put_begin(PutRequest(session, 0, np.arange(40, dtype=np.uint32), rows))
    assert not fabric.put_end(put).any()
    assert sessions.members[1].lost and (not daemons[1].puts) == (when == "broken")
    assert len(daemons[0].puts) == 40 and set(daemons[0].puts.values()) == {1}
    assert [one.at for one in sessions.shards(session)] == [sessions.members[0]] * 10


def test_a_put_goes_to_the_next_home_where_the_first_is_fenced() -> None:
    """A member without a confirmed lease refuses each block: it is avoided but not lost, and the
    refused blocks are put at another member."""
    sessions, daemons = pod("up", "up")
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 41)))
    fabric = PodFabric(sessions)
    rows = np.repeat(np.arange(1, 41, dtype=np.uint8)[:, None], 64, axis=1)
    daemons[1].fenced = True
    put = fabric.put_begin(PutRequest(session, 0, np.arange(40, dtype=np.uint32), rows))
    assert not fabric.put_end(put).any() and len(daemons[0].puts) == 40
    away = sessions.members[1]
    assert away.away and away.fenced > 0 and not away.lost


def test_a_member_returns_while_calls_to_its_earlier_incarnation_are_in_flight() -> None:
    """Its control connection reports it lost: the calls in flight are put at another member or at
    its new incarnation, and nothing is read from the earlier one."""
    sessions, daemons = pod("up", "up")
    for one in daemons:
        one.calls_max = 16
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 41)))
    fabric = PodFabric(sessions)
    rows = np.repeat(np.arange(1, 41, dtype=np.uint8)[:, None], 64, axis=1)
    put = fabric.put_begin(PutRequest(session, 0, np.arange(40, dtype=np.uint32), rows))
    before, anew = sessions.members[1], Daemon()
    shard = next(one for one in sessions.shards(session) if one.at is before)
    before.suspect(0, "the daemon has a new incarnation", lost=True)
    coming = Joined(before.member, anew, anew)  # type: ignore[arg-type]
    assert fabric.admit(coming) is before and daemons[1].closed
    assert not fabric.in_flight(dataclasses.replace(shard, at=before))
    assert not fabric.put_end(put).any()
    assert set(daemons[0].puts) | set(anew.puts) == set().union(
        *(one.chain for one in sessions.shards(session))
    )


def test_an_unaccepted_put_ends() -> None:
    """If the only member does not acknowledge a put, it ends in an error, not an endless wait."""
    sessions, daemons = pod("up")
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(1, 2, 3))
    fabric = PodFabric(sessions)
    daemons[0].slow = True
    rows = np.repeat(np.arange(1, 4, dtype=np.uint8)[:, None], 64, axis=1)
    put = fabric.put_begin(PutRequest(session, 0, np.arange(3, dtype=np.uint32), rows))
    assert fabric.put_end(put).tolist() == [-errno.EHOSTDOWN] * 3
    again = fabric.put_begin(PutRequest(session, 0, np.arange(3, dtype=np.uint32), rows))
    assert fabric.put_end(again).tolist() == [-errno.EHOSTDOWN] * 3
    sessions.session_close(session)
    assert not fabric.poll(), "nothing of it is left that could be sent or land later"


@pytest.mark.parametrize(
    ("refusal", "lost"),
    [
        (RunFailed("the daemon drains"), False),
        (StoreFull("no session is left"), False),
        (BadInput("no such host"), True),
    ],
)
def test_a_refusal_is_no_lost_connection(refusal: OffstageError, lost: bool) -> None:
    """A member that refuses is avoided for a while, and its shards go to others; only one that no
    longer knows the host is lost."""
    sessions, daemons = pod("up", "up")
    daemons[1].refuses = refusal
    sessions.append(sessions.session_open(select_blocks=8), chunks(*range(1, 41)))
    refusing = sessions.members[1]
    assert bool(refusing.lost) == lost and refusing.suspected == 1 and refusing.shards == 0
    assert time.monotonic_ns() < refusing.suspicion.until_ns < time.monotonic_ns() + 2 * 10**9
    assert sessions.members[0].shards == 10


def test_what_was_left_at_a_slow_member_is_closed_there() -> None:
    """Sessions of shards that moved away are closed at the slow member once it is used again."""
    sessions, daemons = pod("up", "up")
    old, new = (sessions.session_open(select_blocks=8) for _ in range(2))
    sessions.append(old, chunks(*range(1, 41)))
    slow = sessions.members[1]
    left = slow.shards
    slow.suspect(2**62, "slow")
    for shard in sessions.shards(old):
        sessions.home(old, shard)
    assert left and len(daemons[1].sessions) == left and slow.shards == 0
    slow.suspicion.until_ns = 0
    sessions.append(new, chunks(*range(101, 141)))
    assert len(daemons[1].sessions) == slow.shards > 0


def test_one_that_stopped_costs_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspected member is used again after it answers a probe, not because time has passed."""
    sessions, daemons = pod("up", "up")
    now_ns = [10**9]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])
    stopped = sessions.members[0]
    daemons[0].silent = True
    stopped.suspect(now_ns[0], "a fetch took longer than its deadline")
    for _ in range(5):
        now_ns[0] += 3 * 10**9
        assert not stopped.usable(now_ns[0])
    daemons[0].silent = False
    assert stopped.usable(now_ns[0]) and stopped.suspected == 1


def test_what_a_newer_map_deletes_is_not_read_on_an_old_connection() -> None:
    """Every connection of the tenant from an earlier map is dropped, even if another member already
    has one from the newer map. Another tenant's stays."""
    sessions, _ = pod("up", "up", "up")
    for one, tenant in zip(sessions.members, ("red", "red", "blue"), strict=True):
        one.tenant, one.epoch = tenant, 1
    fabric, kept = PodFabric(sessions), Kept(sessions)
    back = Daemon()

    def login(member: Member, epoch: int) -> Joined:
        if member.name != "dpu0" or epoch < 2:
            raise RunFailed("the pod's map has changed since")
        return Joined(member, back, back, tenant="red", epoch=epoch)  # type: ignore[arg-type]

    follower = Follower(kept, login, fabric, sessions, look_s=0)  # type: ignore[arg-type]
    first, second, other = sessions.members
    follower.look()
    follower.take()
    assert not any(one.lost for one in sessions.members)
    kept.pod = replace(kept.pod, epoch=2, deleted={"red": 2})
    first.suspect(0, "the daemon no longer knows this host", lost=True)
    follower.look()
    follower.take()
    assert second.lost and not other.lost and first not in sessions.members
    assert [one.epoch for one in sessions.homes(0) if one.tenant == "red"] == [2]


def test_a_host_does_not_follow_a_map_that_went_back() -> None:
    """A much newer map that does not descend from the one it saw is not followed but reported. The
    host follows once an operator has accepted the map."""
    sessions, _ = pod("up", "up")
    kept = Kept(sessions)
    fabric, login = PodFabric(sessions), lambda *_: None
    follower = Follower(kept, login, fabric, sessions, look_s=0)  # type: ignore[arg-type]
    first = kept.pod = replace(kept.pod, epoch=27, history=("b", "a"))
    follower.look()
    assert follower.doubt == ""
    kept.pod = replace(first, epoch=32, history=("c", "a"))
    follower.look()
    follower.take()
    assert "does not descend" in follower.doubt and sessions.map == first
    kept.pod = replace(kept.pod, epoch=33, history=("d", "c", "a"), accepted=("e",))
    follower.look()
    follower.take()
    assert follower.doubt == "" and sessions.map == kept.pod


class Kept:
    """A membership whose map a test changes."""

    fresh = True

    def __init__(self, sessions: PodSessions) -> None:
        self.pod = PodMap(epoch=1, member=tuple(one.member for one in sessions.members))

    def map(self) -> PodMap:
        return self.pod

    def close(self) -> None:
        pass


def test_a_host_follows_the_map() -> None:
    """A joining member takes its shards, a removed one gets no requests, a returning one gets a new
    login and the registered memory, and a drained one gets nothing new."""
    sessions, daemons = pod("up", "up")
    fabric = PodFabric(sessions)
    landing = np.zeros((2, 64), np.uint8)
    fabric.register(landing)
    kept, came = Kept(sessions), []

    def login(member: Member, epoch: int) -> Joined:
        came.append(Daemon())
        return Joined(member, came[-1], came[-1])  # type: ignore[arg-type]

    follower = Follower(kept, login, fabric, sessions, look_s=0.001)  # type: ignore[arg-type]

    def until(done: Any) -> None:
        while not done():
            follower.take()
            time.sleep(0.001)

    first, second = kept.pod.member
    third = Member(name="dpu2", endpoint="ipc://2")
    kept.pod = replace(kept.pod, member=(first, second, third))
    until(lambda: len(sessions.members) == 3)
    lost = next(one for one in sessions.members if one.member.name == "dpu0")
    lost.suspect(0, "killed", lost=True)
    until(lambda: lost not in sessions.members)
    assert [one.registered for one in came] == [[id(landing)], [id(landing)]]
    until(lambda: daemons[0].closed == 2)  # fabric and connection of the earlier incarnation
    kept.pod = replace(
        kept.pod, member=(first, replace(second, state="draining"), replace(third, state="gone"))
    )
    until(lambda: any(one.lost for one in sessions.members))
    session = sessions.session_open(select_blocks=8)
    sessions.append(session, chunks(*range(1, 40)))
    assert {one.at.member.name for one in sessions.shards(session) if one.at} == {"dpu0"}
    follower.close()
