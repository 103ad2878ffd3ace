"""Is each state of a machine recognised, with its fix? The machines here are folders."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from offstage.dpu.storage.drives import Drive
from offstage.testbeds.doctor import Check, Machine, hardware
from offstage.testbeds.doctor.check import Repair
from offstage.testbeds.doctor.hardware import GPU_CHECKS, HARDWARE
from offstage.testbeds.doctor.kernel import KERNEL

CHECKS = {check.__name__: check for check in (*KERNEL, *HARDWARE, *GPU_CHECKS)}
MEMINFO = (
    "MemTotal: {total} kB\nMemAvailable: {total} kB\nHugePages_Total: {pages}\n"
    "HugePages_Free: {pages}\nHugepagesize: 2048 kB\n"
)
CLOCK = "sys/devices/system/clocksource/clocksource0"
PORT = "sys/class/infiniband/mlx5_0/ports/1"
GID_V1, GID_V2 = (
    "fe80:0000:0000:0000:0200:00ff:fe00:0001",
    "0000:0000:0000:0000:0000:ffff:0a00:0001",
)
GPU = "proc/driver/nvidia"

Files = dict[str, str]


def modules(*names: str) -> Files:
    """A kernel with these modules available."""
    listed = "".join(f"kernel/drivers/{name}.ko.xz:\n" for name in names)
    return {"proc/sys/kernel/osrelease": "6.1.0", "lib/modules/6.1.0/modules.dep": listed}


def roce(mtu: int = 9000, state: str = "4: ACTIVE", gids: bool = True) -> Files:
    """One RoCE port with a GID of each type."""
    files = {
        f"{PORT}/state": state,
        f"{PORT}/link_layer": "Ethernet",
        f"{PORT}/rate": "100 Gb/sec (4X EDR)",
        f"{PORT}/gid_attrs/ndevs/0": "eth0",
        "sys/class/net/eth0/mtu": str(mtu),
    }
    for index, gid, kind in (
        (0, GID_V1, "IB/RoCE v1"),
        (1, GID_V1, "RoCE v2"),
        (2, GID_V2, "RoCE v1"),
        (3, GID_V2, "RoCE v2"),
    ):
        files[f"{PORT}/gids/{index}"] = gid if gids else ":".join(["0000"] * 8)
        files[f"{PORT}/gid_attrs/types/{index}"] = kind
        files[f"{PORT}/gid_attrs/ndevs/{index}"] = "eth0"
    return files


def drive(number: int, **more: str) -> Files:
    name = f"nvme{number}n1"
    folder = f"sys/class/block/{name}"
    return {
        f"{folder}/size": str((1 << 40) // 512),
        f"{folder}/dev": f"259:{number}",
        f"{folder}/device/model": "Model 9000",
        f"dev/{name}": "",
        **more,
    }


def limits(soft: str, capable: bool = False) -> Files:
    return {
        "proc/self/limits": f"Max locked memory         {soft}              unlimited    bytes",
        "proc/self/status": f"CapEff:\t{'0000000000004000' if capable else '0000000000000000'}",
    }


def two_adapters() -> Files:
    """Two equal RoCE adapters."""
    return roce() | {path.replace("mlx5_0", "mlx5_1"): text for path, text in roce().items()}


Row = tuple[str, str, Files, str, str, str]
ROWS: list[Row] = [
    # check, what, files, state, part of what was found, part of the fix
    ("_cpu", "wide", {"proc/cpuinfo": "flags : fpu avx2 avx512f"}, "ok", "avx2, avx512f", ""),
    ("_cpu", "arm", {"proc/cpuinfo": "Features : fp asimd"}, "ok", "asimd", ""),
    ("_cpu", "narrow", {"proc/cpuinfo": "flags : fpu sse2"}, "missing", "neither", "-cpu host"),
    ("_clock", "fast", {f"{CLOCK}/current_clocksource": "tsc"}, "ok", "tsc", ""),
    (
        "_clock",
        "slow, tsc offered",
        {f"{CLOCK}/current_clocksource": "hpet", f"{CLOCK}/available_clocksource": "hpet tsc"},
        "missing",
        "hpet: slow",
        f"echo tsc > /{CLOCK}/current_clocksource",
    ),
    (
        "_clock",
        "slow",
        {f"{CLOCK}/current_clocksource": "hpet"},
        "missing",
        "hpet",
        "invariant TSC",
    ),
    (
        "_memory",
        "enough",
        {"proc/meminfo": MEMINFO.format(total=8 << 20, pages=0)},
        "ok",
        "8 GiB",
        "",
    ),
    (
        "_memory",
        "little",
        {"proc/meminfo": MEMINFO.format(total=2 << 20, pages=0)},
        "missing",
        "2 GiB",
        "--sessions",
    ),
    (
        "_memory",
        "little by a container's limit",
        {
            "proc/meminfo": MEMINFO.format(total=8 << 20, pages=0),
            "sys/fs/cgroup/memory.max": str(1 << 30),
        },
        "missing",
        "1 GiB",
        "--sessions",
    ),
    ("_memlock", "unlimited", limits("unlimited"), "ok", "unlimited", ""),
    ("_memlock", "enough", limits(str(64 << 20)), "ok", "64 MiB", ""),
    ("_memlock", "low", limits(str(8 << 20)), "missing", "8 MiB", "ulimit -l unlimited"),
    ("_memlock", "low, and lifted", limits("65536", capable=True), "ok", "CAP_IPC_LOCK", ""),
    (
        "_hugepages",
        "some",
        {"proc/meminfo": MEMINFO.format(total=8 << 20, pages=512)},
        "ok",
        "512 reserved, 512 free",
        "",
    ),
    (
        "_hugepages",
        "none",
        {"proc/meminfo": MEMINFO.format(total=80 << 20, pages=0), "proc/sys/vm/nr_hugepages": "0"},
        "missing",
        "0 reserved",
        "sysctl vm.nr_hugepages=1024",
    ),
    (
        "_hugepages",
        "none, of little memory",
        {"proc/meminfo": MEMINFO.format(total=1 << 20, pages=0), "proc/sys/vm/nr_hugepages": "0"},
        "missing",
        "0 reserved",
        "sysctl vm.nr_hugepages=128",
    ),
    ("_hugepages", "impossible", {}, "missing", "transparent: none", "CONFIG_HUGETLBFS"),
    (
        "_iommu",
        "on",
        {"sys/class/iommu/dmar0": "", "sys/kernel/iommu_groups/0/type": ""},
        "ok",
        "dmar0; 1 groups",
        "",
    ),
    (
        "_iommu",
        "unused",
        {"sys/class/iommu/dmar0": ""},
        "missing",
        "without groups",
        "intel_iommu=on",
    ),
    ("_iommu", "off", {}, "missing", "none", "intel_iommu=on"),
    (
        "_vfio",
        "bound",
        {
            "sys/bus/pci/drivers/vfio-pci/0000:01:00.0": "",
            "sys/bus/pci/drivers/vfio-pci/new_id": "",
            "dev/vfio/vfio": "",
        },
        "ok",
        "bound: 0000:01:00.0",
        "",
    ),
    (
        "_vfio",
        "loaded",
        {"sys/bus/pci/drivers/vfio-pci/new_id": "", "dev/vfio/vfio": ""},
        "ok",
        "bound: nothing",
        "",
    ),
    (
        "_vfio",
        "loadable",
        modules("vfio/pci/vfio-pci"),
        "missing",
        "not loaded",
        "modprobe vfio-pci",
    ),
    ("_vfio", "absent", modules(), "missing", "not in this kernel", "CONFIG_VFIO_PCI"),
    ("_nvme", "none", {}, "missing", "none", "none needed"),
    ("_nvme", "free", drive(0), "ok", "nvme0n1 (Model 9000, 1 TiB): free", ""),
    (
        "_nvme",
        "one of two",
        {**drive(0), **drive(1), "dev/nvme1n1": "XFSB"},
        "ok",
        "nvme1n1 (Model 9000, 1 TiB): REFUSED: carries an XFS file system",
        "",
    ),
    (
        "_nvme",
        "all carry something",
        drive(0, **{"dev/nvme0n1": "XFSB"}),
        "missing",
        "REFUSED: carries an XFS",
        "separate drive",
    ),
    ("_nvme", "store", drive(0, **{"dev/nvme0n1": "OFSTORE1"}), "ok", "holds a store", ""),
    ("_rdma", "none", {}, "missing", "no soft-RoCE", "CONFIG_RDMA_RXE"),
    (
        "_rdma",
        "soft-RoCE loadable",
        modules("infiniband/sw/rxe/rdma_rxe"),
        "missing",
        "none",
        "modprobe rdma_rxe",
    ),
    (
        "_rdma",
        "soft-RoCE without link",
        {"sys/module/rdma_rxe/refcnt": ""},
        "missing",
        "rdma_rxe is loaded",
        "rdma link add",
    ),
    (
        "_rdma",
        "good",
        roce(),
        "ok",
        f"mlx5_0 port 1: ACTIVE, Ethernet, 100 Gb/sec (4X EDR), "
        f"GID 3 {GID_V2}, RoCE v2, MTU 4096 on eth0",
        "",
    ),
    ("_rdma", "several", two_adapters(), "missing", "rdma_cm alone knows", "modprobe rdma_ucm"),
    (
        "_rdma",
        "several, and who knows which",
        two_adapters() | {"dev/infiniband/rdma_cm": ""},
        "ok",
        "mlx5_1 port 1",
        "",
    ),
    (
        "_rdma",
        "small packets",
        roce(1500),
        "missing",
        "MTU 1024 on eth0",
        "ip link set eth0 mtu 9000",
    ),
    ("_rdma", "down", roce(state="1: DOWN"), "missing", "DOWN", "ip link set eth0 up"),
    ("_rdma", "no GID", roce(gids=False), "missing", "no GID", "give it an address"),
    (
        "_rdma",
        "InfiniBand without manager",
        {f"{PORT}/state": "2: INIT", f"{PORT}/link_layer": "InfiniBand", f"{PORT}/gids/0": GID_V1},
        "missing",
        "INIT",
        "opensm",
    ),
    (
        "_rdma",
        "InfiniBand",
        {
            f"{PORT}/state": "4: ACTIVE",
            f"{PORT}/link_layer": "InfiniBand",
            f"{PORT}/gids/0": GID_V1,
        },
        "ok",
        f"GID 0 {GID_V1}",
        "",
    ),
    ("_gpu", "none", {}, "missing", "no NVIDIA device", "CPU kernels"),
    (
        "_gpu",
        "good",
        {
            f"{GPU}/version": "NVRM version: 580.1\nGCC",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            f"{GPU}/gpus/0000:01:00.0/information": "Model: \t NVIDIA H200\n",
        },
        "ok",
        "NVIDIA H200; NVRM version: 580.1",
        "",
    ),
    (
        "_gpu",
        "driver without devices",
        {f"{GPU}/version": "NVRM version: 580.1"},
        "missing",
        "without devices",
        "--gpus all",
    ),
    (
        "_gpu",
        "card without driver",
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
        },
        "missing",
        "0000:01:00.0 without a driver",
        "nvidia-driver",
    ),
    ("_gpudirect", "no driver", {}, "missing", "no NVIDIA driver", "host memory"),
    (
        "_gpudirect",
        "good",
        {f"{GPU}/version": "", "sys/module/nvidia_peermem/refcnt": ""},
        "ok",
        "nvidia_peermem",
        "",
    ),
    (
        "_gpudirect",
        "not loaded",
        {f"{GPU}/version": ""},
        "missing",
        "no module",
        "modprobe nvidia-peermem",
    ),
]


def given(root: Path, files: Files) -> Machine:
    """A machine made of these files."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Machine(root, root)


@pytest.mark.parametrize(
    ("name", "what", "files", "state", "found", "fix"),
    ROWS,
    ids=[f"{row[0].lstrip('_')}: {row[1]}" for row in ROWS],
)
def test_each_state_says_what_is_there_and_what_fixes_it(
    name: str, what: str, files: Files, state: str, found: str, fix: str, tmp_path: Path
) -> None:
    check = CHECKS[name](given(tmp_path, files))
    assert check.state == state and found in check.found, check
    assert (fix in check.fix) if fix else check.fix == "", check
    assert check.purpose


def test_every_check_of_a_device_is_seen_in_more_than_one_state() -> None:
    """Without a row above, a check would only ever run on its author's machine."""
    always = {"_cores", "_disk", "_direct", "_io_uring", "_transfers"}  # these examine this machine
    for name in set(CHECKS) - always:
        assert {row[3] for row in ROWS if row[0] == name} == {"ok", "missing"}, name


@pytest.mark.parametrize(
    ("name", "files", "repairs"),
    [
        (
            "_hugepages",
            {
                "proc/meminfo": MEMINFO.format(total=1 << 20, pages=0),
                "proc/sys/vm/nr_hugepages": "0",
            },
            [Repair("/proc/sys/vm/nr_hugepages", "128")],
        ),
        (
            "_hugepages",
            {
                "proc/meminfo": MEMINFO.format(total=1 << 20, pages=4),
                "proc/sys/vm/nr_hugepages": "4",
            },
            [],
        ),
        ("_vfio", modules("vfio/pci/vfio-pci"), [Repair("", "vfio-pci")]),
        ("_vfio", modules(), []),
        ("_rdma", modules("rdma_rxe"), [Repair("", "rdma_rxe")]),
        ("_rdma", two_adapters() | modules("rdma_ucm"), [Repair("", "rdma_ucm")]),
        ("_rdma", two_adapters(), []),
        (
            "_gpudirect",
            {f"{GPU}/version": "", **modules("nvidia-peermem")},
            [Repair("", "nvidia-peermem")],
        ),
        ("_nvme", drive(0, **{"dev/nvme0n1": "XFSB"}), []),
    ],
)
def test_only_what_is_safe_has_a_repair(
    name: str, files: Files, repairs: list[Repair], tmp_path: Path
) -> None:
    """Never a drive, and never more huge pages than a quarter of free memory."""
    check: Callable[[Machine], Check] = CHECKS[name]
    assert list(check(given(tmp_path, files)).repairs) == repairs


def test_a_drive_is_told_to_programs_too(tmp_path: Path) -> None:
    check = CHECKS["_nvme"](given(tmp_path, drive(0, **{"dev/nvme0n1": "XFSB"})))
    (one,) = check.details
    assert isinstance(one, Drive)
    assert one.path == "/dev/nvme0n1" and one.refused == "carries an XFS file system"


@pytest.mark.parametrize(
    ("printed", "error", "code", "state", "found"),
    [
        (
            [
                {"name": "batch", "bytes_per_s": 52e9, "share": 0.97, "reason": ""},
                {"name": "gather", "bytes_per_s": 0, "share": 0, "reason": "cupy is not installed"},
            ],
            "",
            0,
            "ok",
            "batch 52 GB/s, 97% of one large copy (taken); gather: cupy is not",
        ),
        ([], "RuntimeError: the driver is too old", 1, "missing", "cuda: RuntimeError: the driver"),
    ],
)
def test_transfers_are_measured_and_the_fastest_is_marked(
    printed: list[dict[str, object]],
    error: str,
    code: int,
    state: str,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a driver they are measured on its device; a failure there gives one line."""
    asked: list[str] = []

    def told(words: list[str]) -> subprocess.CompletedProcess[str]:
        asked.extend(words)
        return subprocess.CompletedProcess(words, code, json.dumps(printed), error)

    monkeypatch.setattr(hardware, "run_quietly", told)
    check = CHECKS["_transfers"](given(tmp_path, {f"{GPU}/version": "580"}))
    assert asked[-1] == "cuda" and check.state == state and found in check.found
    assert bool(check.fix) == bool(code)
