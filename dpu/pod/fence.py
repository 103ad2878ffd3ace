"""When a daemon of a pod may serve, and when a host may trust what it read: pure functions.

A member whose lease has ended is taken out of the map, and its shards are given to others. The
*fence* is the guarantee that this incarnation of the daemon serves no host from then on, although
no clock is shared and any process may be stopped at any point:

- a daemon counts its lease from when it *requested* the confirmation, and serves for half of it;
- a host uses what it read directly from the daemon's memory for at most three eighths of the lease
  after the last request that the daemon answered: such a read involves no process of the daemon,
  and a stopped daemon cannot withdraw its memory;
- the remaining eighth allows for clocks that run at different rates.

So the last use is within 7/8 of a lease after the request, and the lease ends no earlier than
a whole one after that. A name belongs to a store, which one process at a time has open: so a daemon
that restarts need not wait for the lease of its earlier incarnation. Blocks are named by content
and checked by their readers; the fence covers what a name does not say: that something was deleted,
pinned, charged to a quota. `tests/simulation/test_pod_fence.py` explores these functions in every
order, and each rule is needed there: docs/decisions/pod-membership.md.

Times are integers in one unit, of the caller's clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from offstage.dpu.pod.map import MemberIncarnation

__all__ = [
    "Refusal",
    "Standing",
    "adopts",
    "confirmed",
    "deletion_holds",
    "held_since",
    "reads_memory",
    "refusal",
    "serves",
    "serves_until",
    "takes_out",
]

Refusal = Literal["", "fenced", "foreign", "stale"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A daemon's own state. `ttl` 0: a map without leases, which fences no member."""

    incarnation: int
    epoch: int
    """Epoch of the newest map whose deletions it has carried out."""
    ttl: int
    asked: int
    """When it requested the last confirmation that it got."""


def confirmed(standing: Standing, asked: int, epoch: int) -> Standing:
    """The lease was confirmed, as of the request, and the map of `epoch` carried out."""
    return replace(standing, asked=max(standing.asked, asked), epoch=max(standing.epoch, epoch))


def serves_until(standing: Standing) -> int:
    """The last moment at which the daemon may answer: half its lease after the request."""
    return standing.asked + standing.ttl // 2


def serves(standing: Standing, now: int) -> bool:
    """Whether the daemon may answer."""
    return standing.ttl == 0 or now <= serves_until(standing)


def refusal(standing: Standing, now: int, incarnation: int, epoch: int, *, writes: bool) -> Refusal:
    """Why a request is not carried out; "": it is. A read under an older map is slow but never
    wrong; a write under one might restore what a newer one deleted."""
    if not serves(standing, now):
        return "fenced"
    if incarnation != standing.incarnation:
        return "foreign"
    return "stale" if writes and epoch < standing.epoch else ""


def reads_memory(asked: int, now: int, ttl: int) -> bool:
    """Whether a host may use what it read directly from a daemon's memory; `asked`: when it sent
    the last request that this incarnation answered. Call it after the copy."""
    return ttl == 0 or now - asked <= 3 * ttl // 8


def adopts(carried_out: Collection[str], purges: Iterable[str]) -> bool:
    """Whether a tenant's blocks in a store are valid: the store has seen every deletion that the
    map names, by its random id, carried out. Epochs cannot tell: they repeat if the map was rolled
    back."""
    return all(one in carried_out for one in purges)


def held_since(
    promises: Mapping[MemberIncarnation, int], others: Iterable[MemberIncarnation], now: int
) -> int | None:
    """As of when a daemon without an answer from the map service counts as confirmed by all other
    members of its newest map: since the earliest of its requests for their last promises.
    `promises`: when each was asked for its last promise. None: one gave none."""
    asked = [promises.get(one) for one in others]
    return None if None in asked else min([now, *(one for one in asked if one is not None)])


def takes_out(joined: int, reported: int, promised: int | None, now: int, ttl: int) -> bool:
    """Whether a member may take another, whose lease has ended, out of the map: the other knew of
    it (had carried out the epoch in which this incarnation joined, so would have asked it for a
    promise), and its last promise, if any, was a whole lease ago."""
    return reported >= joined and (promised is None or now - promised > ttl)


def deletion_holds(epoch: int, members: Iterable[str], carried_out: Mapping[str, int]) -> bool:
    """Whether a deletion that made the map of `epoch` may be acknowledged: every member that is not
    gone has reported that it carried out that map, or a later one."""
    return all(carried_out.get(name, 0) >= epoch for name in members)
