"""One member of a pod as a host sees it: its connection, whether it is suspected, what it served.

A member that did not answer in time is suspect (`suspicion`): it is not asked, and what was on it
is computed again and put elsewhere. So one that stopped costs a host its deadline once, however
long it is away. Suspicion is this host's own; the map and its leases say later whether the daemon
is gone for all.

What was open there when it was left alone is not forgotten: sessions are closed when it is asked
again, and blocks that are to go are deleted, also in its next life.
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
"""What is left to be done at one member; of more the oldest is forgotten: its next life has no
sessions, and what was to be deleted goes in its turn as what is cold."""
LEFT_AT_ONCE = 64
Chain = tuple[bytes, ...]


class Silent(Exception):
    """A member did not answer, or not with what it was asked for; it is suspect by now."""


@dataclass(eq=False)
class Joined:
    """A daemon that the host is logged in to. One thread owns it."""

    member: Member
    control: Control
    fabric: Fabric
    clock: Clock = field(default_factory=Clock)
    lease_ns: int = 0
    """Of its lease in the pod; 0: it has none, and nothing is fenced."""
    tenant: str = ""
    """Whom it was logged in to for, by its name in the map."""
    epoch: int = 0
    """By which map: what is deleted under a newer one may still be served on this connection."""
    fenced: int = 0
    """How often it said that its lease is not confirmed, or answered too late to be believed."""
    waited_ns: int = 0
    """What its silence cost this host: calls there that it did not do, counted once where they
    overlap."""
    waited_until_ns: int = 0
    segments: int = 0
    """Segments of open sessions that are there."""
    left: deque[tuple[int, Chain]] = field(default_factory=lambda: deque(maxlen=LEFT_MAX))
    """Sessions to be closed there, the oldest first; with a chain what it names is to be deleted,
    without one it is archived."""
    deletes: deque[Chain] = field(default_factory=lambda: deque(maxlen=LEFT_MAX))
    """Chains that no session is open of and that are to be deleted there."""
    ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))
    """Ends of the demands that it answered, as it told them."""
    moved_ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))
    """Of them, of blocks that were brought from there to other members."""
    stale: int = 0
    """Segments that it lacked as their home, and who was home before had."""
    came: int = 0
    """Segments that it got because their home did not answer."""
    load: float = 0.0
    """Demands per second of all hosts there, as it said last."""
    failed: int = 0
    """Demands that it answered with an error: it had lost the block, or never had it."""
    fetch_ns: int = 0
    """The longest that one fetch from it took."""

    def __post_init__(self) -> None:
        self.suspicion = Suspicion(lambda: self.control.probe())

    @property
    def lost(self) -> str:
        """Why its connection ended; "": it has not."""
        return self.suspicion.lost_why

    @property
    def suspected(self) -> int:
        """How often it was."""
        return self.suspicion.count

    @property
    def away(self) -> bool:
        """Whether it is suspected now."""
        return self.suspicion.state is State.SUSPECT

    def usable(self, now_ns: int) -> bool:
        """Whether it is asked. Looks whether one that is suspect has answered."""
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
        """A call there that began then was not done."""
        self.waited_ns += max(0, now_ns - max(begun_ns, self.waited_until_ns))
        self.waited_until_ns = max(now_ns, self.waited_until_ns)

    def suspect(self, now_ns: int, why: str, *, lost: bool = False) -> None:
        """It did not answer in time, or its connection has ended (`lost`)."""
        self.suspicion.move(Event.ENDED if lost else Event.FAILED, now_ns, why)

    def believed(self, asked_ns: int, *, unanswered: bool) -> bool:
        """Whether what a call brought, all of it, may be used now: it was answered, by this life of
        the daemon, and begun (`asked_ns`) no longer ago than the fence allows."""
        lease_ns, now_ns = self.lease_ns // self.clock.dilation, self.clock.now_ns()
        good = not lease_ns or (not unanswered and reads_memory(asked_ns, now_ns, lease_ns))
        self.fenced += not good
        return good

    def close_session(self, handle: int, deleted: Sequence[bytes] = ()) -> None:
        """Now where it answers, else when it is asked again; what `deleted` names is not kept."""
        self.left.append((handle, tuple(deleted)))
        self._settle_now()

    def delete(self, chain: Sequence[bytes]) -> None:
        """As far as no session names it: now where it answers, else when it is asked again."""
        self.deletes.append(tuple(chain))
        self._settle_now()

    def inherit(self, before: "Joined") -> None:
        """This is the next life of `before`: its sessions are gone, and its store has what was to
        be deleted."""
        self.deletes.extend(chain for _, chain in before.left if chain)
        self.deletes.extend(before.deletes)

    def settle(self, most: int = LEFT_AT_ONCE) -> None:
        """Do so many of what is left. Silent: it does not answer, and the rest stays left. Sessions
        come first: what they name is not deleted."""
        for _ in range(min(most, len(self.left) + len(self.deletes))):
            if self.left:
                handle, chain = self.left[0]
                self.ask(self._close, handle, archive=not chain)
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

    def _close(self, handle: int, *, archive: bool) -> None:
        with contextlib.suppress(Unknown):  # it was closed, and only its answer did not come
            self.control.session_close(handle, archive=archive)

    def _delete(self, chain: Chain) -> None:
        """In a session that names it, and does not keep it."""
        handle = self.ask(self.control.session_open, select_blocks=1, may_refuse=True)
        self.left.append((handle, chain))
        self.ask(self.control.append, handle, list(chain), may_refuse=True)
        self.settle(len(self.left))

    def ask(self, call: Any, *args: Any, may_refuse: bool = False, **words: Any) -> Any:
        """A call of its control connection. Silent: it did not do it, and is not asked for a while;
        where it knows this host no more, never again. `may_refuse`: of use and not needed, so one
        that is full or drains is asked on, and its OffstageError is raised as it is."""
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
