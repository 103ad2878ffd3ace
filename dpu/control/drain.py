"""The drain: whether new work is admitted, who waits for the write-back, and when that ends.

    state       drain requested  undrain   signal    all stored  deadline passes
    SERVING     DRAINING         SERVING   STOPPING
    DRAINING    DRAINING         SERVING   STOPPING
    STOPPING    STOPPING         refused   STOPPED   STOPPED     STOPPED

New work is refused in every state but SERVING; DRAINING lasts until an undrain. A drain request is
answered when all blocks are on the store, or at its deadline. The daemon's loop owns this, except
`signalled`, and closes the daemon when it is STOPPED.
"""

import errno
import time
from enum import Enum, auto

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.control.replies import Waiting
from offstage.dpu.log import Log
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import draining

__all__ = ["AGAIN_S", "Drain", "State"]

AGAIN_S = 2.0  # a signal to a process and then to its group (timeout(1)) is one request
CUT_HOSTS_S = 1.0  # a terminating daemon lets its hosts finish what they wait for


class State(Enum):
    """See above."""

    SERVING = auto()
    DRAINING = auto()
    STOPPING = auto()
    STOPPED = auto()


class Event(Enum):
    """The events that change the state."""

    DRAIN = auto()
    UNDRAIN = auto()
    SIGNAL = auto()
    STORED = auto()
    LATE = auto()


NEXT = {
    (State.SERVING, Event.DRAIN): State.DRAINING,
    (State.SERVING, Event.UNDRAIN): State.SERVING,
    (State.SERVING, Event.SIGNAL): State.STOPPING,
    (State.DRAINING, Event.DRAIN): State.DRAINING,
    (State.DRAINING, Event.UNDRAIN): State.SERVING,
    (State.DRAINING, Event.SIGNAL): State.STOPPING,
    (State.STOPPING, Event.DRAIN): State.STOPPING,
    (State.STOPPING, Event.SIGNAL): State.STOPPED,
    (State.STOPPING, Event.STORED): State.STOPPED,
    (State.STOPPING, Event.LATE): State.STOPPED,
}


class Drain:
    """The drain of one daemon."""

    def __init__(self, device: Device, timeout_ns: int, log: Log) -> None:
        """`timeout_ns`: of the drain before the end."""
        self._device, self._timeout_ns, self._log = device, timeout_ns, log
        self.state = State.SERVING
        self.stuck = False
        """The reactor does not answer: joining its thread would hang."""
        self.lost = False
        """It stopped with blocks that are only in memory."""
        self._signals: list[float] = []  # when each came that has not moved the state yet
        self._signalled_s = -AGAIN_S
        self._waiting: list[tuple[Waiting, float]] = []  # until when
        self._done: list[tuple[Waiting, p.Reply]] = []
        self._stop_at_s = self._cut_at_s = float("inf")

    @property
    def refuses(self) -> bool:
        """Whether new work is refused."""
        return self.state is not State.SERVING

    @property
    def pending(self) -> bool:
        """Whether a turn has something to look at."""
        return bool(self._signals or self._waiting or self._done) or self.state is State.STOPPING

    def signalled(self) -> None:
        """A signal arrived, or an equivalent. May be called from a signal handler."""
        now_s = time.monotonic()
        if now_s - self._signalled_s >= AGAIN_S:
            self._signalled_s = now_s
            self._signals.append(now_s)

    def ask(self, waiting: Waiting, timeout_ns: int) -> None:
        """Refuse new work from now on; `turn` answers `waiting`."""
        self._move(Event.DRAIN)
        self._log.info("draining")
        self._waiting.append((waiting, time.monotonic() + timeout_ns / 1e9))

    def undrain(self) -> None:
        """Admit new work again. Refused: the daemon is being stopped."""
        if (self.state, Event.UNDRAIN) not in NEXT:
            raise draining()
        self._device.undrain()
        self._move(Event.UNDRAIN)
        for waiting, _ in self._waiting:
            left = self._dirty_blocks()
            self._done.append((waiting, p.Drained(drained=False, dirty_blocks=left)))
        self._waiting.clear()
        self._log.info("undrained")

    def cuts_hosts(self, now_s: float) -> bool:
        """True once while it stops: hosts have had the time to finish what they wait for."""
        due = now_s >= self._cut_at_s
        if due:
            self._cut_at_s = float("inf")
        return due and not self.stuck

    def turn(self, now_s: float) -> list[tuple[Waiting, p.Reply]]:
        """Advance as far as possible; returns the replies due now."""
        while self._signals and self.state is not State.STOPPED:
            self._signals.pop(0)
            self._stop(now_s)
        if self.state is State.STOPPING or (self.state is State.DRAINING and self._waiting):
            self._look(now_s)
        done, self._done = self._done, []
        return done

    def _move(self, event: Event) -> None:
        """The only place where the state changes."""
        self.state = NEXT[self.state, event]

    def _stop(self, now_s: float) -> None:
        self._move(Event.SIGNAL)
        if self.state is State.STOPPED:
            self._log.warning("stopped_undrained")
            return
        self._stop_at_s, self._cut_at_s = now_s + self._timeout_ns / 1e9, now_s + CUT_HOSTS_S
        self._log.info(
            "terminating",
            drain_timeout_ns=self._timeout_ns,
            note=f"a signal after {AGAIN_S:.0f} s ends it at once",
        )

    def _look(self, now_s: float) -> None:
        drained = self._drained()
        dirty = 0 if drained else self._dirty_blocks()
        self._answer(now_s, drained=drained, dirty=dirty)
        if self.state is State.STOPPING and drained:
            self._move(Event.STORED)
            self._log.info("drained", dirty_blocks=0)
        elif self.state is State.STOPPING and now_s >= self._stop_at_s:
            self._move(Event.LATE)
            self._log.error("drain_timeout", dirty_blocks=dirty)
            self.lost = dirty != 0

    def _answer(self, now_s: float, *, drained: bool, dirty: int) -> None:
        """The waiting requests to answer: all once drained, else those past their deadline."""
        for one in list(self._waiting):
            waiting, until_s = one
            if drained or now_s >= until_s:
                self._waiting.remove(one)
                self._done.append((waiting, p.Drained(drained=drained, dirty_blocks=dirty)))
                self._log.info("drained" if drained else "drain_timeout", dirty_blocks=dirty)

    def _drained(self) -> bool:
        """Whether all blocks are on the store. A reactor that does not answer ends the checks."""
        if self.stuck:
            return False
        try:
            return self._device.drain(0)
        except OffstageError as error:
            self._note_stuck(error)
            return False

    def _dirty_blocks(self) -> int:
        """Blocks that are only in memory; -1 where the reactor does not answer."""
        if self.stuck:
            return -1
        try:
            return self._device.status().dirty_blocks
        except OffstageError as error:
            self._note_stuck(error)
            return -1

    def _note_stuck(self, error: OffstageError) -> None:
        self.stuck = error.errno == errno.ETIMEDOUT
        self._log.error("drain_failed", error=str(error))
