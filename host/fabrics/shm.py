"""The shm fabric: region and port of the daemon, mapped on the same machine.

The daemon sends the descriptors of an attach over a Unix socket in return for the attach's token,
so that no host can map another tenant's memory.
"""

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

from offstage.bindings.attachment import FDS_MAX, Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, RunFailed
from offstage.dpu.protocol import Attached
from offstage.host.link.control import Control

__all__ = ["connect", "fetch_descriptors", "open_driver"]

ANSWER_BYTES = 128
RETRY_S = 0.01
PEER = struct.Struct("iII")  # pid, uid, gid: unix(7)


def connect(control: Control) -> Driver:
    """Attach and map. BadInput, RunFailed: see open_driver."""
    return open_driver(control.attach("shm"))


def open_driver(attached: Attached, timeout_s: float = 5.0) -> Driver:
    """Fetch the descriptors of an attach, once, and open the driver over them.

    BadInput if the socket cannot be reached (the daemon is on another machine, or another user's),
    RunFailed if the daemon refuses the token, Incompatible if the region has another layout.
    """
    answer, fds = fetch_descriptors(attached, timeout_s)
    try:
        if not fds:
            said = answer.decode(errors="replace").strip() or "closed the connection"
            raise RunFailed(
                f"the daemon handed out no descriptors: {said}",
                attached.socket_path,
                "run as a user that the tenant's users or groups name; after 10 s, run it again",
            )
        return Driver(Attachment(attached.blob, tuple(fds)))
    finally:
        for fd in fds:
            os.close(fd)


def _reach(connection: socket.socket, path: str, until_s: float) -> None:
    """Connect; retries while the listener's queue is full."""
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)


def _check_user(connection: socket.socket, attached: Attached) -> None:
    """BadInput if the socket's owner, according to the kernel, is neither the daemon's user, as
    proved at login, nor root. Not checked inside a user namespace, where ids differ."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    user = PEER.unpack(peer)[1]
    outermost = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    if outermost and user not in (attached.user, 0):
        raise BadInput(
            f"user {user} listens there, but the daemon belongs to user {attached.user}",
            attached.socket_path,
            "check who owns the daemon's socket",
        )


def fetch_descriptors(attached: Attached, timeout_s: float) -> tuple[bytes, list[int]]:
    """The daemon's answer to an attach's token, and the descriptors, which the caller closes; none
    if it refuses. BadInput: see open_driver."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            _reach(connection, attached.socket_path, time.monotonic() + timeout_s)
            _check_user(connection, attached)
            with contextlib.suppress(BrokenPipeError):  # already refused: the answer says why
                connection.sendall(attached.token.encode() + b"\n")
            answer, fds, _, _ = socket.recv_fds(connection, ANSWER_BYTES, FDS_MAX)
        except OSError as error:
            raise BadInput(
                f"the daemon's descriptors cannot be fetched ({error})",
                attached.socket_path or "no socket named",
                "run on the daemon's machine, as its user or one that the tenant's "
                "users or groups name; or use the zmq fabric",
            ) from None
    return answer, fds
