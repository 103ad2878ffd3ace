"""Does a host with several RDMA adapters use the one on the route to its daemon?

The kernel determines it, through rdma_cm. The second adapter is a soft one that the test makes,
with an unconnected cable; its neighbour is in the kernel's table, so that a route exists.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from verbs_blob import with_gid

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.verbs import Adapter, Rdma, by_route, prepare

pytestmark = pytest.mark.verbs
WAIT_S = 300
NEIGHBOUR = bytes(10) + b"\xff\xff" + bytes((10, 213, 9, 2))
SECOND = """
ip link add ofsroute type veth peer name ofsroute2
ip addr add 10.213.9.1/24 dev ofsroute
ip link set ofsroute up; ip link set ofsroute2 up
ip neigh replace 10.213.9.2 lladdr 02:00:00:00:09:02 dev ofsroute
rdma link add ofsrxe type rxe netdev ofsroute
"""


@pytest.fixture
def blob(rdma: Adapter) -> Iterator[bytes]:
    """The blob of an attach to a device over this machine's own adapter."""
    if not Path("/dev/infiniband/rdma_cm").exists():
        pytest.skip("the kernel has no rdma_cm: modprobe rdma_ucm")
    with BareDevice(BareConfig(backend="emulated", fabric="verbs")) as device:
        yield device.attachment.blob


@pytest.fixture
def second() -> Iterator[str]:
    try:
        made = subprocess.run(["sh", "-ec", SECOND], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(
                f"no second adapter ({made.stderr.strip()}); run as root, with iproute2 "
                "and the kernel's modules veth and rdma_rxe"
            )
        yield "ofsrxe"
    finally:
        subprocess.run(
            ["ip", "link", "del", "ofsroute"], capture_output=True, check=False, timeout=WAIT_S
        )


def asked(blob: bytes) -> Rdma:
    """Ask in a separate process: librdmacm holds every adapter until its process ends, and the
    kernel waits for that before it removes a soft one."""
    code = (
        "import sys; from offstage.bindings.verbs import Rdma, by_route; "
        "one = by_route(bytes.fromhex(sys.argv[1]), Rdma(mtu_bytes=1024)); "
        "print(one.device, one.port, one.gid_index, one.mtu_bytes, sep=',')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, blob.hex()],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    device, *numbers = done.stdout.strip().split(",")
    return Rdma(device, *map(int, numbers))


def test_the_way_to_the_daemon_chooses(rdma: Adapter, blob: bytes, second: str) -> None:
    """Each daemon is reached from its own network's adapter, and from the right GID."""
    assert asked(blob) == Rdma(rdma.device, rdma.port, rdma.gid_index, 1024)
    there = asked(with_gid(blob, NEIGHBOUR))
    assert (there.device, there.port) == (second, 1) and there.gid_index >= 0
    gids = Path(f"/sys/class/infiniband/{second}/ports/1/gids")
    assert (gids / str(there.gid_index)).read_text().strip().endswith("0ad5:0901")


def test_what_is_named_or_not_known_stays(rdma: Adapter, blob: bytes) -> None:
    """A named adapter stays, and the default applies if the kernel knows no route."""
    for named in (Rdma("other"), Rdma(port=2), Rdma(gid_index=7)):
        assert by_route(blob, named) == named
    of_the_link = bytes.fromhex("fe80" + 12 * "00" + "0001")
    assert by_route(with_gid(blob, of_the_link), Rdma()) == Rdma()
    assert by_route(b"no blob", Rdma()) == Rdma()
    assert by_route(b"", Rdma()) == Rdma()
    assert prepare(Rdma()) == rdma, "what is open serves who has no wish"
