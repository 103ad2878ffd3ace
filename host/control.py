"""The host's control connection to the daemon: login, sessions, policy, figures.

One `Control` is one host in the daemon's eyes, named by the ticket of its login. Calls may come
from any thread, one at a time, and each ends within its timeout. A thread of its own sends
heartbeats over a second socket, so that a long kernel does not look like a dead host.
"""

import contextlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
    Unreachable,
)
from offstage.bindings.private import check_private, read_secret
from offstage.dpu import protocol as p
from offstage.host.reached import Line, why_silent
from offstage.host.sessions import ALL_SCORES

__all__ = ["DEFAULT_ENDPOINT", "Control"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7411"
BEATS_PER_TIMEOUT = 4
MARKING_LOOK_S = 0.01
RETRY_S = 0.05
MEANWHILE_S = 0.005  # between two looks at what else there is

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

T = TypeVar("T")
Meanwhile = Callable[[], bool] | None


class Control:
    """A logged-in connection; a context manager that leaves the daemon at its end."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        name: str = "host",
        tenant: str = "default",
        secret: bytes | Path | None = None,
        runtime_dir: Path | None = None,
        curve_dir: Path | None = None,
        timeout_s: float = 5.0,
        heartbeat: bool = True,
        life: tuple[int, int] = (0, 0),
    ) -> None:
        """Log in. `tenant` is a tenant's name, or `operator` for policy, reset and drain.

        `secret` is the secret or the file it is in; None takes the one the daemon left for this
        user in its runtime directory. `curve_dir` holds server.key and client.key_secret. BadInput
        where no daemon answers or it refuses the login. `life`: which incarnation of a daemon of a
        pod is meant, by the map of which epoch.
        """
        self.endpoint = endpoint
        self._via = endpoint if secret is not None else _own_socket(endpoint, tenant, runtime_dir)
        self._tenant, self._name, self._curve_dir = tenant, name, curve_dir
        self.timeout_s, self._life = timeout_s, life
        """What an answer may take; it may be changed once logged in."""
        self._lock = threading.Lock()
        self._ticket = b""
        self._id = 0
        self._lost = ""
        self.hints = ALL_SCORES
        """What of its scores the policy takes in, as the last session's answer said."""
        self._secret, self._runtime_dir = secret, runtime_dir
        self._proved: p.Challenge | None = None  # what the daemon said of itself
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._line, challenge = self._reach()
            self._login(challenge)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        if heartbeat:
            self._beat = threading.Thread(target=self._beat_on, name="ofs-heartbeat", daemon=True)
            self._beat.start()

    # ---- blocks and sessions ----

    def attach(self, fabric: p.FabricName = "shm", *, again: bool = False) -> p.Attached:
        """Ask for a port; the reply says where a fabric gets its blocks from. `again`: for another
        connection to the port that is there, whose sessions go on."""
        attached = self.call(p.Attach(fabric=fabric, again=again), p.Attached)
        assert self._proved is not None
        attached.user = self._proved.user
        return attached

    def connect(self, answer: bytes) -> None:
        """What the fabric's end here answers to the blob of its attach."""
        self.call(p.Connect(blob=answer), p.Ok)

    def session_open(
        self, *, select_blocks: int, sink_blocks: int = 1, window_blocks: int = 1, step_ns: int = 0
    ) -> int:
        """Open a session; counts in blocks, `step_ns` the expected time per token, to an hour."""
        request = p.SessionOpen(
            sink_blocks=sink_blocks,
            window_blocks=window_blocks,
            select_blocks=select_blocks,
            step_ns=step_ns,
        )
        opened = self.call(request, p.Opened)
        self.hints = opened.hints or ALL_SCORES
        return opened.session

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """Append chunks, each named by the 16-byte hash of its own tokens."""
        return self.call(p.Append(session=session, contents=contents), p.Appended)

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks."""
        self.call(p.SetGenerating(session=session, generating=generating), p.Ok)

    def session_close(self, session: int, *, archive: bool = True) -> None:
        """Close a session; without `archive` its own blocks are deleted from the store."""
        self.call(p.SessionClose(session=session, archive=archive), p.Ok)

    def sessions_open(
        self,
        contents: list[bytes],
        *,
        closing: list[int] | None = None,
        deleting: list[int] | None = None,
        keep: bool = True,
        due_s: float = 0.0,
        timeout_s: float | None = None,
        meanwhile: Meanwhile = None,
    ) -> p.SessionsOpened:
        """A session for each of `contents`, 16-byte hashes in a row, after those of `closing` and
        `deleting` were closed, the latter without archive; not `keep`: closed again at once. What
        is guessed of them before they are read is needed in `due_s`. `meanwhile`: as of `call`."""
        request = p.SessionsOpen(
            closing=closing or [],
            deleting=deleting or [],
            contents=contents,
            keep=keep,
            due_ns=int(due_s * 1e9),
        )
        return self.call(request, p.SessionsOpened, timeout_s, meanwhile)

    # ---- policy, figures, life of the daemon ----

    def policy(self) -> dict[str, Any]:
        """The policy in force."""
        return self.call(p.PolicyGet(), p.PolicyReply).policy

    def policy_set(self, changes: Mapping[str, object]) -> dict[str, Any]:
        """Operator: change keys of `[policy]`, now; lists are written with commas."""
        text = {key: _as_text(value) for key, value in changes.items()}
        return self.call(p.PolicySet(changes=text), p.PolicyReply).policy

    def status(self) -> dict[str, Any]:
        """How the daemon is; an operator sees hosts, device and counters."""
        return self.call(p.Status(), p.StatusReply).status

    def ledger(self, tenant: str = "") -> dict[str, Any]:
        """Counters by the field names of `struct ofs_ledger`; "" is one's own, or all."""
        return self.call(p.Ledger(tenant=tenant), p.LedgerReply).ledger

    def reset(self) -> None:
        """Operator: drop what is staged, clean and not pinned; zero the ledger."""
        self.call(p.Reset(), p.Ok, timeout_s=max(self.timeout_s, 30.0))

    def purge(self, tenant: str, keep_blocks: int = 0, timeout_s: float = 600.0) -> dict[str, int]:
        """Operator, or the tenant: archived chunks go, the coldest first, until the store has no
        more than `keep_blocks` blocks of it. Sums; `marking`: segments that could come back yet."""
        total = dict.fromkeys(("chunks", "blocks", "bytes"), 0)
        until_s = time.monotonic() + timeout_s
        request = p.Purge(tenant=tenant, keep_blocks=keep_blocks)
        while True:
            done = self.call(request, p.Purged)
            request = p.Purge(tenant=tenant, keep_blocks=keep_blocks, again=True)
            for name in total:
                total[name] += getattr(done, name)
            if (not done.more and not done.marking) or time.monotonic() > until_s:
                return {**total, "more": done.more, "marking": done.marking}
            if not done.more:
                time.sleep(MARKING_LOOK_S)

    def drain(self, timeout_s: float = 30.0) -> p.Drained:
        """Operator: the daemon takes no new work and flushes what is only in memory."""
        request = p.Drain(timeout_ns=int(timeout_s * 1e9))
        return self.call(request, p.Drained, timeout_s=timeout_s + self.timeout_s)

    def undrain(self) -> None:
        """Operator: the daemon takes new work again."""
        self.call(p.Undrain(), p.Ok)

    def storage_move(self, changes: Mapping[str, object], timeout_s: float = 120.0) -> None:
        """Operator: begin to move all blocks to another storage; `changes` are keys of `[storage]`.
        Growing a file and making a store on it may take long; the status says how it goes on."""
        text = {key: _as_text(value) for key, value in changes.items()}
        self.call(p.StorageMove(changes=text), p.Ok, timeout_s=timeout_s)

    def fabric_open(self, fabric: p.FabricName, endpoint: str = "") -> None:
        """Operator: hosts may attach over this fabric from now on."""
        self.call(p.FabricOpen(fabric=fabric, endpoint=endpoint), p.Ok)

    def fabric_shut(self, fabric: p.FabricName) -> None:
        """Operator: no more hosts attach over this fabric; those that have go on."""
        self.call(p.FabricShut(fabric=fabric), p.Ok)

    def close(self) -> None:
        """Leave: the daemon closes this host's sessions. Closing twice does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._beat is not None:
            self._beat.join(timeout=2.0)
        try:
            self.call(p.Detach(), p.Ok, timeout_s=min(self.timeout_s, 1.0))
        except OffstageError:
            pass  # a daemon that is gone has forgotten us already
        with self._lock:
            self._lost = self._lost or "it was closed"
            self._context.destroy(linger=0)

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def lost(self) -> str:
        """Why the connection has ended; "" while it holds."""
        return self._lost

    def call(
        self,
        request: p.Request,
        reply_type: type[T],
        timeout_s: float | None = None,
        meanwhile: Meanwhile = None,
    ) -> T:
        """Send one request and wait for its reply. Raises what the daemon answers as an error.
        `meanwhile` is called every few ms until it is there, at once again after a True."""
        if self._lost:
            raise RunFailed(self._lost, self.endpoint, "log in again")
        with self._lock:
            self._id = self._id % 0xFFFFFFFF + 1
            request.id = self._id
            data = p.encode(request)
            try:
                if self._line.gone():
                    self._line.close()
                    self._line, _ = self._reach(timeout_s, meanwhile)
                socket = self._line.socket
                socket.send_multipart([self._ticket, data], zmq.NOBLOCK)
                reply = self._await(request.id, timeout_s or self.timeout_s, meanwhile)
            except zmq.Again:
                raise self._silent() from None
            except zmq.ZMQError as error:
                self._lost = self._lost or f"the connection has ended ({error.strerror})"
                raise RunFailed(self._lost, self.endpoint, "log in again") from None
        if isinstance(reply, p.Error):
            raise self._as_error(reply)
        if not isinstance(reply, reply_type):
            raise Incompatible(
                f"the daemon answered {type(reply).__name__}",
                self.endpoint,
                "use the same release on both sides",
            )
        return reply

    def probe(self) -> int:
        """Ask whether the daemon is there and wait for nothing; `probed` takes the number. 0: the
        connection has ended, or takes no more."""
        with self._lock:
            self._id = self._id % 0xFFFFFFFF + 1
            beat = p.encode(p.Heartbeat(id=self._id))
            try:
                self._line.socket.send_multipart([self._ticket, beat], zmq.NOBLOCK)
            except zmq.ZMQError:
                return 0
            return 0 if self._lost else self._id

    def probed(self, number: int) -> bool:
        """Whether the answer to that probe, the last one, has come. Replies of calls that were
        given up are passed over."""
        with self._lock, contextlib.suppress(zmq.ZMQError):
            while self._line.socket.poll(0):
                reply = p.decode_reply(self._line.socket.recv_multipart()[-1])
                if reply.id == number:
                    if isinstance(reply, p.Error):
                        self._lost = "the daemon no longer knows this host"
                    return isinstance(reply, p.Ok)
        return False

    def _await(self, number: int, timeout_s: float, meanwhile: Meanwhile) -> p.Reply:
        """The reply with this id; those of calls that were given up are passed over."""
        socket, until_s = self._line.socket, time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            if meanwhile is not None:
                left_s = 0.0 if meanwhile() else MEANWHILE_S
            if socket.poll(int(left_s * 1000) + (left_s > 0)):
                reply = p.decode_reply(socket.recv_multipart()[-1])
                if reply.id == number:
                    return reply
        raise self._silent()

    def _silent(self) -> OffstageError:
        return DeviceTimeout(
            "the daemon does not answer",
            self.endpoint,
            "see whether it still runs: offstage dpu status",
        )

    def dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """A DEALER to the control socket, secured alike; it ends with this object."""
        socket = self._dealer(endpoint)
        _connect(socket, endpoint)
        return socket

    def fabric_dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """As `dealer`, to the ZMQ fabric. Only the daemon that proved itself at the login has the
        key to what is sent there, however often the connection is made anew."""
        assert self._proved is not None
        if not self._proved.fabric_key or not zmq.has("curve"):
            side = "this host's" if self._proved.fabric_key else "the daemon's"
            raise BadInput(
                f"nothing shows whose ZMQ fabric that is: {side} libzmq has no CURVE",
                endpoint,
                "install a libzmq with CURVE there, or attach over shm",
            )
        socket = self._dealer(endpoint)
        if self._curve_dir is None:
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = self._proved.fabric_key
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

    def _reach(
        self, timeout_s: float | None = None, meanwhile: Meanwhile = None
    ) -> tuple[Line, p.Challenge]:
        """A connection to a daemon that has proved that it has our secret, and what it said.
        Nothing but Hello was sent until then. BadInput as the constructor."""
        until_s = time.monotonic() + min(timeout_s or self.timeout_s, self.timeout_s)
        while True:
            try:
                line = Line(self._dealer(self._via))
            except zmq.ZMQError as error:
                raise BadInput(
                    f"no connection can be made ({error})",
                    self.endpoint,
                    "allow more descriptors: ulimit -n",
                ) from None
            try:
                _connect(line.socket, self._via)
                challenge = self._greet(line, until_s, meanwhile)
                if challenge is not None:
                    return line, challenge
                seen = line.seen()
            except BaseException:
                line.close()
                raise
            line.close()
            if self._stop.is_set() or time.monotonic() + RETRY_S > until_s:
                curve = str(self._curve_dir or "") if self._via == self.endpoint else ""
                raise why_silent(seen, self.endpoint, curve)
            time.sleep(RETRY_S)

    def _greet(self, line: Line, until_s: float, meanwhile: Meanwhile) -> p.Challenge | None:
        """Hello, and the proof that answers it; None where the connection ended, or time did."""
        asked = secrets.token_bytes(16)
        hello = p.Hello(
            id=1, versions=list(p.VERSIONS), name=self._name, tenant=self._tenant, nonce=asked
        )
        try:
            line.socket.send_multipart([b"", p.encode(hello)], zmq.NOBLOCK)
        except zmq.Again:  # it has ended already: refused, or of another key
            return None
        while not line.socket.poll(int(RETRY_S * 1000)):
            _ = meanwhile is not None and meanwhile()
            if line.gone() or self._stop.is_set() or time.monotonic() > until_s:
                return None
        challenge = p.decode_reply(line.socket.recv_multipart()[-1])
        if isinstance(challenge, p.Error):
            raise self._as_error(challenge)
        if not isinstance(challenge, p.Challenge) or challenge.version not in p.VERSIONS:
            raise Incompatible(
                f"it answers Hello by {type(challenge).__name__} of a protocol that "
                "was not offered",
                self.endpoint,
                "use the same release on both sides",
            )
        expected = p.prove_daemon(
            self._known_secret(),
            asked,
            challenge.nonce,
            self._tenant,
            self._name,
            challenge.version,
            challenge.user,
            challenge.fabric_key,
        )
        if not hmac.compare_digest(expected, challenge.proof):
            raise BadInput(
                f"who listens there does not prove that it has the secret of {self._tenant!r}",
                self.endpoint,
                "give the secret file that the daemon started with, or see who "
                "has its port: nothing was sent",
            )
        self._proved = challenge
        return challenge

    def _known_secret(self) -> bytes:
        if not isinstance(self._secret, bytes):
            base = self._runtime_dir or p.default_runtime_dir(self.endpoint)
            self._secret = read_secret(self._secret or base / f"{self._tenant}.secret")
        return self._secret

    def _login(self, challenge: p.Challenge) -> None:
        proof = p.prove(self._known_secret(), challenge.nonce, self._tenant, self._name)
        incarnation, epoch = self._life
        welcome = self.call(
            p.Prove(nonce=challenge.nonce, proof=proof, incarnation=incarnation, epoch=epoch),
            p.Welcome,
        )
        self._ticket = welcome.ticket
        self.epoch, self.storage = welcome.epoch, welcome.storage
        self.geometry, self.limits = welcome.geometry, welcome.limits
        self.lease_ns = welcome.lease_ns

    def _as_error(self, reply: p.Error) -> OffstageError:
        kind = KINDS.get(reply.code, RunFailed)
        return kind(reply.what, reply.where or self.endpoint, reply.mend, errno=reply.errno)

    def _beat_on(self) -> None:
        """Say so often that one lives that a lost beat or two do no harm."""
        pause_s = self.limits.host_timeout_ns / 1e9 / BEATS_PER_TIMEOUT
        beat = p.encode(p.Heartbeat())
        line: Line | None = None
        try:
            while True:  # at once: a connection that has said nothing is the first to be displaced
                if line is None or line.gone():
                    if line is not None:
                        line.close()
                    line = self._reach_again()
                if line is not None:
                    line.socket.send_multipart([self._ticket, beat], zmq.NOBLOCK)
                if self._stop.wait(pause_s):
                    return
                while line is not None and line.socket.poll(0):
                    reply = p.decode_reply(line.socket.recv_multipart()[-1])
                    if isinstance(reply, p.Error) and reply.code == "unauthenticated":
                        self._lost = "the daemon no longer knows this host"
                        return
        except (zmq.ZMQError, OffstageError) as error:
            if not self._stop.is_set():
                self._lost = f"the heartbeat ended ({error})"
        finally:
            if line is not None:
                line.close()

    def _reach_again(self) -> Line | None:
        """As `_reach`, or None where nobody answers yet: a daemon may be held up."""
        try:
            return self._reach()[0]
        except Unreachable:
            return None


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


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(one) for one in value)
    return str(value)
