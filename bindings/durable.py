"""Files that a cut of the power leaves as they were before or as they are now, never in between."""

import os
from pathlib import Path

__all__ = ["sync_folder", "write_whole"]


def sync_folder(folder: Path) -> None:
    """The names in it are on the drive when this returns. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """The file with these bytes, on the drive when this returns, through a new one: nobody ever
    reads a half of it or another mode, and no link that somebody laid there is followed. `mode`
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
