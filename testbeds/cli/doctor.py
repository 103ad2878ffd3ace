"""`offstage doctor`: what this machine offers, and the command that fixes what is missing."""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput, OffstageError
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.report.page.numbers import size

__all__ = ["Check", "examine", "register", "to_dict"]

# What this machine offers, and the command that adds what is missing.
#
# Nothing here changes the machine; the longest check opens a small file in a temporary folder. A
# check is `ok`, `missing` (something is not used or not possible) or `required` (nothing runs
# without it). Each says what it is for, and a check that is not ok says how to mend it.

State = Literal["ok", "missing", "required"]
CORES_MIN = 2
MEMORY_BYTES_MIN = 4 << 30
DISK_BYTES_MIN = 3 << 30
MEMLOCK_BYTES_MIN = 64 << 20
PKG_CONFIG_TIMEOUT_S = 10


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, what it is for, and the mend where it is not ok."""

    name: str
    state: State
    found: str
    purpose: str
    mend: str = ""


def examine(folder: Path) -> list[Check]:
    """All checks; `folder` is where stores would be written. Never raises for what it finds."""
    return [check(folder) for check in CHECKS]


def to_dict(checks: list[Check]) -> dict[str, Any]:
    """The checks as JSON-ready values."""
    return {
        "ready": not any(check.state == "required" for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _python(folder: Path) -> Check:
    version = ".".join(str(number) for number in sys.version_info[:3])
    good = sys.version_info >= (3, 11)
    return Check("python", "ok" if good else "required", version, "everything",
                 "" if good else "install Python 3.11 or newer")  # fmt: skip


def _firmware(folder: Path) -> Check:
    try:
        from offstage.bindings.firmware import ABI_VERSION
    except OffstageError as error:
        return Check("firmware extension", "required", error.what, "everything", error.mend)
    return Check("firmware extension", "ok", f"loads, ABI {ABI_VERSION}", "everything")


def _xxhash(folder: Path) -> Check:
    purpose = "block checksums; needed to build the firmware"
    if (version := _pkg_config("libxxhash")) is not None:
        return Check("libxxhash", "ok", version, purpose)
    return Check("libxxhash", "missing", "no headers", purpose, "apt-get install libxxhash-dev")


def _liburing(folder: Path) -> Check:
    purpose = "built into the firmware for io_uring"
    if (version := _pkg_config("liburing")) is not None:
        return Check("liburing", "ok", version, purpose)
    return Check("liburing", "missing", "no headers", purpose,
                 "apt-get install liburing-dev, then build again")  # fmt: skip


def _io_uring(folder: Path) -> Check:
    purpose = "fast storage; without it the posix back end serves"
    state, found = _opened(folder, direct=False)
    mend = "" if state == "ok" else (
        "build with liburing-dev; where the kernel forbids it: sysctl kernel.io_uring_disabled=0, "
        "or a container profile that allows io_uring"
    )  # fmt: skip
    return Check("io_uring", state, found, purpose, mend)


def _direct(folder: Path) -> Check:
    purpose = "measured reads that bypass the page cache"
    flag = getattr(os, "O_DIRECT", 0)
    mend = "put the store on a local disk (ext4, xfs, a block device): --out DIR"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".offstage-doctor-") as file:
            os.close(os.open(file.name, os.O_RDONLY | flag))
    except OSError as error:
        found = f"refused in {folder}: {error.strerror}"
        return Check("O_DIRECT", "missing", found, purpose, mend)
    return Check("O_DIRECT", "ok", f"works in {folder}", purpose)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    good = free >= DISK_BYTES_MIN
    return Check("disk", "ok" if good else "missing", f"{size(free)} free in {folder}",
                 "stores of the demo and the benches",
                 "" if good else f"free {size(DISK_BYTES_MIN)}, or give another --out")  # fmt: skip


def _cores(folder: Path) -> Check:
    count = len(os.sched_getaffinity(0))
    good = count >= CORES_MIN
    return Check("cores", "ok" if good else "missing", str(count),
                 "one for the host agent, one for the DPU's reactor",
                 "" if good else "give it two: times of runs are wrong on one")  # fmt: skip


def _memory(folder: Path) -> Check:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    if limit.isdigit():
        total = min(total, int(limit))
    good = total >= MEMORY_BYTES_MIN
    return Check("memory", "ok" if good else "missing", size(total), "the demo takes up to 4 GiB",
                 "" if good else "lower --context-tokens or --sessions")  # fmt: skip


def _memlock(folder: Path) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    good = soft in (-1, resource.RLIM_INFINITY) or soft >= MEMLOCK_BYTES_MIN
    found = "unlimited" if soft in (-1, resource.RLIM_INFINITY) else size(soft)
    return Check("locked memory", "ok" if good else "missing", found,
                 "registered buffers of io_uring, RDMA and SPDK",
                 "" if good else "ulimit -l unlimited, or LimitMEMLOCK=infinity")  # fmt: skip


def _hugepages(folder: Path) -> Check:
    text = _read(Path("/proc/meminfo"))
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    count = int((rows.get("HugePages_Total", "0").split() or ["0"])[0])
    modes = {
        name: re.search(r"\[(.+?)\]", _read(Path("/sys/kernel/mm/transparent_hugepage") / file))
        for name, file in (("private", "enabled"), ("shared", "shmem_enabled"))
    }
    shown = ", ".join(f"{name} {mode[1]}" for name, mode in modes.items() if mode is not None)
    return Check("huge pages", "ok" if count else "missing",
                 f"{count} reserved; transparent: {shown or 'none'}",
                 "regions, store buffers, SPDK; without: more pieces for a device to gather",
                 "" if count else "sysctl vm.nr_hugepages=1024")  # fmt: skip


def _torch(folder: Path) -> Check:
    purpose = "the torch kernel; the numpy kernel needs nothing"
    if (version := _distribution("torch")) is not None:
        return Check("torch", "ok", version, purpose)
    return Check("torch", "missing", "not installed", purpose, "pip install 'offstage[host]'")


def _cuda(folder: Path) -> Check:
    version = _read(Path("/proc/driver/nvidia/version")).splitlines()
    if version and any(Path("/dev").glob("nvidia[0-9]*")):
        return Check("CUDA", "ok", version[0].strip(), "kernels on a GPU")
    return Check("CUDA", "missing", "no NVIDIA device", "kernels on a GPU",
                 "a GPU and its driver; the CPU kernels run without")  # fmt: skip


def _rdma(folder: Path) -> Check:
    found = _names(Path("/sys/class/infiniband"))
    mend = "soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev IF"
    return Check("RDMA devices", "ok" if found else "missing", ", ".join(found) or "none",
                 "one-sided reads between machines", "" if found else mend)  # fmt: skip


def _pyverbs(folder: Path) -> Check:
    found = importlib.util.find_spec("pyverbs") is not None
    return Check("pyverbs", "ok" if found else "missing", "found" if found else "not installed",
                 "the verbs fabric",
                 "" if found else "apt-get install python3-pyverbs rdma-core")  # fmt: skip


def _spdk(folder: Path) -> Check:
    version = _pkg_config("spdk_nvme")
    return Check("SPDK", "ok" if version is not None else "missing", version or "not found",
                 "NVMe drives without the kernel",
                 "" if version is not None
                 else "build SPDK (spdk.io) and put its pkgconfig on PKG_CONFIG_PATH")  # fmt: skip


def _nvme(folder: Path) -> Check:
    found = _names(Path("/sys/class/nvme"))
    return Check("NVMe drives", "ok" if found else "missing", ", ".join(found) or "none",
                 "measured runs on a real drive",
                 "" if found else "none needed: a file or an emulated drive serves")  # fmt: skip


def _fio(folder: Path) -> Check:
    return _tool("fio", ("fio",), "the reference of `offstage bench storage`", "fio")


def _chromium(folder: Path) -> Check:
    names = ("chromium", "chromium-browser", "google-chrome")
    return _tool("chromium", names, "tests of the report's page", "chromium")


def _tool(name: str, commands: tuple[str, ...], purpose: str, package: str) -> Check:
    path = next((found for command in commands if (found := shutil.which(command))), None)
    if path is not None:
        return Check(name, "ok", path, purpose)
    return Check(name, "missing", "not installed", purpose, f"apt-get install {package}")


def _opened(folder: Path, direct: bool) -> tuple[State, str]:
    """Whether a small file opens with io_uring, and if not the reason."""
    try:
        from offstage.bindings.storage import Storage, StorageConfig

        with tempfile.TemporaryDirectory(dir=folder, prefix=".offstage-doctor-") as scratch:
            file = Path(scratch) / "store"
            file.write_bytes(bytes(1 << 20))
            with Storage(StorageConfig("auto", str(file), direct=direct)) as storage:
                if storage.name == "io_uring":
                    return "ok", "works"
                return "missing", storage.warning or f"{storage.name} was chosen instead"
    except OffstageError as error:
        return "missing", error.what
    except OSError as error:
        return "missing", f"{folder}: {error.strerror}"


def _pkg_config(package: str) -> str | None:
    try:
        done = subprocess.run(
            ["pkg-config", "--modversion", package], capture_output=True, text=True, check=False,
            timeout=PKG_CONFIG_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _distribution(name: str) -> str | None:
    """The installed version, without importing what may take seconds to import."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CHECKS: tuple[Callable[[Path], Check], ...] = (
    _python, _firmware, _cores, _memory, _disk, _direct, _io_uring, _liburing, _xxhash, _memlock,
    _hugepages, _nvme, _spdk, _torch, _cuda, _rdma, _pyverbs, _fio, _chromium,
)  # fmt: skip


MARKS = {
    "ok": ("ok", "green"),
    "missing": ("missing", "yellow"),
    "required": ("needed", "bold red"),
}


def register(app: typer.Typer) -> None:
    """Add `offstage doctor`."""
    app.command()(doctor)


def doctor(
    folder: Annotated[
        Path, typer.Option("--out", help="where stores would be written: its disk is looked at")
    ] = Path(),
    form: FormatOption = Format.text,
) -> None:
    """Look at this machine; exit 1 where something is missing that nothing runs without."""
    if not folder.is_dir():
        raise BadInput("no such folder", str(folder), "make it, or name another --out")
    checks = examine(folder.resolve())
    emit(to_dict(checks), form, drawn(checks))
    if not to_dict(checks)["ready"]:
        raise typer.Exit(1)


def drawn(checks: list[Check]) -> Table:
    """One row per check: what was found, what it is for, and under it the mend."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        word, style = MARKS[check.state]
        found = Text.assemble(check.found, (f"  ({check.purpose})", "dim"))
        if check.mend:
            found.append(f"\n→ {check.mend}", style="cyan")
        table.add_row(Text(word, style=style), check.name, found)
    return table
