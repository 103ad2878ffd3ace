"""What kernel and limits allow: cores, memory, io_uring, clock, IOMMU, stores' disk."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from offstage.bindings.errors import OffstageError
from offstage.bindings.units import format_size
from offstage.testbeds.doctor.check import Check, Machine, Repair, State

__all__ = ["KERNEL"]

CORES_MIN = 2
MEMORY_BYTES_MIN = 4 << 30
DISK_BYTES_MIN = 3 << 30
MEMLOCK_BYTES_MIN = 64 << 20
CAP_IPC_LOCK = 1 << 14  # capability.h
HUGE_PAGE_BYTES = 2 << 20
HUGE_PAGES_MAX = 1024  # 2 GiB; --fix takes a quarter of the free memory at most
HUGE_PAGES_PATH = "/proc/sys/vm/nr_hugepages"
# Those that the time of one read costs a few ns, as the processors' manuals say.
CLOCKS_FAST = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
CPU_FEATURES = ("avx2", "avx512f", "asimd")


def _cores(machine: Machine) -> Check:
    count = len(os.sched_getaffinity(0))
    good = count >= CORES_MIN
    return Check(
        "cores",
        "ok" if good else "missing",
        str(count),
        "one for the host agent, one for the DPU's reactor",
        "" if good else "give it two: times of runs are wrong on one",
    )


def _cpu(machine: Machine) -> Check:
    """The processor features among which the checksums of blocks choose when the firmware loads."""
    purpose = "wide checksums of blocks; without: the same, slower"
    lines = machine.read("proc/cpuinfo").splitlines()
    flags = next(
        (
            line.partition(":")[2].split()
            for line in lines
            if line.startswith(("flags", "Features"))
        ),
        [],
    )
    used = [name for name in CPU_FEATURES if name in flags]
    if used:
        return Check("CPU features", "ok", ", ".join(used), purpose)
    return Check(
        "CPU features",
        "missing",
        "neither AVX2 nor AVX-512 nor ASIMD",
        purpose,
        "a newer processor; for a virtual machine: -cpu host",
    )


def _clock(machine: Machine) -> Check:
    purpose = "times of a run, pace of an emulated drive"
    folder = "sys/devices/system/clocksource/clocksource0"
    current = machine.read(f"{folder}/current_clocksource")
    offered = machine.read(f"{folder}/available_clocksource").split()
    if current in CLOCKS_FAST:
        return Check("clock source", "ok", current, purpose)
    better = next((name for name in CLOCKS_FAST if name in offered), None)
    fix = (
        f"echo {better} > /{folder}/current_clocksource"
        if better
        else "a machine with an invariant TSC; for a virtual one: a newer hypervisor"
    )
    return Check("clock source", "missing", f"{current or 'unknown'}: slow to read", purpose, fix)


def _memory(machine: Machine) -> Check:
    total = _meminfo(machine).get("MemTotal", 0)
    limit = machine.read("sys/fs/cgroup/memory.max")
    if limit.isdigit():
        total = min(total, int(limit))
    good = total >= MEMORY_BYTES_MIN
    return Check(
        "memory",
        "ok" if good else "missing",
        format_size(total),
        "the demo takes up to 4 GiB",
        "" if good else "lower --context-tokens or --sessions",
    )


def _memlock(machine: Machine) -> Check:
    purpose = "registered buffers of io_uring, RDMA and SPDK; regions that never swap"
    match = re.search(r"Max locked memory\s+(\S+)", machine.read("proc/self/limits"))
    soft = match[1] if match else "0"
    good = soft == "unlimited" or (soft.isdigit() and int(soft) >= MEMLOCK_BYTES_MIN)
    found = format_size(int(soft)) if soft.isdigit() else soft
    capable = re.search(r"CapEff:\s+([0-9a-f]+)", machine.read("proc/self/status"))
    if not good and capable and int(capable[1], 16) & CAP_IPC_LOCK:
        return Check("locked memory", "ok", f"{found}, lifted by CAP_IPC_LOCK", purpose)
    return Check(
        "locked memory",
        "ok" if good else "missing",
        found,
        purpose,
        "" if good else "ulimit -l unlimited, or LimitMEMLOCK=infinity",
    )


def _hugepages(machine: Machine) -> Check:
    purpose = "regions, store buffers, SPDK; without: more pieces for a device to gather"
    rows = _meminfo(machine)
    count, free = rows.get("HugePages_Total", 0), rows.get("HugePages_Free", 0)
    modes = {
        name: re.search(r"\[(.+?)\]", machine.read(f"sys/kernel/mm/transparent_hugepage/{file}"))
        for name, file in (("private", "enabled"), ("shared", "shmem_enabled"))
    }
    shown = ", ".join(f"{name} {mode[1]}" for name, mode in modes.items() if mode is not None)
    found = f"{count} reserved, {free} free; transparent: {shown or 'none'}"
    if count:
        return Check("huge pages", "ok", found, purpose)
    wanted = min(HUGE_PAGES_MAX, rows.get("MemAvailable", 0) // 4 // HUGE_PAGE_BYTES)
    able = machine.exists(HUGE_PAGES_PATH.lstrip("/")) and wanted > 0
    repairs = (Repair(HUGE_PAGES_PATH, str(wanted)),) if able else ()
    fix = (
        f"sysctl vm.nr_hugepages={wanted}"
        if able
        else "a kernel with CONFIG_HUGETLBFS and free memory"
    )
    return Check("huge pages", "missing", found, purpose, fix, repairs)


def _io_uring(machine: Machine) -> Check:
    """The firmware sets up a ring, on a file in the folder of the stores."""
    purpose = "storage io_uring; without it posix serves"
    state, found = _opened(machine.folder)
    if state == "ok":
        return Check("io_uring", state, found, purpose)
    disabled = machine.read("proc/sys/kernel/io_uring_disabled")
    if disabled in ("1", "2"):
        found = f"{found} (kernel.io_uring_disabled is {disabled})"
        return Check("io_uring", state, found, purpose, "sysctl kernel.io_uring_disabled=0")
    return Check(
        "io_uring",
        state,
        found,
        purpose,
        "build with liburing-dev; in a container: a seccomp profile that allows io_uring",
    )


def _direct(machine: Machine) -> Check:
    purpose = "measured reads that bypass the page cache"
    flag = getattr(os, "O_DIRECT", 0)
    fix = "put the store on a local disk (ext4, xfs, a block device): --out DIR"
    folder = machine.folder
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".offstage-doctor-") as file:
            os.close(os.open(file.name, os.O_RDONLY | flag))
    except OSError as error:
        found = f"refused in {folder}: {error.strerror}"
        return Check("O_DIRECT", "missing", found, purpose, fix)
    return Check("O_DIRECT", "ok", f"works in {folder}", purpose)


def _disk(machine: Machine) -> Check:
    free = shutil.disk_usage(machine.folder).free
    good = free >= DISK_BYTES_MIN
    return Check(
        "disk",
        "ok" if good else "missing",
        f"{format_size(free)} free in {machine.folder}",
        "stores of the demo and the benches",
        "" if good else f"free {format_size(DISK_BYTES_MIN)}, or give another --out",
    )


def _iommu(machine: Machine) -> Check:
    purpose = "a drive or NIC in user space (SPDK over VFIO) that reaches our memory only"
    units, groups = machine.names("sys/class/iommu"), machine.names("sys/kernel/iommu_groups")
    if units and groups:
        return Check("IOMMU", "ok", f"{', '.join(units)}; {len(groups)} groups", purpose)
    found = f"{', '.join(units)}, without groups" if units else "none"
    return Check(
        "IOMMU",
        "missing",
        found,
        purpose,
        "turn it on in the firmware's setup, and boot with intel_iommu=on (AMD: amd_iommu=on)",
    )


def _vfio(machine: Machine) -> Check:
    purpose = "storage spdk on a drive of this machine"
    driver = machine.exists("sys/bus/pci/drivers/vfio-pci")
    if driver and machine.exists("dev/vfio/vfio"):
        bound = [
            name
            for name in machine.names("sys/bus/pci/drivers/vfio-pci")
            if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", name)
        ]
        return Check("VFIO", "ok", f"vfio-pci, bound: {', '.join(bound) or 'nothing'}", purpose)
    if machine.loadable("vfio_pci"):
        return Check(
            "VFIO", "missing", "not loaded", purpose, "modprobe vfio-pci", (Repair("", "vfio-pci"),)
        )
    return Check(
        "VFIO",
        "missing",
        "not in this kernel",
        purpose,
        "a kernel with CONFIG_VFIO_PCI (Debian: linux-image-amd64)",
    )


def _opened(folder: Path) -> tuple[State, str]:
    """Whether a small file opens with io_uring, and the reason if not."""
    try:
        from offstage.bindings.storage import Storage, StorageConfig

        with tempfile.TemporaryDirectory(dir=folder, prefix=".offstage-doctor-") as scratch:
            file = Path(scratch) / "store"
            file.write_bytes(bytes(1 << 20))
            with Storage(StorageConfig("auto", str(file), direct=False)) as storage:
                if storage.name == "io_uring":
                    return "ok", "works"
                return "missing", storage.warning or f"{storage.name} was chosen instead"
    except OffstageError as error:
        return "missing", error.what
    except OSError as error:
        return "missing", f"{folder}: {error.strerror}"


def _meminfo(machine: Machine) -> dict[str, int]:
    """/proc/meminfo: values in bytes, and its plain counts."""
    rows = re.findall(r"^(\w+):\s+(\d+)( kB)?$", machine.read("proc/meminfo"), re.MULTILINE)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in rows}


KERNEL: tuple[Callable[[Machine], Check], ...] = (
    _cores,
    _cpu,
    _clock,
    _memory,
    _memlock,
    _hugepages,
    _disk,
    _direct,
    _io_uring,
    _iommu,
    _vfio,
)
