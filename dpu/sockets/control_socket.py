"""The control socket: a ROUTER behind a gate, and CURVE where keys are configured.

Hosts connect through the gate. The operator of this machine has a separate socket in the runtime
directory, private to the daemon's user: hosts cannot exhaust it, and it needs no CURVE key.

ZMQ itself refuses frames larger than `FRAME_FACTOR` times the message limit: it drops the
connection before it buffers a byte. For sizes between the limit and that bound, the daemon answers
with an error that says so.
"""

import os
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private
from offstage.dpu import protocol as p
from offstage.dpu.config.values import Config
from offstage.dpu.log import Log
from offstage.dpu.sockets.door import shared
from offstage.dpu.sockets.gate import Gate

__all__ = ["ControlSocket"]

FRAME_FACTOR = 2
HANDSHAKE_MS = 15_000  # a machine may be busy


class _Decisions:
    """What ZMQ's authenticator says of each handshake: the daemon's log gets those that failed. Its
    thread calls it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def debug(self, text: str, *words: Any) -> None:
        """A decision about a client's public key, or a message of the handshake."""
        if words[:1] == ("DENIED",):
            key = words[-1].decode("ascii", "replace")
            self._log.warning("login_refused", key=key, why="this CURVE key is no client's")

    def error(self, text: str, *words: Any) -> None:
        """A handshake that cannot be read."""
        self._log.warning("login_refused", why=f"the CURVE handshake is broken: {text % words}")

    info = warning = debug


class ControlSocket:
    """Owns the context and the control socket; one thread owns it."""

    def __init__(self, config: Config, log: Log) -> None:
        self._config, self._log = config, log
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._clients_seen_ns = 0
        self._polled: list[int] | None = None
        self.peer = ""
        """Who sent the last message, as the gate knows it."""
        self._poller = zmq.Poller()
        self.fabric_key, self._fabric_secret = b"", b""
        if zmq.has("curve"):
            self.fabric_key, self._fabric_secret = zmq.curve_keypair()
        self._socket = self.context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_FACTOR * config.limits.message_bytes)
        self._socket.setsockopt(zmq.RCVHWM, 16)  # of one peer: 16 messages at the limit
        self._socket.setsockopt(zmq.SNDHWM, 32)  # of one peer, which does not read its replies
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.gate = Gate(
            config.daemon.endpoint,
            connections_max=config.limits.connections,
            message_bytes_max=FRAME_FACTOR * config.limits.message_bytes,
            shared=shared(config),
            log=log,
        )
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def secure(self, socket: "zmq.Socket[bytes]") -> None:
        """Make a server socket use CURVE, where keys are configured."""
        if not self._config.daemon.curve_dir:
            return
        directory = Path(self._config.daemon.curve_dir)
        if self._authenticator is None:
            self._authenticator = ThreadAuthenticator(self.context, log=_Decisions(self._log))
            self._authenticator.start()
            self._read_clients()
        try:
            check_private(directory / "server.key_secret", ours=False)
            public, secret = zmq.auth.load_certificate(directory / "server.key_secret")
        except (OSError, ValueError) as error:
            raise BadInput(
                f"no CURVE keys ({error})",
                str(directory),
                "make them with `offstage keys make server`",
            ) from None
        if secret is None:
            raise BadInput(
                "has no secret key",
                str(directory / "server.key_secret"),
                "make it with `offstage keys make server`",
            )
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_server = True

    def secure_fabric(self, socket: "zmq.Socket[bytes]") -> None:
        """As `secure`, by the key of this process alone, which the daemon proves to be its own at
        each login. BadInput where libzmq has no CURVE."""
        if not self.fabric_key:
            raise BadInput(
                "the ZMQ fabric cannot prove its identity: libzmq has no CURVE",
                "zmq",
                "install a libzmq with CURVE, or leave zmq out of daemon.fabrics",
            )
        self.secure(socket)
        socket.curve_publickey, socket.curve_secretkey = self.fabric_key, self._fabric_secret
        socket.curve_server = True

    def listen(self) -> str:
        """Take the port; returns the endpoint with the one in use. BadInput where it is taken."""
        return self.gate.listen()

    def open(self, runtime_dir: Path) -> None:
        """Admit operator and hosts."""
        inner = runtime_dir / "control.sock"
        old_mask = os.umask(0o177)
        try:
            # An endpoint bound before `secure` does not use CURVE.
            self._socket.bind(f"ipc://{runtime_dir / p.OPERATOR_SOCKET}")
            self.secure(self._socket)
            self._socket.bind(f"ipc://{inner}")
        except zmq.ZMQError as error:
            raise BadInput(
                f"no socket can be made ({error.strerror})",
                str(inner),
                "set daemon.runtime_dir to a shorter path",
            ) from None
        finally:
            os.umask(old_mask)
        self.gate.start(inner)

    def note_keys(self) -> None:
        """Reload the clients' keys, added or removed since."""
        if self._authenticator is not None and self._clients_at_ns() != self._clients_seen_ns:
            try:
                self._log.info("client_keys", count=len(self._read_clients()))
            except (OSError, ValueError) as error:  # the loaded keys stay valid
                self._log.error("client_keys_failed", error=str(error))

    def _clients_at_ns(self) -> int:
        try:
            return (Path(self._config.daemon.curve_dir) / "clients").stat().st_mtime_ns
        except OSError:
            return 0

    def _read_clients(self) -> list[Path]:
        assert self._authenticator is not None
        folder = Path(self._config.daemon.curve_dir) / "clients"
        self._clients_seen_ns = self._clients_at_ns()
        if folder.is_dir():
            self._authenticator.configure_curve(domain="*", location=str(folder))
        return sorted(folder.glob("*.key"))

    def poll(self, pause_s: float, filenos: list[int]) -> set[int]:
        """Wait for a message or a descriptor; returns the descriptors that are readable."""
        if filenos != self._polled:
            self._polled, self._poller = filenos, zmq.Poller()
            for one in (self._socket, *filenos):
                self._poller.register(one, zmq.POLLIN)
        return {one for one, _ in self._poller.poll(int(pause_s * 1000)) if isinstance(one, int)}

    def receive(self) -> list[bytes] | None:
        """The frames of the next message, or None."""
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return None
        self.peer = self.gate.took(frames)
        return [frame.bytes for frame in frames]

    def send(self, routing: bytes, reply: p.Reply) -> None:
        """Send without waiting: a peer that does not read its replies loses them."""
        try:
            data = p.encode(reply)
        except (OverflowError, TypeError, ValueError) as error:  # a bug; keep running
            self._log.error("reply_unsendable", error=repr(error))
            data = p.encode(
                p.Error(
                    id=reply.id,
                    code="internal",
                    fix="see the daemon's log",
                    what="the daemon's answer cannot be sent",
                )
            )
        try:
            self._socket.send_multipart([routing, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._log.warning("reply_dropped", error=str(error))

    def note_disconnects(self) -> None:
        """Log connections that ended: by the peer, or by us for a frame past the limit."""
        limit: Any = FRAME_FACTOR * self._config.limits.message_bytes
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._log.debug("disconnected", note=f"peer left, or sent a frame above {limit} B")

    def close(self) -> None:
        """Give the last replies a moment, then close."""
        self.gate.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._socket.disable_monitor()
        self._socket.close()
        self.context.destroy(linger=200)
