"""Requirements of a configuration on this machine and its files, checked before anything is opened.

When the firmware opens a store, it grows the file to its size and pre-faults the arena. A file
that is not a store, a truncated store and an arena larger than the memory are therefore reported
here, before anything is changed.
"""

import os
import stat
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private
from offstage.bindings.storage import READ, Buffer, Io, Storage, StorageConfig
from offstage.bindings.units import format_size
from offstage.dpu.config.values import Config
from offstage.dpu.storage.drives import HEAD_BYTES, STORE, block_name, holds, occupied
from offstage.dpu.storage.storefile import STORE_MAGIC

__all__ = ["check_machine", "check_store_file", "check_taken"]


def check_machine(config: Config) -> None:
    """BadInput for an arena above the physical memory, and for a core outside the affinity mask."""
    where = config.file or "configuration"
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.arena.size_bytes > memory_bytes:
        raise BadInput(
            f"arena.size is {format_size(config.arena.size_bytes)}, "
            f"and this machine has {format_size(memory_bytes)} of memory",
            where,
            "lower arena.size",
        )
    cores = os.sched_getaffinity(0)
    if config.daemon.cpu >= 0 and config.daemon.cpu not in cores:
        raise BadInput(
            f"daemon.cpu is {config.daemon.cpu}, and this process may use cores "
            f"{min(cores)} to {max(cores)}",
            where,
            "choose one of them, or -1 for none",
        )


def check_store_file(config: Config) -> None:
    """BadInput for a file that is no store and not empty, is a store of another size, or is another
    user's; for a block device that is in use or carries something else, say a mount.

    A file that passes is made private where it is ours; one that is refused is left as it was."""
    storage = config.storage
    if storage.backend == "spdk":
        _check_namespace(config)
        return
    if not storage.path or (storage.backend == "emulated" and not storage.inner):
        return
    path = Path(storage.path)
    # Non-blocking in case it is a pipe. The same descriptor is checked and changed below.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return  # the firmware says why it cannot be opened
    try:
        status = os.fstat(fd)
        if stat.S_ISBLK(status.st_mode):
            _check_drive(path, status.st_rdev)
            check_private(path, found=status)
        elif stat.S_ISREG(status.st_mode):
            check_taken(path, os.pread(fd, HEAD_BYTES, 0))
            _check_size(path, os.pread(fd, HEAD_BYTES, 0), status.st_size, storage.size_bytes)
            if status.st_uid == os.getuid() and status.st_mode & 0o077:
                os.fchmod(fd, status.st_mode & 0o700)  # blocks are in the clear
            check_private(path, found=os.fstat(fd))
        elif not stat.S_ISDIR(status.st_mode):
            raise BadInput("is neither a file nor a block device", str(path), "give another path")
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})", str(path), "check owner and mode of the file"
        ) from None
    finally:
        os.close(fd)


def check_taken(path: Path, head: bytes) -> None:
    """BadInput if the first HEAD_BYTES of a file show other contents than a store."""
    if holds(head) not in ("", STORE):
        raise BadInput("this is not a store, and not empty", str(path), "give another path")


def _check_size(path: Path, head: bytes, has_bytes: int, wanted_bytes: int) -> None:
    """A store has its whole size before its first byte is written, so a shorter one was cut."""
    if has_bytes >= wanted_bytes:
        return
    if head.startswith(STORE_MAGIC):
        size_bytes = int.from_bytes(head[32:40], "little")
        if size_bytes > has_bytes:
            raise BadInput(
                f"the store was cut: {has_bytes} B are left of {size_bytes} B",
                str(path),
                "restore it from a copy, or give a new path",
            )
        raise BadInput(
            f"the store has a size of {size_bytes} B, not {wanted_bytes} B",
            str(path),
            "configure it so, or give a new path",
        )


def _check_drive(path: Path, device: int) -> None:
    name = block_name(device)
    refused = occupied(name) if name else ""
    if refused:
        raise BadInput(f"the drive {name} {refused}", str(path), "give an unused one")


def _check_namespace(config: Config) -> None:
    """Check the contents of an SPDK drive, which has no file."""
    storage = config.storage
    with Storage(
        StorageConfig(
            "spdk",
            storage.path,
            queue_depth_max=4,
            lba_size_bytes=storage.lba_bytes,
            huge=config.memory.huge != "off",
        )
    ) as drive:
        size_bytes = min(HEAD_BYTES, drive.size_bytes)
        head = Buffer(size_bytes)
        (done,) = drive.run([Io(READ, 0, 0, size_bytes, head)])
    if done.result != size_bytes:
        raise BadInput(
            f"the namespace cannot be read ({os.strerror(-done.result)})",
            storage.path,
            "look at the target",
        )
    found = holds(bytes(head.view))
    if found not in ("", STORE):
        if storage.target:
            raise BadInput(f"the file carries {found}", storage.target_file, "give another")
        raise BadInput(
            f"the namespace carries {found}",
            storage.path,
            "give an unused one, or `offstage dpu erase` this one",
        )
