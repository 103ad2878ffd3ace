"""Clients of one daemon, one turn at a time: the connectors' movers over a daemon that is a dict.

Nothing runs by itself. `World.choose` selects the next event: one turn of a mover, one block of a
call in flight at the daemon, or a fault: a client dies, a block is lost or damaged, the store is
full, the drive fails a delete, the daemon restarts. So a list of choices determines the order of
all events.
"""

import errno
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import checksum
from offstage.host.connectors import late as late_module
from offstage.host.connectors import link as link_module
from offstage.host.connectors import moves as moves_module
from offstage.host.connectors import object_mover
from offstage.host.connectors.moves import Chain, Kind
from offstage.host.connectors.object_mover import Mover

PAYLOAD, LAYERS, SESSIONS = 64, 2, 16
FROZEN_S = 1.0
LEASED_S = 1e9  # longer than anything here takes
TAIL_MAX = 2  # blocks that a restarted daemon may have lost
U8 = NDArray[np.uint8]
Place = tuple[bytes, int, int]  # object, ordinal, layer


class Early(AssertionError):
    """A head was written before all other blocks were acknowledged."""


class Behind(AssertionError):
    """A block was put after a head that existed, and belongs to another put."""


@dataclass
class Session:
    """The session of one object and one client. `head`: the head block when it was opened."""

    client: int
    name: bytes
    chunks: int
    head: bytes | None


@dataclass
class Flight:
    """A call in flight; `left`: the rows still to be done."""

    client: int
    call: Any
    session: int
    layer: int
    ordinals: list[int]
    rows: list[U8]
    left: list[int]
    told: bool = False

    def came(self) -> bytes:
        """What a read has written."""
        ends = zip(self.rows, self.call.lengths.tolist(), strict=True)
        return b"".join(row[:length].tobytes() for row, length in ends)


@dataclass
class World:
    """The daemon, its stored blocks in the order of arrival, and the clients by number."""

    choose: Callable[[int], int]
    store: dict[Place, bytes] = field(default_factory=dict)
    damaged: set[Place] = field(default_factory=set)
    full: bool = False
    lasting: bool = True  # deletes reach the drive
    deleted: dict[Place, bytes] = field(default_factory=dict)  # deletes that did not
    starts: int = 0
    clients: int = 0
    heads: dict[int, bytes] = field(default_factory=dict)  # the head block that each client puts
    left: Counter[str] = field(default_factory=Counter)  # faults that may still come, by kind
    sessions: dict[int, Session] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    movers: dict[int, Mover] = field(default_factory=dict)
    asking: tuple[Hashable, ...] = ()  # the request whose answer a turn waits for
    number: int = 0
    now_s: float = 0.0

    def client(self) -> int:
        """Add a client; returns its number."""
        number, self.clients = self.clients, self.clients + 1

        def connect(_: float) -> Any:
            return Control(self, number, self.starts), Wire(self, number, self.starts)

        found = Mover(connect, lambda _: None, 1.0)
        found._wake = Wake(self)  # type: ignore[assignment]
        self.movers[number] = found
        return number

    def turn(self, number: int) -> None:
        """One turn of a mover's thread."""
        self.now_s += 0.02
        found = self.movers[number]
        lost = found._link.lost
        if found._take():
            try:
                found._turn()
            except RunFailed as error:
                found._lose(error)
        if lost and found._link.lost:
            found._link._found = found._link._connect(1.0)

    def blocks(self) -> list[tuple[Flight, int]]:
        """What the daemon may process next: the next block of each call; of one that has the head
        also the block after it, so that a head is read before, between and behind the others."""
        there = [one for one in self.flights if one.left]
        heads = [one for one in there if one.ordinals[one.left[0]] == 0 and len(one.left) > 1]
        return [(one, 0) for one in there] + [(one, 1) for one in heads]

    def one_block(self, number: int) -> None:
        """The daemon processes one block of the calls in flight."""
        flight, which = self.blocks()[number]
        row = flight.left.pop(which)
        place = (self.sessions[flight.session].name, flight.ordinals[row], flight.layer)
        there = self.store.get(place)
        if isinstance(flight.call, Put):
            data = flight.rows[row].tobytes()
            flight.call.checksums[row] = checksum(data)
            flight.call.rcs[row] = self.put(place, data)
        elif there is None:
            flight.call.rcs[row] = -errno.ENOENT
        elif place in self.damaged:  # the read that finds it drops it
            flight.call.rcs[row] = -errno.EBADMSG
            self.forget(place)
        else:
            target = flight.rows[row]
            target[: len(there)] = np.frombuffer(there, np.uint8)
            flight.call.lengths[row], flight.call.checksums[row] = len(there), checksum(there)

    def answer(self, start: int) -> None:
        """RunFailed: the daemon that a client logged in to is gone."""
        if start != self.starts:
            raise RunFailed("it is gone", "the daemon", "start it")

    def put(self, place: Place, data: bytes) -> int:
        """The first put wins. A damaged block is noticed only when it is read."""
        there = self.store.get(place)
        if there is None and self.full:
            return -errno.ENOSPC
        self.store.setdefault(place, data)
        return 0 if there in (None, data) else -errno.EEXIST

    def forget(self, place: Place) -> None:
        del self.store[place]
        self.damaged.discard(place)

    # ---- faults ----

    def faults(self) -> list[tuple[str, int]]:
        """The faults that are possible now."""
        kinds = {
            "lose": range(len(self.store)),
            "damage": range(len(self.store)),
            "kill": sorted(self.movers),
            "fill": range(not self.full),
            "refuse": range(self.lasting),
            "freeze": range(1),
            "restart": range(min(TAIL_MAX, len(self.store)) + 1),
        }
        return [(kind, number) for kind in kinds if self.left[kind] for number in kinds[kind]]

    def kill(self, number: int) -> None:
        """A client dies: its sessions close, and its calls in flight stop where they are."""
        del self.movers[number]
        self.flights = [one for one in self.flights if one.client != number]
        self.sessions = {one: it for one, it in self.sessions.items() if it.client != number}

    def lose(self, number: int) -> None:
        """A block disappears from the store, even if a session has it open."""
        self.forget(sorted(self.store)[number])

    def damage(self, number: int) -> None:
        """A block's content differs from what was written."""
        self.damaged.add(sorted(self.store)[number])

    def fill(self, _: int) -> None:
        """No new block fits until something is deleted."""
        self.full = True

    def refuse(self, _: int) -> None:
        """From now on the drive fails deletes."""
        self.lasting = False

    def freeze(self, _: int) -> None:
        """The daemon does nothing for FROZEN_S."""
        self.now_s += FROZEN_S

    def restart(self, number: int) -> None:
        """The daemon restarts without the newest `number` blocks, and with those that the drive
        failed to delete."""
        self.starts += 1
        self.flights, self.sessions = [], {}
        for place in list(self.store)[len(self.store) - number :]:
            self.forget(place)
        self.store = self.deleted | self.store
        self.deleted = {}

    # ---- what is there ----

    def state(self) -> Hashable:
        """Everything that determines what follows, except how the clients' operations ended: of
        two orders that reach the same state, only one needs to be explored further. Names of
        sessions are left out; a time is only how much of it remains."""
        of_client = Counter[int]()
        names = dict[int, tuple[int, int]]()
        for number, one in self.sessions.items():
            of_client[one.client] += 1
            names[number] = (one.client, of_client[one.client])
        sessions = [(names[number], one.chunks, one.head) for number, one in self.sessions.items()]
        flights = [
            (
                type(one.call),
                names.get(one.session),
                one.layer,
                *one.ordinals,
                *one.left,
                one.call.rcs.tobytes(),
                one.call.checksums.tobytes(),
                b"" if isinstance(one.call, Put) else one.came(),
            )
            for one in self.flights
        ]
        asking = tuple(names.get(one, one) if isinstance(one, int) else one for one in self.asking)
        return (
            tuple(self.store.items()),
            frozenset(self.damaged),
            self.full,
            self.lasting,
            asking,
            tuple(self.deleted.items()),
            *self.left.values(),
            tuple(sessions),
            tuple(flights),
            tuple((number, *self._mover(one, names)) for number, one in self.movers.items()),
        )

    def _mover(self, mover: Mover, names: dict[int, tuple[int, int]]) -> Iterator[Hashable]:
        link = mover._link
        yield link.lost, link._found is None, vars(link.control)["start"] == self.starts
        yield mover._open
        yield tuple(names.get(one) for one in (*mover._closing, -1, *mover._deleting))
        yield len(mover._asked), len(mover._waiting), mover._calls.ready, mover._calls.flying
        for until_s, _, bounded in mover._deadlines._heap:
            yield self._left(until_s), getattr(bounded(), "kind", None)
        for move in [*mover._live.values(), *mover._asked]:
            yield (
                move.kind,
                move.sent,
                move.headed,
                move.rival,
                move.clearing,
                move.chunks,
                move.clears,
                move.calls,
                move.failure,
                tuple(move.pieces),
                move.sums.tobytes(),
                self._left(move.clear_until_s),
                self._left(move.until_s),
                None if move.head is None else move.head.tobytes(),
            )
            if move.kind is Kind.GET and move.buffer is not None:
                yield move.buffer.tobytes()
            yield self._chain(move.chain, names)
        for chain in mover._leases.values():
            yield self._chain(chain, names)

    def _left(self, until_s: float) -> int:
        """Return the time left in ms; all long times are equal."""
        return min(round(1000 * (until_s - self.now_s)), 10**6) if until_s else -1

    def _chain(self, chain: Chain | None, names: dict[int, tuple[int, int]]) -> Hashable:
        if chain is None:
            return None
        return names.get(chain.session), tuple(chain.stored), self._left(chain.until_s), chain.busy

    def stored(self, session: Session) -> bytes:
        counts = [
            sum((session.name, chunk, layer) in self.store for layer in range(LAYERS))
            for chunk in range(session.chunks)
        ]
        return np.array(counts, "<u4").tobytes()

    def close(self, session: int, *, delete: bool) -> None:
        """Close a session; `delete` spares chunks that another names."""
        gone = self.sessions.pop(session)
        kept = max(
            (one.chunks for one in self.sessions.values() if one.name == gone.name), default=0
        )
        for place in list(self.store) if delete else []:
            if place[0] == gone.name and kept <= place[1] < gone.chunks:
                if not self.lasting:
                    self.deleted[place] = self.store[place]
                self.forget(place)
                self.full = False


@dataclass
class Wake:
    """Replaces a condition variable: no thread waits, virtual time passes."""

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
    start: int
    geometry: Any = field(
        default_factory=lambda: SimpleNamespace(payload_size_bytes=PAYLOAD, layer_count=LAYERS)
    )
    limits: Any = field(
        default_factory=lambda: SimpleNamespace(
            session_chunk_max=64, session_max=2 * SESSIONS, message_size_bytes_max=1 << 20
        )
    )

    def sessions_open(
        self,
        contents: list[bytes],
        closing: list[int],
        deleting: list[int],
        meanwhile: Callable[[], bool],
        **_: Any,
    ) -> Any:
        self.world.asking = (self.client, *contents, *closing, -1, *deleting)
        if self.world.left["freeze"] and self.world.choose(2):
            self.world.left["freeze"] -= 1
            self.world.freeze(0)
            meanwhile()  # what a client does while it waits
        self.world.asking = ()
        self.world.answer(self.start)
        for number in closing:
            self.world.close(number, delete=False)
        for number in deleting:
            self.world.close(number, delete=True)
        made = []
        for text in contents:
            self.world.number += 1
            made.append(self.world.number)
            one = Session(
                self.client, text[:16], len(text) // 16, self.world.store.get((text[:16], 0, 0))
            )
            self.world.sessions[self.world.number] = one
        keys = [bytes(text) for text in contents]
        stored = [self.world.stored(self.world.sessions[number]) for number in made]
        return SimpleNamespace(
            sessions=made,
            keys=keys,
            stored_layers=stored,
            deleted=self.world.lasting or not deleting,
        )


@dataclass
class Wire(Fabric):
    """A client's fabric."""

    world: World
    client: int
    start: int
    calls_max: int = 8

    def put_begin(self, request: PutRequest) -> Put:
        self.world.answer(self.start)
        session, ordinals, source = request.session, request.ordinals, request.source
        assert session is not None
        if 0 in ordinals.tolist():
            mine = [one for one in self.world.flights if one.session == session]
            if any(one.left for one in mine):
                raise Early
        if self.world.sessions[session].head not in (None, self.world.heads[self.client]):
            raise Behind
        put = Put(request)
        self._begin(put, session, request.layer, ordinals, list(source))
        return put

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        fetch = Fetch(request)
        fetch.ends[:] = 0
        rows = [request.row(at) for at in request.rows.tolist()]
        self._begin(fetch, request.session, request.layer, request.ordinals, rows)
        return fetch

    def _begin(self, call: Any, session: int, layer: int, ordinals: Any, rows: list[U8]) -> None:
        self.world.answer(self.start)
        order = list(range(len(ordinals)))
        self.world.flights.append(
            Flight(self.client, call, session, layer, ordinals.tolist(), rows, order)
        )

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        self.world.answer(self.start)
        ended = [
            one
            for one in self.world.flights
            if one.client == self.client and not one.left and not one.told
        ]
        for one in ended:
            one.told = True
        return [one.call for one in ended]

    def put_end(self, put: Put) -> Any:
        self._forget(put)
        return put.rcs

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        self._forget(fetch)
        return fetch.result()

    def fetch_cancel(self, fetch: Fetch) -> None:
        self._forget(fetch)

    def _forget(self, call: Any) -> None:
        self.world.flights = [one for one in self.world.flights if one.call is not call]


class NoThread:
    """Replaces a thread; `World.turn` does its work."""

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None: ...


def stepped(monkeypatch: pytest.MonkeyPatch, worlds: list[World]) -> None:
    """Run movers without threads, in the time of the newest of `worlds`."""

    def sleep(seconds: float) -> None:
        worlds[-1].now_s += seconds

    clock = SimpleNamespace(monotonic=lambda: worlds[-1].now_s, sleep=sleep)
    for module in (late_module, object_mover, moves_module):
        monkeypatch.setattr(module, "time", clock)
    threads = SimpleNamespace(Thread=NoThread, Event=SimpleNamespace)
    for module in (object_mover, link_module):
        monkeypatch.setattr(module, "threading", threads)
