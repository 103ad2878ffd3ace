"""Clients of one daemon turn by turn: the connectors' movers, over a daemon that is a dict.

Nothing runs by itself. `World.choose` says who goes on next: a mover by one turn, the daemon by one
block of a call that is under way, a client's death, the loss of a block. So one list of choices is
one order of everything.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offstage.bindings.driver import Fetch, FetchResult, Put
from offstage.bindings.keys import checksum
from offstage.host.connectors import late as late_module
from offstage.host.connectors import mover as mover_module
from offstage.host.connectors import moves as moves_module
from offstage.host.connectors.mover import Mover
from offstage.host.connectors.moves import Kind, Move, State

PAYLOAD, LAYERS, SESSIONS = 64, 2, 16
FROZEN_S = 1.0
NAME = b"an object's name"
U8 = NDArray[np.uint8]
Place = tuple[bytes, int, int]  # object, ordinal, layer


class Early(AssertionError):
    """A head was written before all other blocks were acknowledged."""


@dataclass
class Session:
    """One object's, of one client."""

    client: int
    name: bytes
    chunks: int


@dataclass
class Flight:
    """A call under way; `left`: the rows that are still to be done."""

    client: int
    call: Any
    session: int
    layer: int
    ordinals: list[int]
    memory: U8
    rows: list[int]
    left: list[int]
    told: bool = False


@dataclass
class World:
    """The daemon, what it stores, and the clients by number."""

    choose: Callable[[int], int]
    store: dict[Place, bytes] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    movers: dict[int, Mover] = field(default_factory=dict)
    number: int = 0
    now_s: float = 0.0
    freezes: int = 0
    """How often the daemon may yet be frozen for FROZEN_S."""

    def client(self) -> Mover:
        """One more client."""
        number = len(self.movers)
        found = Mover(lambda _: (Control(self, number), Wire(self, number)), lambda _: None, 1.0)
        found._wake = Wake(self)  # type: ignore[assignment]
        self.movers[number] = found
        return found

    def turn(self, number: int) -> None:
        """One of a mover's thread."""
        self.now_s += 0.02
        found = self.movers[number]
        if found._take():
            found._turn()

    def one_block(self, number: int) -> None:
        """The daemon does one block of the calls under way."""
        flight = [one for one in self.flights if one.left][number]
        row = flight.left.pop(0)
        place = (self.sessions[flight.session].name, flight.ordinals[row], flight.layer)
        there = self.store.get(place)
        if isinstance(flight.call, Put):
            data = flight.memory[row].tobytes()
            flight.call.checksums[row] = checksum(data)
            flight.call.rcs[row] = 0 if there in (None, data) else -errno.EEXIST
            self.store.setdefault(place, data)
        elif there is None:
            flight.call.rcs[row] = -errno.ENOENT
        else:
            target = flight.memory[flight.rows[row]]
            target[: len(there)] = np.frombuffer(there, np.uint8)
            flight.call.lengths[row], flight.call.checksums[row] = len(there), checksum(there)

    def kill(self, number: int) -> None:
        """A client dies: its sessions are closed, and what it had sent is done or not."""
        del self.movers[number]
        self.flights = [one for one in self.flights if one.client != number]
        self.sessions = {one: it for one, it in self.sessions.items() if it.client != number}

    def freeze(self, _: int = 0) -> None:
        """The daemon does nothing for FROZEN_S; a client that waits for its answer looks up."""
        self.freezes -= 1
        self.now_s += FROZEN_S

    def lose(self, number: int) -> None:
        """A block is gone from the store, whoever has it open."""
        del self.store[sorted(self.store)[number]]

    def stored(self, session: Session) -> bytes:
        counts = [sum((session.name, chunk, layer) in self.store for layer in range(LAYERS))
                  for chunk in range(session.chunks)]  # fmt: skip
        return np.array(counts, "<u4").tobytes()

    def close(self, session: int, *, delete: bool) -> None:
        gone = self.sessions.pop(session)
        if delete and all(one.name != gone.name for one in self.sessions.values()):
            self.store = {place: data for place, data in self.store.items()
                          if place[0] != gone.name or place[1] >= gone.chunks}  # fmt: skip


@dataclass
class Wake:
    """Stands in for a condition: nobody waits, time passes."""

    world: World

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    def notify(self) -> None: ...

    def wait(self, timeout_s: float | None = None) -> bool:
        self.world.now_s += timeout_s or 0.0
        return False


@dataclass
class Control:
    """A client's control connection."""

    world: World
    client: int
    geometry: Any = field(
        default_factory=lambda: SimpleNamespace(payload_size_bytes=PAYLOAD, layer_count=LAYERS)
    )
    limits: Any = field(default_factory=lambda: SimpleNamespace(
        session_chunk_max=64, session_max=2 * SESSIONS,
        message_size_bytes_max=1 << 20))  # fmt: skip

    def sessions_open(self, contents: list[bytes], closing: list[int], deleting: list[int],
                      meanwhile: Callable[[], bool], **_: Any) -> Any:  # fmt: skip
        if self.world.freezes and self.world.choose(2):
            self.world.freeze()
            meanwhile()
        for number in closing:
            self.world.close(number, delete=False)
        for number in deleting:
            self.world.close(number, delete=True)
        made = []
        for text in contents:
            self.world.number += 1
            made.append(self.world.number)
            one = Session(self.client, text[:16], len(text) // 16)
            self.world.sessions[self.world.number] = one
        keys = [bytes(text) for text in contents]
        stored = [self.world.stored(self.world.sessions[number]) for number in made]
        return SimpleNamespace(sessions=made, keys=keys, stored_layers=stored, deleted=True)


@dataclass
class Wire:
    """A client's fabric."""

    world: World
    client: int
    calls_max: int = 8

    def put_begin(self, session: int, layer: int, ordinals: Any, source: U8, **_: Any) -> Put:
        if 0 in ordinals.tolist():
            mine = [one for one in self.world.flights if one.session == session]
            if any(one.left for one in mine):
                raise Early
        put = Put(len(source), None, (source,))
        self._begin(put, session, layer, ordinals, source, range(len(source)))
        return put

    def fetch_begin(self, session: int, step: int, layer: int, ordinals: Any, keys: Any,
                    target: U8, *, target_index: Any) -> Fetch:  # fmt: skip
        fetch = Fetch(len(ordinals), None, (target,))
        fetch.ends[:] = 0
        self._begin(fetch, session, layer, ordinals, target, target_index.tolist())
        return fetch

    def _begin(self, call: Any, session: int, layer: int, ordinals: Any, memory: U8,
               rows: Any) -> None:  # fmt: skip
        order = list(range(len(ordinals)))
        self.world.flights.append(Flight(self.client, call, session, layer, ordinals.tolist(),
                                         memory, list(rows), order))  # fmt: skip

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        ended = [one for one in self.world.flights
                 if one.client == self.client and not one.left and not one.told]  # fmt: skip
        for one in ended:
            one.told = True
        return [one.call for one in ended]

    def put_end(self, put: Put) -> Any:
        self._forget(put)
        return put.rcs

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        self._forget(fetch)
        failed = int((fetch.rcs != 0).sum())
        return FetchResult(fetch.ends, fetch.rcs, fetch.lengths, fetch.checksums, 0, failed, 0, 0,
                           0, 0)  # fmt: skip

    def fetch_cancel(self, fetch: Fetch) -> None:
        self._forget(fetch)

    def _forget(self, call: Any) -> None:
        self.world.flights = [one for one in self.world.flights if one.call is not call]


class NoThread:
    """Instead of a thread: `World.turn`."""

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None: ...


def stepped(monkeypatch: pytest.MonkeyPatch, worlds: list[World]) -> None:
    """Movers have no thread, and the time of the newest of `worlds`."""

    def sleep(seconds: float) -> None:
        worlds[-1].now_s += seconds

    clock = SimpleNamespace(monotonic=lambda: worlds[-1].now_s, sleep=sleep)
    for module in (late_module, mover_module, moves_module):
        monkeypatch.setattr(module, "time", clock)
    threads = SimpleNamespace(Thread=NoThread)
    monkeypatch.setattr(mover_module, "threading", threads)


@dataclass
class Asked:
    """One operation of a client, and how it ended."""

    client: int
    kind: Kind
    data: U8
    hold_s: float = 0.0
    within_s: float = 0.0
    state: State | None = None
    left: U8 | None = None
    """What the buffer held when the end was told."""

    def submit(self, mover: Mover) -> None:
        def ended(move: Move, state: State, what: str) -> None:
            self.state, self.left = state, self.data.copy()

        buffer = self.data if self.kind in (Kind.PUT, Kind.GET) else None
        size = 0 if self.kind is Kind.DELETE else len(self.data)
        mover.submit([Move(self.kind, NAME, "", size, ended, buffer, hold_s=self.hold_s,
                           within_s=self.within_s)])  # fmt: skip
