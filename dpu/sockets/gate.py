"""The gate in front of a ZeroMQ socket: limits the connections, and the bytes each may have queued.

ZeroMQ limits the size of a frame, but neither the number of frames in a message nor the number of
connections, and it buffers what a peer sends until the message is complete. So hosts connect to the
gate, which forwards bytes unparsed to the socket behind it. The gate counts the bytes forwarded for
each connection, and the reader of that socket reports with `took` what it received. A connection
that is a full message ahead is not read until the reader catches up; if that takes too long, the
connection is closed.

When the gate is full, the peer with the most connections loses the one that has been idle longest,
so a peer cannot lock others out by opening many. A connection counts for its tenant from the first
message that carries a host's ticket. Until then it counts for its address, or, on a local path,
for its user. Connections without a tenant displace each other while they are more than half of all,
so no number of addresses displaces a host. A host that loses an idle connection reconnects by
itself.

One dedicated thread; `took` may be called from any other.
"""

import contextlib
import errno
import os
import selectors
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from offstage.bindings.errors import BadInput
from offstage.dpu.log import Log
from offstage.dpu.sockets.door import peer_of

__all__ = ["Gate", "Whose"]

Whose = Callable[[bytes], str]
"""The tenant of a ticket; empty if it names no host. Called on the thread that calls `took`."""

CHUNK_BYTES = 256 << 10
SLACK_BYTES = 64 << 10  # of a handshake, and of frames' headers
FRAME_EXTRA_BYTES = 128  # most overhead of a frame on the wire, CURVE included
STALL_S = 30.0  # longer than the reactor may delay the daemon
ACCEPTS_MAX = 16  # of one turn
BACKLOG = 1024
LOOK_S = 1.0


@dataclass(eq=False)
class _Pair:
    """A connection of a host and the one behind it. `waiting_bytes`: passed on, not yet taken."""

    outer: socket.socket
    inner: socket.socket
    peer: str
    heard_s: float
    waiting_bytes: int = 0
    full_since_s: float | None = None
    inward: bytes = field(default=b"")
    outward: bytes = field(default=b"")


class Gate:
    """Listens at `endpoint` from `listen` on, and passes on to `inner` from `start` on."""

    def __init__(
        self, endpoint: str, *, connections_max: int, message_bytes_max: int, shared: bool, log: Log
    ) -> None:
        """`shared`: other users of this machine may come, by the mode of an ipc socket."""
        self._asked, self._shared, self._log = endpoint, shared, log
        self._connections_max = connections_max
        self._waiting_max = message_bytes_max + SLACK_BYTES
        self.whose: Whose = lambda ticket: ""
        self._inner = ""
        self._pairs: dict[str, _Pair] = {}  # by the name of the inner connection
        self._lock = threading.Lock()  # of every `waiting_bytes`
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._listener: socket.socket | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="ofs-gate", daemon=True)
        self.counts: Counter[str] = Counter(connections=0, displaced=0, stalled=0)
        self.endpoint = ""

    def listen(self) -> str:
        """Take the port; returns the endpoint with the one in use. BadInput where it is taken."""
        scheme, _, rest = self._asked.partition("://")
        try:
            self._listener = _listen_tcp(rest) if scheme == "tcp" else self._listen_ipc(rest)
            self._listener.setblocking(False)
            self._listener.listen(BACKLOG)
        except OSError as error:
            taken = isinstance(error, FileExistsError) or error.errno == errno.EADDRINUSE
            raise BadInput(
                "the port is in use" if taken else f"cannot listen ({error.strerror or error})",
                self._asked,
                "stop what listens there, or choose another endpoint",
            ) from None
        self.endpoint = self._asked
        if scheme == "tcp":
            port = self._listener.getsockname()[1]
            self.endpoint = f"tcp://{rest.rpartition(':')[0]}:{port}"
        return self.endpoint

    def start(self, inner: Path) -> None:
        """Admit connections, forwarded to the socket bound at `inner`."""
        assert self._listener is not None
        self._inner = str(inner)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._thread.start()

    def took(self, frames: "Sequence[zmq.Frame]") -> str:
        """This message came out of the socket. Returns who sent it: its address, user or tenant;
        empty if that is not known."""
        try:
            with socket.socket(fileno=os.dup(frames[-1].get(zmq.SRCFD))) as seen:
                name = _name_of(seen.getpeername())
        except (OSError, zmq.ZMQError):
            return ""  # gone since; the operator's, by no gate; or of ZMTP 1, which has no fd
        size_bytes = sum(len(one) + FRAME_EXTRA_BYTES for one in frames)
        tenant = self.whose(frames[1].bytes) if len(frames) > 1 and len(frames[1]) < 64 else ""
        with self._lock:
            pair = self._pairs.get(name)
            if pair is None:
                return ""
            pair.peer = f"tenant {tenant}" if tenant else pair.peer
            was_full = pair.waiting_bytes >= self._waiting_max
            pair.waiting_bytes = max(0, pair.waiting_bytes - size_bytes)
        if was_full:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_w, b"t")
        return pair.peer

    def close(self) -> None:
        """End the thread and every connection."""
        self._stop = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"s")
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        for pair in list(self._pairs.values()):
            self._drop(pair)
        if self._listener is not None:
            self._listener.close()
            if self._asked.startswith("ipc://") and not self._asked.startswith("ipc://@"):
                _remove_socket(self._asked.removeprefix("ipc://"))
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _listen_ipc(self, path: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        if path.startswith("@"):
            listener.bind("\0" + path[1:])
            return listener
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise FileExistsError
        _remove_socket(path)  # of a daemon that was killed
        old_mask = os.umask(0o111 if self._shared else 0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(old_mask)
        return listener

    def _run(self) -> None:
        look_s = time.monotonic() + LOOK_S
        while not self._stop:
            for key, events in self._selector.select(LOOK_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is None:
                    os.read(self._wake_r, 4096)
                    self._resume()
                elif key.data.peer:
                    self._serve(key.data, key.fileobj is key.data.outer, events)
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_S
                self._end_stalled()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_MAX):
            try:
                outer, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._log.error("accept_failed", error=str(error))
                time.sleep(0.01)  # no descriptor is free: the listener stays readable
                return
            try:
                peer = address[0] if address else f"user {peer_of(outer).uid}"
                self._make_room()
                self._join(outer, peer)
            except OSError as error:
                outer.close()
                self._log.error("accept_failed", error=str(error))

    def _join(self, outer: socket.socket, peer: str) -> None:
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            inner.bind("")  # a name of the kernel's own choice: by it, `took` finds the pair
            inner.connect(self._inner)
        except OSError:
            inner.close()
            raise
        outer.setblocking(False)
        inner.setblocking(False)
        if outer.family != socket.AF_UNIX:
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(outer, inner, peer or "?", time.monotonic())
        with self._lock:
            self._pairs[_name_of(inner.getsockname())] = pair
        self.counts["connections"] += 1
        self._selector.register(outer, selectors.EVENT_READ, pair)
        self._selector.register(inner, selectors.EVENT_READ, pair)

    def _make_room(self) -> None:
        if len(self._pairs) < self._connections_max:
            return
        strangers = [one for one in self._pairs.values() if not one.peer.startswith("tenant ")]
        crowd = strangers if 2 * len(strangers) > len(self._pairs) else self._pairs.values()
        (peer, count), *_ = Counter(one.peer for one in crowd).most_common(1)
        oldest = min(
            (one for one in self._pairs.values() if one.peer == peer), key=lambda one: one.heard_s
        )
        self.counts["displaced"] += 1
        self._log.warning("connection_displaced", peer=peer, connections=count)
        self._drop(oldest)

    def _serve(self, pair: _Pair, outer: bool, events: int) -> None:
        """Bytes arrived from one end, or the other end can accept bytes again."""
        try:
            if outer and events & selectors.EVENT_READ:
                data = pair.outer.recv(CHUNK_BYTES)
                if not data:
                    return self._drop(pair)
                pair.heard_s = time.monotonic()
                with self._lock:
                    pair.waiting_bytes += len(data)
                pair.inward = _send(pair.inner, data)
            elif not outer and events & selectors.EVENT_READ:
                data = pair.inner.recv(CHUNK_BYTES)
                if not data:
                    return self._drop(pair)
                pair.outward = _send(pair.outer, data)
            if outer and events & selectors.EVENT_WRITE:
                pair.outward = _send(pair.outer, pair.outward)
            elif not outer and events & selectors.EVENT_WRITE:
                pair.inward = _send(pair.inner, pair.inward)
        except BlockingIOError:
            pass
        except OSError:
            return self._drop(pair)
        self._watch(pair)

    def _watch(self, pair: _Pair) -> None:
        """Read from an end only what the other can accept, and from a host up to its limit."""
        full = pair.waiting_bytes >= self._waiting_max
        if not full:
            pair.full_since_s = None
        elif pair.full_since_s is None:
            pair.full_since_s = time.monotonic()
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        self._want(
            pair.outer, pair, (0 if full or pair.inward else read) | (write if pair.outward else 0)
        )
        self._want(pair.inner, pair, (0 if pair.outward else read) | (write if pair.inward else 0))

    def _want(self, end: socket.socket, pair: _Pair, events: int) -> None:
        known = self._selector.get_map().get(end)
        if events and known is None:
            self._selector.register(end, events, pair)
        elif known is not None and not events:
            self._selector.unregister(end)
        elif known is not None and known.events != events:
            self._selector.modify(end, events, pair)

    def _resume(self) -> None:
        for pair in list(self._pairs.values()):
            if pair.full_since_s is not None:
                self._watch(pair)

    def _end_stalled(self) -> None:
        """Close connections with a message that does not complete, or an unsolicited one."""
        before_s = time.monotonic() - STALL_S
        for pair in list(self._pairs.values()):
            if pair.full_since_s is not None and pair.full_since_s < before_s:
                self.counts["stalled"] += 1
                self._log.warning("connection_stalled", peer=pair.peer)
                self._drop(pair)

    def _drop(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs = {name: one for name, one in self._pairs.items() if one is not pair}
        pair.peer = ""  # remaining select events of it are ignored
        for end in (pair.outer, pair.inner):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()


def _remove_socket(path: str) -> None:
    """BadInput if the path is not a socket."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise BadInput("is there and no socket", path, "choose another endpoint")
        Path(path).unlink()


def _listen_tcp(rest: str) -> socket.socket:
    host, _, port = rest.rpartition(":")
    host = {"*": "0.0.0.0"}.get(host, host.strip("[]"))
    found = socket.getaddrinfo(host, 0 if port == "*" else int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _send(end: socket.socket, data: bytes) -> bytes:
    """The bytes not accepted."""
    try:
        return data[end.send(data) :] if data else b""
    except BlockingIOError:
        return data


def _name_of(name: str | bytes) -> str:
    return name.hex() if isinstance(name, bytes) else name
