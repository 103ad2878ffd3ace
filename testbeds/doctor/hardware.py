"""The devices that Offstage drives: NVMe drives, RDMA devices, GPUs.

The MTU of a RoCE port is not in /sys; it follows from the network interface's by the rule of the
kernel's drivers: the largest of 256 to 4096 that fits together with the headers.
"""

import sys
from collections.abc import Callable, Iterator

from offstage.bindings.errors import RunFailed
from offstage.bindings.outside import last_line, said_json
from offstage.bindings.units import format_rate, format_size
from offstage.dpu.storage.drives import Drive, drives
from offstage.host.arrays.fastest_transfer import Measured
from offstage.testbeds.doctor.check import Check, Machine, RdmaPort, Repair, run_quietly

__all__ = ["GPU_CHECKS", "HARDWARE"]

ROCE_HEADERS_BYTES = 96  # include/rdma/ib_addr.h, iboe_get_mtu: GRH, UDP, BTH, XRC, atomic, ICRC
RDMA_MTUS = (4096, 2048, 1024, 512, 256)
GID_NONE = "0000:0000:0000:0000:0000:0000:0000:0000"
GID_LINK_LOCAL = "fe80:"
GPU_MODULES = ("nvidia_peermem", "nvidia_fs")


def _nvme(machine: Machine) -> Check:
    purpose = "measured runs on a real drive, by io_uring or SPDK"
    found = drives(machine.root)
    if not found:
        return Check(
            "NVMe drives",
            "missing",
            "none",
            purpose,
            "none needed: a file or an emulated drive serves",
        )
    shown = "; ".join(_drive(one) for one in found)
    if any(not one.refused for one in found):
        return Check("NVMe drives", "ok", shown, purpose, details=tuple(found))
    return Check(
        "NVMe drives",
        "missing",
        shown,
        purpose,
        "give Offstage a separate drive; it does not use one that contains data "
        "(its owner may clear it: wipefs --all /dev/NAME)",
        details=tuple(found),
    )


def _drive(one: Drive) -> str:
    told = ", ".join(
        word
        for word in (
            one.model,
            one.address if one.address != one.name else "",
            format_size(one.size_bytes) if one.size_bytes else "",
            f"driver {one.driver}" if one.driver not in ("", "nvme") else "",
        )
        if word
    )
    end = f"REFUSED: {one.refused}" if one.refused else "holds a store" if one.store else "free"
    return f"{one.name} ({told}): {end}" if told else f"{one.name}: {end}"


def _rdma(machine: Machine) -> Check:
    purpose = "the verbs fabric: one-sided reads between machines"
    ports = [
        port for name in machine.names("sys/class/infiniband") for port in _ports(machine, name)
    ]
    if not ports:
        return _no_rdma(machine, purpose)
    shown, details = "; ".join(_port(one) for one in ports), tuple(ports)
    usable = [one for one in ports if one.state == "ACTIVE" and one.gid]
    if not usable:
        first = ports[0]
        fix = (
            f"ip link set {first.netdev} up, and give it an address"
            if first.netdev
            else "connect the port, and run a subnet manager (opensm)"
        )
        return Check("RDMA devices", "missing", shown, purpose, fix, details=details)
    narrow = [one for one in usable if one.netdev and one.mtu_bytes < RDMA_MTUS[0]]
    if len(narrow) == len(usable):
        return Check(
            "RDMA devices",
            "missing",
            f"{shown}: small packets",
            purpose,
            f"ip link set {narrow[0].netdev} mtu 9000, at both ends",
            details=details,
        )
    several = len({one.device for one in usable}) > 1
    if several and not machine.exists("dev/infiniband/rdma_cm"):
        repairs = (Repair("", "rdma_ucm"),) if machine.loadable("rdma_ucm") else ()
        return Check(
            "RDMA devices",
            "missing",
            f"{shown}: rdma_cm alone knows which leads to a daemon",
            purpose,
            "modprobe rdma_ucm, or name one: --rdma DEVICE",
            repairs,
            details,
        )
    return Check("RDMA devices", "ok", shown, purpose, details=details)


def _no_rdma(machine: Machine, purpose: str) -> Check:
    fix = "soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev IF"
    if machine.module("rdma_rxe"):
        return Check(
            "RDMA devices",
            "missing",
            "none; rdma_rxe is loaded",
            purpose,
            "rdma link add rxe0 type rxe netdev IF",
        )
    if machine.loadable("rdma_rxe"):
        return Check("RDMA devices", "missing", "none", purpose, fix, (Repair("", "rdma_rxe"),))
    return Check(
        "RDMA devices",
        "missing",
        "none, and no soft-RoCE in this kernel",
        purpose,
        "a RoCE or InfiniBand NIC, or a kernel with CONFIG_RDMA_RXE",
    )


def _ports(machine: Machine, name: str) -> Iterator[RdmaPort]:
    base = f"sys/class/infiniband/{name}/ports"
    for number in machine.names(base):
        folder = f"{base}/{number}"
        gid, index, kind, netdev = _gid(machine, folder)
        mtu = machine.read(f"sys/class/net/{netdev}/mtu") if netdev else ""
        yield RdmaPort(
            device=name,
            port=number,
            state=machine.read(f"{folder}/state").rpartition(":")[2].strip() or "unknown",
            link=machine.read(f"{folder}/link_layer"),
            rate=machine.read(f"{folder}/rate"),
            gid=gid,
            gid_index=index,
            gid_type=kind,
            netdev=netdev,
            mtu_bytes=_roce_mtu(int(mtu)) if mtu.isdigit() else 0,
        )


def _gid(machine: Machine, folder: str) -> tuple[str, int, str, str]:
    """The GID to use: RoCE v2 before v1, a routable address before the link's own."""
    found = []
    for index in sorted(int(name) for name in machine.names(f"{folder}/gids") if name.isdigit()):
        gid = machine.read(f"{folder}/gids/{index}")
        if gid and gid != GID_NONE:
            kind = machine.read(f"{folder}/gid_attrs/types/{index}")
            rank = ("v2" not in kind, gid.startswith(GID_LINK_LOCAL), index)
            found.append((rank, gid, kind, machine.read(f"{folder}/gid_attrs/ndevs/{index}")))
    if not found:
        return "", -1, "", machine.read(f"{folder}/gid_attrs/ndevs/0")
    rank, gid, kind, netdev = min(found)
    return gid, rank[2], kind, netdev


def _roce_mtu(interface_bytes: int) -> int:
    room = interface_bytes - ROCE_HEADERS_BYTES
    return next((mtu for mtu in RDMA_MTUS if mtu <= room), 0)


def _port(one: RdmaPort) -> str:
    gid = f"GID {one.gid_index} {one.gid}" if one.gid else "no GID"
    words = [one.state, one.link, one.rate, gid, one.gid_type]
    if one.netdev:
        words.append(f"MTU {one.mtu_bytes or 'unknown'} on {one.netdev}")
    return f"{one.device} port {one.port}: {', '.join(word for word in words if word)}"


def _gpu(machine: Machine) -> Check:
    purpose = "kernels and an HBM pool on a GPU (--device cuda)"
    driver = machine.read("proc/driver/nvidia/version").splitlines()[:1]
    cards = [name for name in machine.names("dev") if name[:6] == "nvidia" and name[6:].isdigit()]
    if driver and cards:
        models = [_model(machine, name) for name in machine.names("proc/driver/nvidia/gpus")]
        found = f"{', '.join(models) or ', '.join(cards)}; {driver[0].strip()}"
        return Check("GPU", "ok", found, purpose)
    if driver:
        return Check(
            "GPU",
            "missing",
            "a driver without devices in /dev",
            purpose,
            "nvidia-modprobe -u -c 0; in a container: --gpus all",
        )
    displays = [
        address
        for address in machine.names("sys/bus/pci/devices")
        if machine.read(f"sys/bus/pci/devices/{address}/vendor") == "0x10de"
        and machine.read(f"sys/bus/pci/devices/{address}/class")[:4] == "0x03"
    ]
    if displays:
        return Check(
            "GPU",
            "missing",
            f"{', '.join(displays)} without a driver",
            purpose,
            "apt-get install nvidia-driver",
        )
    return Check(
        "GPU",
        "missing",
        "no NVIDIA device",
        purpose,
        "a GPU and its driver; the CPU kernels run without",
    )


def _model(machine: Machine, address: str) -> str:
    for line in machine.read(f"proc/driver/nvidia/gpus/{address}/information").splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return address


def _gpudirect(machine: Machine) -> Check:
    purpose = "a NIC or a drive that reads and writes GPU memory itself"
    if not machine.exists("proc/driver/nvidia/version"):
        return Check(
            "GPUDirect",
            "missing",
            "no NVIDIA driver",
            purpose,
            "a GPU and its driver; copies through host memory serve",
        )
    loaded = [name for name in GPU_MODULES if machine.module(name)]
    if loaded:
        return Check("GPUDirect", "ok", ", ".join(loaded), purpose)
    repairs = (Repair("", "nvidia-peermem"),) if machine.loadable("nvidia_peermem") else ()
    return Check(
        "GPUDirect", "missing", "no module loaded", purpose, "modprobe nvidia-peermem", repairs
    )


def _transfers(machine: Machine) -> Check:
    """Measured now, in a separate process, which may crash."""
    purpose = "how fetched blocks reach the HBM pool; the fastest is taken"
    device = "cuda" if machine.exists("proc/driver/nvidia/version") else "cpu"
    done = run_quietly([sys.executable, "-m", "offstage.host.arrays.fastest_transfer", device])
    fix = "pip install a torch that is built for this driver's CUDA"
    try:
        if done is None or done.returncode:
            raise RunFailed(last_line(done.stderr) if done else "it hangs")
        rows = said_json(done.stdout, done.stderr, "", "", list[Measured])
    except RunFailed as error:
        return Check(
            "transfers", "missing", f"not measured on {device}: {error.what}", purpose, fix
        )
    best = max(rows, key=lambda one: one.bytes_per_s, default=Measured("none")).name
    shown = "; ".join(_transfer(one, best) for one in rows)
    note = "" if device == "cuda" else ": the HBM pool is host memory, without a GPU"
    return Check("transfers", "ok", f"{shown}{note}", purpose, details=tuple(rows))


def _transfer(one: Measured, best: str) -> str:
    if one.reason:
        return f"{one.name}: {one.reason}"
    taken = " (taken)" if one.name == best else ""
    return f"{one.name} {format_rate(one.bytes_per_s)}, {one.share:.0%} of one large copy{taken}"


HARDWARE: tuple[Callable[[Machine], Check], ...] = (_nvme, _rdma)
GPU_CHECKS: tuple[Callable[[Machine], Check], ...] = (_gpu, _gpudirect, _transfers)
