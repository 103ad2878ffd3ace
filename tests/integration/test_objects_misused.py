"""Does an engine that uses an object client in a wrong way get an error or an end that says so, and
never wrong bytes, a wait without end or a lost daemon?"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import PAYLOAD, TENANT, Daemon, daemon

import offstage
from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint

SIZE = 3 * PAYLOAD
INFINITE, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("misused"), limits__sessions="32") as running:
        yield running


@pytest.fixture
def client(tier: Daemon) -> Iterator[ObjectClient]:
    settings = {"endpoint": tier.endpoint, "tenant": TENANT, "runtime_dir": str(tier.runtime_dir)}
    with ObjectClient(Endpoint.of_engine(settings | {"timeout_s": 30.0})) as found:
        assert found.wait(found.put, [b"key"], [np.arange(SIZE, dtype=np.uint8)]).states[0]
        yield found


def reads(client: ObjectClient) -> bool:
    """Whether the object comes, whole."""
    found = np.zeros(SIZE, np.uint8)
    state = client.wait(client.get, [b"key"], [found]).states[0]
    return state is State.DONE and np.array_equal(found, np.arange(SIZE, dtype=np.uint8))


MEMORY: dict[str, Callable[[], Any]] = {
    "columns": lambda: np.zeros((PAYLOAD, 6), np.uint8)[:, :3],
    "every other": lambda: np.zeros(2 * SIZE, np.uint8)[::2],
    "by columns": lambda: np.zeros((3, PAYLOAD), np.uint8, order="F"),
    "a view": lambda: memoryview(bytearray(2 * SIZE))[::2],
    "a list": lambda: [0] * SIZE,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("kind", MEMORY)
def test_memory_in_pieces_is_refused(tier: Daemon, client: ObjectClient, kind: str) -> None:
    """A copy of it would be read into, and the engine's own stay as it was."""
    for call in (client.get, client.put):
        with pytest.raises(BadInput, match="not contiguous bytes"):
            client.wait(call, [b"key"], [MEMORY[kind]()])
    with pytest.raises(BadInput, match="not contiguous bytes"):
        client.register(MEMORY[kind]())
    with offstage.values(tier.endpoint, tenant=TENANT, runtime_dir=tier.runtime_dir) as values:
        with pytest.raises(BadInput, match="not contiguous bytes"):
            values.store(b"key", MEMORY[kind]())
        with pytest.raises(BadInput, match="not contiguous bytes"):
            values.read(b"key", MEMORY[kind]())
    assert reads(client)


def test_memory_that_cannot_be_written_is_not(tier: Daemon, client: ObjectClient) -> None:
    """Python shares `bytes`: whoever else has them would find other ones."""
    fixed, array = bytes(SIZE), np.zeros(SIZE, np.uint8)
    array.flags.writeable = False
    with offstage.values(tier.endpoint, tenant=TENANT, runtime_dir=tier.runtime_dir) as values:
        assert values.store(b"key", fixed)
        for target in (fixed, memoryview(fixed), array):
            with pytest.raises(BadInput, match="cannot be written"):
                client.wait(client.get, [b"key"], [target])
            with pytest.raises(BadInput, match="cannot be written"):
                values.read(b"key", target)
    assert not any(fixed) and not array.any() and reads(client)


@pytest.mark.parametrize("seconds", [INFINITE, NAN, -INFINITE, -1.0, 0.0, 1e12])
def test_a_time_that_no_clock_takes_is_the_nearest(client: ObjectClient, seconds: float) -> None:
    """An engine's estimate may be anything; it is no reason to raise in its step."""
    asked: list[dict[str, float]] = [{"lease_s": seconds}, {"due_s": seconds}, {"chance": seconds}]
    for more in asked:
        assert client.wait(client.prefetch, [b"key"], **more).done == [True]
        client.release([b"key"])
    state = client.wait(client.get, [b"key"], [np.zeros(SIZE, np.uint8)], within_s=seconds).states[
        0
    ]
    assert state in (State.DONE, State.LATE) and (state is State.DONE or not seconds > 1)
    assert reads(client)


def test_what_is_told_may_fail(client: ObjectClient) -> None:
    """An engine's function raises: the batches beside it end, and the daemon is kept."""

    def broken(*_: Any) -> None:
        raise ValueError("not yours")

    found = np.zeros(SIZE, np.uint8)
    client.get([b"key"], [found], tell=broken)
    cuts = (PAYLOAD, SIZE)
    assert client.wait(client.get, [b"key"], [found], cuts=cuts, landed=broken).done == [True]
    assert reads(client) and not client.away and "get_away" not in client.counts()


def ends(client: ObjectClient) -> list[str]:
    """How each kind of operation ends; one that does not is still waiting after a minute."""
    found, told = np.zeros(SIZE, np.uint8), ["it waits"] * 6

    def ask() -> None:
        for i, call in enumerate((client.get, client.put)):
            told[i] = client.wait(call, [b"key"], [found]).states[0]
        for i, look in enumerate((client.exists, client.prefetch, client.delete)):
            told[2 + i] = client.wait(look, [b"key"]).states[0]
        stream = client.stream([b"key"], [found])
        stream.fill(PAYLOAD)
        stream.drop()
        stream.commit()
        client.release([b"key"])
        client.register(found)
        client.unregister(found)
        client.get([], [])
        client.close()
        told[5] = str(len(client.drain()) > 0)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60.0)
    return told


def test_a_closed_client_ends_all_at_once(client: ObjectClient) -> None:
    """Nothing is asked of a daemon then, and nobody waits for its answer."""
    client.close()
    assert ends(client) == [State.AWAY] * 5 + ["True"] and client.away


def test_a_forked_child_asks_nothing(tmp_path: Path, client: ObjectClient) -> None:
    """A child has the client and not its thread: all ends as AWAY there, and the parent goes on."""
    child = os.fork()
    if child == 0:
        try:
            (tmp_path / "told").write_text(" ".join(ends(client)))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "told").read_text().split() == [State.AWAY] * 5 + ["True"]
    assert reads(client)
