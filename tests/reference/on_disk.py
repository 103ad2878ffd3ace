"""What a folder holds, to be compared with what it holds later."""

import hashlib
import stat
from pathlib import Path


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Of everything below it by its name: mode, owner, size, time of the last change of its bytes
    in ns, and digest or target. Of a folder no size and time: what is in it says more."""
    return {str(path.relative_to(folder)): _of(path) for path in sorted(folder.rglob("*"))}


def _of(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return found.st_mode, found.st_uid, str(path.readlink())
    if not stat.S_ISREG(found.st_mode):
        return found.st_mode, found.st_uid
    digest = hashlib.blake2b(path.read_bytes()).hexdigest()
    return found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, digest
