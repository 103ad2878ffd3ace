"""What is to be deleted from the bucket and is not known to be: a file beside the store.

A delete is acknowledged when its line is on the disk; the bucket may be out of reach for days, and
the daemon killed meanwhile: until the server has confirmed it, no start takes the object for one
that is there. A line is `+ NAME` or `- NAME`; the file is written anew at each open, and emptied
when it is long and nothing is left to delete.
"""

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from offstage.bindings.durable import write_whole
from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private

__all__ = ["Journal"]

SIZE_BYTES_MAX = 1 << 20  # of a file that says nothing any more


class Journal:
    """Names still to delete. Any thread may add and take away: a lock of its own, since an `add`
    waits for the disk and the archive's lock is the daemon's too."""

    def __init__(self, path: Path) -> None:
        """Read and open. BadInput where it cannot be written, or what is there is no journal of
        ours, which is left as it is."""
        self.path = path
        self.names: set[str] = set()
        self._lock = threading.Lock()
        try:
            self._take_in(_read(path))
            write_whole(path, "".join(f"+ {name}\n" for name in self.names).encode())
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            mend = "the archive notes deletes there: give its folder to us"
            raise BadInput(f"cannot be written ({error.strerror})", str(path), mend) from None
        self._file = os.fdopen(fd, "a", encoding="utf-8")

    def _take_in(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            mark, _, name = line.rstrip("\n").partition(" ")
            if not line.endswith("\n") or not name:
                continue  # cut short by a kill: it was not acknowledged
            (self.names.add if mark == "+" else self.names.discard)(name)

    def add(self, names: Iterable[str]) -> None:
        """They are to go; on the disk when this returns. OSError."""
        with self._lock:
            fresh = sorted(set(names) - self.names)
            if fresh:
                self._file.write("".join(f"+ {name}\n" for name in fresh))
                self._file.flush()
                os.fsync(self._file.fileno())
                self.names.update(fresh)

    def done(self, name: str) -> None:
        """It has gone. Where this line is lost it goes once more."""
        with self._lock:
            self.names.discard(name)
            self._file.write(f"- {name}\n")
            self._file.flush()
            if not self.names and self._file.tell() > SIZE_BYTES_MAX:
                self._file.seek(0)
                self._file.truncate()

    def close(self) -> None:
        """What was added stays."""
        self._file.close()


def _read(path: Path) -> str:
    """What is there; "" where nothing is. Looked at by the descriptor that is read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise BadInput("is no file", str(path), "the archive notes deletes there: move it away")
        check_private(path, found=found)
        text = os.pread(fd, found.st_size, 0).decode("utf-8", errors="replace").rstrip("\0")
    finally:
        os.close(fd)
    if any(not "+ ".startswith(line[:2]) and not "- ".startswith(line[:2])
           for line in text.splitlines()):  # fmt: skip
        raise BadInput("is no journal of deletes", str(path),
                       "the archive notes deletes there: move it away")  # fmt: skip
    return text
