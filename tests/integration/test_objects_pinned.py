"""If a fabric writes objects into the reader's memory directly, is all of that memory registered
exactly as long as it must be, and is every byte right?"""

import ctypes
import mmap
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon, frozen, until
from numpy.typing import NDArray

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.value_io import DriverValues, ValueIO, ValueTask
from offstage.bindings.verbs import Adapter
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.fabrics.verbs import VerbsDriver
from offstage.host.link.control import Control
from offstage.host.values import Values

DONE = State.DONE
SIZE, COUNT = (2 * LAYERS + 1) * PAYLOAD - 5, 24  # the last block is not whole
ROW = 2 * LAYERS * PAYLOAD + PAYLOAD  # of whole pages, with room for an object
WHOLE = SIZE // PAYLOAD * PAYLOAD  # bytes of an object's whole blocks


class Pinning(Driver):
    """Stands in for verbs without an RDMA device: it reads only into registered memory."""

    pins = True
    registrations = 0

    def register(self, array: NDArray[Any]) -> None:
        self.registrations += 1
        super().register(array)

    def unregister(self, array: NDArray[Any]) -> None:
        assert not any(within(one, array) for one in self.reads())
        super().unregister(array)

    def value_io(self, sessions_max: int, timeout_s: float) -> ValueIO:
        io = super().value_io(sessions_max, timeout_s)
        assert isinstance(io, DriverValues)
        io.__class__ = PinnedValues
        io.fabric = self  # type: ignore[attr-defined]
        return io

    def reads(self) -> list[NDArray[Any]]:
        """The memory of the reads under way."""
        assert isinstance(self._values, DriverValues)
        return [
            one.memory
            for one in self._values._tasks.values()
            if one.verb == "retrieve" and one.memory is not None
        ]


class PinnedValues(DriverValues):
    """Reads of values only into memory that is registered."""

    fabric: Pinning

    def submit(self, tasks: Sequence[ValueTask]) -> None:
        super().submit(tasks)
        registered = self.fabric._registered
        assert all(any(within(one, a) for a in registered) for one in self.fabric.reads())


class PinningEndpoint(Endpoint):
    """Reaches a daemon over `Pinning`."""

    def connect(self, timeout_s: float | None = None) -> tuple[Control, Fabric]:
        control, fabric = super().connect(timeout_s)
        assert isinstance(fabric, Driver)
        fabric.__class__ = Pinning
        return control, fabric


def within(part: NDArray[Any], whole: NDArray[Any]) -> bool:
    first = int(part.ctypes.data) - int(whole.ctypes.data)
    return 0 <= first <= whole.nbytes - part.nbytes


def settings(tier: Daemon) -> dict[str, Any]:
    return {
        "endpoint": tier.endpoint,
        "tenant": TENANT,
        "runtime_dir": str(tier.runtime_dir),
        "patience_s": 60.0,
    }


def fill(client: ObjectClient) -> tuple[list[bytes], list[NDArray[np.uint8]]]:
    random = np.random.default_rng(7)
    keys = [b"pinned%d" % i for i in range(COUNT)]
    data = [random.integers(0, 256, SIZE, np.uint8) for _ in keys]
    assert client.wait(client.put, keys, data).states == (DONE,) * COUNT
    return keys, data


def read(client: ObjectClient, keys: list[bytes], targets: list[NDArray[np.uint8]]) -> bool:
    """Read all objects at once; returns whether every one arrived."""
    return client.wait(client.get, keys, targets).states == (DONE,) * len(keys)


def same(found: list[NDArray[np.uint8]], data: list[NDArray[np.uint8]]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, data, strict=True))


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("pinned"), limits__sessions="64") as running:
        yield running


def test_what_is_registered_once_is_not_again(tier: Daemon) -> None:
    """A read into registered memory registers nothing; a read into other memory registers all of it
    for as long as it lasts."""
    with ObjectClient(PinningEndpoint.of_engine(settings(tier))) as client:
        keys, data = fill(client)
        fabric = client._mover._link.fabric
        assert isinstance(fabric, Pinning)
        pool = np.zeros((COUNT, SIZE + 100), np.uint8)
        client.register(pool)
        rows = [row[:SIZE] for row in pool]
        for each in (0, 1):
            before = fabric.registrations
            pool[:] = 0
            assert read(client, keys, rows) and same(rows, data) and not pool[:, SIZE:].any()
            assert fabric.registrations - before == each * COUNT
            assert len(fabric._registered) == 1 - each
            client.unregister(pool)  # does nothing the second time


def test_what_is_given_up_is_registered_no_more(tier: Daemon) -> None:
    """A daemon freezes with reads in flight into memory that is registered for them alone: it is
    unregistered when they are LATE, and the next read succeeds."""
    with ObjectClient(PinningEndpoint.of_engine(settings(tier) | {"timeout_s": 60.0})) as client:
        keys, data = fill(client)
        fabric = client._mover._link.fabric
        assert isinstance(fabric, Pinning)
        leased = client.wait(client.exists, keys, [SIZE] * COUNT, lease_s=3600.0, within_s=60.0)
        assert leased.states == (DONE,) * COUNT
        before, found = fabric.registrations, [np.zeros(SIZE, np.uint8) for _ in keys]
        with frozen(tier):
            late = client.wait(client.get, keys, found, within_s=0.3)
            assert set(late.states) == {State.LATE} and not fabric._registered
            assert fabric.registrations > before
        again = client.wait(client.get, keys, found, within_s=60.0)
        assert again.states == (DONE,) * COUNT and same(found, data) and not fabric._registered
        client.release(keys)


def test_what_cannot_be_registered_is_said_and_ends_nothing(tier: Daemon) -> None:
    """With more ranges than a fabric has room for, the caller gets one error, and reads go on."""
    with ObjectClient(PinningEndpoint.of_engine(settings(tier))) as client:
        keys, data = fill(client)
        pieces = np.zeros((1000, 16), np.uint8)
        with pytest.raises(OffstageError, match="registering memory"):
            for piece in pieces:
                client.register(piece)
        for piece in pieces[:128]:
            client.unregister(piece)
        found = [np.zeros(SIZE, np.uint8) for _ in keys]
        assert read(client, keys, found) and same(found, data)
    client.register(pieces[0])  # closed: does nothing
    with pytest.raises(BadInput, match="is not part of an adapter's name"):
        ObjectClient(Endpoint.of_engine(settings(tier) | {"fabric": "verbs", "rdma": "rxe0,gid=x"}))


def test_memory_is_registered_again_with_another_daemon(tmp_path: Path) -> None:
    """After one daemon is killed and another starts, memory that was registered with the first, or
    while there was none, is registered with the new one."""
    address = {"daemon__endpoint": f"ipc://{tmp_path}/d"}
    with daemon(tmp_path, **address) as first:
        client = ObjectClient(PinningEndpoint.of_engine(settings(first) | {"timeout_s": 5.0}))
        keys, data = fill(client)
        pool = np.zeros((2, COUNT, SIZE), np.uint8)
        client.register(pool[0])
        first.process.kill()
        until(lambda: client.wait(client.exists, keys[:1]).states == (State.AWAY,))
        client.register(pool[1])
    with daemon(tmp_path, **address):
        until(lambda: client.wait(client.exists, keys[:1]).states == (DONE,))
        fabric = client._mover._link.fabric
        fabric.__class__ = Pinning
        client._mover._link.pins = True
        assert isinstance(fabric, Pinning) and len(fabric._registered) == 2
        for half in pool:
            assert read(client, keys, list(half)) and same(list(half), data)
        client.close()


@pytest.mark.verbs
def test_objects_go_over_rdma(rdma: Adapter, tmp_path: Path) -> None:
    """Over a real adapter objects are put, read into registered and unregistered memory, replaced
    and deleted, as over shared memory."""
    with daemon(tmp_path, rdma__enabled="true", limits__sessions="64") as tier:
        where = Endpoint.of_engine(settings(tier) | {"fabric": "verbs", "timeout_s": 30.0})
        with ObjectClient(where) as client:
            keys, data = fill(client)
            pool = np.zeros((COUNT, SIZE), np.uint8)
            client.register(pool)
            assert read(client, keys, list(pool)) and same(list(pool), data)
            found = [np.zeros(SIZE, np.uint8) for _ in keys]
            assert read(client, keys, found) and same(found, data)
            client.unregister(pool)
            other = np.random.default_rng(8).integers(0, 256, 3 * PAYLOAD, np.uint8)
            assert client.wait(client.put, keys[:1], [other]).states == (DONE,)
            assert read(client, keys[:1], [pool[0][: other.nbytes]])
            assert np.array_equal(pool[0][: other.nbytes], other)
            assert client.wait(client.delete, keys).states == (DONE,) * COUNT
            assert not any(client.wait(client.exists, keys).done)


class Sealing(VerbsDriver):
    """Over a real adapter: memory is sealed from when it is registered until it no longer is."""

    def register(self, array: NDArray[Any]) -> None:
        super().register(array)
        protect(array, mmap.PROT_READ)

    def unregister(self, array: NDArray[Any]) -> None:
        protect(array, mmap.PROT_READ | mmap.PROT_WRITE)
        super().unregister(array)


class SealingEndpoint(Endpoint):
    """Reaches a daemon over `Sealing`."""

    def connect(self, timeout_s: float | None = None) -> tuple[Control, Fabric]:
        control, fabric = super().connect(timeout_s)
        fabric.__class__ = Sealing
        return control, fabric


def protect(memory: NDArray[Any], how: int) -> None:
    """Whether this process may write the whole blocks of these rows: with PROT_READ alone a copy by
    its processor ends it with SIGSEGV, and only an adapter, which goes by frames, still writes."""
    libc = ctypes.CDLL(None, use_errno=True)
    for start in range(0, memory.nbytes, ROW):
        first = ctypes.c_void_p(int(memory.ctypes.data) + start)
        assert libc.mprotect(first, ctypes.c_size_t(WHOLE), how) == 0, ctypes.get_errno()


def fresh(pool: NDArray[np.uint8], *, sealed: bool) -> list[NDArray[np.uint8]]:
    """Rows of zeros, each the size of an object."""
    protect(pool, mmap.PROT_READ | mmap.PROT_WRITE)
    pool[:] = 0
    if sealed:
        protect(pool, mmap.PROT_READ)
    return [row[:SIZE] for row in pool]


def read_sealed(how: str, where: dict[str, Any], parent: Connection) -> None:
    """Reads into memory that this process may not write, until its daemon is killed, and from the
    next one; the parent is told each time. `how`: what is read over, and what is registered."""
    pool = np.frombuffer(mmap.mmap(-1, COUNT * ROW), np.uint8).reshape(COUNT, ROW)
    if how == "unregistered values":
        with Endpoint.of_engine(where).attached() as (_, fabric):
            values = Values(fabric)
            assert values.store(b"key", np.ones(SIZE, np.uint8))
            assert values.read(b"key", fresh(pool, sealed=False)[0]) == SIZE
            assert (pool[0, :SIZE] == 1).all() and not pool[0, SIZE:].any()
            parent.send("may write")
            values.read(b"key", fresh(pool, sealed=True)[0])
        return
    kind, kept = (Endpoint if how == "shm" else SealingEndpoint), how != "for each read"
    with ObjectClient(kind.of_engine(where)) as client:
        keys, data = fill(client)
        rows = fresh(pool, sealed=False)
        if how == "shm":
            assert read(client, keys, rows) and same(rows, data)
            parent.send("may write")
        elif kept:
            client.register(pool)
        for told in ("read", "read again"):
            until(lambda: client.wait(client.exists, keys[:1]).states == (DONE,))
            for _ in range(3):
                assert read(client, keys, fresh(pool, sealed=kept)) and same(rows, data)
            parent.send(told)
            if told == "read":
                use_until_away(client, keys, data, rows)
                fresh(pool, sealed=False)
                parent.send("away")


def use_until_away(
    client: ObjectClient,
    keys: list[bytes],
    data: list[NDArray[np.uint8]],
    rows: list[NDArray[np.uint8]],
) -> None:
    """Read until some are AWAY; whatever is DONE is right."""
    states: tuple[State, ...] = ()
    while State.AWAY not in states:
        states = client.wait(client.get, keys, rows).states
        assert set(states) <= {DONE, State.AWAY}
        for state, found, expected in zip(states, rows, data, strict=True):
            assert state is State.AWAY or np.array_equal(found, expected)


@pytest.mark.verbs
@pytest.mark.parametrize("how", ["registered", "for each read", "unregistered values", "shm"])
def test_only_the_adapter_writes_registered_memory(rdma: Adapter, tmp_path: Path, how: str) -> None:
    """Whole blocks of objects come into registered memory that the reading process may not write,
    before its daemon is killed and after another has started. A copy, as of values into memory
    that is not registered and of everything over shm, ends the process that is tried with."""
    more = {"daemon__endpoint": f"ipc://{tmp_path}/d", "rdma__enabled": "true"}
    more |= {"limits__sessions": "64", "limits__values": "256", "storage__size": "32MiB"}
    copies = how in ("unregistered values", "shm")
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with daemon(tmp_path, **more) as first:
        where = settings(first) | {"fabric": "shm" if how == "shm" else "verbs", "timeout_s": 30.0}
        reader = spawn.Process(target=read_sealed, args=(how, where, theirs), daemon=True)
        reader.start()
        theirs.close()
        assert ours.recv() == ("may write" if copies else "read")
        if copies:
            reader.join()
            assert reader.exitcode == -signal.SIGSEGV
            return
        first.process.kill()
        assert ours.recv() == "away"
    with daemon(tmp_path, **more):
        assert ours.recv() == "read again"
        reader.join()
        assert reader.exitcode == 0
