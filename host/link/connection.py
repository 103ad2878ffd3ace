"""A connection to a daemon that has proved who it is: what is made before a host logs in.

Nothing but Hello is sent until the daemon has shown that it has the host's secret. A connection
that ends never silently becomes another one; whoever listens there next must prove itself first.
"""

import hmac
import secrets
import time
from collections.abc import Callable
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

__all__ = ["DEFAULT_ENDPOINT", "Connection", "Meanwhile", "as_error"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7411"
RETRY_S = 0.05
Meanwhile = Callable[[], bool] | None

# What an error code of the daemon is on this side.
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
    """Makes connections for one host: its name, its tenant and secret, and the daemon it means."""

    def __init__(
        self,
        endpoint: str,
        name: str,
        tenant: str,
        secret: bytes | Path | None,
        runtime_dir: Path | None,
        curve_dir: Path | None,
    ) -> None:
        """As `Control`; nothing is connected yet."""
        self.endpoint, self.name, self.tenant = endpoint, name, tenant
        self.via = endpoint if secret is not None else _own_socket(endpoint, tenant, runtime_dir)
        """Where the control socket is reached."""
        self.proved: p.Challenge | None = None
        """What the daemon said of itself."""
        self._secret, self._runtime_dir, self._curve_dir = secret, runtime_dir, curve_dir
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._closing = False

    def begin_close(self) -> None:
        """No new connection is waited for from now on."""
        self._closing = True

    def close(self) -> None:
        """End every socket that was made here."""
        self._context.destroy(linger=0)

    def dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """A DEALER to the control socket, secured alike; it ends with this object."""
        socket = self._dealer(endpoint)
        _connect(socket, endpoint)
        return socket

    def fabric_dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """As `dealer`, to the ZMQ fabric. Only the daemon that proved itself at the login has the
        key to what is sent there, however often the connection is made anew."""
        assert self.proved is not None
        if not self.proved.fabric_key or not zmq.has("curve"):
            side = "this host's" if self.proved.fabric_key else "the daemon's"
            raise BadInput(
                f"nothing shows whose ZMQ fabric that is: {side} libzmq has no CURVE",
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

    def reach(self, timeout_s: float, meanwhile: Meanwhile = None) -> tuple[Line, p.Challenge]:
        """A connection to a daemon that has proved that it has our secret, and what it said.
        BadInput where none answers in time, or it does not prove that."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                line = Line(self._dealer(self.via))
            except zmq.ZMQError as error:
                raise BadInput(
                    f"no connection can be made ({error})",
                    self.endpoint,
                    "allow more descriptors: ulimit -n",
                ) from None
            try:
                _connect(line.socket, self.via)
                challenge = self._greet(line, until_s, meanwhile)
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

    def _greet(self, line: Line, until_s: float, meanwhile: Meanwhile) -> p.Challenge | None:
        """Hello, and the proof that answers it; None where the connection ended, or time did."""
        asked = secrets.token_bytes(16)
        hello = p.Hello(
            id=1, versions=list(p.VERSIONS), name=self.name, tenant=self.tenant, nonce=asked
        )
        try:
            line.socket.send_multipart([b"", p.encode(hello)], zmq.NOBLOCK)
        except zmq.Again:  # it has ended already: refused, or of another key
            return None
        while not line.socket.poll(int(RETRY_S * 1000)):
            _ = meanwhile is not None and meanwhile()
            if line.gone() or self._closing or time.monotonic() > until_s:
                return None
        challenge = p.decode_reply(line.socket.recv_multipart()[-1])
        if isinstance(challenge, p.Error):
            raise as_error(challenge, self.endpoint)
        if not isinstance(challenge, p.Challenge) or challenge.version not in p.VERSIONS:
            raise Incompatible(
                f"it answers Hello by {type(challenge).__name__} of a protocol that "
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
                f"who listens there does not prove that it has the secret of {self.tenant!r}",
                self.endpoint,
                "give the secret file that the daemon started with, or see who "
                "has its port: nothing was sent",
            )
        self.proved = challenge
        return challenge

    def secret(self) -> bytes:
        """The tenant's. BadInput: it cannot be read."""
        if not isinstance(self._secret, bytes):
            base = self._runtime_dir or p.default_runtime_dir(self.endpoint)
            self._secret = read_secret(self._secret or base / f"{self.tenant}.secret")
        return self._secret


def as_error(reply: p.Error, endpoint: str) -> OffstageError:
    """What an error of the daemon is on this side."""
    kind = KINDS.get(reply.code, RunFailed)
    return kind(reply.what, reply.where or endpoint, reply.mend, errno=reply.errno)


def _connect(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise BadInput(
            f"no endpoint ({error.strerror})", endpoint, f"write one such as {DEFAULT_ENDPOINT}"
        ) from None


def _own_socket(endpoint: str, tenant: str, runtime_dir: Path | None) -> str:
    """The operator's own way in on the daemon's machine, which hosts cannot fill, or `endpoint`."""
    path = (runtime_dir or p.default_runtime_dir(endpoint)) / p.OPERATOR_SOCKET
    try:
        return f"ipc://{path}" if tenant == p.OPERATOR and path.is_socket() else endpoint
    except OSError:
        return endpoint
