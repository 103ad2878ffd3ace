"""The sides of the fabric, each with a host and a device, for the contract suite.

shm and memory, and verbs and nixl where available, run over a live device; sim runs over one in
virtual time, with seeded faults of the host's end or of the port; zmq runs over a live device
behind the daemon's own proxy. A new fabric is one line in SIDES.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from offstage.bindings.bare_device import BareConfig, BareDevice, BareSession
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest
from offstage.dpu import protocol as p
from offstage.dpu.control.zmq_fabric import ZmqFabric
from offstage.dpu.log import Log
from offstage.host.fabrics import FABRICS, Fabric
from offstage.host.fabrics.zmq import ZmqDriver

PAYLOAD = 4096
BLOCKS = 96
SLOTS = 32
LAYER = 1
FAULTS = {"delay_ns_max": 30_000, "torn_per_million": 100_000, "flip_per_million": 5_000}


@dataclass
class Host:
    """One attached host, its device, and a session with stored blocks."""

    device: BareDevice
    fabric: Fabric
    session: BareSession
    source: NDArray[np.uint8]
    step: int = 0

    def fetch(self, ordinals: list[int], **more: Any) -> tuple[Any, NDArray[np.uint8]]:
        wanted = np.array(ordinals, np.uint32)
        target = self.target(len(ordinals))
        self.step += 1
        keys = np.ascontiguousarray(self.session.keys[LAYER, wanted])
        done = self.fabric.fetch(
            FetchRequest(self.session.number, self.step, LAYER, wanted, keys, target, **more)
        )
        for i, ordinal in enumerate(ordinals):
            if done.rcs[i] == 0:
                assert done.lengths[i] == PAYLOAD
                assert np.array_equal(target[i], self.source[ordinal])
            else:
                assert done.ends[i] == 255
        assert done.failed_count == np.count_nonzero(done.rcs)
        self.fabric.unregister(target)
        return done, target

    def target(self, count: int, fill: int = 0xA5) -> NDArray[np.uint8]:
        """Rows for `count` blocks, registered with the fabric."""
        target = np.full((max(count, 1), PAYLOAD), fill, np.uint8)
        self.fabric.register(target)
        return target

    def begin(self, ordinals: list[int], **more: Any) -> tuple[Fetch, NDArray[np.uint8]]:
        wanted = np.array(ordinals, np.uint32)
        target = self.target(len(ordinals))
        keys = np.ascontiguousarray(self.session.keys[LAYER, wanted])
        fetch = self.fabric.fetch_begin(
            FetchRequest(self.session.number, self.step, LAYER, wanted, keys, target, **more)
        )
        return fetch, target

    def put(self, ordinals: range) -> NDArray[np.int32]:
        wanted = np.arange(ordinals.start, ordinals.stop, dtype=np.uint32)
        return self.fabric.put(PutRequest(self.session.number, LAYER, wanted, self.source[wanted]))


def open_driver(device: BareDevice) -> Iterator[Fabric]:
    with device.driver() as driver:
        yield driver


def open_sim(device: BareDevice) -> Iterator[Fabric]:
    fabric = FABRICS["sim"](device)
    yield fabric
    fabric.close()


def open_sim_with_faults(device: BareDevice) -> Iterator[Fabric]:
    with device.driver(**FAULTS) as driver:
        yield driver


def open_zmq(device: BareDevice) -> Iterator[Fabric]:
    """The daemon's proxy and our client, over TCP on the loopback."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    proxy = ZmqFabric(context, "tcp://127.0.0.1:*", 1 << 20, Log("error"))
    proxy.start()
    ticket = b"\x01" * 16
    proxy.admit(ticket, device.attachment.duplicate())
    socket = context.socket(zmq.DEALER)
    socket.connect(proxy.endpoint)
    attached = p.Attached(
        fabric="zmq",
        token=ticket.hex(),
        endpoint=proxy.endpoint,
        payload_size_bytes=PAYLOAD,
        demand_max=device.config.demand_max,
    )
    with ZmqDriver(socket, attached, device.config.put_slot_count) as fabric:
        yield fabric
    proxy.close()
    context.destroy(linger=0)


PORT_FAULTS = {
    "port_delay_ns_max": 30_000,
    "port_late_per_million": 200_000,
    "port_nonsense_per_million": 50_000,
}
# The host's end, and what is specific to its device.
SIDES: dict[str, tuple[Callable[[BareDevice], Iterator[Fabric]], dict[str, Any]]] = {
    "shm": (open_driver, {}),
    "memory": (open_driver, {"fabric": "memory"}),
    "verbs": (open_driver, {"fabric": "verbs"}),
    "sim": (open_sim, {}),
    "sim-faults": (open_sim_with_faults, {}),
    "sim-port": (open_sim_with_faults, {"fabric": "sim", **PORT_FAULTS}),
    "zmq": (open_zmq, {}),
    "nixl": (open_driver, {"fabric": "nixl"}),
}
NEEDS = {"verbs": "rdma", "nixl": "nixl_library"}  # fixtures
MARKS = {one: getattr(pytest.mark, one) for one in NEEDS}


def hosts(side: str) -> Iterator[Host]:
    """A host of that side, with a session of BLOCKS."""
    simulated = side.startswith("sim")
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=SLOTS,
        block_max=BLOCKS,
        demand_max=16,
        backend="sim" if simulated else "emulated",
        **SIDES[side][1],
    )
    with BareDevice(config, simulated=simulated) as device:
        session = device.session(BLOCKS, select_blocks=16)
        source = np.random.default_rng(7).integers(0, 256, (BLOCKS, PAYLOAD), np.uint8)
        for fabric in SIDES[side][0](device):
            yield Host(device, fabric, session, source)
