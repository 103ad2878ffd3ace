"""Diagnoses why a daemon does not answer, from the events of the ZeroMQ socket.

A stopped daemon, a daemon with or without CURVE when the host expects the opposite, a wrong server
key and an unknown client key all look the same: no reply. The socket's events tell them apart.
"""

import os
import pwd
import socket
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from offstage.bindings.errors import BadInput, Unreachable

__all__ = ["Line", "why_silent"]

REFUSED = {
    zmq.EVENT_DISCONNECTED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
}
"""What the other end did with the handshake; without any of it, it said nothing."""
EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(REFUSED)


class Line:
    """One connection of a DEALER, without reconnects: after a break another process may listen at
    the address, and must prove itself first."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """Call before the socket connects."""
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket, self._monitor = socket, socket.get_monitor_socket(EVENTS)
        self._seen: set[int] = set()

    def seen(self) -> set[int]:
        """The events so far."""
        while self._monitor.poll(0):
            event: Any = recv_monitor_message(self._monitor)
            self._seen.add(event["event"])
        return self._seen

    def gone(self) -> bool:
        """Whether the connection failed or has ended."""
        return bool(self.seen() & {zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED})

    def close(self) -> None:
        """Close the socket."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.socket.close(0)


def why_silent(seen: set[int], endpoint: str, curve_dir: str) -> BadInput:
    """The reason why the first request got no answer; `curve_dir` "" without CURVE."""
    if zmq.EVENT_HANDSHAKE_FAILED_AUTH in seen:
        return BadInput(
            "the daemon does not know this client's key",
            endpoint,
            f"on its machine: offstage keys add DIR client.key, with {curve_dir}/client.key",
        )
    if zmq.EVENT_CONNECTED not in seen:
        return _not_there(endpoint)
    if zmq.EVENT_HANDSHAKE_SUCCEEDED in seen or not seen & REFUSED:
        return Unreachable(
            "the daemon accepts connections but does not answer",
            endpoint,
            "check its log and whether its process is stopped, or wait longer",
        )
    if not curve_dir:
        return BadInput(
            "no daemon answers without a key there: it may require CURVE",
            endpoint,
            "give --curve-dir with server.key and client.key_secret",
        )
    return BadInput(
        "the daemon has a different key, or does not use CURVE",
        endpoint,
        f"copy the daemon's server.key to {curve_dir} again",
    )


def _not_there(endpoint: str) -> BadInput:
    """The error for a refused connection: unknown name, another user's socket, or no listener."""
    kind, _, rest = endpoint.partition("://")
    if kind == "tcp":
        name, _, port = rest.rpartition(":")
        try:
            socket.getaddrinfo(name.strip("[]"), port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return Unreachable(
                f"cannot resolve {name!r} ({reason})",
                endpoint,
                "correct the name, or write the address",
            )
    if kind == "ipc" and not rest.startswith("@"):
        path = Path(rest)
        try:
            owner = path.stat().st_uid
            if not os.access(path, os.W_OK):
                return BadInput(
                    f"the daemon there is of {_user(owner)}, and {_user(os.getuid())} "
                    "may not use its socket",
                    endpoint,
                    "run as that user, or start a daemon of your own",
                )
        except PermissionError:
            return BadInput(
                f"{_user(os.getuid())} may not look into the folder of its socket",
                endpoint,
                "run as the daemon's user, or start one of your own",
            )
        except OSError:
            pass
    return Unreachable(
        "no daemon answers: nothing listens there",
        endpoint,
        "start one with `offstage dpu serve --config FILE`",
    )


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
