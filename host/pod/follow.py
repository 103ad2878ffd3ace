"""Follows the pod's map: logs in to members that join or come back, and leaves those that are gone.

A separate thread polls the map and logs in, since both may take seconds. The thread that owns
sessions and fabric takes over the results between two of its calls. While the map store does not
answer, the last map stays in force and logins to lost members are still retried. It also stays in
force when a new map is in doubt or does not descend from it (`dpu.pod.history`): the members of
such a map serve no requests until an operator accepts it.
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
"""Interval between two polls of the map."""


class Follower:
    """Takes ownership of `membership`; `login` logs in to a member by the map of an epoch, or
    raises OffstageError."""

    def __init__(
        self,
        membership: Membership,
        login: Callable[[Member, int], Joined],
        fabric: PodFabric,
        sessions: PodSessions,
        look_s: float = LOOK_S,
    ) -> None:
        """Start polling; with `look_s` 0 the owner calls `look`."""
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
        """Take over new results. Called by the thread that owns sessions and fabric."""
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
        """Stop polling; the members stay open for their users."""
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
        """Read the map once, and log in to members that this host has no connection to."""
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
        """Leave lost members on this thread: leaving a dead daemon blocks until a timeout."""
        for one in _all_of(self._left):
            one.control.close()


def _all_of(waiting: "queue.SimpleQueue[Joined]") -> Iterator[Joined]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def _follow(one: Joined, found: PodMap, now_ns: int) -> None:
    """Apply the map to a member that this host is logged in to. A member that may not have carried
    out the tenant's deletion is left before any other is read or written, so that deleted blocks
    are not put again."""
    member = found.find(one.member.name)
    if found.deleted.get(one.tenant, 0) > one.epoch and not one.lost:
        one.suspect(now_ns, "the tenant's blocks are deleted under a newer map", lost=True)
    if member is None or member.state == "gone":
        if not one.lost:
            one.suspect(now_ns, "it is gone from the map", lost=True)
    elif member.incarnation == one.member.incarnation:
        one.member = member
    elif not one.lost and one.member.incarnation:
        one.suspect(now_ns, "the daemon has a new incarnation", lost=True)
