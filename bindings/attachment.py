"""What an attach gives a host: an opaque blob, and descriptors where host and DPU share a kernel.

The DPU's end of a fabric writes the blob and the host's end reads it; everything in between passes
it on unparsed (attach.h). The owner of an Attachment closes its descriptors.
"""

import os
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import Incompatible
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["FDS_MAX", "Attachment"]

FDS_MAX = int(lib.OFS_ATTACH_FDS_MAX)


@dataclass(frozen=True, slots=True)
class Attachment:
    """`blob` and `fds` as the DPU's end exported them, in its order."""

    blob: bytes
    fds: tuple[int, ...] = ()

    @classmethod
    def of_port(cls, device: Any, tenant: int, fabric: str) -> tuple[int, "Attachment"]:
        """A new port of `device` (a `struct ofs_device *`), and what its host needs.

        `fabric` is a side of port.h. StoreFull where all ports are taken."""
        port: Any = ffi.new("uint32_t *")
        found: Any = ffi.new("struct ofs_attachment *")
        rc = lib.ofs_device_attach(device, tenant, fabric.encode(), port, found)
        check_rc(rc, "attaching a host", "", "raise limits.ports or detach a host")
        blob = bytes(ffi.buffer(found.blob)[: found.blob_size_bytes])
        return int(port[0]), cls(blob, tuple(found.fds[0 : found.fd_count]))

    @classmethod
    def of_port_again(cls, device: Any, port: int) -> "Attachment":
        """What the host at `port` needs after its connection was lost; its sessions go on.

        RunFailed with EAGAIN: what it asked for before is still being worked on."""
        found: Any = ffi.new("struct ofs_attachment *")
        rc = lib.ofs_device_reattach(device, port, found)
        check_rc(rc, "attaching a host again", "", "start the host again")
        return cls(bytes(ffi.buffer(found.blob)[: found.blob_size_bytes]))

    @classmethod
    def of_driver(cls, driver: Any) -> "Attachment | None":
        """What the DPU's end needs of a `struct ofs_driver *` before blocks flow; None: nothing."""
        found: Any = ffi.new("struct ofs_attachment *")
        if not lib.ofs_driver_export(driver, found):
            return None
        return cls(bytes(ffi.buffer(found.blob)[: found.blob_size_bytes]))

    def connect(self, device: Any, port: int) -> None:
        """The host's answer, given to its port of `device` (a `struct ofs_device *`)."""
        rc = lib.ofs_device_connect(device, port, self.filled())
        fix = "restart the host, and check that both can reach each other"
        check_rc(rc, "connecting a host", "", fix)

    def filled(self) -> Any:
        """`struct ofs_attachment` of it. Incompatible where it is larger than any of ours."""
        filled: Any = ffi.new("struct ofs_attachment *")
        if len(self.blob) > lib.OFS_BLOB_SIZE_BYTES_MAX or len(self.fds) > FDS_MAX:
            raise Incompatible(
                f"an attach of {len(self.blob)} B with {len(self.fds)} descriptors",
                "attach blob",
                "install the same release on both sides",
            )
        filled.blob_size_bytes, filled.fd_count = len(self.blob), len(self.fds)
        ffi.buffer(filled.blob)[: len(self.blob)] = self.blob
        filled.fds[0 : len(self.fds)] = list(self.fds)
        return filled

    def duplicate(self) -> "Attachment":
        """A copy with duplicated descriptors."""
        return Attachment(self.blob, tuple(os.dup(fd) for fd in self.fds))

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)
