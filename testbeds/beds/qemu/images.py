"""A guest's boot files: kernel, initrd and root file system, from Debian packages and wheels.

An image is built once for each architecture and recipe and kept in the user's cache, in a folder
named after the hash of all its inputs; a folder with that name is complete. Packages are extracted
but not configured, so neither an emulator nor a change to this machine is needed. The source tree
of the file system is kept next to it: a cross compiler takes headers and libraries from it, and
qemu-user its programs.

Raises BadInput, with the fix, if a tool is missing or the registry does not answer.
"""

import hashlib
import importlib.metadata
import lzma
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.beds.qemu.command import finished
from offstage.testbeds.beds.qemu.initrd import keep_modules, write_initrd
from offstage.testbeds.cache import cache_folder, locked, whole
from offstage.testbeds.progress import Progress

__all__ = ["AARCH64", "X86_64", "Arch", "Image", "get", "needs"]

FORMAT = 1
"""Increment it when this file builds something else from the same lists."""
SUITE = "bookworm"
GUEST_PYTHON = (3, 11)
GLIBC_MINOR = 36
"""Python and glibc of that suite."""
MIRROR = "http://deb.debian.org/debian"
BUILD_TIMEOUT_S = 900.0
HERE = Path(__file__).resolve().parent

PACKAGES = (
    # a system
    "base-files",
    "bash",
    "dash",
    "busybox-static",
    "coreutils",
    "grep",
    "sed",
    "mawk",
    "libc-bin",
    "mount",
    "util-linux",
    "procps",
    "kmod",
    "iproute2",
    "iputils-ping",
    "qemu-guest-agent",
    # what Offstage runs on
    "python3",
    "liburing2",
    "libxxhash0",
    # RDMA and NVMe, and their tools
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1",
    "python3-pyverbs",
    "rdma-core",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "nvme-cli",
    "pciutils",
    "fio",
    # what Offstage is compiled with; not in the file system
    "libc6-dev",
    "libpython3.11-dev",
    "liburing-dev",
    "libxxhash-dev",
    "libibverbs-dev",
    "librdmacm-dev",
)
NOT_IN_A_GUEST = ("matplotlib",)
"""Dependencies of Offstage needed only by reports, which are made outside the guest."""
DROPPED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/perl",
    "usr/lib/*/perl",
    "usr/lib/*/perl-base",
    "var/cache/apt",
    "var/lib/apt",
)
NOT_IN_ROOTFS = (
    "usr/include",
    "boot",
    "usr/lib/*/*.a",
    "usr/lib/python3.11/config-*",
    "usr/lib/gcc",
    "usr/lib/python3.11/test",
)


@dataclass(frozen=True)
class Arch:
    """One kind of guest: its name here and in Debian, its emulator, and the emulator's package."""

    name: str
    debian: str
    emulator: str
    package: str
    linux: str = ""
    """The suite of a later kernel, such as trixie-backports, instead of the guest's own."""

    @property
    def triplet(self) -> str:
        """Debian's name of the architecture in paths and compiler names."""
        return f"{self.name}-linux-gnu"

    @property
    def kernel(self) -> str:
        """The Debian package of its kernel."""
        return "/".join(filter(None, (f"linux-image-{self.debian}", self.linux)))


X86_64 = Arch("x86_64", "amd64", "qemu-system-x86_64", "qemu-system-x86")
AARCH64 = Arch("aarch64", "arm64", "qemu-system-aarch64", "qemu-system-arm")


@dataclass(frozen=True)
class Image:
    """A finished image of `arch` in `folder`."""

    arch: Arch
    folder: Path

    @property
    def kernel(self) -> Path:
        """The kernel, uncompressed, so that nothing is unpacked under emulation."""
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        """Mounts the root file system and does nothing else."""
        return self.folder / "initrd"

    @property
    def rootfs(self) -> Path:
        """The squashfs."""
        return self.folder / "rootfs.squashfs"

    @property
    def tree(self) -> Path:
        """The same as a folder, with headers and static libraries."""
        return self.folder / "tree"


def needs(*tools: tuple[str, str]) -> None:
    """BadInput for the first (program, Debian package) that this machine lacks; the fix installs
    all that are missing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [package for tool, package in tools if shutil.which(tool, path=path) is None]
    if missing:
        packages = " ".join(dict.fromkeys(missing))
        raise BadInput("a program is missing", "testbed qemu", f"apt-get install {packages}")


def get(arch: Arch, progress: Progress) -> Image:
    """The image of `arch`, built now if it is not in the cache yet."""
    pins = _pins()
    recipe = [
        str(FORMAT),
        SUITE,
        arch.name,
        arch.kernel,
        *PACKAGES,
        *NOT_IN_ROOTFS,
        *DROPPED,
        *pins,
    ]
    recipe += [path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.sh"))]
    recipe.append((HERE / "initrd.py").read_text(encoding="utf-8"))
    name = hashlib.sha256("\0".join(recipe).encode()).hexdigest()[:16]
    image = Image(arch, cache_folder() / "qemu" / f"{arch.name}-{name}")
    if image.folder.is_dir():
        return image
    needs(("mmdebstrap", "mmdebstrap"), ("mksquashfs", "squashfs-tools"), ("depmod", "kmod"))
    if os.geteuid() != 0:
        raise BadInput(
            "an image contains files of root",
            "testbed qemu",
            "build it once with sudo and the same OFFSTAGE_CACHE",
        )
    with locked(image.folder):
        if not image.folder.is_dir():
            _build(image, pins, progress)
    return image


def _pins() -> list[str]:
    """Offstage's dependencies pinned to this machine's versions, so that a guest has the same."""
    names = []
    for requirement in importlib.metadata.requires("offstage-kv") or ():
        name = re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement and name not in NOT_IN_A_GUEST:
            names.append(name)
    return sorted(f"{name}=={importlib.metadata.version(name)}" for name in names)


def _build(image: Image, pins: Sequence[str], progress: Progress) -> None:
    arch = image.arch
    with whole(image.folder) as folder:
        made = Image(arch, folder)
        progress.start(f"image of {arch.name}", 4, "stages")
        progress.note("Debian packages")
        _extract(arch, made.tree)
        progress.advance(1)
        progress.note("Python wheels")
        _add_wheels(arch, pins, made)
        progress.advance(1)
        progress.note("kernel and initrd")
        version = keep_modules(made.tree)
        write_initrd(made.tree, version, HERE / "initrd-init.sh", made.initrd)
        _write_kernel(made.tree / "boot" / f"vmlinuz-{version}", made.kernel)
        progress.advance(1)
        progress.note("root file system")
        _squash(made)
        progress.advance(1)
        progress.note(f"{made.rootfs.stat().st_size >> 20} MiB in {image.folder}")


def _extract(arch: Arch, tree: Path) -> None:
    """Extract the packages, and perform the few steps of their scripts that are needed."""
    mirror = os.environ.get("OFFSTAGE_DEBIAN_MIRROR", MIRROR)
    mirrors = [mirror]
    if arch.linux:
        mirrors.append(f"deb {mirror} {arch.linux} main")
    _run(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=extract",
        f"--arch={arch.debian}",
        '--aptopt=APT::Install-Recommends "false"',
        "--components=main",
        f"--include={','.join((*PACKAGES, arch.kernel))}",
        SUITE,
        str(tree),
        *mirrors,
        fix="is the Debian mirror reachable? OFFSTAGE_DEBIAN_MIRROR names another",
    )
    _place_kernel(tree)
    for pattern in DROPPED:
        for path in tree.glob(pattern):
            shutil.rmtree(path)
    for link, target in (("usr/bin/awk", "mawk"), ("bin/sh", "dash")):
        if not os.path.lexists(tree / link):
            (tree / link).symlink_to(target)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n", encoding="utf-8")
    (tree / "etc/group").write_text("root:x:0:\n", encoding="utf-8")
    (tree / "etc/hosts").write_text(
        "127.0.0.1 localhost\n10.0.0.1 node\n10.0.0.2 dpu\n", encoding="utf-8"
    )
    shutil.copy(HERE / "guest-init.sh", tree / "sbin/guest-init")
    (tree / "sbin/guest-init").chmod(0o755)
    offstage = tree / "usr/local/bin/offstage"
    offstage.parent.mkdir(parents=True, exist_ok=True)
    offstage.write_text(
        '#!/bin/sh\nPYTHONPATH=/opt/offstage exec /usr/bin/python3 -P -m offstage "$@"\n',
        encoding="utf-8",
    )
    offstage.chmod(0o755)


def _place_kernel(tree: Path) -> None:
    """Later packages have kernel and modules in /usr/lib/modules: they go where the suite's are."""
    modules = tree / "lib/modules"
    if not modules.exists():
        shutil.move(tree / "usr/lib/modules", modules)
    for kernel in modules.glob("*/vmlinuz"):
        (tree / "boot").mkdir(exist_ok=True)
        kernel.rename(tree / "boot" / f"vmlinuz-{kernel.parent.name}")


def _add_wheels(arch: Arch, pins: Sequence[str], made: Image) -> None:
    """Offstage's dependencies, as binary wheels for the guest's architecture and Python."""
    wheels = made.folder / "wheels"
    platforms = [f"manylinux2014_{arch.name}"]
    platforms += [f"manylinux_2_{minor}_{arch.name}" for minor in range(17, GLIBC_MINOR + 1)]
    dotted = ".".join(map(str, GUEST_PYTHON))
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={dotted}",
        *(f"--platform={platform}" for platform in platforms),
        "-d",
        str(wheels),
        *pins,
        fix="is the Python package index reachable?",
    )
    packages = made.tree / f"usr/local/lib/python{dotted}/dist-packages"
    packages.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    shutil.rmtree(wheels)
    if sys.version_info[:2] == GUEST_PYTHON:
        # Compiled here, because each start of a guest would do it again, under emulation.
        library = made.tree / "usr/lib"
        for folder in (packages, library / "python3", library / f"python{dotted}"):
            finished(
                [
                    sys.executable,
                    "-m",
                    "compileall",
                    "-q",
                    "-s",
                    str(made.tree),
                    "-p",
                    "/",
                    "--invalidation-mode",
                    "unchecked-hash",
                    str(folder),
                ],
                BUILD_TIMEOUT_S,
            )


def _write_kernel(packed: Path, out: Path) -> None:
    """Extract the kernel if the file is self-extracting; QEMU starts the extracted one too."""
    data = packed.read_bytes()
    at = data.find(b"\xfd7zXZ\x00")
    while at >= 0:
        try:
            plain = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(data[at:])
        except lzma.LZMAError:
            plain = b""
        if plain.startswith(b"\x7fELF"):
            data = plain
            break
        at = data.find(b"\xfd7zXZ\x00", at + 1)
    out.write_bytes(data)


def _squash(made: Image) -> None:
    _run(
        "mksquashfs",
        str(made.tree),
        str(made.rootfs),
        "-comp",
        "lz4",
        "-noappend",
        "-quiet",
        "-no-progress",
        "-all-root",
        "-wildcards",
        "-e",
        *NOT_IN_ROOTFS,
    )


def _run(*command: str, fix: str = "") -> None:
    """RunFailed with the last line of the command's output."""
    try:
        done = finished(command, BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"took longer than {BUILD_TIMEOUT_S:.0f} s", command[0], fix) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise RunFailed(f"failed: {said[-1]}", Path(command[0]).name, fix)
