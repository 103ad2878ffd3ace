"""A host of the simulated pod: the product's sessions, fabric and follower over simulated links.

`Wire` is a connection to one incarnation of a daemon, both `Control` and `Fabric`. A fetch sends a
command, copies staged blocks directly, and ends when the daemon has answered or its time is up.
Messages are late, lost, or held back while a process is stopped.
"""

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pod_sim_daemon import Connection, Daemon, Key
from pod_world import Machine, S, World

from offstage.bindings.errors import DeviceTimeout, RunFailed
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.dpu import protocol as p
from offstage.host.decode.timeline import Clock
from offstage.host.link.tier_sessions import ALL_SCORES

__all__ = ["BLOCK", "Broken", "HostClock", "Wire", "content"]

BLOCK = 32
CALL_NS = S // 2


class Broken(AssertionError):
    """Something happened that must not."""


class HostClock(Clock):
    """The clock of a machine in the world."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__()
        self._world, self._machine = world, machine

    def now_ns(self) -> int:
        """Return the world's time at the rate of the machine's clock."""
        return int(self._world.now * self._machine.rate)


def content(key: Key) -> NDArray[np.uint8]:
    """The bytes of a block, by its name and tenant."""
    words = np.frombuffer((key[1] * 2)[:BLOCK], np.uint8) ^ np.uint8(len(key[0]) + 7 * key[2])
    return np.resize(words, BLOCK)


class Wire(Fabric):
    """A connection, which the host's process owns."""

    payload_size_bytes, demand_max, calls_max = BLOCK, 64, 4

    def __init__(
        self,
        world: World,
        host: Machine,
        daemon: Daemon,
        cut: set[frozenset[str]],
        loss: Callable[[], float],
        tenant: str,
    ) -> None:
        """Log in. DeviceTimeout: no answer in time."""
        super().__init__()
        self._world, self._host, self._daemon = world, host, daemon
        self._cut, self._loss, self.process = cut, loss, daemon.process
        self._pair = frozenset((host.name, daemon.name))
        self.lost, self.closed = "", False
        self._flying: dict[Any, int] = {}
        self._ended: list[Any] = []
        self._waiting: Any = None
        self._probed: set[int] = set()
        self._probes = 0
        self.hints, self.geometry = ALL_SCORES, SimpleNamespace(layer_count=daemon.layers)
        self._conn = Connection(tenant)
        self._call(lambda: None)

    # ---- messages ----

    def _send(self, work: Callable[[], None]) -> None:
        """Deliver to the daemon, unless lost; a later incarnation ignores this connection."""
        if self._pair in self._cut or self._world.rng.random() < self._loss():
            return

        def arrive() -> None:
            if self.process is self._daemon.process:
                work()
            else:
                self._back(unknown)

        def unknown() -> None:
            self.lost = "the daemon no longer knows this host"

        self._world.deliver(self._daemon.machine, self._daemon.delay(), arrive)

    def _back(self, work: Callable[[], None]) -> None:
        if self._pair not in self._cut and self._world.rng.random() >= self._loss():
            self._world.deliver(self._host, self._daemon.delay(), work)

    def _call(self, work: Callable[[], Any]) -> Any:
        """Make a control call. DeviceTimeout: no answer in time; the work may have been done."""
        if self.lost:
            raise RunFailed(self.lost)
        answers: list[Any] = []
        waiting, waits = self._world.current(), [True]

        def asked() -> None:
            answer = work()
            self._back(lambda: came(answer))

        def came(answer: Any) -> None:
            if waits[0]:
                answers.append(answer)
                self._world.wake(waiting)

        self._send(asked)
        self._world.sleep(CALL_NS)
        waits[0] = False
        if not answers:
            raise DeviceTimeout("the daemon does not answer")
        return answers[0]

    # ---- as Control ----

    def session_open(self, **rule: int) -> int:
        """Open a session; its rule has no effect here."""
        return int(self._call(lambda: self.process.open(self._conn)))

    def call(self, request: Any) -> Any:
        """Answer a shard report; this daemon keeps no list of hot shards."""
        return p.ShardsReply(load=0.0)

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        """Add chunks; each content is its own key here."""
        names = list(contents)
        stored = self._call(lambda: self.process.append(self._conn, session, names))
        return p.Appended(keys=names, store_keys=names, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        """Has no effect here."""

    def session_close(self, session: int, *, keep: bool = True) -> None:
        """Close a session; its blocks stay stored."""
        self._call(lambda: self._conn.sessions.pop(session, None))

    def probe(self) -> int:
        """Send a probe; returns its number."""
        self._probes += 1
        number = self._probes

        def asked() -> None:
            self._back(lambda: self._probed.add(number))

        self._send(asked)
        return number

    def probed(self, number: int) -> bool:
        """Whether the daemon has answered that probe."""
        return number in self._probed and not self.lost

    # ---- as Fabric ----

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Send a command, and copy staged blocks directly."""
        self._check()
        conn, own = self._conn, [int(one) for one in request.ordinals]
        session, layer, rows = request.session, request.layer, np.array(request.rows)
        fetch = Fetch(request)
        fetch.rcs[:] = -errno.ETIMEDOUT

        def take(at: int, key: Key) -> None:
            request.target[rows[at]] = content(key)
            fetch.rcs[at] = 0

        def copy(at: int, key: Key) -> None:
            """Direct copies need no process: the memory exists as long as the machine does."""
            if fetch in self._flying and key in self.process.memory and not self._dead():
                take(at, key)

        def keys_of() -> list[Key | None]:
            names = conn.sessions.get(session, [])
            return [(conn.tenant, names[one], layer) if one < len(names) else None for one in own]

        for at, key in enumerate(keys_of()):
            if key is not None:
                self._world.deliver(
                    self._host, self._daemon.delay(), lambda at=at, key=key: copy(at, key)
                )  # type: ignore[misc]

        def asked() -> None:
            keys = keys_of()
            rcs = [-errno.ENOENT if key is None else self.process.read(key) for key in keys]

            def answered() -> None:
                if fetch not in self._flying:
                    return
                for at, (key, rc) in enumerate(zip(keys, rcs, strict=True)):
                    if rc == 0 and key is not None:
                        take(at, key)
                    elif fetch.rcs[at]:
                        fetch.rcs[at] = rc
                self._end(fetch)

            self._back(answered)

        self._flying[fetch] = self._world.now + int(request.timeout_ns / self._host.rate)
        self._send(asked)
        return fetch

    def put_begin(self, request: PutRequest) -> Put:
        """Send a put. Broken: a row's content is not what its name says."""
        self._check()
        put, conn, layer = Put(request), self._conn, request.layer
        put.rcs[:] = -errno.ETIMEDOUT
        own, given = [int(one) for one in request.ordinals], request.source.copy()

        def asked() -> None:
            names, rcs = conn.sessions.get(request.session, []), []
            for one, row in zip(own, given, strict=True):
                key = (conn.tenant, names[one], layer) if one < len(names) else None
                if key is not None and not (row[:BLOCK] == content(key)).all():
                    raise Broken(f"{self._host.name} put what is not {key}")
                rcs.append(-errno.ENOENT if key is None else self.process.put(key))

            def answered() -> None:
                if put in self._flying:
                    put.rcs[:] = rcs
                    self._end(put)

            self._back(answered)

        self._flying[put] = self._world.now + int(request.timeout_ns / self._host.rate)
        self._send(asked)
        return put

    def _end(self, call: Any) -> None:
        if self._flying.pop(call, None) is not None:
            self._ended.append(call)
            if self._waiting is not None:
                self._world.wake(self._waiting)

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        """Return the calls that have ended or whose time is up."""
        self._check()
        self._expire()
        if not self._ended and timeout_ns and self._flying:
            due = min(self._flying.values()) - self._world.now
            self._waiting = self._world.current()
            self._world.sleep(max(1, min(timeout_ns, due + 1)))
            self._waiting = None
            self._expire()
        ended, self._ended = self._ended, []
        return ended

    def _expire(self) -> None:
        for call, due in list(self._flying.items()):
            if self._world.now >= due:
                self._end(call)

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """The result so far."""
        return fetch.result()

    def put_end(self, put: Put) -> NDArray[np.int32]:
        """The result so far."""
        return put.rcs

    def _dead(self) -> bool:
        return self.process is not self._daemon.process or self._daemon.machine.dead

    def _check(self) -> None:
        if self._dead() or self.closed:
            raise RunFailed("the daemon closed this port", errno=errno.EPIPE)

    def close(self) -> None:
        """Abandon the connection; nothing writes to the host's memory any more."""
        self.closed = True
        self._flying.clear()
