"""A snapshot of a folder, to compare with a later one."""

import hashlib
import stat
from pathlib import Path


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return mode, owner, size, mtime in ns, and digest or link target of all below the folder, by
    name. Folders have neither size nor time, since their entries say more."""
    return {str(path.relative_to(folder)): _of(path) for path in sorted(folder.rglob("*"))}


def _of(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return found.st_mode, found.st_uid, str(path.readlink())
    if not stat.S_ISREG(found.st_mode):
        return found.st_mode, found.st_uid
    digest = hashlib.blake2b(path.read_bytes()).hexdigest()
    return found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns, digest
