"""Is a drive refused by name exactly if it carries data or is in use?"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import load
from offstage.dpu.storage.drives import HEAD_BYTES, SIGNATURES, STORE, drives, holds, occupied
from offstage.dpu.storage.preflight import check_store_file
from offstage.dpu.storage.storefile import COPY_OFFSET, STORE_MAGIC

ADDRESS = "0000:01:00.0"


def write(root: Path, path: str, text: str | bytes = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text.encode() if isinstance(text, str) else text)


def with_drive(root: Path, head: bytes = b"", name: str = "nvme0n1") -> Path:
    """Return a machine with one NVMe drive of 1 TB; `head`: its first bytes."""
    folder = f"sys/class/block/{name}"
    write(root, f"{folder}/size", f"{10**12 // 512}\n")
    write(root, f"{folder}/dev", "259:0\n")
    write(root, f"{folder}/device/model", "Model 9000   \n")
    write(root, f"{folder}/device/address", f"{ADDRESS}\n")
    write(root, f"dev/{name}", head.ljust(HEAD_BYTES, b"\0"))
    return root


def partition(root: Path) -> None:
    write(root, "sys/class/block/nvme0n1/nvme0n1p1/partition", "1")
    write(root, "sys/class/block/nvme0n1p1/dev", "259:1")


def mounted(root: Path, row: str) -> None:
    write(root, "proc/self/mountinfo", f"22 1 0:21 / /proc rw - proc proc rw\n{row}\n")


USED: list[tuple[str, Callable[[Path], object], str]] = [
    ("nothing", lambda root: None, ""),
    ("partition table", partition, "carries a partition table (nvme0n1p1)"),
    (
        "mount",
        lambda root: mounted(root, "36 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw"),
        "is mounted at /data",
    ),
    (
        "mount by name only, as Btrfs has it",
        lambda root: mounted(root, "36 1 0:40 / /data rw - btrfs /dev/nvme0n1 rw"),
        "is mounted at /data",
    ),
    ("mount of another", lambda root: mounted(root, "36 1 8:0 / /data rw - ext4 /dev/sda rw"), ""),
    (
        "mount of a partition",
        lambda root: (partition(root), mounted(root, "36 1 259:1 / / rw - ext4 /dev/root rw")),
        "its nvme0n1p1 is mounted at /",
    ),
    (
        "swap",
        lambda root: write(root, "proc/swaps", "Filename Type\n/dev/nvme0n1 partition 1\n"),
        "is mounted at swap",
    ),
    ("RAID", lambda root: write(root, "sys/class/block/nvme0n1/holders/md0"), "is in use by md0"),
    (
        "unreadable",
        lambda root: (root / "dev/nvme0n1").unlink(),
        "cannot be read to see what it carries (No such file or directory)",
    ),
]


@pytest.mark.parametrize(("what", "make", "said"), USED, ids=[row[0] for row in USED])
def test_a_drive_in_use_is_refused_and_says_by_what(
    what: str, make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    make(with_drive(tmp_path))
    assert occupied("nvme0n1", tmp_path) == said
    (drive,) = drives(tmp_path)
    assert drive.refused == said and drive.path == "/dev/nvme0n1"
    assert (drive.model, drive.address, drive.size_bytes) == ("Model 9000", ADDRESS, 10**12)


@pytest.mark.parametrize("what", [what for what, _ in SIGNATURES])
def test_what_a_drive_carries_is_named(what: str, tmp_path: Path) -> None:
    """Every place where a format leaves its magic number is tested on its own."""
    for at, magic in dict(SIGNATURES)[what]:
        head = bytes(at) + magic
        assert holds(head.ljust(HEAD_BYTES, b"\0")) == what, at
    assert occupied("nvme0n1", with_drive(tmp_path, head)) == f"carries {what}"


@pytest.mark.parametrize(
    ("head", "what", "refused", "store"),
    [
        (b"", "", "", False),
        (STORE_MAGIC, STORE, "", True),
        (b"torn".ljust(COPY_OFFSET, b"\0") + STORE_MAGIC, STORE, "", True),
        (b"\x7fELF", "data of an unknown kind", "carries data of an unknown kind", False),
    ],
    ids=["empty", "store", "store with one superblock torn", "unknown"],
)
def test_only_an_empty_drive_or_a_store_is_taken(
    head: bytes, what: str, refused: str, store: bool, tmp_path: Path
) -> None:
    assert holds(head.ljust(HEAD_BYTES, b"\0")) == what
    (drive,) = drives(with_drive(tmp_path, head))
    assert (drive.refused, drive.store) == (refused, store)


def test_a_controller_that_the_kernel_gave_away_is_shown(tmp_path: Path) -> None:
    """SPDK's drives have no block device: one bound to vfio-pci is usable, one unbound is not."""
    for address, driver in ((ADDRESS, "vfio-pci"), ("0000:02:00.0", ""), ("0000:03:00.0", "nvme")):
        write(tmp_path, f"sys/bus/pci/devices/{address}/class", "0x010802\n")
        if driver:
            (tmp_path / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
            (tmp_path / "sys/bus/pci/devices" / address / "driver").symlink_to(
                f"../../drivers/{driver}"
            )
    write(tmp_path, "sys/bus/pci/devices/0000:04:00.0/class", "0x020000\n")
    found = [(one.name, one.driver, one.refused) for one in drives(tmp_path)]
    assert found == [(ADDRESS, "vfio-pci", ""), ("0000:02:00.0", "", "has no driver")]


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """Yield a real block device over a file; needs root and a kernel with loop devices."""
    file = tmp_path / "disk"
    file.write_bytes(bytes(32 << 20))
    if os.geteuid() != 0:
        pytest.skip("needs root for losetup: sudo pytest")
    try:
        done = subprocess.run(
            ["losetup", "--find", "--show", str(file)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except FileNotFoundError:
        pytest.skip("no losetup: apt-get install util-linux")
    if done.returncode != 0:
        pytest.skip(f"no loop device ({done.stderr.strip()}): modprobe loop")
    yield done.stdout.strip()
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True, timeout=30)


def test_a_daemon_is_refused_a_real_drive_with_a_real_file_system(loop: str) -> None:
    """Other tests write the signatures themselves; here mkfs writes them, on a real block
    device."""
    config = load(overrides={"storage.path": loop, "storage.size": "16MiB"}, environ={})
    check_store_file(config)
    try:
        subprocess.run(["mkfs.ext4", "-q", loop], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no mkfs.ext4: apt-get install e2fsprogs")
    with pytest.raises(BadInput, match="carries an ext2, ext3 or ext4 file system"):
        check_store_file(config)
