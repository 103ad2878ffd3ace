"""The hand-out of descriptors: how a host gets its region and port, and nobody else's.

A Unix socket (mode 0600, in the private runtime directory). A host connects, sends the one-time
token of its attach and a newline, and receives `ok` with the descriptors of its attachment by
SCM_RIGHTS. The kernel says who asked (SO_PEERCRED), and a pidfd when that process is gone.
One thread owns it, the daemon's loop; nothing here blocks.
"""

import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import BadInput
from offstage.dpu.log import Log

__all__ = ["FdPassing", "Handed"]

TOKEN_LIFE_S = 10.0
GREETING_MAX = 128  # bytes of a token with its newline
WAITING_MAX = 64  # connections that have not yet sent their token


@dataclass(frozen=True)
class Handed:
    """A host took its descriptors: `ticket` is whose, `pid` the process, `pidfd` -1 if unknown."""

    ticket: bytes
    pid: int
    pidfd: int


@dataclass
class _Waiting:
    connection: socket.socket
    since_s: float
    greeting: bytes = field(default=b"")


class FdPassing:
    """The listening socket, the tokens that are still good, and those who have yet to speak."""

    def __init__(self, path: Path, log: Log) -> None:
        """Listen at `path`; BadInput where a socket there cannot be made."""
        self.path = path
        self._log = log
        self._promised: dict[str, tuple[bytes, Attachment, float]] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.setblocking(False)
        path.unlink(missing_ok=True)  # the lock of the directory says that no daemon owns it
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(str(path))
            self._listener.listen(16)
        except OSError as error:
            self._listener.close()
            raise BadInput(f"no socket can be made ({error})", str(path),
                           "set daemon.runtime_dir to a shorter path") from None  # fmt: skip
        finally:
            os.umask(old_mask)

    def promise(self, ticket: bytes, attachment: Attachment) -> str:
        """Take the attachment over; returns the token that fetches its descriptors, once."""
        token = secrets.token_hex(16)
        self._promised[token] = (ticket, attachment, time.monotonic())
        return token

    def forget(self, ticket: bytes) -> None:
        """The host is gone before it came: close what was kept for it."""
        for token in [token for token, kept in self._promised.items() if kept[0] == ticket]:
            self._promised.pop(token)[1].close()

    def filenos(self) -> list[int]:
        """What to poll for readability."""
        return [self._listener.fileno(), *self._waiting]

    def serve(self, ready: set[int]) -> list[Handed]:
        """Serve the readable descriptors; returns the hosts that took theirs."""
        if self._listener.fileno() in ready:
            self._accept()
        handed = []
        for fd in ready & set(self._waiting):
            one = self._serve_one(self._waiting[fd])
            if one is not None:
                handed.append(one)
        return handed

    def expire(self) -> None:
        """Drop tokens nobody used and connections that never spoke."""
        before_s = time.monotonic() - TOKEN_LIFE_S
        for token in [token for token, kept in self._promised.items() if kept[2] < before_s]:
            self._promised.pop(token)[1].close()
            self._log.warning("token_expired")
        for waiting in [one for one in self._waiting.values() if one.since_s < before_s]:
            self._drop(waiting)

    def close(self) -> None:
        """Close everything that was not taken."""
        for _, attachment, _ in self._promised.values():
            attachment.close()
        self._promised.clear()
        for waiting in list(self._waiting.values()):
            self._drop(waiting)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._waiting) >= WAITING_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._waiting[connection.fileno()] = _Waiting(connection, time.monotonic())

    def _serve_one(self, waiting: _Waiting) -> Handed | None:
        """Read the token; hand out when it is whole and good, drop on anything else."""
        try:
            data = waiting.connection.recv(GREETING_MAX)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        waiting.greeting += data
        if data and b"\n" not in waiting.greeting and len(waiting.greeting) < GREETING_MAX:
            return None
        token = waiting.greeting.partition(b"\n")[0].decode("ascii", errors="replace")
        kept = self._promised.pop(token, None)
        try:
            if kept is None:
                self._log.warning("token_refused", **_peer(waiting.connection))
                waiting.connection.send(b"refused: no such token; attach again\n")
                return None
            return self._hand_out(waiting.connection, *kept[:2])
        except OSError as error:
            self._log.warning("hand_out_failed", error=str(error))
            return None
        finally:
            self._drop(waiting)

    def _hand_out(
        self, connection: socket.socket, ticket: bytes, attachment: Attachment
    ) -> Handed:
        try:
            socket.send_fds(connection, [b"ok\n"], attachment.fds)
        finally:
            attachment.close()
        pid = _peer(connection)["pid"]
        try:
            pidfd = os.pidfd_open(pid) if pid > 0 else -1
        except OSError:
            pidfd = -1  # gone already, or in another pid namespace: the heartbeat decides
        return Handed(ticket, pid, pidfd)

    def _drop(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting.connection.fileno(), None)
        waiting.connection.close()


def _peer(connection: socket.socket) -> dict[str, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return {"pid": pid, "uid": uid}
