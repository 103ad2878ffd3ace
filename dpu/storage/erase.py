"""Erase a drive of SPDK, so that a store may take it: dataset management, then zeros at its head.

What a drive returns for deallocated blocks depends on the drive, so the area that a store examines
is overwritten too. Only for SPDK drives: remove a file, and use `blkdiscard` for a kernel drive.
"""

from offstage.bindings import spdk
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.storage import READ, WRITE, Buffer, Io, Storage, StorageConfig
from offstage.dpu.storage.drives import HEAD_BYTES, holds

__all__ = ["erase"]

MORE_BYTES = 65_536  # a logical block of the first segment is looked at too
TIMEOUT_NS = 10 * 10**9


def erase(path: str, really: bool) -> dict[str, object]:
    """Contents and sizes of the drives of the transport ids `path` before the erase. Without
    `really`, BadInput says what would be lost, and nothing is changed."""
    spdk.ensure()
    config = StorageConfig("spdk", path, queue_depth_max=4, timeout_ns=TIMEOUT_NS)
    with Storage(config) as drive:
        size_bytes = min(HEAD_BYTES + MORE_BYTES, drive.size_bytes)
        head = Buffer(size_bytes)
        _one(drive, Io(READ, 0, 0, size_bytes, head), path)
        found = holds(bytes(head.view[:HEAD_BYTES])) or "nothing"
        if not really:
            raise BadInput(
                f"the namespace carries {found}, all of which would be lost",
                path,
                "give --yes to erase it",
            )
        spdk.erase(drive)
        head.view[:] = bytes(size_bytes)
        _one(drive, Io(WRITE, 0, 0, size_bytes, head, durable=True), path)
        return {"path": path, "carried": found, "erased_bytes": drive.size_bytes}


def _one(drive: Storage, io: Io, path: str) -> None:
    (done,) = drive.run([io])
    if done.result != io.size_bytes:
        raise RunFailed(f"the drive reports error {-done.result}", path, "look at the target")
