"""Does the documented layout suffice for a host that shares no code with ours?

A host written with pyverbs attaches to a live device: it reads directory and records one-sidedly,
writes puts and commands, and accepts only what passes its checks.
"""

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offstage.bindings.attachment import Attachment
from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.verbs import Adapter

if TYPE_CHECKING:
    from pyverbs_host import PyverbsHost

pytestmark = pytest.mark.verbs
LAYER, BLOCKS, SLOTS, PAYLOAD = 1, 24, 16, 4096


@pytest.fixture
def device(rdma: Adapter) -> Iterator[BareDevice]:
    config = BareConfig(
        payload_size_bytes=PAYLOAD,
        slot_count=SLOTS,
        block_max=BLOCKS,
        demand_max=16,
        backend="emulated",
        fabric="verbs",
    )
    with BareDevice(config) as device:
        yield device


@pytest.fixture
def peer(device: BareDevice, rdma: Adapter) -> Iterator["PyverbsHost"]:
    pytest.importorskip("pyverbs", reason="apt-get install python3-pyverbs rdma-core")
    from pyverbs_host import PyverbsHost

    host = PyverbsHost(device.attachment.blob, rdma.device, rdma.gid_index, rdma.port)
    Attachment(host.answer()).connect(device.handle, 0)
    yield host
    host.close()


def test_put_step_and_one_sided_reads(device: BareDevice, peer: "PyverbsHost") -> None:
    """A block is put by command, staged by a STEP, found in the directory, read without the DPU."""
    session = device.session(BLOCKS, select_blocks=8)
    blocks = np.random.default_rng(5).integers(0, 256, (8, PAYLOAD), np.uint8)
    keys = [session.keys[LAYER, i].tobytes() for i in range(BLOCKS)]
    assert peer.nop() == 0
    for ordinal, block in enumerate(blocks):
        assert peer.put(session.number, LAYER, ordinal, block.tobytes()) == 0
    wanted = [*range(8), 20]
    placed = peer.step(session.number, 1, LAYER, wanted)
    assert [one.rc for one in placed] == [0] * 8 + [-errno.ENOENT]
    for ordinal, one in enumerate(placed[:8]):
        where = peer.find(keys[ordinal])
        assert where == (one.slot, one.generation)
        assert peer.record(keys[ordinal], *where) == blocks[ordinal].tobytes()
    assert peer.find(keys[20]) is None


def test_what_does_not_agree_is_no_block(device: BareDevice, peer: "PyverbsHost") -> None:
    """Another key, another generation of the slot, or an emptied slot returns no bytes."""
    session = device.session(BLOCKS, select_blocks=8)
    key, other = (session.keys[LAYER, i].tobytes() for i in (0, 1))
    assert peer.put(session.number, LAYER, 0, bytes(PAYLOAD)) == 0
    (one,) = peer.step(session.number, 1, LAYER, [0])
    assert peer.record(key, one.slot, one.generation) == bytes(PAYLOAD)
    assert peer.record(other, one.slot, one.generation) is None
    assert peer.record(key, one.slot, one.generation + 1) is None
    assert peer.step(session.number, 2, LAYER, []) == []  # its pins are released
    device.reset()
    assert peer.find(key) is None and peer.record(key, one.slot, one.generation) is None


def test_nonsense_is_answered(device: BareDevice, peer: "PyverbsHost") -> None:
    """A put for another host's session gets an error, and the next command works."""
    assert peer.put(99, LAYER, 0, bytes(PAYLOAD)) < 0
    assert peer.nop() == 0
