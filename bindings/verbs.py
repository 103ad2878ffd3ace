"""RDMA: the `verbs` side of the fabric seam, in a separate extension, and the adapter it uses.

`prepare` opens the adapter that a `Rdma` names and adds the side to the firmware, once in a
process; from then on the daemon attaches hosts over "verbs", and a host's `Driver` opens the blob
of such an attach. Contract: verbs.h and side.h.

What can fail: `Incompatible` where the extension was not built, `BadInput` for an absent adapter,
GID or MTU, or a limit on locked memory that is too low.
"""

import errno
import ipaddress
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings import firmware
from offstage.bindings.errors import BadInput, Incompatible, OffstageError

__all__ = ["Adapter", "Rdma", "by_route", "check_memlock", "parse_rdma", "prepare"]

GID_AUTO = -1
ERROR_SIZE = 512
PARTS = {"gid": range(GID_AUTO, 1 << 16), "mtu": range(4097)}
"""What an adapter's index of a GID and its MTU may be; whether this one has them it says itself."""
CAP_IPC_LOCK = 14  # of linux/capability.h


@dataclass(frozen=True)
class Rdma:
    """Which adapter: as in the configuration. Defaults: the first active port, its best GID (RoCE
    v2, IPv4 first), and the MTU that its link carries."""

    device: str = ""
    port: int = 0
    gid_index: int = GID_AUTO
    mtu_bytes: int = 0


def parse_rdma(text: str) -> Rdma:
    """An adapter as a command line names it: `rxe0,gid=1,mtu=1024`, each part optional."""
    numbers: dict[str, int] = {}
    device = ""
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals and not device:
            device = key
        elif value.removeprefix("-").isdecimal() and int(value) in PARTS.get(key, ()):
            numbers[key] = int(value)
        else:
            raise BadInput(
                f"{part!r} is not part of an adapter's name",
                "--rdma",
                "write DEVICE,gid=INDEX,mtu=BYTES",
            )
    return Rdma(device, 0, numbers.get("gid", GID_AUTO), numbers.get("mtu", 0))


@dataclass(frozen=True)
class Adapter:
    """What was opened."""

    device: str
    port: int
    gid_index: int
    gid: str
    mtu_bytes: int


def prepare(rdma: Rdma, where: str = "rdma") -> Adapter:
    """Open it, and let the firmware know the side. Where what is open is what is asked for, nothing
    happens."""
    ffi, lib = _extension()
    config: Any = ffi.new("struct ofs_verbs_config *")
    config.device = rdma.device.encode()[: lib.OFS_VERBS_NAME_SIZE_BYTES - 1]
    config.port, config.gid_index, config.mtu_bytes = rdma.port, rdma.gid_index, rdma.mtu_bytes
    error: Any = ffi.new("char[]", ERROR_SIZE)
    services = int(firmware.ffi.cast("uintptr_t", firmware.lib.ofs_services_get()))
    rc = lib.ofs_verbs_open(config, ffi.cast("void *", services), error, ERROR_SIZE)
    if rc < 0:
        text: Any = ffi.string(error)
        what, _, fix = text.decode(errors="replace").partition("; ")
        kind: type[OffstageError] = Incompatible if rc == -errno.EPROTO else BadInput
        raise kind(what or "the RDMA device does not open", where, fix, errno=-rc)
    side = int(ffi.cast("uintptr_t", lib.ofs_verbs_side()))
    rc = firmware.lib.ofs_fabric_add(firmware.ffi.cast("struct ofs_fabric_side *", side))
    if rc != -errno.EEXIST:
        firmware.check_rc(
            rc,
            "adding the verbs fabric",
            where,
            "in a checkout run `make dev`, elsewhere reinstall offstage",
        )
    return _adapter(ffi, lib)


def by_route(blob: bytes, rdma: Rdma) -> Rdma:
    """`rdma`, and where it names no adapter the one from which the daemon of this attach is
    reached, as the kernel routes. It stays as it is where rdma_cm is not there, or knows no way."""
    if rdma.device or rdma.port or rdma.gid_index != GID_AUTO:
        return rdma
    ffi, lib = _extension()
    found: Any = ffi.new("struct ofs_verbs_config *")
    if lib.ofs_verbs_route(ffi.from_buffer(blob), len(blob), found) != 0:
        return rdma
    name: Any = ffi.string(found.device)
    return Rdma(name.decode(), int(found.port), int(found.gid_index), rdma.mtu_bytes)


def check_memlock(size_bytes: int, where: str = "rdma") -> None:
    """BadInput where the process may not lock so much memory: RDMA pins what it reaches."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    capable = int(status.split("CapEff:")[1].split()[0], 16) >> CAP_IPC_LOCK & 1
    if soft != resource.RLIM_INFINITY and soft < size_bytes and not capable:
        raise BadInput(
            f"memlock is {soft >> 10} KiB, and RDMA pins {size_bytes >> 10} KiB",
            where,
            "ulimit -l unlimited; in a systemd unit LimitMEMLOCK=infinity",
        )


def _extension() -> tuple[Any, Any]:
    try:
        from offstage.bindings._verbs import ffi, lib
    except ImportError as error:
        what = f"the verbs extension does not load ({error})"
        fix = "apt-get install libibverbs1 librdmacm1 ibverbs-providers"
        if isinstance(error, ModuleNotFoundError):
            what = f"the verbs extension is missing ({error})"
            fix = "apt-get install libibverbs-dev, then build it again (in a checkout `make dev`)"
        raise Incompatible(what, "fabric verbs", fix) from None
    if lib.ofs_verbs_version() != firmware.ABI_VERSION:
        raise Incompatible(
            f"the verbs extension has ABI {lib.ofs_verbs_version()}, this release needs "
            f"{firmware.ABI_VERSION}",
            "fabric verbs",
            "in a checkout run `make dev`, elsewhere reinstall offstage",
        )
    return ffi, lib


def _adapter(ffi: Any, lib: Any) -> Adapter:
    opened: Any = ffi.new("struct ofs_verbs_adapter *")
    firmware.check_rc(lib.ofs_verbs_adapter_get(opened), "looking at the RDMA device", "rdma")
    name: Any = ffi.string(opened.device)
    gid = ipaddress.IPv6Address(bytes(opened.gid))
    return Adapter(
        name.decode(),
        int(opened.port),
        int(opened.gid_index),
        str(gid.ipv4_mapped or gid),
        int(opened.mtu_bytes),
    )
