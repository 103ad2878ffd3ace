"""One member of a pod as a host sees it: its connection, whether it is suspected, what it served.

A member that did not answer in time is suspect (`suspicion`): it gets no requests, and its blocks
are recomputed and put elsewhere. A member that stopped therefore costs the host one deadline,
however long it is away. Each host suspects on its own; the map and its leases decide later whether
the daemon is gone for all hosts.

Cleanup at a suspect member is deferred: once it gets requests again its sessions are closed and
its deleted blocks are deleted, also by its next incarnation.
"""

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import (
    BadInput,
    DeviceTimeout,
    OffstageError,
    RunFailed,
    StoreFull,
    Unknown,
)
from offstage.bindings.layouts import ENDS
from offstage.dpu.pod.fence import reads_memory
from offstage.dpu.pod.map import Member
from offstage.host.decode.timeline import Clock
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.host.pod.suspicion import Event, State, Suspicion

__all__ = ["LEFT_AT_ONCE", "LEFT_MAX", "Joined", "Silent"]

LEFT_MAX = 16_384
"""Limit of deferred cleanup at one member. Beyond it the oldest is dropped: the next incarnation
has no sessions, and blocks that were to be deleted are evicted once cold."""
LEFT_AT_ONCE = 64
Chain = tuple[bytes, ...]


class Silent(Exception):
    """A member did not answer, or not as the request requires; it has become suspect."""


@dataclass(eq=False)
class Joined:
    """A daemon that the host is logged in to. One thread owns it."""

    member: Member
    control: Control
    fabric: Fabric
    clock: Clock = field(default_factory=Clock)
    lease_ns: int = 0
    """Length of its lease in the pod; 0: no lease and no fencing."""
    tenant: str = ""
    """The tenant of the login, by its name in the map."""
    epoch: int = 0
    """Epoch of the map at login. This connection may still serve what a newer map deletes."""
    fenced: int = 0
    """Calls whose result was rejected: its lease was not confirmed, or the answer came too late."""
    waited_ns: int = 0
    """Time spent on its failed calls; calls that overlap count once."""
    waited_until_ns: int = 0
    shards: int = 0
    """Shards of open sessions at this member."""
    left: deque[tuple[int, Chain]] = field(default_factory=lambda: deque(maxlen=LEFT_MAX))
    """Sessions to close there, oldest first. With a chain, the session's blocks are deleted;
    without one, the session is archived."""
    deletes: deque[Chain] = field(default_factory=lambda: deque(maxlen=LEFT_MAX))
    """Chains to delete there that no open session names."""
    ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))
    """Ends of the demands that it answered, as it reported them."""
    moved_ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))
    """The `ends` that belong to moves from this member to others."""
    stale: int = 0
    """Shards that it lacked as their home while their previous home had them."""
    came: int = 0
    """Shards opened here because their home did not answer."""
    load: float = 0.0
    """Demands per second of all its hosts, as last reported."""
    failed: int = 0
    """Demands that failed there: the block was lost or never stored."""
    fetch_ns: int = 0
    """Longest fetch from it."""

    def __post_init__(self) -> None:
        self.suspicion = Suspicion(lambda: self.control.probe())

    @property
    def lost(self) -> str:
        """Why its connection ended; "" while it is open."""
        return self.suspicion.lost_why

    @property
    def suspected(self) -> int:
        """How often it became suspect."""
        return self.suspicion.count

    @property
    def away(self) -> bool:
        """Whether it is suspected now."""
        return self.suspicion.state is State.SUSPECT

    def usable(self, now_ns: int) -> bool:
        """Whether requests go to it. Checks whether a suspect member has answered the probe."""
        one = self.suspicion
        if one.state is State.SUSPECT and now_ns >= one.until_ns:
            if one.question > 0 and self.control.probed(one.question):
                one.move(Event.ANSWERED, now_ns)
            elif self.control.lost:
                one.move(Event.ENDED, now_ns, self.control.lost)
            elif now_ns >= one.overdue_ns:
                one.move(Event.OVERDUE, now_ns)
        return one.state is State.TRUSTED

    def waited(self, begun_ns: int, now_ns: int) -> None:
        """Count a failed call that began at `begun_ns`."""
        self.waited_ns += max(0, now_ns - max(begun_ns, self.waited_until_ns))
        self.waited_until_ns = max(now_ns, self.waited_until_ns)

    def suspect(self, now_ns: int, why: str, *, lost: bool = False) -> None:
        """Record that it did not answer in time, or that its connection has ended (`lost`)."""
        self.suspicion.move(Event.ENDED if lost else Event.FAILED, now_ns, why)

    def believed(self, asked_ns: int, *, unanswered: bool) -> bool:
        """Whether the result of a call may be used: this incarnation of the daemon answered all of
        it, and the call began (`asked_ns`) no longer ago than the fence allows."""
        lease_ns, now_ns = self.lease_ns // self.clock.dilation, self.clock.now_ns()
        good = not lease_ns or (not unanswered and reads_memory(asked_ns, now_ns, lease_ns))
        self.fenced += not good
        return good

    def close_session(self, handle: int, deleted: Sequence[bytes] = ()) -> None:
        """Close a session now, or once the member answers again; delete the chunks in `deleted`."""
        self.left.append((handle, tuple(deleted)))
        self._settle_now()

    def delete(self, chain: Sequence[bytes]) -> None:
        """Delete chunks that no session names, now or once the member answers again."""
        self.deletes.append(tuple(chain))
        self._settle_now()

    def inherit(self, before: "Joined") -> None:
        """Take over the deletions of `before`, an earlier incarnation: its sessions are gone, but
        its store still has the blocks."""
        self.deletes.extend(chain for _, chain in before.left if chain)
        self.deletes.extend(before.deletes)

    def settle(self, most: int = LEFT_AT_ONCE) -> None:
        """Do up to `most` of the deferred cleanups. Silent: it does not answer, and the rest stays
        queued. Sessions come first, since chunks that an open session names cannot be deleted."""
        for _ in range(min(most, len(self.left) + len(self.deletes))):
            if self.left:
                handle, chain = self.left[0]
                self.ask(self._close, handle, keep=not chain)
                self.left.popleft()
                continue
            try:
                self._delete(self.deletes[0])
            except OffstageError:  # full, draining: later
                return
            self.deletes.popleft()

    def _settle_now(self) -> None:
        if self.usable(self.clock.now_ns()):
            with contextlib.suppress(Silent):
                self.settle()

    def _close(self, handle: int, *, keep: bool) -> None:
        with contextlib.suppress(Unknown):  # closed before, but the reply was lost
            self.control.session_close(handle, keep=keep)

    def _delete(self, chain: Chain) -> None:
        """Delete a chain: open a session that names it, and close it without keeping it."""
        handle = self.ask(self.control.session_open, select_blocks=1, may_refuse=True)
        self.left.append((handle, chain))
        self.ask(self.control.append, handle, list(chain), may_refuse=True)
        self.settle(len(self.left))

    def ask(self, call: Any, *args: Any, may_refuse: bool = False, **words: Any) -> Any:
        """Make a call on its control connection. Silent: the call failed and the member is suspect,
        or lost if it no longer knows this host. `may_refuse`: the call is optional; a refusal by a
        full or draining member is raised unchanged and does not make it suspect."""
        begun_ns = self.clock.now_ns()
        try:
            return call(*args, **words)
        except (DeviceTimeout, StoreFull, RunFailed, BadInput) as error:
            gone = bool(self.control.lost) or isinstance(error, BadInput)
            if may_refuse and not gone and not isinstance(error, DeviceTimeout):
                raise
            now_ns = self.clock.now_ns()
            self.waited(begun_ns, now_ns)
            self.suspect(now_ns, error.what, lost=gone)
            raise Silent(error.what) from None
