"""The fabric of a host over a pod. It splits each fetch and put by shard, sends the pieces to all
members in parallel, and merges the results.

A piece of a fetch has the fetch deadline, a put four times that. When a member does not answer,
every missing block gets an error: the decode loop recomputes the block, and its put goes to the
shard's next home. If a member's fabric has not completed a piece within twice its deadline, the
fabric is closed, so that nothing writes into the host's memory any more, and the member is lost.
The member's own fabric checks the blocks, as it does for a single daemon.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import (
    UNKNOWN_END,
    Fabric,
    Fetch,
    FetchRequest,
    FetchResult,
    Put,
    PutRequest,
)
from offstage.bindings.stages import StageTimes
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions, Shard

__all__ = ["FETCH_DEADLINE_NS", "PodFabric"]

FETCH_DEADLINE_NS = 1_000_000_000
"""How long a fetch waits for one member: the bound on the cost of a dead member."""
PUT_SHARE = 4
LOOK_NS = 100_000
"""How long to poll one member while other members have calls in flight too."""
TRIES_MAX = 4
"""How many homes a put tries."""
NO_SHARD = Shard(b"", 0, 0)
InFlight = TypeVar("InFlight", Fetch, Put)
SUMMED = ("hit_count", "retry_count", "torn_count", "copy_ns")


@dataclass(eq=False)
class _Piece:
    """One member's part of a call: `at` are the positions of its blocks in the call. `only`: the
    piece is bound to that member, and its result does not change whether the member is trusted."""

    whole: "_Whole"
    shard: Shard
    at: NDArray[np.intp]
    only: Joined | None = None
    handle: Fetch | Put | None = None
    begun_ns: int = 0
    until_ns: int = 0
    tries: int = 0


@dataclass(eq=False)
class _Whole:
    """A call of the host: `begin` submits a piece to its member; `left` pieces are in flight."""

    session: int
    allowed_ns: int
    begin: Callable[[Joined, _Piece], Fetch | Put]
    handle: Fetch | Put
    left: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    stall_ns: int = 0

    def ended_one(self) -> None:
        """One more piece has ended."""
        self.left -= 1
        self.handle.ended = not self.left


class PodFabric(Fabric):
    """Over the members of `sessions`. One thread owns it."""

    def __init__(self, sessions: PodSessions, deadline_ns: int = FETCH_DEADLINE_NS) -> None:
        """Over the fabrics that the members have open; it closes none of them."""
        super().__init__()
        fabrics = [one.fabric for one in sessions.members]
        self.payload_size_bytes = fabrics[0].payload_size_bytes
        self.demand_max = min(one.demand_max for one in fabrics)
        self.calls_max = min(one.calls_max for one in fabrics)
        self.dilation = fabrics[0].dilation
        self._sessions, self._deadline_ns = sessions, deadline_ns
        self._clock = sessions.clock
        self._flying: dict[Joined, dict[Fetch | Put, _Piece]] = {
            one: {} for one in sessions.members
        }
        self._registered: list[NDArray[Any]] = []
        self._counted: dict[str, int] = {}
        """Counters of members that have left."""

    def admit(self, coming: Joined) -> Joined | None:
        """Add a member that joined or came back; allowed while calls are in flight. Returns the
        previous `Joined` of that member, whose fabric and connection the caller closes."""
        before = self._sessions.admit(coming)
        self._flying[coming] = {}
        for array in self._registered:
            self._each(partial(_register, array), coming)
        if before is not None:
            self._counted = _added(self._counted, before.fabric.stats())
            if self._flying[before]:  # lost by what its control connection or the map said
                before.fabric.close()
                self._lose(before, before.lost)
            del self._flying[before]
        return before

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Begin a fetch. `keys` is ignored: each shard has its keys at its current home."""
        index, more, layer = request.rows, request.resident, request.layer
        allowed_ns = min(request.timeout_ns, self._deadline_ns)

        def begin(at: Joined, piece: _Piece) -> Fetch:
            nonlocal more
            shard, where = piece.shard, piece.at
            own = request.ordinals[where] - np.uint32(shard.first)
            scores = request.scores
            if scores is not None:
                scores = scores[shard.first : shard.first + len(shard.chunk_keys)]
            selected, more = own.size + more, 0
            self._sessions.demanded[shard.name] += own.size
            return at.fabric.fetch_begin(
                replace(
                    request,
                    session=shard.handle,
                    ordinals=own,
                    keys=np.ascontiguousarray(shard.keys[layer, own]),
                    target_index=index[where],
                    selected_count=selected,
                    scores=scores,
                    timeout_ns=allowed_ns,
                )
            )

        fetch = Fetch(request)
        fetch.rcs[:] = -errno.EHOSTDOWN
        parts = dict(
            (shard.first, (shard, at))
            for shard, at in self._sessions.parts(request.session, request.ordinals)
        )
        none = np.empty(0, np.intp)
        if request.scores is not None:  # every shard gets the step's scores, demands or not
            for shard in self._sessions.shards(request.session):
                parts.setdefault(shard.first, (shard, none))
        self._start(request.session, allowed_ns, fetch, begin, list(parts.values()))
        return fetch

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch; advances the others meanwhile."""
        self._finish(fetch)
        whole: _Whole = fetch.work
        return fetch.result(stall_ns=whole.stall_ns, **whole.counts)

    def put_begin(self, request: PutRequest) -> Put:
        """Begin a put. If a home does not answer, the blocks go to the shard's next home."""
        allowed_ns = min(request.timeout_ns, PUT_SHARE * self._deadline_ns)

        def begin(at: Joined, piece: _Piece) -> Put:
            return at.fabric.put_begin(
                replace(
                    request,
                    session=piece.shard.handle,
                    ordinals=request.ordinals[piece.at] - np.uint32(piece.shard.first),
                    source=request.source[piece.at],
                    timeout_ns=allowed_ns,
                )
            )

        put = Put(request)
        put.rcs[:] = -errno.EHOSTDOWN
        assert request.session is not None
        parts = self._sessions.parts(request.session, request.ordinals)
        self._start(request.session, allowed_ns, put, begin, parts)
        return put

    def _advance(self, timeout_ns: int) -> None:
        for at in [one for one, pieces in self._flying.items() if pieces]:
            self._collect(at, min(LOOK_NS, timeout_ns))

    def _now_ns(self) -> int:
        return self._clock.now_ns()

    # ---- calls to one member, for moves between members ----

    def has_room(self, at: Joined) -> bool:
        """Whether a move's call may start there: half of the room is reserved for moves."""
        return len(self._flying[at]) < max(1, at.fabric.calls_max // 2)

    def fetch_at(self, at: Joined, request: FetchRequest) -> Fetch:
        """Like `fetch_begin`, for a session of that member; `poll` does not report it."""
        allowed_ns = PUT_SHARE * self._deadline_ns
        request = replace(request, timeout_ns=allowed_ns)
        return self._start_at(
            at, allowed_ns, Fetch(request), lambda at, piece: at.fabric.fetch_begin(request)
        )

    def put_at(self, at: Joined, request: PutRequest) -> Put:
        """Like `put_begin`, for a session of that member; `poll` does not report it."""
        allowed_ns = PUT_SHARE * self._deadline_ns
        request = replace(request, timeout_ns=allowed_ns)
        return self._start_at(
            at, allowed_ns, Put(request), lambda at, piece: at.fabric.put_begin(request)
        )

    def in_flight(self, shard: Shard) -> bool:
        """Whether a call for the shard is in flight at the member where it is open."""
        at = shard.at
        flying = {} if at is None else self._flying.get(at, {})
        return any(one.shard is shard for one in flying.values())

    def _start_at(
        self,
        at: Joined,
        allowed_ns: int,
        handle: InFlight,
        begin: Callable[[Joined, _Piece], Fetch | Put],
    ) -> InFlight:
        handle.rcs[:] = -errno.EHOSTDOWN
        handle.work = whole = _Whole(0, allowed_ns, begin, handle, 1)
        self._in_flight[handle] = True
        self._send(_Piece(whole, NO_SHARD, np.arange(len(handle.rcs)), at))
        return handle

    def _start(
        self,
        session: int,
        allowed_ns: int,
        handle: Fetch | Put,
        begin: Callable[[Joined, _Piece], Fetch | Put],
        parts: list[tuple[Shard, NDArray[np.intp]]],
    ) -> None:
        handle.work = whole = _Whole(session, allowed_ns, begin, handle, len(parts))
        handle.ended = not parts
        self._in_flight[handle] = False
        for shard, at in parts:
            self._send(_Piece(whole, shard, at))

    def _send(self, piece: _Piece) -> None:
        """Submit a piece to its shard's home, or to another home if that connection ended."""
        while True:
            piece.tries += 1
            try:
                at = piece.only or self._sessions.home(piece.whole.session, piece.shard)
            except RunFailed:  # no member answers: the piece has failed
                piece.whole.ended_one()
                return
            if piece.only is not None and (at.lost or at not in self._flying):
                return self._failed(piece)
            flying = self._flying[at]
            while len(flying) >= at.fabric.calls_max:
                self._collect(at, LOOK_NS)
            piece.begun_ns = self._clock.now_ns()
            piece.until_ns = piece.begun_ns + 2 * piece.whole.allowed_ns
            try:
                piece.handle = piece.whole.begin(at, piece)
                flying[piece.handle] = piece
                return
            except RunFailed as error:
                self._lose(at, error.what)

    def _collect(self, at: Joined, timeout_ns: int) -> None:
        """Process one member's completions."""
        flying = self._flying[at]
        if not flying:
            return
        again: list[_Piece] = []
        try:
            for handle in at.fabric.poll(timeout_ns):
                piece = flying.get(handle)
                if piece is None:
                    continue
                try:
                    came = self._took(at, piece)  # raises if the whole connection is lost
                except RunFailed as error:
                    if error.errno != errno.EKEYEXPIRED:
                        raise
                    at.fenced += 1
                    at.suspect(self._clock.now_ns(), error.what)
                    came = False
                del flying[handle]
                again += [] if came else [piece]
        except RunFailed as error:
            self._lose(at, error.what)
        now_ns = self._clock.now_ns()
        if any(one.until_ns < now_ns for one in flying.values()):
            at.fabric.close()
            self._lose(at, "its fabric did not end a call in time")
        for piece in again:  # outside the try: a failure here is not this member's failure
            self._failed(piece)

    def _lose(self, at: Joined, why: str) -> None:
        """The member's connection has ended: fail its pieces in flight."""
        now_ns = self._clock.now_ns()
        at.suspect(now_ns, why, lost=True)
        pieces = list(self._flying[at].values())
        self._flying[at].clear()
        for piece in pieces:
            at.waited(piece.begun_ns, now_ns)
        for piece in pieces:
            self._failed(piece)

    def _took(self, at: Joined, piece: _Piece) -> bool:
        """Process a piece's result; False: retry it at another home."""
        assert piece.handle is not None
        whole, now_ns = piece.whole, self._clock.now_ns()
        if isinstance(piece.handle, Put):
            rcs = at.fabric.put_end(piece.handle)
            if (rcs == -errno.EKEYEXPIRED).any():
                at.fenced += 1
                at.suspect(now_ns, "its lease is not confirmed")
                if piece.only is None:
                    return False
            if (rcs == -errno.ETIMEDOUT).any() and piece.only is None:
                at.waited(piece.begun_ns, now_ns)
                at.suspect(now_ns, "a put was not acknowledged in time")
                return False
            whole.handle.rcs[piece.at] = rcs
            whole.ended_one()
            return True
        result = at.fabric.fetch_end(piece.handle)
        if not at.believed(piece.begun_ns, unanswered=piece.handle.unanswered):
            at.suspect(now_ns, "its lease may have ended")
            return False
        if (result.rcs == -errno.ETIMEDOUT).any() and piece.only is None:
            at.waited(piece.begun_ns, now_ns)
            at.suspect(now_ns, "a fetch took longer than its deadline")
            whole.stall_ns = max(whole.stall_ns, now_ns - piece.begun_ns)
        at.failed += int(np.count_nonzero(result.rcs))
        known = np.bincount(result.ends[result.ends != UNKNOWN_END], minlength=at.ends.size)
        at.ends += known
        if piece.only is None:
            at.fetch_ns = max(at.fetch_ns, now_ns - piece.begun_ns)
        else:
            at.moved_ends += known
        for name in ("ends", "rcs", "lengths", "checksums"):
            getattr(whole.handle, name)[piece.at] = getattr(result, name)
        for name in whole.counts:
            whole.counts[name] += getattr(result, name)
        whole.stall_ns = max(whole.stall_ns, result.stall_ns)
        whole.ended_one()
        return True

    def _failed(self, piece: _Piece) -> None:
        """A fetch's blocks stay marked as failed; a put goes to the next home."""
        again = piece.only is None and isinstance(piece.whole.handle, Put)
        if again and piece.tries < TRIES_MAX:
            self._send(piece)
        else:
            waited_ns = self._clock.now_ns() - piece.begun_ns
            piece.whole.stall_ns = max(piece.whole.stall_ns, waited_ns)
            piece.whole.ended_one()

    # ---- calls to every member ----

    def register(self, array: NDArray[Any]) -> None:
        """Register with every member, including ones that join later."""
        self._registered.append(array)
        self._each(partial(_register, array))

    def unregister(self, array: NDArray[Any]) -> None:
        """Unregister with every member."""
        self._registered = [one for one in self._registered if one is not array]
        self._each(lambda one: one.fabric.unregister(array))

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send each guess to its shard's home; returns how many were sent, from the first."""
        for shard, at in self._sessions.parts(session, guesses["ordinal"]):
            own = guesses[at].copy()
            own["ordinal"] -= shard.first
            home = self._sessions.home(session, shard)
            self._each(partial(_hint, shard, own), home)
        return len(guesses)

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """Set the limits at every member."""
        self._each(lambda one: one.fabric.limit_scores(scores_max, every_steps, score_bits))

    def release(self, session: int) -> None:
        """Release at every member where a shard of the session is open."""
        for shard in self._sessions.shards(session):
            if shard.at is not None:
                self._each(partial(_release, shard), shard.at)

    def stats(self) -> dict[str, int]:
        """The sums over all members."""
        total = self._counted
        for one in self._flying:
            total = _added(total, one.fabric.stats())
        return total

    def stages(self) -> dict[str, StageTimes]:
        """The stages of each member, as `NAME.stage`."""
        return {
            f"{one.member.name}.{name}": stage
            for one in self._flying
            for name, stage in one.fabric.stages().items()
        }

    def close(self) -> None:
        """End the calls in flight; the members keep their fabrics."""
        super().close()
        for pieces in self._flying.values():
            pieces.clear()

    def _each(self, call: Callable[[Joined], Any], *some: Joined) -> None:
        for one in some or tuple(self._flying):
            if not one.lost:
                try:
                    call(one)
                except RunFailed as error:
                    self._lose(one, error.what)


def _added(total: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {name: total.get(name, 0) + more.get(name, 0) for name in {**total, **more}}


def _register(array: NDArray[Any], one: Joined) -> None:
    one.fabric.register(array)


def _hint(shard: Shard, guesses: NDArray[np.void], one: Joined) -> int:
    return one.fabric.hint(shard.handle, guesses)


def _release(shard: Shard, one: Joined) -> None:
    one.fabric.release(shard.handle)
