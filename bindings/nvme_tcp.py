"""The firmware's target of NVMe over TCP (nvme_tcp.h): what is asked of its caller, and answers.

One thread owns a target; `run` releases the interpreter's lock. Commands on values are moved by the
target itself, over a driver for each tenant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offstage.bindings.driver import Driver
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = [
    "CHUNK_BYTES",
    "DEPTH",
    "FINAL",
    "IN_CAPSULE_BYTES",
    "VALUE_BYTES_MAX",
    "Asked",
    "NvmeTarget",
]

VALUE_BYTES_MAX = int(lib.OFS_NVME_VALUE_BYTES_MAX)
DEPTH = int(lib.OFS_NVME_DEPTH)
IN_CAPSULE_BYTES = int(lib.OFS_NVME_IN_CAPSULE_BYTES)
CHUNK_BYTES = int(lib.OFS_NVME_CHUNK_BYTES)
FINAL = int(lib.OFS_NVME_FINAL)
"""In a status: the command is not to be repeated."""
ASKS = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that the caller answers; `ticket` 0: the connection has closed, by `rc`. `data`
    came with it; `room`: bytes that its host takes in answer."""

    connection: int
    ticket: int
    sqe: bytes
    data: bytes
    room: int
    rc: int


class NvmeTarget:
    """A target over a listening socket's descriptor, which stays the caller's."""

    def __init__(self, listener: int) -> None:
        """RunFailed: no memory, or no descriptor."""
        out: Any = ffi.new("struct ofs_nvme **")
        check_rc(lib.ofs_nvme_open(out, listener), "opening the target of NVMe/TCP")
        self._nvme: Any = out[0]
        self._asks: Any = ffi.new("struct ofs_nvme_ask[]", ASKS)

    def add_tenant(
        self, driver: Driver, value_bytes_max: int, volumes: Sequence[tuple[bytes, bool]]
    ) -> int:
        """Serve a tenant's volumes, each an NGUID and whether a store ends on the drive; its number
        here. The driver makes no other calls from now on."""
        filled: Any = ffi.new("struct ofs_nvme_volume[]", len(volumes))
        for one, (nguid, durable) in zip(filled, volumes, strict=True):
            ffi.memmove(one.nguid, nguid, 16)
            one.durable = durable
        rc = lib.ofs_nvme_tenant_add(
            self._nvme, driver.handle, value_bytes_max, filled, len(volumes)
        )
        check_rc(rc, "serving a tenant over NVMe/TCP", "[[tenant]] volumes", "list fewer volumes")
        return int(rc)

    def run(self, now_s: float, timeout_s: float) -> list[Asked]:
        """Move everything on; what is asked, after `timeout_s` at the latest."""
        count = lib.ofs_nvme_run(
            self._nvme, int(now_s * 1e9), int(timeout_s * 1e9), self._asks, ASKS
        )
        check_rc(count, "serving NVMe/TCP")
        return [
            Asked(
                int(one.connection),
                int(one.ticket),
                bytes(ffi.buffer(one.sqe)),
                bytes(ffi.buffer(one.data, one.length)) if one.length else b"",
                int(one.room),
                int(one.rc),
            )
            for one in self._asks[0:count]
        ]

    def answer(self, ticket: int, status: int, result: int = 0, data: bytes = b"") -> None:
        """End a command; nothing where its connection has closed."""
        lib.ofs_nvme_answer(self._nvme, ticket, status, result, data, len(data))

    def admit(self, connection: int, tenant: int = -1) -> None:
        """Let a connection stay; as an I/O queue of the tenant, where one is given."""
        lib.ofs_nvme_admit(self._nvme, connection, tenant)

    def hang_up(self, connection: int) -> None:
        """Close a connection, of which no ask will tell."""
        lib.ofs_nvme_hang_up(self._nvme, connection)

    def close(self) -> None:
        """Before its drivers are closed."""
        if self._nvme is not None:
            lib.ofs_nvme_close(self._nvme)
            self._nvme = None
