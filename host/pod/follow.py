"""A host that follows the map: it logs in to who joins or comes back, and leaves who is gone.

A thread of its own reads the map now and then and logs in, since both may take seconds; what it
found is taken over by the thread that owns sessions and fabric, between two of its calls. Where
whoever keeps the map does not answer, the last map stands, and members that were lost are still
tried again. It stands too where a map comes that is in doubt or not made of it
(`dpu.pod.history`): its members serve nobody until an operator accepts it, and then all follow.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator

from offstage.bindings.errors import OffstageError
from offstage.dpu.pod.history import Seen, doubt
from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.membership import Membership
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions

__all__ = ["LOOK_S", "Follower"]

LOG = logging.getLogger("offstage.pod")
LOOK_S = 0.5
"""Between two looks at the map."""


class Follower:
    """`membership` is its own from now on; `login` logs in to a member by the map of
    an epoch, or raises OffstageError."""

    def __init__(
        self,
        membership: Membership,
        login: Callable[[Member, int], Joined],
        fabric: PodFabric,
        sessions: PodSessions,
        look_s: float = LOOK_S,
    ) -> None:
        """Begin to look; `look_s` 0: whoever it belongs to calls `look`."""
        self._membership, self._login = membership, login
        self._fabric, self._sessions, self._look_s = fabric, sessions, look_s
        self._known = {one.member.name: one for one in sessions.members}
        self._came: queue.SimpleQueue[Joined] = queue.SimpleQueue()
        self._left: queue.SimpleQueue[Joined] = queue.SimpleQueue()
        self._map: PodMap | None = None
        self._epoch = 0
        self._seen = Seen()
        self.doubt = ""
        """Why the newest map is not followed."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="ofs-pod-map", daemon=True)
        if look_s:
            self._thread.start()

    def take(self) -> None:
        """Take over what was found since the last time. By the owner of sessions and fabric."""
        came = list(_all_of(self._came))  # first: the map is then no older than their logins
        found = self._map
        if found is not None:
            now_ns = self._sessions.clock.now_ns()
            self._sessions.map = found
            for one in (*self._sessions.members, *came):
                _follow(one, found, now_ns)
        for coming in came:
            before = self._fabric.admit(coming)
            if before is not None:
                before.fabric.close()
                self._left.put(before)

    def close(self) -> None:
        """Look no more; members stay with who uses them."""
        self._stop.set()
        if self._look_s:
            self._thread.join()
        self._membership.close()
        for one in _all_of(self._came):
            one.fabric.close()
            self._left.put(one)
        self._leave()

    def _look_on(self) -> None:
        while not self._stop.wait(self._look_s):
            self.look()

    def look(self) -> None:
        """Read the map once, and log in to whom this host has no connection with."""
        self._leave()
        with contextlib.suppress(OffstageError):
            self._read(self._membership.map())
        for member in self._map.readable if self._map is not None else ():
            known = self._known.get(member.name)
            if known is None or known.lost:
                with contextlib.suppress(OffstageError):
                    self._known[member.name] = coming = self._login(member, self._epoch)
                    self._came.put(coming)

    def _read(self, pod: PodMap) -> None:
        why = doubt(pod, self._seen)
        if why and why != self.doubt:
            LOG.error("the pod's map is in doubt: %s; see offstage pod status", why)
        self.doubt = why
        if not why:
            self._map, self._epoch, self._seen = pod, pod.epoch, Seen.of(pod)

    def _leave(self) -> None:
        """Here, because a daemon that is gone lets whoever leaves it wait."""
        for one in _all_of(self._left):
            one.control.close()


def _all_of(waiting: "queue.SimpleQueue[Joined]") -> Iterator[Joined]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def _follow(one: Joined, found: PodMap, now_ns: int) -> None:
    """What the map says of a member that this host is logged in to. One that may not have carried
    out the tenant's deletion is left before who has is read or written: what it still serves is not
    to be put there again."""
    member = found.find(one.member.name)
    if found.deleted.get(one.tenant, 0) > one.epoch and not one.lost:
        one.suspect(now_ns, "the tenant's blocks are deleted under a newer map", lost=True)
    if member is None or member.state == "gone":
        if not one.lost:
            one.suspect(now_ns, "it is gone from the map", lost=True)
    elif member.incarnation == one.member.incarnation:
        one.member = member
    elif not one.lost and one.member.incarnation:
        one.suspect(now_ns, "it lives a new life", lost=True)
