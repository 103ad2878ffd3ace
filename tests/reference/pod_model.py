"""A small pod in every order of events: etcd with one map and one lease, a daemon, a host.

The decisions are those of `offstage.dpu.pod`, its fence and its map; this file adds the clocks, the
messages and the faults: a message is late or lost, a process stops between any two of its steps,
the daemon crashes and restarts, it reuses its memory for another key, one clock is a tick behind.
Times are modelled as ages, by the clock of the process that keeps them.

A1 and A2 are one tenant's blocks, written before and after its deletion. B has another key.
"""

from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from offstage.dpu.pod import fence
from offstage.dpu.pod.map import Member, PodMap, added, deleted, reconciled

TTL = 4
CAP = TTL + 1
"""An age past every bound of a lease."""
LATE = TTL // 2 + 1
"""An age past every bound of the daemon and the host."""
ME = "dpu0"


class Rules:
    """The rules under test, by default the product's; a test overrides one to show that it is
    needed."""

    confirmed = staticmethod(fence.confirmed)
    refusal = staticmethod(fence.refusal)
    reads_memory = staticmethod(fence.reads_memory)
    adopts = staticmethod(fence.adopts)
    deletion_holds = staticmethod(fence.deletion_holds)
    added = staticmethod(added)
    reconciled = staticmethod(reconciled)

    @staticmethod
    def asked_age(age: int) -> int:
        """A confirmation counts from its request."""
        return age

    @staticmethod
    def names(content: str) -> bool:
        """The reader's check of a record's key."""
        return content in ("A1", "A2")

    @staticmethod
    def same_incarnation(region: int, wanted: int) -> bool:
        """The reader's check of the region's incarnation."""
        return region == wanted


class Asked(NamedTuple):
    """The host's one request in flight: `read`, `put`, or a read of memory; `stage`: its
    progress."""

    kind: str
    stage: str
    age: int
    epoch: int
    incarnation: int
    after_delete: bool
    """Whether it began after the deletion was acknowledged."""
    content: str = ""
    served_by: int = 0
    past: bool = False
    """Whether the map no longer had that incarnation when it was served."""


class Kept(NamedTuple):
    """The map in etcd, hashable as a part of an explored state."""

    epoch: int = 1
    incarnation: int = 1
    gone: bool = False
    floor: int = 0

    @property
    def up(self) -> bool:
        """Whether the daemon is a member."""
        return not self.gone


@cache
def map_of(kept: Kept) -> PodMap:
    """Return the map itself."""
    state: Any = "gone" if kept.gone else "up"
    one = Member(name=ME, endpoint="ipc://x", incarnation=kept.incarnation, state=state)
    return PodMap(epoch=kept.epoch, member=(one,), deleted={"t": kept.floor} if kept.floor else {})


def kept_of(before: Kept, pod: PodMap) -> Kept:
    """The map after a transition, under the next epoch; unchanged if the transition changed
    nothing."""
    if pod == map_of(before):
        return before
    (one,) = pod.member
    return Kept(before.epoch + 1, one.incarnation, one.state == "gone", pod.deleted.get("t", 0))


class State(NamedTuple):
    """The whole pod. Epochs begin at 1; `lease` is the age of the daemon's lease at etcd."""

    pod: Kept = Kept()
    lease: int = 0
    reported: int = 1
    """The last epoch that the daemon said it has carried out."""
    acknowledged: bool = False
    incarnation: int = 1
    own: int = 0
    """Age of the request that was last confirmed, by the daemon's clock."""
    epoch: int = 1
    beat: tuple[str, int, int] | None = None
    """Its keepalive: `sent` or `back`, its age, the epoch that it carries."""
    slot: str = "A1"
    store: str = "A1"
    host_epoch: int = 1
    host_incarnation: int = 1
    asked: Asked | None = None
    answered: int = LATE
    """Age of the request that the daemon last answered, by the host's clock."""
    slow: bool = True
    """A clock may still run behind by one tick."""


class Broken(AssertionError):
    """An invariant does not hold; the text says which."""


BEGIN = State()


def explore(rules: type[Rules] = Rules, begin: State = BEGIN, *, restarts: bool = True) -> int:
    """Visit every state; returns their number. Broken has the steps that lead to it."""
    came: dict[State, tuple[State | None, str]] = {begin: (None, "")}
    waiting = deque([begin])
    while waiting:
        state = waiting.popleft()
        try:
            for name, after in steps(state, rules):
                if after not in came and (restarts or after.incarnation == 1):
                    came[after] = (state, name)
                    waiting.append(after)
        except Broken as broken:
            raise Broken(f"{broken}: {way(state, came)}") from None
    return len(came)


def way(state: Any, came: dict[Any, tuple[Any, str]]) -> str:
    """The steps that led to a state."""
    names: list[str] = []
    at = state
    while at is not None:
        at, name = came[at]
        names.append(name)
    return ", ".join(reversed(names[:-1]))


def steps(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    """Every next state, with the name of its event."""
    yield from _time(s)
    yield from _lease(s, rules)
    yield from _map(s, rules)
    yield from _daemon(s, rules)
    yield from _host(s, rules)


def _older(age: int, cap: int = LATE) -> int:
    return min(age + 1, cap)


def _time(s: State) -> Iterator[tuple[str, State]]:
    beat = s.beat and (s.beat[0], _older(s.beat[1]), s.beat[2])
    asked = s.asked and s.asked._replace(age=_older(s.asked.age))
    daemon = {"own": _older(s.own), "beat": beat}
    host = {"asked": asked, "answered": _older(s.answered)}
    after = s._replace(lease=_older(s.lease, CAP))
    yield "tick", after._replace(**daemon, **host)
    if s.slow:
        yield "tick, not the daemon's", after._replace(**host, slow=False)
        yield "tick, not the host's", after._replace(**daemon, slow=False)


def _lease(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    if s.beat is None:
        yield "keepalive", s._replace(beat=("sent", 0, s.epoch))
        return
    stage, age, epoch = s.beat
    yield "keepalive lost", s._replace(beat=None)
    if stage == "sent" and s.lease <= TTL and s.pod.up and s.pod.incarnation == s.incarnation:
        yield (
            "etcd takes it",
            s._replace(lease=0, reported=max(s.reported, epoch), beat=("back", age, s.pod.epoch)),
        )
    if stage == "back":
        before = _standing(s)
        now = rules.confirmed(before, -rules.asked_age(age), epoch)
        after = s._replace(beat=None, own=min(-now.asked, LATE), epoch=now.epoch)
        yield "confirmed", _carried_out(after, rules)


def _carried_out(s: State, rules: type[Rules]) -> State:
    """Drop from slot and store what the map of the daemon's epoch deleted."""
    floor = s.pod.floor if s.pod.floor <= s.epoch else 0
    purges = ("deletion",) if floor else ()
    written: dict[str, tuple[str, ...]] = {"A1": (), "A2": ("deletion",)}
    gone = [one for one, seen in written.items() if not rules.adopts(seen, purges)]
    return s._replace(
        slot="" if s.slot in gone else s.slot, store="" if s.store in gone else s.store
    )


def _map(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    pod = map_of(s.pod)
    alive = [] if s.lease > TTL else pod.member
    changed = kept_of(s.pod, rules.reconciled(pod, alive))
    if changed != s.pod:
        yield "gone from the map", s._replace(pod=changed)
    if not s.pod.floor:
        yield "delete", s._replace(pod=kept_of(s.pod, deleted(pod, "t")))
    elif not s.acknowledged:
        members = [one.name for one in pod.readable]
        if rules.deletion_holds(s.pod.floor, members, {ME: s.reported}):
            yield "deletion acknowledged", s._replace(acknowledged=True)


def _standing(s: State) -> fence.Standing:
    return fence.Standing(s.incarnation, s.epoch, TTL, -s.own)


def _daemon(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    if s.incarnation == 1:
        yield "crash and restart", s._replace(incarnation=2, own=LATE, beat=None, slot="")
    if s.incarnation == 2 and s.pod.incarnation == 1:
        again = Member(name=ME, endpoint="ipc://x", incarnation=2)
        pod = kept_of(s.pod, rules.added(map_of(s.pod), again))
        after = s._replace(pod=pod, lease=0, own=0)
        after = after._replace(epoch=after.pod.epoch, reported=after.pod.epoch)
        after = _carried_out(after, rules)
        yield "joins again", after._replace(slot=after.store)
    if s.slot in ("A1", "A2"):
        yield "memory given away", s._replace(slot="B")
    a = s.asked
    if a is None or a.stage != "sent" or a.kind == "memory":
        return
    refused = rules.refusal(_standing(s), 0, a.incarnation, a.epoch, writes=a.kind == "put")
    if refused:
        yield refused, s._replace(asked=None)
    elif a.kind == "put":
        content = "A2" if s.pod.floor and a.epoch >= s.pod.floor else "A1"
        yield "put", s._replace(store=content, slot=content, asked=None)
    else:
        content = s.slot if s.slot in ("A1", "A2") else s.store
        yield "answered", s._replace(slot=content, asked=_served(s, a, content))


def _served(s: State, a: Asked, content: str) -> Asked:
    past = s.pod.incarnation != s.incarnation or not s.pod.up
    return a._replace(stage="back", content=content, served_by=s.incarnation, past=past)


def _host(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    if s.host_epoch != s.pod.epoch and s.asked is None:
        incarnation = s.pod.incarnation if s.pod.up else 0
        after = s._replace(host_epoch=s.pod.epoch, host_incarnation=incarnation)
        same = incarnation == s.host_incarnation
        yield "map read", after if same else after._replace(answered=LATE)
    if s.asked is None:
        if s.host_incarnation == 0:
            return
        asked = Asked("read", "sent", 0, s.host_epoch, s.host_incarnation, s.acknowledged)
        yield "ask", s._replace(asked=asked)
        yield "write", s._replace(asked=asked._replace(kind="put"))
        if s.slot in ("A1", "A2"):
            yield "look up", s._replace(asked=asked._replace(kind="memory"))
        return
    a = s.asked
    yield "given up", s._replace(asked=None)
    if a.kind == "memory" and a.stage == "sent":
        yield "copied", s._replace(asked=_served(s, a, s.slot))
    elif a.stage == "back" and a.kind == "read":
        yield "taken", _used(s, a)._replace(asked=None, answered=min(s.answered, a.age))
    elif a.stage == "back" and a.kind == "memory":
        good = rules.names(a.content) and rules.same_incarnation(a.served_by, a.incarnation)
        if good and rules.reads_memory(-s.answered, 0, TTL):
            yield "read", _used(s, a)._replace(asked=None)


def _used(s: State, a: Asked) -> State:
    """The host uses its result now; Broken if an invariant does not hold."""
    if a.served_by != a.incarnation:
        raise Broken("served by another incarnation than was asked")
    if a.past:
        raise Broken("served past a fence")
    if a.content == "B":
        raise Broken("memory of another key was read")
    if a.content == "A1" and a.after_delete:
        raise Broken("read after its deletion was acknowledged")
    return s
