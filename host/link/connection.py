"""Connections to a daemon that has proved its identity; a host logs in over one.

Before the daemon has shown that it has the host's secret, only Hello is sent. A connection that
ends is never silently replaced: the next listener at that address must prove itself first.
"""

import hmac
import secrets
import time
from pathlib import Path

import zmq
import zmq.auth

from offstage.bindings.errors import (
    BadInput,
    DeviceTimeout,
    Incompatible,
    OffstageError,
    RunFailed,
    StoreFull,
    Unknown,
)
from offstage.bindings.private import check_private, read_secret
from offstage.dpu import protocol as p
from offstage.host.link.reached import Line, why_silent

__all__ = ["DEFAULT_ENDPOINT", "Connection", "as_error"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7411"
RETRY_S = 0.05

# Exception for each error code of the daemon.
KINDS: dict[str, type[OffstageError]] = {
    "bad_message": Incompatible,
    "version": Incompatible,
    "unauthenticated": BadInput,
    "forbidden": BadInput,
    "unknown": Unknown,
    "invalid": BadInput,
    "limit": StoreFull,
    "store_full": StoreFull,
    "timeout": DeviceTimeout,
}


class Connection:
    """Makes connections for one host, from its name, tenant, secret and daemon."""

    def __init__(
        self,
        endpoint: str,
        name: str,
        tenant: str,
        secret: bytes | Path | None,
        runtime_dir: Path | None,
        curve_dir: Path | None,
    ) -> None:
        """Arguments as for `Control`; connects nothing yet."""
        self.endpoint, self.name, self.tenant = endpoint, name, tenant
        self.via = endpoint if secret is not None else _own_socket(endpoint, tenant, runtime_dir)
        """Address of the control socket."""
        self.proved: p.Challenge | None = None
        """The daemon's challenge, once it has proved itself."""
        self._secret, self._runtime_dir, self._curve_dir = secret, runtime_dir, curve_dir
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._closing = False

    def begin_close(self) -> None:
        """Stop waiting for new connections."""
        self._closing = True

    def close(self) -> None:
        """Close every socket made here."""
        self._context.destroy(linger=0)

    def dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """A DEALER to the control socket with the same security; `close` closes it."""
        socket = self._dealer(endpoint)
        _connect(socket, endpoint)
        return socket

    def fabric_dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """A DEALER to the ZMQ fabric. Only the daemon that proved itself at login can decrypt its
        traffic, also after reconnects."""
        assert self.proved is not None
        if not self.proved.fabric_key or not zmq.has("curve"):
            side = "this host's" if self.proved.fabric_key else "the daemon's"
            raise BadInput(
                f"the ZMQ fabric cannot be authenticated: {side} libzmq has no CURVE",
                endpoint,
                "install a libzmq with CURVE there, or attach over shm",
            )
        socket = self._dealer(endpoint)
        if self._curve_dir is None:
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = self.proved.fabric_key
        _connect(socket, endpoint)
        return socket

    def _dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 64)
        if self._curve_dir is not None and endpoint.startswith(("tcp:", self.endpoint)):
            try:
                server, _ = zmq.auth.load_certificate(self._curve_dir / "server.key")
                check_private(self._curve_dir / "client.key_secret", ours=False)
                public, secret = zmq.auth.load_certificate(self._curve_dir / "client.key_secret")
            except (OSError, ValueError) as error:
                raise BadInput(
                    f"no CURVE keys ({error})",
                    str(self._curve_dir),
                    "put server.key and client.key_secret there",
                ) from None
            socket.curve_serverkey = server
            socket.curve_publickey, socket.curve_secretkey = public, secret or b""
        return socket

    def reach(self, timeout_s: float) -> tuple[Line, p.Challenge]:
        """Connect to a daemon that proves that it has our secret; also returns its challenge.
        BadInput if none answers in time, or it fails the proof."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                line = Line(self._dealer(self.via))
            except zmq.ZMQError as error:
                raise BadInput(
                    f"cannot connect ({error})",
                    self.endpoint,
                    "allow more descriptors: ulimit -n",
                ) from None
            try:
                _connect(line.socket, self.via)
                challenge = self._greet(line, until_s)
                if challenge is not None:
                    return line, challenge
                seen = line.seen()
            except BaseException:
                line.close()
                raise
            line.close()
            if self._closing or time.monotonic() + RETRY_S > until_s:
                curve = str(self._curve_dir or "") if self.via == self.endpoint else ""
                raise why_silent(seen, self.endpoint, curve)
            time.sleep(RETRY_S)

    def _greet(self, line: Line, until_s: float) -> p.Challenge | None:
        """Send Hello and check the proof; None if the connection ended or the time is up."""
        asked = secrets.token_bytes(16)
        hello = p.Hello(
            id=1, versions=list(p.VERSIONS), name=self.name, tenant=self.tenant, nonce=asked
        )
        try:
            line.socket.send_multipart([b"", p.encode(hello)], zmq.NOBLOCK)
        except zmq.Again:  # it has ended already: refused, or of another key
            return None
        while not line.socket.poll(int(RETRY_S * 1000)):
            if line.gone() or self._closing or time.monotonic() > until_s:
                return None
        challenge = p.decode_reply(line.socket.recv_multipart()[-1])
        if isinstance(challenge, p.Error):
            raise as_error(challenge, self.endpoint)
        if not isinstance(challenge, p.Challenge) or challenge.version not in p.VERSIONS:
            raise Incompatible(
                f"it answered Hello with {type(challenge).__name__} of a protocol that "
                "was not offered",
                self.endpoint,
                "use the same release on both sides",
            )
        expected = p.prove_daemon(
            self.secret(),
            asked,
            challenge.nonce,
            self.tenant,
            self.name,
            challenge.version,
            challenge.user,
            challenge.fabric_key,
        )
        if not hmac.compare_digest(expected, challenge.proof):
            raise BadInput(
                f"the server there cannot prove that it has the secret of {self.tenant!r}",
                self.endpoint,
                f"another secret, no tenant {self.tenant!r}, or another's port: give the secret "
                "file that the daemon started with; nothing was sent",
            )
        self.proved = challenge
        return challenge

    def secret(self) -> bytes:
        """The tenant's secret. BadInput: it cannot be read."""
        if not isinstance(self._secret, bytes):
            base = self._runtime_dir or p.default_runtime_dir(self.endpoint)
            self._secret = read_secret(self._secret or base / f"{self.tenant}.secret")
        return self._secret


def as_error(reply: p.Error, endpoint: str) -> OffstageError:
    """The exception for an error reply of the daemon."""
    kind = KINDS.get(reply.code, RunFailed)
    return kind(reply.what, reply.where or endpoint, reply.fix, errno=reply.errno)


def _connect(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise BadInput(
            f"not an endpoint ({error.strerror})", endpoint, f"write one such as {DEFAULT_ENDPOINT}"
        ) from None


def _own_socket(endpoint: str, tenant: str, runtime_dir: Path | None) -> str:
    """The operator's socket on the daemon's machine, which hosts cannot fill, or `endpoint`."""
    path = (runtime_dir or p.default_runtime_dir(endpoint)) / p.OPERATOR_SOCKET
    try:
        return f"ipc://{path}" if tenant == p.OPERATOR and path.is_socket() else endpoint
    except OSError:
        return endpoint
