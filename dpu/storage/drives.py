"""Contents and users of a block device, checked before a store may take it.

A store takes a whole drive and overwrites it. A drive with a file system, a partition table, a
mount or anything else that is not a store is therefore refused, and the error names what was found.
Everything is read from /sys, /proc and the first bytes of the device, below `root`, so that a test
can present a machine it does not have. Nothing is written; what cannot be read counts as occupied.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offstage.dpu.storage.storefile import COPY_OFFSET, STORE_MAGIC

__all__ = ["HEAD_BYTES", "STORE", "Drive", "block_name", "drives", "holds", "occupied"]

HEAD_BYTES = 262_144  # the firmware checks the same range before it makes a new store
STORE = "a store"
SECTOR_BYTES = 512  # the unit of /sys/class/block/*/size, whatever the drive's own is
NVME_CLASS = "0x010802"  # PCI: mass storage, non-volatile memory, NVM Express
NAMESPACE = re.compile(r"nvme\d+n\d+")
# Where each leaves its magic number: the formats' own documents, as libblkid has them.
SIGNATURES = (
    ("a GPT partition table", ((512, b"EFI PART"), (4096, b"EFI PART"))),
    ("an ext2, ext3 or ext4 file system", ((1080, b"\x53\xef"),)),
    ("an XFS file system", ((0, b"XFSB"),)),
    ("a Btrfs file system", ((65_600, b"_BHRfS_M"),)),
    ("an F2FS file system", ((1024, b"\x10\x20\xf5\xf2"),)),
    ("an NTFS file system", ((3, b"NTFS    "),)),
    ("an exFAT file system", ((3, b"EXFAT   "),)),
    ("a FAT file system", ((54, b"FAT1"), (82, b"FAT32   "))),
    (
        "a ZFS pool",
        tuple(
            (131_072 + 1024 * row, magic)
            for row in range(128)
            for magic in (b"\x0c\xb1\xba\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xba\xb1\x0c")
        ),
    ),
    ("a bcache device", ((4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),)),
    ("swap space", ((4086, b"SWAPSPACE2"), (65_526, b"SWAPSPACE2"))),
    ("an encrypted LUKS volume", ((0, b"LUKS\xba\xbe"),)),
    ("an LVM volume", tuple((sector * 512, b"LABELONE") for sector in range(4))),
    ("a RAID member", ((0, b"\xfc\x4e\x2b\xa9"), (4096, b"\xfc\x4e\x2b\xa9"))),
    ("an MBR partition table", ((510, b"\x55\xaa"),)),
)


@dataclass(frozen=True)
class Drive:
    """One NVMe namespace, or a controller that the kernel gave away. `refused`: why a store must
    not take it, "" where it may. `store`: whether it holds one."""

    name: str
    path: str
    model: str
    address: str
    driver: str
    size_bytes: int
    refused: str
    store: bool


def holds(head: bytes) -> str:
    """The contents of a device by its first bytes: "" nothing, or a noun with its article.

    Give HEAD_BYTES of them. A store of Offstage is STORE, also where one superblock is torn."""
    if STORE_MAGIC in (head[at : at + len(STORE_MAGIC)] for at in (0, COPY_OFFSET)):
        return STORE
    for what, places in SIGNATURES:
        if any(head[at : at + len(magic)] == magic for at, magic in places):
            return what
    return "data of an unknown kind" if head.strip(b"\0") else ""


def occupied(name: str, root: Path = Path("/")) -> str:
    """Why no store may take the block device `name`, such as nvme0n1: "" where one may."""
    return _used(name, root) or _carried(name, root)


def drives(root: Path = Path("/")) -> list[Drive]:
    """Every NVMe namespace of the kernel, then every NVMe controller bound to another driver."""
    names = [name for name in _names(root / "sys/class/block") if NAMESPACE.fullmatch(name)]
    return [*(_namespace(name, root) for name in names), *_given_away(root)]


def block_name(device: int, root: Path = Path("/")) -> str:
    """The kernel's name of a block device by its number (`st_rdev`); "" where it has none."""
    for name in _names(root / "sys/class/block"):
        if _number(name, root) == device:
            return name
    return ""


def _namespace(name: str, root: Path) -> Drive:
    folder = root / "sys/class/block" / name
    sectors = _read(folder / "size")
    refused = occupied(name, root)
    store = not refused and holds(_head(name, root)) == STORE
    return Drive(
        name=name,
        path=f"/dev/{name}",
        model=_read(folder / "device/model"),
        address=_read(folder / "device/address"),
        driver="nvme",
        size_bytes=int(sectors) * SECTOR_BYTES if sectors.isdigit() else 0,
        refused=refused,
        store=store,
    )


def _given_away(root: Path) -> Iterator[Drive]:
    for address in _names(root / "sys/bus/pci/devices"):
        folder = root / "sys/bus/pci/devices" / address
        driver = (folder / "driver").resolve().name if (folder / "driver").exists() else ""
        if _read(folder / "class") != NVME_CLASS or driver == "nvme":
            continue
        yield Drive(address, "", "", address, driver, 0, "" if driver else "has no driver", False)


def _used(name: str, root: Path) -> str:
    names = [name, *_partitions(root / "sys/class/block" / name)]
    for one in names:
        if place := _mounted(one, root):
            return f"is mounted at {place}" if one == name else f"its {one} is mounted at {place}"
    for one in names:
        if held := _names(root / "sys/class/block" / one / "holders"):
            return f"is in use by {', '.join(held)}"
    return f"carries a partition table ({', '.join(names[1:])})" if len(names) > 1 else ""


def _carried(name: str, root: Path) -> str:
    try:
        found = holds(_head(name, root))
    except OSError as error:
        return f"cannot be read to see what it carries ({error.strerror})"
    return "" if found in ("", STORE) else f"carries {found}"


def _head(name: str, root: Path) -> bytes:
    with (root / "dev" / name).open("rb") as file:
        return file.read(HEAD_BYTES)


def _partitions(folder: Path) -> list[str]:
    return [name for name in _names(folder) if (folder / name / "partition").is_file()]


def _mounted(name: str, root: Path) -> str:
    """Where a device is mounted, or `swap`."""
    number = _read(root / "sys/class/block" / name / "dev")
    for line in _read(root / "proc/self/mountinfo").splitlines():
        words, _, rest = line.partition(" - ")
        fields, source = words.split(), rest.split()[1:2]
        if len(fields) > 4 and (fields[2] == number or source == [f"/dev/{name}"]):
            return fields[4]
    swaps = [line.split()[:1] for line in _read(root / "proc/swaps").splitlines()]
    return "swap" if [f"/dev/{name}"] in swaps else ""


def _number(name: str, root: Path) -> int:
    major, _, minor = _read(root / "sys/class/block" / name / "dev").partition(":")
    return os.makedev(int(major), int(minor)) if major.isdigit() and minor.isdigit() else -1


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
