"""Atomic file writes: a file has its new contents or its old ones, never a mixture.

`write_whole` keeps that promise through a power failure, for the daemon's files; `write_bytes`
keeps it for concurrent readers of an output, and when the disk is full.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed

__all__ = [
    "refused",
    "replacing",
    "sync_folder",
    "writable",
    "write_bytes",
    "write_text",
    "write_whole",
]

BAD_PATH = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENAMETOOLONG,
)


def sync_folder(folder: Path) -> None:
    """The names in it are on the drive when this returns. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file by one with these bytes, durable when this returns: no reader sees a partial
    file or another mode, and a link at the path is not followed. `mode`
    without what the umask takes. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of the text as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Writes an output whole, and the folders it lies in: a temporary next to it, then a rename.
    BadInput for a path that is none, RunFailed where the disk refuses."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write an output that becomes `path` when the block ends well, and nothing else:
    next to it; a pipe or a device itself. BadInput, RunFailed as `write_bytes`, also for an OSError
    of the block."""
    into = path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.is_file():
            into = path.with_name(f".{path.name}.{os.getpid()}")
        yield into
        if into != path:
            into.replace(path)
    except OSError as error:
        raise refused(path, error) from None
    finally:
        if into != path:
            with contextlib.suppress(OSError):
                into.unlink()


def writable(path: Path | None) -> Path | None:
    """The path of an output, before anything runs for it. BadInput where it is a folder, or lies
    in none that could be made and written to."""
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return path  # a pipe, or a terminal
    folder = path.parent
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise refused(path, error) from None
    return path


def refused(path: Path, error: OSError) -> BadInput | RunFailed:
    """What to raise for an output that the system refuses to write."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        for folder in path.parents:
            if os.path.lexists(folder) and not folder.is_dir():
                return BadInput("is not a folder", str(folder), "name another path")
    what = f"cannot be written: {error.strerror}"
    if error.errno in BAD_PATH:
        return BadInput(what, str(path), "name another path")
    return RunFailed(what, str(path), "make room or name another path")
