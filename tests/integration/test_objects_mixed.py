"""If a block of an object is damaged and other bytes are put under its key, at a real daemon, does
a reader ever get bytes of two puts? The simulation of the same name covers the orders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon
from numpy.typing import NDArray

from offstage.host.connectors.moves import shape_of
from offstage.host.connectors.objects import ObjectClient, State
from offstage.host.endpoint import Endpoint

SIZE, ROUNDS, DAMAGED = 9 * PAYLOAD, 3, 5
DONE = State.DONE


def where(tier: Daemon) -> Endpoint:
    return Endpoint.of_engine(
        {
            "endpoint": tier.endpoint,
            "tenant": TENANT,
            "timeout_s": 30.0,
            "patience_s": 60.0,
            "runtime_dir": str(tier.runtime_dir),
        }
    )


def bytes_of(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


def read(client: ObjectClient, key: bytes) -> tuple[State, NDArray[np.uint8]]:
    target = np.zeros(SIZE, np.uint8)
    return client.wait(client.get, [key], [target]).states[0], target


def damage(store: Path, blocks: list[bytes]) -> None:
    image = bytearray(store.read_bytes())
    for block in blocks:
        image[image.index(block) + 17] ^= 4
    store.write_bytes(image)


@pytest.mark.parametrize("leased", [False, True])
def test_other_bytes_behind_a_damaged_block(tmp_path: Path, leased: bool) -> None:
    """Every read before, during and after the second put returns one whole put, or nothing, also if
    the lease of a third client makes that put fail."""
    keys = [b"mixed%d" % i for i in range(ROUNDS)]
    with daemon(tmp_path) as tier, ObjectClient(where(tier)) as client:
        data = [bytes_of(i) for i in range(ROUNDS)]
        assert client.wait(client.put, keys, data).states == (DONE,) * ROUNDS
    at = DAMAGED * PAYLOAD
    damage(tmp_path / "store.ofs", [one[at : at + PAYLOAD].tobytes() for one in data])
    found: list[Any] = []
    with daemon(tmp_path) as tier:
        with ObjectClient(where(tier)) as one, ObjectClient(where(tier)) as other:
            third, fabric = where(tier).connect(30.0)
            tail = shape_of(SIZE, PAYLOAD, LAYERS).tail
            for i, key in enumerate(keys):
                held = third.sessions_open([one.name(key) + tail]).sessions if leased else []
                assert read(one, key)[0] is State.UNREADABLE
                second = bytes_of(100 + i)
                reads = []
                begun = other.put([key], [second], tell=found.append)
                while not any(ended.ticket == begun for ended in found):
                    reads.append(read(one, key))
                reads += [read(one, key) for _ in range(3)]
                for state, target in reads:
                    assert state is not DONE or any(
                        np.array_equal(target, whole) for whole in (data[i], second)
                    )
                assert not leased or found[-1].states == (State.REFUSED,)
                found.clear()
                third.sessions_open([], closing=held)
                assert other.wait(other.put, [key], [second]).states == (DONE,)
                state, target = read(one, key)
                assert state is DONE and np.array_equal(target, second)
            fabric.close()
            third.close()
