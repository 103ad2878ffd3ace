"""What does a host's end refuse, and what does a port survive?

Modified blobs and headers, descriptors of other objects, and garbage in a port's memory.
"""

import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.attachment import Attachment
from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, Incompatible
from offstage.host.fabrics import open_fabric


def test_a_host_cannot_write_the_region(live: BareDevice) -> None:
    size = os.fstat(live.attachment.fds[0]).st_size
    with pytest.raises(OSError):
        mmap.mmap(live.attachment.fds[0], size, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.pwrite(live.attachment.fds[0], b"x", 0)


# The words that both sides poll, the first submission entries, and anywhere else.
WORDS = [256 + 64 * i for i in range(7)] + [4096 + 64 * i for i in range(4)]
OFFSETS = st.one_of(st.sampled_from(WORDS), st.integers(0, 1 << 14))


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.tuples(OFFSETS, st.binary(max_size=512)), max_size=8))
def test_the_device_outlives_garbage_in_a_port(pieces: list[tuple[int, bytes]]) -> None:
    """With random bytes anywhere in ring, words and payloads, another host is still served."""
    config = BareConfig(
        payload_size_bytes=512,
        slot_count=8,
        block_max=8,
        demand_max=8,
        entry_count=4,
        put_slot_count=2,
        store_size_bytes=8 << 20,
    )
    with BareDevice(config, simulated=True) as device:
        hostile = device.attachment.fds[1]
        _, attachment = device.attach()
        good = Driver.in_virtual_time(device.handle, attachment, seed=1)
        with mmap.mmap(hostile, os.fstat(hostile).st_size) as port:
            for offset, data in pieces:
                end = min(offset + len(data), len(port))
                if offset < end:
                    port[offset:end] = data[: end - offset]
                assert len(good.bench_nop(4)) == 4  # its waits run the reactor, bad port and all
        good.close()


@pytest.mark.parametrize(
    ("offset", "word"), [(0, "magic"), (8, "version"), (16, "checksum"), (4096, "")]
)
def test_a_wrong_header_is_one_line(live: BareDevice, offset: int, word: str) -> None:
    size = os.fstat(live.attachment.fds[1]).st_size
    with mmap.mmap(live.attachment.fds[1], size) as port:
        before = port[offset]
        port[offset] = before ^ 1
        try:
            if not word:
                live.driver().close()  # outside the header
                return
            with pytest.raises(Incompatible) as caught:
                live.driver()
        finally:
            port[offset] = before
    assert word in str(caught.value) and "\n" not in str(caught.value) and ";" in str(caught.value)


def test_descriptors_of_something_else(live: BareDevice) -> None:
    read_end, write_end = os.pipe()
    with pytest.raises(Incompatible, match="daemon"):
        Driver(Attachment(live.attachment.blob, (read_end, write_end, read_end)))
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize(
    "side", ["shm", "memory", "sim", pytest.param("verbs", marks=pytest.mark.verbs)]
)
def test_a_blob_that_is_not_ours_is_one_line(side: str, request: pytest.FixtureRequest) -> None:
    """A blob is refused if its version or a byte differs, or its length or descriptors are
    wrong."""
    if side == "verbs":
        request.getfixturevalue("rdma")
    with BareDevice(BareConfig(fabric=side), simulated=side != "verbs") as device:
        whole, fds = device.attachment.blob, device.attachment.fds
        Driver(device.attachment).close()
        changed = [
            bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :]) for i in range(len(whole))
        ]
        wrong = [
            (blob, fds)
            for blob in [*changed, whole[:-1], whole[:20], b"", whole + b"\0", bytes(4096)]
        ]
        wrong += [(whole, (*fds, 0)), (whole, (0, 0, 0, 0, 0)), *([(whole, ())] if fds else [])]
        for blob, given in wrong:
            with pytest.raises(Incompatible) as caught:
                Driver(Attachment(blob, given))
            assert "\n" not in str(caught.value) and "blob" in str(caught.value)
        with pytest.raises(Incompatible, match="version 2, this host knows 3; install the same"):
            Driver(Attachment(changed[8], fds))  # the version's low byte


def test_an_unknown_fabric_names_the_known() -> None:
    with pytest.raises(BadInput, match="shm"):
        open_fabric(None, "smoke-signals")  # type: ignore[arg-type]
