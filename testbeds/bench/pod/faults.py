"""The faults of a live pod, and the map's record of them.

A fault affects one member: it is killed, stopped, joined or drained. Or one member of etcd is
killed, or two, so that the map cannot change; `heal` undoes it. The watch reads the map ten
times a second over a separate connection.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.dpu.pod.map import Member, added, moved
from offstage.dpu.pod.membership import open_membership
from offstage.testbeds.beds.local import DaemonSizes
from offstage.testbeds.beds.pod import PodBed, begin_daemon
from offstage.testbeds.bench.pod.host import Board

__all__ = ["FAULTS", "Done", "LivePod", "Look", "Watch"]

FAULTS = ("death", "stop", "join", "drain", "etcd", "quorum")
LOOK_S = 0.1
GONE_S = 30.0


@dataclass(frozen=True)
class Done:
    """A fault was injected or undone."""

    at_s: float
    fault: str
    member: str
    healed: bool = False


@dataclass
class LivePod:
    """A running pod, and the faults so far."""

    bed: PodBed
    sizes: DaemonSizes
    board: Board
    done: list[Done] = field(default_factory=list)
    _commands: dict[str, list[str]] = field(default_factory=dict)
    _coming: Member = field(default_factory=lambda: Member(name="", endpoint=""))

    def prepare(self, fault: str, member: str) -> None:
        """Slow preparation that is not part of the fault: a member that joins is started before."""
        if fault == "join":
            self._coming, self.bed.processes[member] = begin_daemon(
                self.bed.out, member, self.sizes
            )

    def strike(self, fault: str, member: str) -> None:
        """Inject it now; its start time is recorded."""
        self.done.append(Done(self.board.now_s(), fault, member))
        match fault:
            case "death":
                self._kill(member)
            case "stop":
                os.kill(self.bed.processes[member], signal.SIGSTOP)
            case "join":
                self._join(self._coming)
            case "drain":
                self._move(member, "draining")
            case "etcd" | "quorum":
                for one in member.split(","):
                    self._commands[one] = _command(self.bed.processes[one])
                    self._kill(one)

    def heal(self, fault: str, member: str) -> None:
        """Restore the pod as far as possible: a member that joined is drained and ended."""
        match fault:
            case "death":
                self._begin(member)
            case "stop":
                os.kill(self.bed.processes[member], signal.SIGCONT)
            case "join":
                self._move(member, "gone")
                self._end(member)
            case "drain":
                self._move(member, "up")
            case "etcd" | "quorum":
                for one in member.split(","):
                    self._begin_etcd(one)
        self.done.append(Done(self.board.now_s(), fault, member, healed=True))

    def _kill(self, member: str) -> None:
        pid = self.bed.processes[member]
        os.kill(pid, signal.SIGKILL)
        _await_end(pid)

    def _end(self, member: str) -> None:
        pid = self.bed.processes.pop(member)
        os.kill(pid, signal.SIGTERM)
        _await_end(pid)

    def _begin(self, member: str) -> None:
        _, self.bed.processes[member] = begin_daemon(
            self.bed.out, member, self.sizes, self.bed.place
        )

    def _join(self, coming: Member) -> None:
        membership = open_membership(self.bed.place)
        with contextlib.closing(membership):
            there = membership.map().find(coming.name)
            if there is None or there.state == "gone":
                membership.change(lambda pod: added(pod, coming))

    def _move(self, member: str, state: str) -> None:
        membership = open_membership(self.bed.place)
        with contextlib.closing(membership):
            membership.change(lambda pod: moved(pod, member, state))  # type: ignore[arg-type]

    def _begin_etcd(self, member: str) -> None:
        folder = self.bed.runtime_dir.parent / "etcd"
        with (folder / f"{member}.log").open("ab") as log:
            process = subprocess.Popen(
                self._commands[member],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.bed.processes[member] = process.pid


@dataclass(frozen=True)
class Look:
    """The map as it was read; `members`: state and incarnation by name."""

    at_s: float
    fresh: bool
    epoch: int
    members: dict[str, tuple[str, int]]


class Watch:
    """Reads the map in a thread until it is closed; `looks` records the changes."""

    def __init__(self, place: str, board: Board) -> None:
        """Begin."""
        self._membership, self._board = open_membership(place), board
        self.looks: list[Look] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()
        self._membership.close()

    def _look_on(self) -> None:
        while not self._stop.wait(LOOK_S):
            with contextlib.suppress(OffstageError):
                found = self._membership.map()
                members = {one.name: (str(one.state), one.incarnation) for one in found.member}
                look = Look(self._board.now_s(), self._membership.fresh, found.epoch, members)
                before = self.looks[-1] if self.looks else None
                if before is None or (before.fresh, before.epoch) != (look.fresh, look.epoch):
                    self.looks.append(look)


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]


def _await_end(pid: int) -> None:
    """Wait for a process's end, whether or not it is a child of this one."""
    until_s = time.monotonic() + GONE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        if not Path(f"/proc/{pid}/cmdline").exists():
            return
        time.sleep(0.01)
    raise RunFailed(f"process {pid} did not end", "bench pod", "see its log")
