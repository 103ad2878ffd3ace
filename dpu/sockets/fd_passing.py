"""The hand-out of descriptors: a host gets its own region and port, and no other host's.

Each tenant has a Unix socket with a door: a user who is not admitted gets nothing, whatever token
it presents. A host connects, sends the one-time token of its attach and a newline, and receives
`ok` with the descriptors of its attachment by SCM_RIGHTS. The kernel identifies the peer
(SO_PEERCRED), and a pidfd reports when its process has exited. One thread owns it, the daemon's
loop; nothing here blocks.

A host that only stores and retrieves values needs no login: it sends `volume NGUID` instead of a
token, gets `ok VALUE_BYTES_MAX SIZE_BYTES`, a newline and the blob with the descriptors, and stays
attached until it closes the connection. `look NGUID` is answered by the first line alone, and a
refusal by `refused ERRNO: WORDS`.
"""

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu.log import Log
from offstage.dpu.sockets.door import Door, Peer, peer_of

__all__ = ["FdPassing", "Handed", "OpenVolume", "Volume"]

TOKEN_LIFE_S = 10.0
GREETING_MAX = 128  # bytes of a token with its newline
BACKLOG = 256
ACCEPTS_MAX = 16  # of one turn
WAITING_MAX = 64  # connections that have not yet sent their token


@dataclass(frozen=True)
class Handed:
    """A host took its descriptors: its `ticket`, its process `pid`, `pidfd` -1 if unknown,
    `user` as the kernel identifies it."""

    ticket: bytes
    pid: int
    pidfd: int
    user: int


class Volume(NamedTuple):
    """A volume of values: its limits, whether a store is to end on the drive, and the token of an
    attachment to it; empty for a look."""

    value_bytes_max: int
    size_bytes: int
    durable: bool = False
    token: str = ""


OpenVolume = Callable[[str, Peer, bool], Volume]
"""A volume by its NGUID for this process, attached or not; OffstageError: there is none."""


def _no_volume(nguid: str, peer: Peer, attach: bool) -> Volume:
    raise BadInput("no such volume", nguid, "ask a daemon that has volumes")


@dataclass
class _Waiting:
    connection: socket.socket
    peer: Peer
    since_s: float
    greeting: bytes = field(default=b"")


class FdPassing:
    """One tenant's listening socket, its valid tokens, and connections that sent none yet."""

    def __init__(self, path: Path, log: Log, door: Door = Door()) -> None:  # noqa: B008
        """Listen at `path`; BadInput where a socket there cannot be made."""
        self.path, self._door = path, door
        self._log = log
        self.open_volume: OpenVolume = _no_volume
        self.own: Callable[[bytes, Peer], None] = lambda ticket, peer: None
        """Called with a host's ticket before it is handed its descriptors."""
        self._attached: dict[int, tuple[socket.socket, bytes]] = {}  # to a volume, with its ticket
        self._left: list[bytes] = []
        self._promised: dict[str, tuple[bytes, Attachment, float]] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.setblocking(False)
        path.unlink(missing_ok=True)  # the lock of the directory says that no daemon owns it
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(str(path))
            door.hang(path)
            self._listener.listen(BACKLOG)
        except BadInput:
            self._listener.close()
            raise
        except OSError as error:
            self._listener.close()
            raise BadInput(
                f"no socket can be made ({error})",
                str(path),
                "set daemon.runtime_dir to a shorter path",
            ) from None
        finally:
            os.umask(old_mask)

    def promise(self, ticket: bytes, attachment: Attachment) -> str:
        """Take the attachment over; returns the token that fetches its descriptors, once."""
        token = secrets.token_hex(16)
        self._promised[token] = (ticket, attachment, time.monotonic())
        return token

    def forget(self, ticket: bytes) -> None:
        """The host has left: close the descriptors that it did not fetch, and its connection."""
        for fd in [fd for fd, kept in self._attached.items() if kept[1] == ticket]:
            self._attached.pop(fd)[0].close()
        for token in [token for token, kept in self._promised.items() if kept[0] == ticket]:
            self._promised.pop(token)[1].close()

    def filenos(self) -> list[int]:
        """What to poll for readability."""
        return [self._listener.fileno(), *self._waiting, *self._attached]

    def serve(self, ready: set[int]) -> list[Handed]:
        """Serve the readable descriptors; returns the hosts that took theirs."""
        if self._listener.fileno() in ready:
            with contextlib.suppress(OSError):  # none is left
                for _ in range(ACCEPTS_MAX):
                    self._let_in(self._listener.accept()[0])
        handed = []
        for fd in ready & set(self._waiting):
            one = self._serve_one(self._waiting[fd])
            if one is not None:
                handed.append(one)
        for fd in ready & set(self._attached):
            self._hear(fd)
        return handed

    def left(self) -> list[bytes]:
        """The tickets of the hosts of volumes whose connection has closed since the last call."""
        left, self._left = self._left, []
        return left

    def expire(self) -> None:
        """Drop unused tokens and connections that sent nothing."""
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
        for connection, _ in self._attached.values():
            connection.close()
        self._attached.clear()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _let_in(self, connection: socket.socket) -> None:
        try:
            peer = peer_of(connection)
        except OSError:  # gone again
            connection.close()
            return
        connection.setblocking(False)
        if not self._door.admits(peer):
            self._log.warning("hand_out_refused", pid=peer.pid, uid=peer.uid)
            _say(connection, f"refused: user {peer.uid} is not among this tenant's users\n")
            connection.close()
            return
        if len(self._waiting) >= WAITING_MAX:  # the oldest silent connection
            self._drop(next(iter(self._waiting.values())))
        self._waiting[connection.fileno()] = _Waiting(connection, peer, time.monotonic())

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
        verb, _, nguid = token.partition(" ")
        if verb in ("look", "volume"):
            return self._serve_volume(waiting, nguid, verb == "volume")
        kept = self._promised.pop(token, None)
        try:
            if kept is None:
                self._log.warning("token_refused", pid=waiting.peer.pid, uid=waiting.peer.uid)
                _say(waiting.connection, "refused: no such token\n")
                return None
            return self._hand_out(waiting, *kept[:2])
        except OSError as error:
            self._log.warning("hand_out_failed", error=str(error))
            return None
        finally:
            self._drop(waiting)

    def _serve_volume(self, waiting: _Waiting, nguid: str, attach: bool) -> Handed | None:
        """Say what the volume is, or attach the host to it and keep its connection."""
        try:
            volume = self.open_volume(nguid, waiting.peer, attach)
        except OffstageError as error:
            self._log.warning("volume_refused", pid=waiting.peer.pid, error=str(error))
            _say(waiting.connection, f"refused {error.errno or errno.EIO}: {error}\n")
            self._drop(waiting)
            return None
        line = f"ok {volume.value_bytes_max} {volume.size_bytes}{' durable' * volume.durable}\n"
        if not attach:
            _say(waiting.connection, line)
            self._drop(waiting)
            return None
        ticket, attachment, _ = self._promised.pop(volume.token)
        connection, fd = waiting.connection, waiting.connection.fileno()
        self._waiting.pop(fd)
        self._attached[fd] = connection, ticket
        try:
            self.own(ticket, waiting.peer)
            socket.send_fds(connection, [line.encode() + attachment.blob], attachment.fds)
        except OSError as error:
            self._log.warning("hand_out_failed", error=str(error))
            self._hang_up(fd)
            return None
        finally:
            attachment.close()
        return Handed(ticket, waiting.peer.pid, -1, waiting.peer.uid)

    def _hear(self, fd: int) -> None:
        """A host of a volume has nothing to say: its end is its leaving, and so are bytes, of which
        a flood would keep the daemon's loop awake."""
        with contextlib.suppress(OSError):
            try:
                self._attached[fd][0].recv(GREETING_MAX)
            except BlockingIOError:
                return  # it has just come
        self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        connection, ticket = self._attached.pop(fd)
        connection.close()
        self._left.append(ticket)

    def _hand_out(self, waiting: _Waiting, ticket: bytes, attachment: Attachment) -> Handed:
        try:
            self.own(ticket, waiting.peer)
            socket.send_fds(waiting.connection, [b"ok\n"], attachment.fds)
        finally:
            attachment.close()
        pid = waiting.peer.pid
        try:
            pidfd = os.pidfd_open(pid) if pid > 0 else -1
        except OSError:
            pidfd = -1  # exited already, or in another pid namespace: the heartbeat decides
        return Handed(ticket, pid, pidfd, waiting.peer.uid)

    def _drop(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting.connection.fileno(), None)
        waiting.connection.close()


def _say(connection: socket.socket, words: str) -> None:
    with contextlib.suppress(OSError):  # the peer closed first
        connection.send(words.encode())
