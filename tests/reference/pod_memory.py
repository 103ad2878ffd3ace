"""Daemons of a pod in memory that store blocks and keep a home's real tables; over them a host
with the product's sessions, fabric and upkeep, and a manual clock."""

import errno
import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import DeviceTimeout, Incompatible, RunFailed, StoreFull, Unknown
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.dpu import protocol as p
from offstage.dpu.pod.exceptions import Exceptions
from offstage.dpu.pod.heat import CopyRule
from offstage.dpu.pod.map import Member, PodMap, added, noted
from offstage.dpu.pod.shards import ShardGrid
from offstage.host.decode.timeline import Clock
from offstage.host.link.tier_sessions import ALL_SCORES
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions
from offstage.host.pod.upkeep import TELL_NS, Upkeep

CHUNKS, LAYERS, PAYLOAD = 4, 2, 64
S = 1_000_000_000


class ByHand(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ns = S

    def now_ns(self) -> int:
        """Return the time that was set."""
        return self.at_ns


class Daemon(Fabric):
    """Control connection and fabric of a daemon. `full`: it opens no session; `broken`: its
    connection ends at the next fetch; `loses`: it fails every read; `silent`: it opens no session
    and answers nothing."""

    payload_size_bytes, demand_max, calls_max = PAYLOAD, 64, 4
    lost = ""

    def __init__(self, clock: ByHand) -> None:
        super().__init__()
        self.geometry, self.hints = SimpleNamespace(layer_count=LAYERS), ALL_SCORES
        self.sessions: dict[int, list[bytes]] = {}
        self.stored: dict[tuple[bytes, int], NDArray[np.uint8]] = {}
        self.kept, self._clock = Exceptions(), clock
        self.full = self.broken = self.loses = self.silent = False
        self.fetched = self.number = self.asked = 0
        self.limits = SimpleNamespace(message_size_bytes_max=1 << 20)
        self.told = 0
        self.closed: list[bool] = []
        """Of each closed session: whether its blocks were kept."""
        self._ended: list[Any] = []

    def probe(self) -> int:
        return 1

    def probed(self, number: int) -> bool:
        return not self.silent

    def session_open(self, **rule: int) -> int:
        self.asked += 1
        if self.silent:
            raise DeviceTimeout("the daemon does not answer")
        if self.full:
            raise StoreFull("no session is left")
        self.number += 1
        self.sessions[self.number] = []
        return self.number

    def append(self, session: int, contents: list[bytes]) -> p.Appended:
        keys = []
        for one in contents:
            before = self.sessions[session][-1] if self.sessions[session] else b""
            keys.append(hashlib.blake2b(before + one, digest_size=16).digest())
            self.sessions[session].append(keys[-1])
        stored = [sum((key, layer) in self.stored for layer in range(LAYERS)) for key in keys]
        return p.Appended(keys=keys, store_keys=keys, stored_layers=stored)

    def set_generating(self, session: int, generating: bool) -> None:
        pass

    def session_close(self, session: int, *, keep: bool = True) -> None:
        if self.silent:
            raise DeviceTimeout("the daemon does not answer")
        if session not in self.sessions:
            raise Unknown(f"the host has no session {session}")
        self.closed.append(keep)
        for key in self.sessions.pop(session):
            if not keep and not any(key in one for one in self.sessions.values()):
                for layer in range(LAYERS):
                    self.stored.pop((key, layer), None)

    def call(self, request: p.Shards) -> p.ShardsReply:
        if len(p.encode(request)) > self.limits.message_size_bytes_max:
            raise Incompatible("the message is too long")
        self.told += 1
        now_ns = self._clock.now_ns()
        load = self.kept.served(request.served, request.tally, now_ns)
        return p.ShardsReply(
            load=load, answers=[self.kept.told(one, now_ns) for one in request.reports]
        )

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        if self.broken:
            raise RunFailed("the daemon closed this port", errno=errno.EPIPE)
        fetch, names = Fetch(request), self.sessions[request.session]
        for place, (ordinal, row) in enumerate(zip(request.ordinals, request.rows, strict=True)):
            data = self.stored.get((names[ordinal], request.layer))
            fetch.rcs[place] = -errno.EIO if data is None or self.loses else 0
            if data is not None:
                request.target[row, : len(data)] = data
                fetch.lengths[place], fetch.ends[place] = len(data), 0
        self.fetched += len(request.ordinals)
        self._ended.append(fetch)
        return fetch

    def put_begin(self, request: PutRequest) -> Put:
        assert request.session is not None
        for ordinal, row in zip(request.ordinals, request.source, strict=True):
            name = self.sessions[request.session][ordinal]
            self.stored[name, request.layer] = np.array(row)
        put = Put(request)
        self._ended.append(put)
        return put

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        return fetch.result()

    def put_end(self, put: Put) -> Any:
        return put.rcs

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        ended, self._ended = self._ended, []
        return ended


class World:
    """A host of a pod with `count` daemons; `join` adds one."""

    def __init__(self, count: int, copies_max: int = 0) -> None:
        self.clock = ByHand()
        rule = CopyRule(copies_max=copies_max, hot_blocks_per_s=10, cool_s=5)
        self.map = PodMap(epoch=1, copies=rule, member=tuple(map(member, range(count))))
        self.daemons: dict[str, Daemon] = {}
        self.sessions = PodSessions(
            [self._joined(n) for n in range(count)], ShardGrid(CHUNKS), self.clock
        )
        self.sessions.map, self.sessions.wall_s = self.map, lambda: 1000.0
        self.fabric = PodFabric(self.sessions)
        self.upkeep = Upkeep(self.sessions, self.fabric, LAYERS, lambda: None)
        self.rows = np.zeros((64, PAYLOAD), np.uint8)

    def _joined(self, number: int) -> Joined:
        daemon = self.daemons[f"dpu{number}"] = Daemon(self.clock)
        return Joined(member(number), daemon, daemon, self.clock)  # type: ignore[arg-type]

    def join(self, number: int) -> None:
        self.map = noted(self.map, added(self.map, member(number)), 1000)
        self.sessions.map = PodMap(
            **{name: getattr(self.map, name) for name in self.map.__struct_fields__} | {"epoch": 2}
        )
        self.fabric.admit(self._joined(number))

    def opened(self, *numbers: int) -> tuple[int, p.Appended]:
        session = self.sessions.session_open(select_blocks=8)
        return session, self.sessions.append(session, [bytes([one]) * 16 for one in numbers])

    def write(self, *numbers: int) -> list[bytes]:
        """Put all layers of these chunks; returns the names of their shards."""
        session, _ = self.opened(*numbers)
        ordinals = np.arange(len(numbers), dtype=np.uint32)
        for layer in range(LAYERS):
            self.upkeep.turn()
            rows = np.array(numbers, np.uint8)[:, None].repeat(PAYLOAD, 1) + np.uint8(layer)
            assert not self.fabric.put(PutRequest(session, layer, ordinals, rows)).any()
        names = [one.name for one in self.sessions.shards(session)]
        self.sessions.session_close(session)
        return names

    def read(self, session: int, *numbers: int) -> int:
        """Fetch one layer of these chunks and check it; returns how many arrived."""
        ordinals = np.arange(len(numbers), dtype=np.uint32)
        keys = np.zeros((len(numbers), 2), np.uint64)
        found = self.fabric.fetch(FetchRequest(session, 1, 1, ordinals, keys, self.rows))
        for place in np.flatnonzero(found.rcs == 0):
            assert (self.rows[place] == numbers[place] + 1).all(), "wrong bytes"
        return int((found.rcs == 0).sum())

    def pass_time(self, turns: int = 60, ns: int = TELL_NS // 4) -> None:
        for _ in range(turns):
            self.clock.at_ns += ns
            self.upkeep.turn()
            self.fabric.poll(0)

    def at(self, session: int) -> list[str]:
        return [one.at.member.name for one in self.sessions.shards(session) if one.at]


def member(number: int) -> Member:
    return Member(name=f"dpu{number}", endpoint=f"ipc://{number}")


NUMBERS = range(1, 41)
