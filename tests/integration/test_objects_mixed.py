"""If a block of an object is damaged and other bytes are put under its key, at a real daemon, does
a reader ever get bytes of two puts? `test_value_mixed.c` goes through orders of two writers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_daemon import PAYLOAD, TENANT, Daemon, daemon
from numpy.typing import NDArray

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
    """Every read before, during and after the second put returns one whole put, or nothing, also
    where a third client leases the first."""
    keys = [b"mixed%d" % i for i in range(ROUNDS)]
    with daemon(tmp_path) as tier, ObjectClient(where(tier)) as client:
        data = [bytes_of(i) for i in range(ROUNDS)]
        assert client.wait(client.put, keys, data).states == (DONE,) * ROUNDS
        # What is written last is checked at a start, after which the object would be ABSENT.
        more = [b"more%d" % i for i in range(64)]
        assert client.wait(client.put, more, [bytes_of(9) for _ in more]).states == (DONE,) * 64
    at = DAMAGED * PAYLOAD
    damage(tmp_path / "store.ofs", [one[at : at + PAYLOAD].tobytes() for one in data])
    found: list[Any] = []
    with (
        daemon(tmp_path) as tier,
        ObjectClient(where(tier)) as one,
        ObjectClient(where(tier)) as other,
        ObjectClient(where(tier)) as third,
    ):
        for i, key in enumerate(keys):
            if leased:
                assert third.wait(third.exists, [key], lease_s=600.0).states == (DONE,)
            assert read(one, key)[0] is State.UNREADABLE
            second = bytes_of(100 + i)
            reads = []
            begun = other.put([key], [second], tell=found.append)
            while not any(ended.ticket == begun for ended in found):
                reads.append(read(one, key))
            assert found.pop().states == (DONE,)
            for state, target in reads:
                assert state is not DONE or np.array_equal(target, second)
            state, target = read(one, key)
            assert state is DONE and np.array_equal(target, second)
