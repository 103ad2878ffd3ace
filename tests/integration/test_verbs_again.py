"""Does a host recover by itself from a lost RDMA connection, with its sessions?"""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from verbs_blob import gid_of, with_gid

from offstage.bindings.attachment import Attachment
from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.bindings.verbs import Adapter
from offstage.dpu import protocol as p
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.verbs import VerbsDriver, connect
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import serve

pytestmark = pytest.mark.verbs
PAYLOAD, BLOCKS = 4096, 16
ALL = np.arange(BLOCKS, dtype=np.uint32)
PATIENCE_NS = 60_000_000_000


def test_a_port_has_another_connection_and_the_same_sessions(rdma: Adapter) -> None:
    """If the device drops a host's connection, the host is notified, and its next connection
    continues."""
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=32,
        block_max=BLOCKS,
        demand_max=16,
        backend="emulated",
        fabric="verbs",
    )
    source = np.random.default_rng(2).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
    with BareDevice(config) as device:
        session = device.session(BLOCKS, select_blocks=BLOCKS)
        for turn in range(3):
            with device.driver() as driver:
                if turn == 0:
                    assert not driver.put(PutRequest(session.number, 1, ALL, source)).any()
                target = np.zeros_like(source)
                driver.register(target)
                of_all = (session.number, turn + 1, 1, ALL, session.keys[1], target)
                done = driver.fetch(FetchRequest(*of_all, timeout_ns=PATIENCE_NS))
                assert not done.rcs.any() and np.array_equal(target, source)
                device.reattach()
                with pytest.raises(RunFailed) as caught:
                    driver.fetch(FetchRequest(*of_all, timeout_ns=PATIENCE_NS))
                assert caught.value.errno == errno.EHOSTUNREACH and caught.value.fix


@pytest.fixture
def link(rdma: Adapter, tmp_path: Path) -> Iterator[tuple[Control, VerbsDriver]]:
    sections = {
        "rdma": {"enabled": True},
        "arena": {"size": 4 << 20, "payload": PAYLOAD, "layers": 1, "block_tokens": 16},
        "storage": {"backend": "emulated", "size": 64 << 20},
        "limits": {"demands": 16, "put_slots": 8, "context_tokens": 4096},
        "tenant": [{"name": "lab"}],
    }
    with serve(sections, tmp_path) as tier, tier.control() as control:
        fabric = connect(control)
        yield control, fabric
        fabric.close()


def test_a_host_goes_on_by_itself(link: tuple[Control, VerbsDriver]) -> None:
    """A put, a fetch in flight and a polled put, each over a lost connection, all succeed over a
    new one."""
    control, fabric = link
    source = np.random.default_rng(3).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
    session = control.session_open(select_blocks=BLOCKS)
    reply = control.append(session, [i.to_bytes(16, "little") for i in range(BLOCKS)])
    keys = block_keys(reply.keys, 1)[0]
    target = np.zeros_like(source)
    fabric.register(target)
    lose(control)
    assert not fabric.put(PutRequest(session, 0, ALL, source)).any()
    assert fabric.connections == 2
    fetch = fabric.fetch_begin(
        FetchRequest(session, 1, 0, ALL, keys, target, timeout_ns=PATIENCE_NS)
    )
    lose(control)
    done = fabric.fetch_end(fetch)
    assert not done.rcs.any() and np.array_equal(target, source)
    lose(control)
    put = fabric.put_begin(PutRequest(session, 0, ALL[:4], source[:4], timeout_ns=PATIENCE_NS))
    ended = []
    while not ended:
        ended = fabric.poll(100_000_000)
    assert ended == [put] and not fabric.put_end(put).any() and fabric.poll() == []
    fabric.release(session)
    assert fabric.connections >= 3 and fabric.stats()["puts"] >= BLOCKS


def lose(control: Control) -> None:
    """Make the daemon drop the connection, as after a loss that only it has noticed."""
    while True:
        try:
            control.attach("verbs", again=True)
            return
        except RunFailed as error:
            assert error.errno == errno.EAGAIN


def test_a_port_that_was_closed_is_the_end(link: tuple[Control, VerbsDriver]) -> None:
    """If the daemon has forgotten the host, there is no new connection, and the error says so."""
    control, fabric = link
    control.call(p.Detach())
    with pytest.raises(RunFailed) as caught:
        fabric.release(0)
    assert caught.value.fix and "\n" not in str(caught.value)


def test_an_unresolvable_address_delays_only_its_own_host(
    link: tuple[Control, VerbsDriver], tmp_path: Path
) -> None:
    """While a host answers with a GID that is slow to resolve, others are served; the host learns
    that there is no route."""
    control, fabric = link
    fabric.reopen(Attachment(control.attach("verbs", again=True).blob))
    own = fabric.answer() or b""
    nobody = bytearray(gid_of(own))
    nobody[-1] ^= 0x55  # a neighbour that does not exist
    answer = with_gid(own, bytes(nobody))
    refused: list[RunFailed] = []

    def connect_to_nobody() -> None:
        try:
            control.connect(answer)
        except RunFailed as error:
            refused.append(error)

    with Endpoint(control.endpoint, "lab", runtime_dir=tmp_path / "run").control() as other:
        waits = threading.Thread(target=connect_to_nobody)
        waits.start()
        answered = 0
        while waits.is_alive():
            other.call(p.Heartbeat())
            answered += 1
        waits.join()
    assert [one.errno for one in refused] == [errno.EHOSTUNREACH]
    assert answered > 5  # a blocked loop answers one before, one after
