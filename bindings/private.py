"""Files that nobody but their user may read: secrets, keys, stores."""

import os
import stat
from pathlib import Path

from offstage.bindings.errors import BadInput

__all__ = ["check_private"]


def check_private(path: Path, *, ours: bool = True) -> None:
    """BadInput where others can read or change the file, or, with `ours`, it belongs to somebody
    else than us and root (a folder shared with a virtual machine has its owner's number). OSError
    where there is none. Of a drive, the group of its node may have it: it is the system's own."""
    found = path.stat()
    closed = 0o007 if stat.S_ISBLK(found.st_mode) else 0o077
    if found.st_mode & closed:
        raise BadInput("others can read or change it", str(path), f"chmod 600 {path}")
    if ours and found.st_uid not in (os.getuid(), 0):
        raise BadInput("it belongs to another user", str(path), f"chown it, and chmod 600 {path}")
