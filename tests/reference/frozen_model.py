"""A pod whose etcd may not answer, as a state machine: may a daemon serve on the promises of
others?

The decisions are those of `offstage.dpu.pod.fence`. D is the daemon; P is a member that D knows
from the beginning; N joins at some time, and D knows it once it has read the map after that; a host
reads D's memory. In any step each of them may or may not reach etcd: a step that needs etcd is
taken or not. Loss and delay need no steps of their own where the earliest event is the worst case;
P's answer may be late nevertheless, which shows from when a promise must count. Times are modelled
as ages, as in `pod_model`.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pod_model import way

from offstage.dpu.pod import fence
from offstage.dpu.pod.fence import Standing

TTL = 4
CAP = TTL + 1
LATE = TTL // 2 + 1
NEVER = -1
D = ("d", 1)


class Rules:
    """The rules under test; a test overrides one to show that it is needed."""

    held_since = staticmethod(fence.held_since)
    takes_out = staticmethod(fence.takes_out)
    serves = staticmethod(fence.serves)
    reads_memory = staticmethod(fence.reads_memory)

    @staticmethod
    def asked_age(age: int) -> int:
        """A promise counts from its request."""
        return age

    @staticmethod
    def promises(taking: bool) -> bool:
        """Whether a member without an answer from etcd promises."""
        return not taking


class Other(NamedTuple):
    """P or N. `joined`: the epoch in which it joined; 0 before that."""

    joined: int
    promised: int = NEVER
    """How long ago, by its own clock; CAP: long ago."""
    taking: bool = False
    asked: int = NEVER
    """A question of D: how old it is, on its way there or, of P, `back`."""
    back: bool = False
    held: int = LATE
    """Age of D's question for the promise that D has last."""


class State(NamedTuple):
    """Everything. `lease`: the age of D's lease at etcd; `own`: of the request that confirmed
    it."""

    member: bool = True
    lease: int = 0
    own: int = 0
    epoch: int = 1
    """Of the map that D has."""
    reported: int = 1
    p: Other = Other(1)
    n: Other = Other(0)
    answered: int = LATE
    """Age of the host's question that D answered last."""
    slow: bool = True


class Broken(AssertionError):
    """D serves or is read although it is not in the map."""


def explore(rules: type[Rules] = Rules, begin: State | None = None) -> tuple[int, bool]:
    """Visit every state; returns how many there are, and whether D serves in one after its lease
    ended."""
    first = begin or State()
    came: dict[State, tuple[State | None, str]] = {first: (None, "")}
    waiting, lasting = deque([first]), False
    while waiting:
        state = waiting.popleft()
        serving = _serves(state, rules)
        lasting |= serving and state.lease > TTL
        if not state.member and (serving or rules.reads_memory(-state.answered, 0, TTL)):
            raise Broken(way(state, came))
        for name, after in _steps(state, rules):
            if after not in came:
                came[after] = (state, name)
                waiting.append(after)
    return len(came), lasting


def _serves(s: State, rules: type[Rules]) -> bool:
    others = {("p", 1): s.p, ("n", 1): s.n}
    known = [key for key, one in others.items() if 0 < one.joined <= s.epoch]
    promises = {key: -one.held for key, one in others.items() if one.held < LATE}
    since = rules.held_since(promises, known, 0)
    asked = -s.own if since is None else max(-s.own, since)
    return rules.serves(Standing(1, s.epoch, TTL, asked), 0)


def _steps(s: State, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    yield from _time(s)
    if s.member and s.lease <= TTL:
        epoch = max(s.p.joined, s.n.joined)
        yield "confirmed", s._replace(lease=0, own=0, epoch=epoch, reported=s.epoch)
    if not s.n.joined:
        yield "N joins", s._replace(n=Other(2))
    if _serves(s, rules):
        yield "D answers the host", s._replace(answered=0)
    for name in ("p", "n"):
        one: Other = getattr(s, name)
        if one.joined:
            for step, after in _other(s, one, rules):
                changed = _changed(one, step, rules, late=name == "p")
                yield f"{name.upper()} {step}", after._replace(**{name: changed})


def _changed(one: Other, step: str, rules: type[Rules], *, late: bool) -> Other:
    if step == "is asked":
        return one._replace(asked=0, back=False)
    if step == "promises":
        one = one._replace(promised=0, back=True)
    if step == "resolves":
        return one._replace(taking=True)
    if step == "is heard" or (step == "promises" and not late):
        return one._replace(asked=NEVER, back=False, held=min(one.held, rules.asked_age(one.asked)))
    return one


def _other(s: State, one: Other, rules: type[Rules]) -> Iterator[tuple[str, State]]:
    if one.asked == NEVER:
        yield "is asked", s
    elif one.back:
        yield "is heard", s
    elif rules.promises(one.taking):
        yield "promises", s
    if s.member and s.lease > TTL and not one.taking:
        promised = None if one.promised == NEVER else -one.promised
        if rules.takes_out(one.joined, s.reported, promised, 0, TTL):
            yield "resolves", s
    if s.member and s.lease > TTL and one.taking:
        yield "takes D out", s._replace(member=False)


def _older(age: int, cap: int = LATE) -> int:
    return age if age == NEVER else min(age + 1, cap)


def _time(s: State) -> Iterator[tuple[str, State]]:
    """The clocks of P and N always tick: they only wait, and waiting longer does no harm."""

    def other(one: Other, *, mine: bool) -> Other:
        aged = one._replace(promised=_older(one.promised, CAP))
        if mine:
            aged = aged._replace(asked=_older(one.asked), held=_older(one.held))
        return aged

    def after(*, daemon: bool, host: bool) -> State:
        aged = s._replace(
            lease=_older(s.lease, CAP), p=other(s.p, mine=daemon), n=other(s.n, mine=daemon)
        )
        if daemon:
            aged = aged._replace(own=_older(s.own))
        return aged._replace(answered=_older(s.answered)) if host else aged

    yield "tick", after(daemon=True, host=True)
    if s.slow:
        yield "tick, not D's", after(daemon=False, host=True)._replace(slow=False)
        yield "tick, not the host's", after(daemon=True, host=False)._replace(slow=False)
