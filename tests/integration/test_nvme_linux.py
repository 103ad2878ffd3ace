"""Is a volume reached over NVMe/TCP by Linux's own initiator and `nvme-cli`?

A guest of QEMU has the kernel, and reaches this machine's loopback as 10.0.2.2. Its kernel is a
later one than the other guests', since Debian 12's own is built without DH-HMAC-CHAP.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from linux_guest import later_image, linux_guest
from live_daemon import until
from nvme_bed import Bed, events, started
from nvme_initiator import keys_of

from offstage.testbeds.beds.qemu.agent import Done
from offstage.testbeds.beds.qemu.guest import Guest

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1800)]

NVME = "/usr/sbin/nvme"
HERE = "10.0.2.2"  # this machine, as QEMU's user network shows it to a guest
HOST_ID = "11111111-2222-3333-4444-555555555555"
STORE, RETRIEVE, LIST, DELETE, EXIST = 0x01, 0x02, 0x06, 0x10, 0x14
NO_KEY = "(0x4087)"  # Do Not Retry, and the status
BIG = 512 << 10
COMMAND_S = 120.0


@dataclass(frozen=True)
class Linux:
    """The guest, and the folder that it sees as /share."""

    guest: Guest
    share: Path

    def nvme(self, *words: str, out: str = "") -> Done:
        """`nvme` with these words; its output is returned, or in the file `out` of the guest."""
        command = [NVME, *words]
        if out:
            command = ["/bin/sh", "-c", 'out=$1; shift; exec "$@" > "$out"', "sh", out, *command]
        return self.guest.agent.run(command, COMMAND_S)

    def io(self, device: str, opcode: int, key: bytes, *words: str, out: str = "") -> Done:
        """A command of the Key Value command set: the key is CDW2, 3, 14 and 15."""
        parts = zip((2, 3, 14, 15), struct.unpack("<4I", key.ljust(16, b"\0")), strict=True)
        named = [f"--cdw{number}={value}" for number, value in parts]
        asked = ("io-passthru", device, f"--opcode={opcode}", "--namespace-id=1")
        return self.nvme(*asked, f"--cdw11={len(key)}", *named, *words, out=out)

    def connect(self, bed: Bed, secret: str, *words: str) -> Done:
        where = ("-t", "tcp", "-a", HERE, "-s", str(bed.where[1]), "-n", bed.names["red"])
        return self.nvme("connect", *where, *self.itself(), "--dhchap-secret", secret, *words)

    def itself(self) -> list[str]:
        return [f"--hostnqn=nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}", f"--hostid={HOST_ID}"]

    def devices(self) -> list[str]:
        """The namespaces' character devices."""
        return self.guest.agent.run(["/bin/sh", "-c", "ls -d /dev/ng*"], COMMAND_S).out.split()


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linux]:
    share = tmp_path_factory.mktemp("share")
    network = ("-netdev", "user,id=here", "-device", "virtio-net-pci,netdev=here,romfile=")
    with linux_guest(later_image(), share, ["nvme-tcp"], network) as guest:
        yield Linux(guest, share)


@pytest.fixture(scope="module")
def bed(linux: Linux, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with started(tmp_path_factory.mktemp("nvme")) as found:
        yield found


@contextmanager
def connected(linux: Linux, bed: Bed, *words: str) -> Iterator[str]:
    """The character device of the tenant's volume, with proofs of both sides."""
    secret = bed.secret()
    done = linux.connect(bed, secret, "--dhchap-ctrl-secret", secret, *words)
    assert done.code == 0, done
    try:
        until(lambda: bool(linux.devices()))
        (device,) = linux.devices()
        yield device
    finally:
        assert linux.nvme("disconnect", "-n", bed.names["red"]).code == 0
    until(lambda: not linux.devices())


def test_linux_discovers_the_subsystems(linux: Linux, bed: Bed) -> None:
    """Does `nvme discover` print each tenant with volumes, and where it is?"""
    where = ("-t", "tcp", "-a", HERE, "-s", str(bed.where[1]))
    done = linux.nvme("discover", *where, *linux.itself())
    assert done.code == 0, done
    said = [one.split(":", 1) for one in done.out.splitlines() if ":" in one]
    assert {value.strip() for name, value in said if name == "subnqn"} == set(bed.names.values())
    assert {value.strip() for name, value in said if name == "trsvcid"} == {str(bed.where[1])}


def test_linux_is_refused_with_another_key(linux: Linux, bed: Bed) -> None:
    """Does a wrong key end the connect, with its reason, and leave no device?"""
    before = len(events(bed.tier, "nvme_host_in"))
    done = linux.connect(bed, bed.secret("blue"))
    assert done.code != 0 and "Key was rejected by service" in done.err, done
    assert events(bed.tier, "nvme_host_refused")
    assert len(events(bed.tier, "nvme_host_in")) == before
    assert linux.devices() == []


def listed(linux: Linux, device: str) -> list[bytes]:
    """The keys of its volume."""
    words = ("--cdw10=4096", "--data-len=4096", "--read", "--raw-binary")
    done = linux.io(device, LIST, b"", *words, out="/share/keys")
    assert done.code == 0, done
    keys, rest = keys_of((linux.share / "keys").read_bytes())
    assert not rest.strip(b"\0")
    return sorted(keys)


@pytest.mark.parametrize(
    "digests", [(), ("--hdr-digest", "--data-digest")], ids=["plain", "digests"]
)
def test_linux_stores_and_retrieves(linux: Linux, bed: Bed, digests: tuple[str, ...]) -> None:
    """Do values of 4 bytes and of 512 KiB come back equal, and are keys listed until deleted?"""
    small, large = b"key1", b"a key of 16 byte"
    (linux.share / "small").write_bytes(b"data")
    value = os.urandom(BIG)
    (linux.share / "large").write_bytes(value)
    with connected(linux, bed, *digests) as device:
        for key, name, size in ((small, "small", 4), (large, "large", BIG)):
            sizes = (f"--cdw10={size}", f"--data-len={size}")
            absent = linux.io(device, EXIST, key)
            assert absent.code != 0 and NO_KEY in absent.out + absent.err, absent
            put = linux.io(device, STORE, key, *sizes, f"--input-file=/share/{name}", "--write")
            assert put.code == 0, put
            assert linux.io(device, EXIST, key).code == 0
            back = f"/share/{name}.back"
            got = linux.io(device, RETRIEVE, key, *sizes, "--read", "--raw-binary", out=back)
            assert got.code == 0 and f"{size:#010x}" in got.err, got
            expected = (linux.share / name).read_bytes()
            assert (linux.share / f"{name}.back").read_bytes() == expected
        assert listed(linux, device) == sorted([small, large])
        for key in (small, large):
            assert linux.io(device, DELETE, key).code == 0
            gone = linux.io(device, EXIST, key)
            assert gone.code != 0 and NO_KEY in gone.out + gone.err, gone
        assert listed(linux, device) == []
