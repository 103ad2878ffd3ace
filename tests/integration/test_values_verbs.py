"""Do values over RDMA go between a host's own memory and the daemon's, and are they right, or an
error?"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from live_daemon import LAYERS, PAYLOAD, TENANT, Daemon, daemon
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.verbs import Adapter
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.verbs import VerbsDriver
from offstage.host.link.control import Control
from offstage.host.values import Values

pytestmark = pytest.mark.verbs

SIZE = 9 * LAYERS * PAYLOAD + 77  # the last piece is not whole
Bed = tuple[Daemon, Control, VerbsDriver]


def data(seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


@pytest.fixture
def bed(rdma: Adapter, tmp_path: Path) -> Iterator[Bed]:
    more = {"limits__values": "64", "limits__sessions": "32", "rdma__enabled": "true"}
    with daemon(tmp_path, **more) as tier:
        control, fabric = Endpoint(
            tier.endpoint, TENANT, "verbs", runtime_dir=tier.runtime_dir, timeout_s=30.0
        ).connect()
        assert isinstance(fabric, VerbsDriver)
        yield tier, control, fabric
        with contextlib.suppress(OffstageError):
            fabric.close()
            control.close()


@pytest.mark.parametrize("registered", [True, False])
def test_store_read_hole_and_delete(bed: Bed, registered: bool) -> None:
    """Out of memory and into memory that is registered, and that is not."""
    _, _, fabric = bed
    values, source, found = Values(fabric), data(1), np.zeros(SIZE + 100, np.uint8)
    if registered:
        fabric.register(source)
        fabric.register(found)
    assert values.store(b"there", source)
    source[:] = 0  # it is the caller's again
    assert values.read(b"there", found) == SIZE and np.array_equal(found[:SIZE], data(1))
    assert not found[SIZE:].any()
    assert values.read(b"hole", found) is None and np.array_equal(found[:SIZE], data(1))
    assert values.store(b"there", data(2)) and values.retrieve(b"there") == data(2).tobytes()
    assert values.delete([b"there", b"hole"]) == [True, False]
    assert values.read(b"there", found) is None and values.retrieve(b"there") is None


def test_a_value_is_hit_where_it_is_staged(bed: Bed) -> None:
    """What was read before is read again by the adapter alone: every piece is a hit."""
    _, _, fabric = bed
    values, found = Values(fabric), np.zeros(SIZE, np.uint8)
    fabric.register(found)
    assert values.store(b"key", data(3)) and values.read(b"key", found) == SIZE
    before, found[:] = fabric.stats(), 0
    assert values.read(b"key", found) == SIZE and np.array_equal(found, data(3))
    after = fabric.stats()
    assert after["hits"] - before["hits"] == 2 * 9 + 1 and after["misses"] == before["misses"]


def test_a_dead_daemon_is_an_error_and_no_value(bed: Bed) -> None:
    """It is said in one line, by each call."""
    tier, _, fabric = bed
    values, found = Values(fabric), np.full(SIZE, 0x5A, np.uint8)
    fabric.register(found)
    assert values.store(b"key", data(4))
    tier.kill()
    for call in (
        lambda: values.read(b"key", found),
        lambda: values.store(b"key", data(5)),
        lambda: values.delete([b"key"]),
    ):
        with pytest.raises(RunFailed) as caught:
            call()
        assert caught.value.fix and "\n" not in str(caught.value)
    assert (found == 0x5A).all() or np.array_equal(found, data(4))


def test_values_go_on_after_a_lost_connection(bed: Bed) -> None:
    """The call that finds it lost fails; the next has another connection to the same port, where no
    session of before is left."""
    _, control, fabric = bed
    values = Values(fabric)
    assert values.store(b"key", data(6))
    control.attach("verbs", again=True)  # the daemon drops its end
    with pytest.raises(RunFailed):
        values.retrieve(b"key")
    assert values.retrieve(b"key") == data(6).tobytes() and fabric.connections == 2
