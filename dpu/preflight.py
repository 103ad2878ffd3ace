"""What a configuration asks of this machine and its files, looked at before anything is opened.

The firmware grows a store's file to its size when it opens it, and pre-faults its arena. A file
that is not a store, a store that was cut short and an arena larger than the memory are therefore
reported here, while nothing has been changed yet.
"""

import os
import stat
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private
from offstage.bindings.storage import READ, Buffer, Io, Storage, StorageConfig
from offstage.bindings.units import format_size
from offstage.dpu.config import Config
from offstage.dpu.drives import HEAD_BYTES, STORE, block_name, holds, occupied
from offstage.dpu.storefile import STORE_MAGIC

__all__ = ["check_machine", "check_store_file"]


def check_machine(config: Config) -> None:
    """BadInput for an arena above the physical memory, and for a core that is not ours."""
    where = config.file or "configuration"
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.arena.size_bytes > memory_bytes:
        raise BadInput(
            f"arena.size is {format_size(config.arena.size_bytes)}, "
            f"and this machine has {format_size(memory_bytes)} of memory", where,
            "lower arena.size",
        )  # fmt: skip
    cores = os.sched_getaffinity(0)
    if config.daemon.cpu >= 0 and config.daemon.cpu not in cores:
        raise BadInput(
            f"daemon.cpu is {config.daemon.cpu}, and this process may use cores "
            f"{min(cores)} to {max(cores)}", where, "choose one of them, or -1 for none",
        )  # fmt: skip


def check_store_file(config: Config) -> None:
    """BadInput for a file that others can read, or that holds something and is shorter than the
    store is to be.

    A store has its whole size before its first byte is written, so a shorter one was cut. So it is
    for a block device that somebody uses or that carries something else; a mount on it, say."""
    storage = config.storage
    if storage.backend == "spdk":
        _check_namespace(config)
        return
    if not storage.path or (storage.backend == "emulated" and not storage.inner):
        return
    path = Path(storage.path)
    try:
        _close_to_others(path)
        status = path.stat()
        if stat.S_ISBLK(status.st_mode):
            _check_drive(path, status.st_rdev)
        if not stat.S_ISREG(status.st_mode) or status.st_size >= storage.size_bytes:
            return
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return  # the firmware says why it cannot be opened
    if head.startswith(STORE_MAGIC):
        size_bytes = int.from_bytes(head[32:40], "little")
        if size_bytes > status.st_size:
            raise BadInput(
                f"the store was cut: {status.st_size} B are left of {size_bytes} B", str(path),
                "restore it from a copy, or give a new path",
            )  # fmt: skip
        raise BadInput(
            f"the store has a size of {size_bytes} B, not {storage.size_bytes} B", str(path),
            "configure it so, or give a new path",
        )  # fmt: skip
    elif head.strip(b"\0"):
        raise BadInput("this is no store and not empty", str(path), "give another path")


def _close_to_others(path: Path) -> None:
    """Blocks are in the clear: a file of ours is made private, what others can read is refused."""
    found = path.stat()
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
        path.chmod(found.st_mode & 0o700)
    check_private(path)


def _check_drive(path: Path, device: int) -> None:
    name = block_name(device)
    refused = occupied(name) if name else ""
    if refused:
        raise BadInput(f"the drive {name} {refused}", str(path), "give one that nobody uses")


def _check_namespace(config: Config) -> None:
    """What a drive of SPDK carries, which no file system can be asked."""
    storage = config.storage
    with Storage(StorageConfig("spdk", storage.path, queue_depth_max=4,
                               lba_size_bytes=storage.lba_bytes,
                               huge=config.memory.huge != "off")) as drive:  # fmt: skip
        size_bytes = min(HEAD_BYTES, drive.size_bytes)
        head = Buffer(size_bytes)
        (done,) = drive.run([Io(READ, 0, 0, size_bytes, head)])
    if done.result != size_bytes:
        raise BadInput(f"the namespace cannot be read ({os.strerror(-done.result)})",
                       storage.path, "look at the target")  # fmt: skip
    found = holds(bytes(head.view))
    if found not in ("", STORE):
        if storage.target:
            raise BadInput(f"the file carries {found}", storage.target_file, "give another")
        raise BadInput(f"the namespace carries {found}", storage.path,
                       "give one that nobody uses, or `offstage dpu erase` this one")  # fmt: skip
