"""Do values and blocks go over one fabric at once, each reported to who asked for it?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, daemon
from numpy.typing import NDArray

from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.bindings.value_io import ValueTask
from offstage.host.endpoint import Endpoint
from offstage.host.values import Values

CHUNKS, LAYER = 16, 1
SIZE = 20 * LAYERS * PAYLOAD + 9
WAIT_NS = 60_000_000_000


class Bed:
    """A host with a session of blocks that are put, over one fabric."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.control, self.fabric = endpoint.connect()
        self.session = self.control.session_open(select_blocks=CHUNKS)
        names = [number.to_bytes(16, "little") for number in range(CHUNKS)]
        self.keys = block_keys(self.control.append(self.session, names).keys, LAYERS)[LAYER]
        self.source = data(0, CHUNKS * PAYLOAD).reshape(CHUNKS, PAYLOAD)
        every = np.arange(CHUNKS, dtype=np.uint32)
        assert not self.fabric.put(PutRequest(self.session, LAYER, every, self.source)).any()

    def begin(self, step: int, ordinal: int) -> tuple[Fetch, NDArray[np.uint8]]:
        target, wanted = np.zeros((1, PAYLOAD), np.uint8), np.array([ordinal], np.uint32)
        self.fabric.register(target)
        keys = np.ascontiguousarray(self.keys[wanted])
        of_one = (self.session, step, LAYER, wanted, keys, target)
        return self.fabric.fetch_begin(FetchRequest(*of_one, timeout_ns=WAIT_NS)), target

    def end(self, fetch: Fetch, target: NDArray[np.uint8], ordinal: int) -> None:
        assert not self.fabric.fetch_end(fetch).rcs.any()
        assert np.array_equal(target[0], self.source[ordinal])


def data(seed: int, size: int = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture(
    params=["shm", "zmq", "nixl", pytest.param("verbs", marks=pytest.mark.verbs)],
)
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    more = {"limits__values": "64", "limits__sessions": "32"}
    if request.param == "verbs":
        request.getfixturevalue("rdma")
        more["rdma__enabled"] = "true"
    if request.param == "nixl":
        request.getfixturevalue("nixl_library")
        more["daemon__nixl"] = "true"
    with daemon(tmp_path, **more) as tier:
        found = Bed(Endpoint(tier.endpoint, TENANT, request.param, runtime_dir=tier.runtime_dir))
        with found.control, found.fabric:
            yield found


def registered(fabric: Fabric, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    fabric.register(memory)
    return memory


def test_each_is_reported_to_who_asked(bed: Bed) -> None:
    """Stores and reads of values in flight with fetches: whoever polls moves all, and hears of its
    own alone, once."""
    io = bed.fabric.value_io(4, 10.0)
    names = [bytes([number]) * 16 for number in range(6)]
    for turn in (0, 1):
        sources = [data(10 * turn + number) for number in range(6)]
        found = [registered(bed.fabric, np.zeros(SIZE, np.uint8)) for _ in sources]
        for verb, memories in (("store", sources), ("retrieve", found)):
            tasks = [ValueTask(verb, *one) for one in zip(names, memories, strict=True)]
            io.submit(tasks)
            begun = [bed.begin(turn + 1, ordinal) for ordinal in range(6)]
            every = [*tasks, *(fetch for fetch, _ in begun)]
            told: list[Any] = []
            while len(told) < len(every):
                told += io.run(0.001 * turn)
                told += bed.fabric.poll(1_000_000 * (1 - turn))
            assert sorted(map(id, told)) == sorted(map(id, every))
            assert [one.rc for one in tasks] == [0] * len(tasks)
            for ordinal, (fetch, target) in enumerate(begun):
                bed.end(fetch, target, ordinal)
        assert all(np.array_equal(*one) for one in zip(found, sources, strict=True))
    assert bed.fabric.poll() == [] and io.run() == []
    io.close()


def test_neither_takes_the_others_calls(bed: Bed) -> None:
    """With as many fetches begun as there may be, none ended, a value is stored, read and deleted;
    and they all end as ever."""
    begun = [bed.begin(1, n % CHUNKS) for n in range(bed.fabric.calls_max)]
    values = Values(bed.fabric)
    assert values.store(b"key", data(1)) and values.retrieve(b"key") == data(1).tobytes()
    assert values.delete([b"key"]) == [True] and values.retrieve(b"key") is None
    assert len(bed.fabric.poll(1_000_000_000)) > 0
    for n, (fetch, target) in enumerate(begun):
        bed.end(fetch, target, n % CHUNKS)
