"""Kernel modules of a guest: which to keep, and the initrd that loads those the root needs.

A Debian kernel has thousands of modules for hardware that no guest has. Kept are the modules
named here and their dependencies, by the kernel's list.
"""

import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from offstage.bindings.errors import RunFailed

__all__ = ["keep_modules", "write_initrd"]

BOOT = (
    "virtio_pci",
    "virtio_blk",
    "squashfs",
    "overlay",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
)
KEPT = (
    "nvme",
    "nvme-tcp",
    "nvme-rdma",
    "nvmet-tcp",
    "nvmet-rdma",
    "vfio-pci",
    "vfio_iommu_type1",
    "uio_pci_generic",
    "sch_netem",
    "ext4",
    "loop",
    "veth",
    "tun",
)
KEPT_FOLDERS = (
    "kernel/drivers/infiniband/core/",
    "kernel/drivers/infiniband/sw/",
    "kernel/drivers/infiniband/ulp/rtrs/",
    "kernel/crypto/",
    "kernel/lib/",
    "kernel/arch/",
)
HEADER = "070701{ino:08X}{mode:08X}{zero:08X}{zero:08X}{links:08X}{zero:08X}{size:08X}"
HEADER += "{zero:08X}{zero:08X}{zero:08X}{zero:08X}{name_size:08X}{zero:08X}"


def keep_modules(tree: Path) -> str:
    """Delete the modules that no guest needs; returns the kernel's version."""
    folder = next((tree / "lib/modules").iterdir())
    version = folder.name
    _depmod(tree, version)
    needed = _dependencies(folder)
    names = {_name(path): path for path in needed}
    wanted = [path for path in needed if path.startswith(KEPT_FOLDERS)]
    wanted += [names[_name(one)] for one in (*BOOT, *KEPT) if _name(one) in names]
    kept = set(_closure(wanted, needed))
    for path in needed:
        if path not in kept:
            (folder / path).unlink()
    _depmod(tree, version)
    return version


def write_initrd(tree: Path, version: str, init: Path, out: Path) -> None:
    """A compressed cpio archive: a static busybox, `init`, and the modules in loading order."""
    folder = tree / "lib/modules" / version
    needed = _dependencies(folder)
    names = {_name(path): path for path in needed}
    order = _closure([names[_name(one)] for one in BOOT if _name(one) in names], needed)
    files: dict[str, tuple[int, bytes]] = {
        name: (0o040755, b"")
        for name in ("bin", "proc", "sys", "dev", "modules", "mnt", "mnt/ro", "mnt/rw", "mnt/new")
    }
    busybox = tree / "bin/busybox"
    files["bin/busybox"] = (0o100755, busybox.read_bytes())
    files["init"] = (0o100755, init.read_bytes())
    for path in order:
        data = (folder / path).read_bytes()
        files[f"modules/{_name(path)}.ko"] = (
            0o100644,
            lzma.decompress(data) if path.endswith(".xz") else data,
        )
    files["modules/order"] = (
        0o100644,
        "".join(f"{_name(path)}.ko\n" for path in order).encode(),
    )
    out.write_bytes(gzip.compress(_archive(files), compresslevel=1, mtime=0))


def _depmod(tree: Path, version: str) -> None:
    program = shutil.which("depmod", path="/usr/sbin:/sbin:/usr/bin:/bin") or "depmod"
    done = subprocess.run(
        [program, "-b", str(tree), version],
        check=False,
        capture_output=True,
        errors="replace",
        timeout=120,
    )
    if done.returncode != 0:
        raise RunFailed(f"failed: {done.stderr.strip()}", "depmod")


def _dependencies(folder: Path) -> dict[str, list[str]]:
    """Each module's file, and those that must be loaded before it, nearest first."""
    found = {}
    for line in (folder / "modules.dep").read_text(encoding="utf-8").splitlines():
        path, _, others = line.partition(":")
        found[path] = others.split()
    return found


def _closure(wanted: Iterable[str], needed: Mapping[str, list[str]]) -> list[str]:
    """The wanted modules and all their dependencies, in loading order."""
    order: dict[str, None] = {}
    for path in wanted:
        for one in (*reversed(needed[path]), path):
            order.setdefault(one)
    return list(order)


def _name(path: str) -> str:
    """A module's name from its file; the kernel treats - and _ alike."""
    return Path(path).name.split(".ko")[0].replace("-", "_")


def _archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """The cpio archive (`newc`) that the kernel unpacks; folders come before what is in them."""
    out = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for number, (name, (mode, data)) in enumerate(entries, 1):
        out += HEADER.format(
            ino=number, mode=mode, links=1, size=len(data), zero=0, name_size=len(name) + 1
        ).encode()
        out += name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)
