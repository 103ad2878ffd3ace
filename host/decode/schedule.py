"""Which waiting request begins next, and on which host: one pure function for agent and laboratory.

Work is in tokens. A host's *ahead* is its work queued before a new request, a request's *total* is
its work, and *matched* the part of it whose prefix the host already has. The score of a request on
a host is

    weight * matched / total - ahead / total

With weight 1 it is largest on the host with the earliest first token: work saved minus work waited
for, both relative to the request (the form of production-stack's issue 1035, with the host's own
work in place of a mean, which is 0 when no host works). A larger weight favours shared prefixes
over low load. Requests with a matched prefix start first, so that sessions that share one run
together. A request that was passed over `patience` times is next, so none starves: the k-th in the
queue starts after at most k * (patience + 1) others.

Nothing here reads a clock, draws a number or can fail, given arrays of matching shapes.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.settings import Settings, about, within

__all__ = ["KINDS", "Begin", "Rule", "Schedule", "begin_next", "scores"]

Schedule = Literal["reuse", "least-loaded", "round-robin"]
KINDS: tuple[Schedule, ...] = ("reuse", "least-loaded", "round-robin")
WEIGHT_MAX = 1000
I64 = NDArray[np.int64]


class Rule(Settings, frozen=True, kw_only=True):
    """How requests are given to hosts."""

    kind: Annotated[Schedule, about("reuse, least-loaded or round-robin")] = "least-loaded"
    weight: Annotated[float, within(0, WEIGHT_MAX, "of the matched share against load")] = 1.0
    patience: Annotated[int, within(0, 1 << 20, "how often a request may be passed over")] = 16


@dataclass(frozen=True)
class Begin:
    """A request, by its position in the queue, and the host that takes it."""

    waiting: int
    host: int


def scores(matched: I64, total: I64, ahead: I64, weight: float) -> NDArray[np.float64]:
    """Score of each request on each host, `[requests, hosts]`; `matched` has that shape, `total`
    is `[requests]` and `ahead` `[hosts]`, all in tokens."""
    own = np.maximum(total, 1)[:, None].astype(np.float64)
    found: NDArray[np.float64] = weight * (matched / own) - ahead[None, :] / own
    return found


def begin_next(
    rule: Rule,
    matched: I64,
    total: I64,
    passed: I64,
    ahead: I64,
    room: NDArray[np.bool_],
    turn: int,
) -> Begin | None:
    """The next request to start, or None if none waits or no host has room.

    `matched` `[requests, hosts]`, `total` and `passed` (how often it was passed over) `[requests]`,
    requests in order of arrival; `ahead` and `room` `[hosts]`; `turn`: how many have begun."""
    if not len(total) or not room.any():
        return None
    if rule.kind == "round-robin":
        hosts = (turn + np.arange(len(room))) % len(room)
        return Begin(0, int(hosts[np.argmax(room[hosts])]))
    if rule.kind == "least-loaded":
        return Begin(0, int(np.argmin(np.where(room, ahead, np.iinfo(np.int64).max))))
    request = 0
    if passed[0] < rule.patience:
        shares = np.where(room[None, :], matched, 0).max(axis=1) / np.maximum(total, 1)
        request = int(np.argmax(shares))  # the earliest of those that share most
    one = slice(request, request + 1)
    score = scores(matched[one], total[one], ahead, rule.weight)[0]
    return Begin(request, int(np.argmax(np.where(room, score, -np.inf))))
