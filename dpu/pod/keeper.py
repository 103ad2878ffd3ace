"""The lease of a daemon of a pod, kept by a thread that touches no block.

Model: about six times in a lease the thread asks the map service to confirm the lease, reads the
map, and tells the reactor until when it may serve; `fence` has the rules. The daemon's loop carries
out what a newer map says and calls `carried_out`. The phases:

    adopting   its incarnation is in the map; the deletions it missed are being carried out
    serving    hosts are served until `serves_until`
    over       its lease has ended, or the map no longer lists it: the loop detaches all hosts and
               calls `left`
    away       not a member: it joins as a new incarnation when the map service answers and the map
               is not in doubt (`pod.history`); or it was removed from a map without leases, and
               stays out until it is restarted

If the map service does not answer, it asks the other members to promise, if they get no answer
either, not to take this daemon out of the map. With a promise from each, it serves as with a
confirmation.

A thread that is stopped, or gets no answer, extends no service: the reactor compares the last
deadline it was given with its own clock.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu.log import Log
from offstage.dpu.pod.fence import (
    Standing,
    confirmed,
    held_since,
    serves,
    serves_until,
    takes_out,
)
from offstage.dpu.pod.history import Seen, brought, comes_of, doubt, doubted
from offstage.dpu.pod.map import (
    Living,
    Member,
    MemberIncarnation,
    PodMap,
    added,
    leased,
    reconciled,
)
from offstage.dpu.pod.membership import Lease, Membership

__all__ = ["BEATS_PER_LEASE", "Keeper", "boot_ns"]

BEATS_PER_LEASE = 6
UNANSWERED_PER_LEASE = 24
"""A request to the map service that is unanswered for this part of a lease already counts as
silence: members ask at different times, and waiting for others to notice would fence a member."""
LOOK_S = 0.3
STATIC_NS = 3 * 10**9
"""Used as the lease if the map has none: determines how soon a change of the map is seen."""
Phase = Literal["away", "adopting", "serving", "over"]
Asking = Callable[[MemberIncarnation, Sequence[Member]], Iterable[MemberIncarnation]]
"""Asks members on behalf of an incarnation of this daemon; returns those that promised."""


def boot_ns() -> int:
    """The clock of leases: CLOCK_BOOTTIME, as the reactor has it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class _AsItWas(Exception):
    """A transition that makes no change."""


class Keeper:
    """Keeps the lease of `member`. Calls are for the loop or for the thread, as marked."""

    def __init__(
        self,
        membership: Membership,
        member: Member,
        seen: Seen,
        holder: str,
        serve_until: Callable[[int], None],
        wake: Callable[[], None],
        log: Log,
        peers: Asking,
        clock: Callable[[], int] = boot_ns,
    ) -> None:
        """`seen`: the newest map whose deletions its store has seen; `holder`: the id under which
        this daemon last held its name. `serve_until` may be called from any thread; `wake` wakes
        the loop; `peers` asks other members."""
        self._membership, self._member, self._clock = membership, member, clock
        self._peers = peers
        self._serve_until, self._wake, self._log = serve_until, wake, log
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._kick, self._beaten = threading.Event(), threading.Event()
        self._looks_again_s = 0.0
        self._thread = threading.Thread(target=self._run, name="ofs-pod", daemon=True)
        self._lease: Lease | None = None
        self._said = 0
        self._joined = 0
        self._reported: dict[MemberIncarnation, int] = {}
        self._silent = ""
        self._asked: int | None = None  # time of the pending request to the map service
        self._all_promise = True
        self._not_before = 0  # hosts may read memory of the old incarnation for part of its lease
        self._removed = False
        self._taking: set[MemberIncarnation] = set()
        self._held: dict[MemberIncarnation, int] = {}  # when each was asked for its last promise
        self.phase: Phase = "away"
        self.newest = PodMap()
        self.seen, self.holder = seen, holder
        self.doubt = ""
        """Why the newest map is not followed."""
        self.unknown = False
        """It cannot tell what it missed: there were more changes than the map names, or its store
        is of another pod. Then everything in the store is dropped."""
        self.standing = Standing(0, seen.epoch, 1, 0)
        self.promised: dict[MemberIncarnation, int] = {}
        """When this daemon last promised each incarnation not to take it out."""
        serve_until(0)

    # ---- the loop's ----

    def start(self) -> None:
        """Join, which raises if it cannot, then continue in the thread."""
        self._join()
        self._thread.start()

    def now(self) -> int:
        """The present time, by the clock of leases."""
        return self._clock()

    def serves(self) -> bool:
        """Whether hosts are served now."""
        return self.phase == "serving" and serves(self.standing, self._clock())

    def carried_out(self, epoch: int) -> None:
        """The deletions of the maps up to `epoch` are carried out here."""
        with self._lock:
            self.standing = confirmed(self.standing, self.standing.asked, epoch)
            self.unknown = False
            if self.phase == "adopting" and epoch >= self._joined:
                self.phase = "serving"
                self._tell()
        self._kick.set()

    def look(self, epoch: int) -> bool:
        """Read the map now, since a peer knows this epoch; whether this daemon then does too. The
        loop has other work: it waits for LOOK_S at most, and not again for ten times that."""
        now_s = time.monotonic()
        until_s = now_s
        if now_s >= self._looks_again_s and self.newest.epoch < epoch:
            until_s = now_s + LOOK_S
            self._looks_again_s = now_s + 10 * LOOK_S
        while self.newest.epoch < epoch:
            self._beaten.clear()
            self._kick.set()
            if not self._beaten.wait(max(0.0, until_s - time.monotonic())):
                break
        return self.newest.epoch >= epoch

    def promise(self, asking: MemberIncarnation) -> bool:
        """Promise another member not to take it out for a whole lease from now on. Refused if the
        map service answers this daemon: then only the other is cut off; or if this daemon has
        begun to take it out. After a refusal this daemon checks the map service immediately."""
        with self._lock:
            now, asked, ttl = self._clock(), self._asked, self.standing.ttl
            waits = asked is not None and now - asked >= ttl // UNANSWERED_PER_LEASE
            good = (bool(self._silent) or waits) and asking not in self._taking
            if good:
                self.promised[asking] = now
        if not good:
            self._kick.set()
        return good

    def left(self) -> None:
        """No host of the ended incarnation has access to this daemon any more."""
        with self._lock:
            self.phase = "away"
        self._kick.set()

    def close(self) -> None:
        """Stop serving hosts. The lease runs until it ends: hosts can read what they have mapped
        until then, and no member takes the daemon out of the map earlier."""
        self._serve_until(0)
        self._stop.set()
        self._kick.set()
        if self._thread.is_alive():
            self._thread.join()
        self._membership.close()

    # ---- the thread's ----

    def _run(self) -> None:
        begun_s = time.monotonic()
        while not self._stop.is_set():
            beat_s = (self.standing.ttl or STATIC_NS) / BEATS_PER_LEASE / 1e9
            pause_s = begun_s + beat_s - time.monotonic()
            if self._silent and not self._all_promise:  # some may not have noticed yet
                pause_s = beat_s * BEATS_PER_LEASE / UNANSWERED_PER_LEASE
            self._kick.wait(max(pause_s, 0.0))
            self._kick.clear()
            begun_s = time.monotonic()
            if self._stop.is_set():
                return
            try:
                self.beat()
            except OffstageError as error:
                self._note_silence(str(error))
            except Exception as error:  # any error: without a confirmation no host is served
                self._log.error("pod_failed", error=repr(error))
            self._beaten.set()

    def beat(self) -> None:
        """One round: confirm the lease, read the map, list the live members."""
        if self.phase == "over" or self._removed:
            return
        if self._lease is None:
            self._join()
            return
        if self._silent:  # first, since the map service may take long to time out
            self._unheard()
        self._asked = asked = self._clock()
        kept = self._lease.keep()
        if self._lease.lost:
            self._asked = None
            self._over("its lease has ended")
            return
        pod = self._membership.map() if kept else self.newest
        if not kept or not self._membership.fresh:
            if not self._silent:
                self._unheard()
            return
        self._asked = None
        own = pod.find(self._member.name)
        if why := doubt(pod, self.seen):
            self._not_before = self.standing.asked + self.standing.ttl
            self._over(why)
            self._in_doubt(pod, why)
            return
        if own is None or own.incarnation != self.standing.incarnation or own.state == "gone":
            self._removed = not self.standing.ttl and own is not None and own.state == "gone"
            self._over(
                "it was removed: restart it"
                if self._removed
                else "the map no longer has this incarnation"
            )
            return
        self._note_silence("")
        with self._lock:
            self.standing = confirmed(self.standing, asked, self.standing.epoch)
            newer = pod.epoch > self.newest.epoch
            self.newest, self.seen = pod, Seen.of(pod)
            if self.phase == "serving":
                self._tell()
        if newer:
            self._wake()
        if self.standing.epoch > self._said:
            self._say(own)
        self._look(pod)

    def _unheard(self) -> None:
        """The map service does not answer: ask the others whether they get no answer either."""
        self._note_silence("no answer")
        asked = self._clock()
        own = (self._member.name, self.standing.incarnation)
        others = [one for one in self.newest.readable if one.incarnation and one.name != own[0]]
        for one in self._peers(own, others):
            self._held[one] = asked
        with self._lock:
            self._all_promise = all(
                self._held.get((one.name, one.incarnation)) == asked for one in others
            )
            held = held_since(self._held, [(one.name, one.incarnation) for one in others], asked)
            if held is not None and self.phase == "serving":
                self.standing = confirmed(self.standing, held, self.standing.epoch)
                self._tell()

    def _join(self) -> None:
        """Join as a new incarnation: first its key under a lease, then the map. Not in doubt."""
        name, pod = self._member.name, self._membership.map()
        if why := doubt(pod, self.seen):
            self._in_doubt(pod, why)
            return
        self._note_doubt("")
        if self._clock() < self._not_before:
            return
        strange = not comes_of(pod, self.seen)
        self.unknown = self.unknown or (strange and pod.is_long)
        if strange:
            self.standing = replace(self.standing, epoch=0)
            self._taking.clear()
            self._held.clear()
        before = pod.find(name)
        draining = before is not None and before.state == "draining"
        member = msgspec.structs.replace(
            self._member,
            incarnation=max(before.incarnation if before else 0, self.standing.incarnation) + 1,
            state="draining" if draining else "up",
        )
        asked, holder = self._clock(), secrets.token_hex(8)
        lease = self._membership.announce(_living(member, self.standing.epoch, holder), self.holder)
        self.holder = holder
        try:
            pod = self._membership.change(lambda found: self._joined_to(found, member, lease))
        except BadInput:
            with contextlib.suppress(OffstageError):
                lease.end()
            raise
        incarnation = member.incarnation if lease.ttl_ns else 0
        with self._lock:
            self._lease, self._said, self._joined = lease, self.standing.epoch, pod.epoch
            self.standing = Standing(incarnation, self.standing.epoch, lease.ttl_ns, asked)
            self.newest, self.seen, self.phase = pod, Seen.of(pod), "adopting"
            self._reported.clear()
        self._log.info(
            "pod_joined", name=name, incarnation=incarnation, epoch=pod.epoch, lease_ns=lease.ttl_ns
        )
        self._wake()

    def _joined_to(self, found: PodMap, member: Member, lease: Lease) -> PodMap:
        """The map with the member, and with the deletions that it saw in an ended history."""
        if why := doubt(found, self.seen):
            raise BadInput(why, "pod map", "see offstage pod status")
        if not comes_of(found, self.seen) and not found.is_long:
            found = brought(found, self.seen)
        if lease.ttl_ns:
            return added(leased(found, member.name, lease.ttl_ns), member)
        return _registered(found, msgspec.structs.replace(member, incarnation=0))

    def _in_doubt(self, pod: PodMap, why: str) -> None:
        """No host is served until an operator accepts the map. What only this daemon knows, it
        reports to all: once, and with the deletions that it has seen."""
        self._note_silence("")
        self._note_doubt(why)
        name = self._member.name
        if name in pod.doubt or comes_of(pod, self.seen):
            return

        def said(found: PodMap) -> PodMap:
            if name in found.doubt:
                raise _AsItWas
            return doubted(found, name, self.seen)

        with contextlib.suppress(_AsItWas):
            self._membership.change(said)

    def _note_doubt(self, why: str) -> None:
        if bool(why) != bool(self.doubt):
            level = self._log.error if why else self._log.info
            level(
                "pod_in_doubt" if why else "pod_accepted",
                why=why or self.doubt,
                fix="offstage pod status MAP; offstage pod accept MAP",
            )
        self.doubt = why

    def _over(self, why: str) -> None:
        self._serve_until(0)
        with self._lock:
            self.phase, lease, self._lease = "over", self._lease, None
        self._log.warning("pod_fenced", why=why, incarnation=self.standing.incarnation)
        if lease is not None and not lease.lost:
            with contextlib.suppress(OffstageError):
                lease.end()
        self._wake()

    def _tell(self) -> None:
        """The reactor, under the lock: until when."""
        ttl = self.standing.ttl
        self._serve_until(serves_until(self.standing) if ttl else 2**64 - 1)

    def _say(self, own: Member) -> None:
        assert self._lease is not None
        epoch = self.standing.epoch
        self._lease.say(_living(own, epoch, self.holder))
        self._said = epoch

    def _look(self, pod: PodMap) -> None:
        """Take members with an ended lease out of the map, if `takes_out` permits."""
        alive = self._membership.alive()
        for one in alive:
            key = (one.name, one.incarnation)
            self._reported[key] = max(self._reported.get(key, 0), one.carried_out)
        present = {(one.name, one.incarnation) for one in alive}
        ended = [
            one
            for one in pod.readable
            if one.incarnation and (one.name, one.incarnation) not in present
        ]
        taken = {(one.name, one.incarnation) for one in ended if self._takes(one)}
        if not taken:
            return

        def without(found: PodMap) -> PodMap:
            living = {(one.name, one.incarnation) for one in self._membership.alive()}
            kept = [
                one for one in found.member if (one.name, one.incarnation) not in taken - living
            ]
            changed = reconciled(found, kept)
            if changed == found:
                raise _AsItWas
            return changed

        with contextlib.suppress(_AsItWas):
            self.newest = self._membership.change(without)
            self._log.warning(
                "pod_members_gone", names=sorted(name for name, _ in taken), epoch=self.newest.epoch
            )
            self._wake()

    def _takes(self, one: Member) -> bool:
        key = (one.name, one.incarnation)
        with self._lock:
            if takes_out(
                self._joined,
                self._reported.get(key, 0),
                self.promised.get(key),
                self._clock(),
                self.standing.ttl,
            ):
                self._taking.add(key)  # from now on it gets no promise
            return key in self._taking

    def _note_silence(self, why: str) -> None:
        if bool(why) != bool(self._silent):
            level = self._log.warning if why else self._log.info
            level("pod_unconfirmed" if why else "pod_confirmed", why=why or self._silent)
        self._silent = why


def _living(member: Member, epoch: int, holder: str) -> Living:
    return Living(
        **msgspec.structs.asdict(member),
        carried_out=epoch,
        holder=holder,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def _registered(pod: PodMap, member: Member) -> PodMap:
    """In a map without leases: replaces any earlier member of the name."""
    known = pod.find(member.name)
    if known is not None and known.incarnation:
        raise BadInput(f"{member.name} is there under a lease", "pod map", "give another name")
    others = [one for one in pod.member if one.name != member.name]
    return added(msgspec.structs.replace(pod, member=tuple(others)), member)
