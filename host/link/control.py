"""The host's control connection to the daemon: login, sessions, policy, figures.

The daemon counts each `Control` as one host, named by the ticket of its login. Calls may come from
any thread, one at a time, and each ends within its timeout. A separate thread sends heartbeats over
a second socket, so that a long kernel does not look like a dead host.
"""

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from offstage.bindings.errors import (
    DeviceTimeout,
    Incompatible,
    OffstageError,
    RunFailed,
    Unreachable,
)
from offstage.dpu import protocol as p
from offstage.dpu.protocol.message import Setting
from offstage.dpu.protocol.status import ArchivedLedger
from offstage.host.link.connection import DEFAULT_ENDPOINT, Connection, as_error
from offstage.host.link.reached import Line
from offstage.host.link.tier_sessions import ALL_SCORES

__all__ = ["DEFAULT_ENDPOINT", "Control"]

BEATS_PER_TIMEOUT = 4
MARKING_LOOK_S = 0.01

R = TypeVar("R", bound=p.Reply)


class Control:
    """A logged-in connection; a context manager that logs out at its end."""

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
        incarnation: int = 0,
        epoch: int = 0,
    ) -> None:
        """Log in. `tenant` is a tenant's name, or `operator` for policy, reset and drain.

        `secret` is the secret or its file; None takes the one that the daemon left for this user in
        its runtime directory. `curve_dir` has server.key and client.key_secret. `incarnation`:
        of the pod's member to log in to, and `epoch`: of the map that names it. BadInput if no
        daemon answers or it refuses the login.
        """
        self.endpoint = endpoint
        self._connection = Connection(endpoint, name, tenant, secret, runtime_dir, curve_dir)
        self.timeout_s = timeout_s
        """Limit for each reply; may be changed after login."""
        self._lock = threading.Lock()
        self._ticket = b""
        self._id = 0
        self._lost = ""
        self.hints = ALL_SCORES
        """The policy's limits on scores, from the reply to the last `session_open`."""
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None
        try:
            self._line, challenge = self._connection.reach(timeout_s)
            self._login(challenge, incarnation, epoch)
        except BaseException:
            self._connection.close()
            raise
        if heartbeat:
            self._beat = threading.Thread(target=self._beat_on, name="ofs-heartbeat", daemon=True)
            self._beat.start()

    # ---- blocks and sessions ----

    def attach(self, fabric: p.FabricName = "shm", *, again: bool = False) -> p.Attached:
        """Ask for a port; the reply says how a fabric reaches the blocks. `again`: reconnect to the
        existing port, whose sessions continue."""
        attached = self.call(p.Attach(fabric=fabric, again=again))
        assert self._connection.proved is not None
        attached.user = self._connection.proved.user
        return attached

    def connect(self, answer: bytes) -> None:
        """Send this side's answer to the blob of an attach."""
        self.call(p.Connect(blob=answer))

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
        opened = self.call(request)
        self.hints = opened.hints or ALL_SCORES
        return opened.session

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """Append chunks, each named by the 16-byte hash of its own tokens."""
        return self.call(p.Append(session=session, contents=contents))

    def set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last to lose its blocks."""
        self.call(p.SetGenerating(session=session, generating=generating))

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session; without `keep` its own blocks are deleted from the store."""
        self.call(p.SessionClose(session=session, keep=keep))

    # ---- policy, figures, operation of the daemon ----

    def policy(self) -> dict[str, Setting]:
        """The policy in force."""
        return self.call(p.PolicyGet()).policy

    def policy_set(self, changes: Mapping[str, object]) -> dict[str, Setting]:
        """Operator: change keys of `[policy]` immediately; lists are written with commas."""
        text = {key: _as_text(value) for key, value in changes.items()}
        return self.call(p.PolicySet(changes=text)).policy

    def status(self) -> dict[str, Any]:
        """State of the daemon, as its JSON has it (`protocol.status.DaemonStatus`); an operator
        also gets hosts, device and counters."""
        return dict(msgspec.to_builtins(self.call(p.Status()).status))

    def ledger(self, tenant: str = "") -> ArchivedLedger:
        """Counters of a tenant; "": one's own, or all together for the operator."""
        return self.call(p.Ledger(tenant=tenant)).ledger

    def reset(self) -> None:
        """Operator: drop staged blocks that are clean and not pinned; zero the ledger."""
        self.call(p.Reset(), timeout_s=max(self.timeout_s, 30.0))

    def purge(self, tenant: str, keep_blocks: int = 0, timeout_s: float = 600.0) -> dict[str, int]:
        """Operator, or the tenant: delete kept chunks, the coldest first, until the store has
        at most `keep_blocks` blocks of the tenant. Returns sums; `marking`: shards that could
        still come back."""
        total = dict.fromkeys(("chunks", "blocks", "bytes"), 0)
        until_s = time.monotonic() + timeout_s
        request = p.Purge(tenant=tenant, keep_blocks=keep_blocks)
        while True:
            done = self.call(request)
            request = p.Purge(tenant=tenant, keep_blocks=keep_blocks, again=True)
            for name in total:
                total[name] += getattr(done, name)
            if (not done.more and not done.marking) or time.monotonic() > until_s:
                return {**total, "more": done.more, "marking": done.marking}
            if not done.more:
                time.sleep(MARKING_LOOK_S)

    def drain(self, timeout_s: float = 30.0) -> p.Drained:
        """Operator: stop new work and flush blocks that are only in memory."""
        request = p.Drain(timeout_ns=int(timeout_s * 1e9))
        return self.call(request, timeout_s=timeout_s + self.timeout_s)

    def undrain(self) -> None:
        """Operator: accept new work again."""
        self.call(p.Undrain())

    def storage_move(self, changes: Mapping[str, object], timeout_s: float = 120.0) -> None:
        """Operator: begin to move all blocks to another storage; `changes` are keys of `[storage]`.
        Growing a file and making a store on it may take long; the status shows progress."""
        text = {key: _as_text(value) for key, value in changes.items()}
        self.call(p.StorageMove(changes=text), timeout_s=timeout_s)

    def fabric_open(self, fabric: p.FabricName, endpoint: str = "") -> None:
        """Operator: allow hosts to attach over this fabric."""
        self.call(p.FabricOpen(fabric=fabric, endpoint=endpoint))

    def fabric_shut(self, fabric: p.FabricName) -> None:
        """Operator: stop new attaches over this fabric; attached hosts continue."""
        self.call(p.FabricShut(fabric=fabric))

    def close(self) -> None:
        """Log out: the daemon closes this host's sessions. Closing twice does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._connection.begin_close()
        if self._beat is not None:
            self._beat.join(timeout=2.0)
        try:
            self.call(p.Detach(), timeout_s=min(self.timeout_s, 1.0))
        except OffstageError:
            pass  # the daemon is gone
        with self._lock:
            self._lost = self._lost or "it was closed"
            self._connection.close()

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def lost(self) -> str:
        """Why the connection has ended; "" while it is open."""
        return self._lost

    def call(self, request: p.Call[R], timeout_s: float | None = None) -> R:
        """Make a call and wait for its reply. Raises the daemon's error reply as an exception."""
        if self._lost:
            raise RunFailed(self._lost, self.endpoint, "log in again")
        with self._lock:
            self._id = self._id % 0xFFFFFFFF + 1
            request.id = self._id
            data = p.encode(request)
            try:
                if self._line.gone():
                    self._line.close()
                    limit_s = min(timeout_s or self.timeout_s, self.timeout_s)
                    self._line, _ = self._connection.reach(limit_s)
                socket = self._line.socket
                socket.send_multipart([self._ticket, data], zmq.NOBLOCK)
                reply = self._await(request.id, timeout_s or self.timeout_s)
            except zmq.Again:
                raise self._silent() from None
            except zmq.ZMQError as error:
                self._lost = self._lost or f"the connection has ended ({error.strerror})"
                raise RunFailed(self._lost, self.endpoint, "log in again") from None
        if isinstance(reply, p.Error):
            raise as_error(reply, self.endpoint)
        if not isinstance(reply, request.reply()):
            raise Incompatible(
                f"the daemon answered {type(reply).__name__}",
                self.endpoint,
                "use the same release on both sides",
            )
        return reply

    def probe(self) -> int:
        """Send a probe without waiting; pass the returned number to `probed`. 0: the connection has
        ended, or its send queue is full."""
        with self._lock:
            self._id = self._id % 0xFFFFFFFF + 1
            beat = p.encode(p.Heartbeat(id=self._id))
            try:
                self._line.socket.send_multipart([self._ticket, beat], zmq.NOBLOCK)
            except zmq.ZMQError:
                return 0
            return 0 if self._lost else self._id

    def probed(self, number: int) -> bool:
        """Whether the reply to that probe, the last one, has arrived. Skips replies to calls that
        timed out."""
        with self._lock, contextlib.suppress(zmq.ZMQError):
            while self._line.socket.poll(0):
                reply = p.decode_reply(self._line.socket.recv_multipart()[-1])
                if reply.id == number:
                    if isinstance(reply, p.Error):
                        self._lost = "the daemon no longer knows this host"
                    return isinstance(reply, p.Ok)
        return False

    def _await(self, number: int, timeout_s: float) -> p.Reply:
        """The reply with this id; skips replies to calls that timed out."""
        socket, until_s = self._line.socket, time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            if socket.poll(int(left_s * 1000) + 1):
                reply = p.decode_reply(socket.recv_multipart()[-1])
                if reply.id == number:
                    return reply
        raise self._silent()

    def dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """See `Connection.dealer`; it ends with this object."""
        return self._connection.dealer(endpoint)

    def fabric_dealer(self, endpoint: str) -> "zmq.Socket[bytes]":
        """See `Connection.fabric_dealer`; it ends with this object."""
        return self._connection.fabric_dealer(endpoint)

    def _silent(self) -> OffstageError:
        return DeviceTimeout(
            "the daemon does not answer",
            self.endpoint,
            "see whether it still runs: offstage dpu status",
        )

    def _login(self, challenge: p.Challenge, incarnation: int, epoch: int) -> None:
        made = self._connection
        proof = p.prove(made.secret(), challenge.nonce, made.tenant, made.name)
        welcome = self.call(
            p.Prove(nonce=challenge.nonce, proof=proof, incarnation=incarnation, epoch=epoch)
        )
        self._ticket = welcome.ticket
        self.boot_id, self.storage = welcome.boot_id, welcome.storage
        self.geometry, self.limits = welcome.geometry, welcome.limits
        self.lease_ns = welcome.lease_ns

    def _beat_on(self) -> None:
        """Send heartbeats, often enough that one or two may be lost."""
        pause_s = self.limits.host_timeout_ns / 1e9 / BEATS_PER_TIMEOUT
        beat = p.encode(p.Heartbeat())
        line: Line | None = None
        try:
            while True:  # beat first: a silent connection is the first to be displaced
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
        """A new connection, or None if the daemon does not answer yet."""
        try:
            return self._connection.reach(self.timeout_s)[0]
        except Unreachable:
            return None


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(one) for one in value)
    return str(value)
