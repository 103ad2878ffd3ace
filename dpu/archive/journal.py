"""What is to be deleted from the bucket and is not known to be: a file beside the store.

A delete is acknowledged when its line is on the disk; the bucket may be out of reach for days, and
the daemon killed meanwhile: until the server has confirmed it, no start takes the object for one
that is there. A line is `+ NAME` or `- NAME`; the file is written anew at each open, and emptied
when it is long and nothing is left to delete.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from offstage.bindings.durable import sync_folder
from offstage.bindings.errors import BadInput

__all__ = ["Journal"]

SIZE_BYTES_MAX = 1 << 20  # of a file that says nothing any more


class Journal:
    """Names still to delete. Any thread may add and take away: a lock of its own, since an `add`
    waits for the disk and the archive's lock is the daemon's too."""

    def __init__(self, path: Path) -> None:
        """Read and open. BadInput where it cannot be written."""
        self.path = path
        self.names: set[str] = set()
        self._lock = threading.Lock()
        try:
            if path.exists():
                self._read(path.read_text(encoding="ascii", errors="replace"))
            fresh = path.with_name(f"{path.name}.new")
            fresh.unlink(missing_ok=True)  # of a kill; no link that lies there is followed
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._file = os.fdopen(fd, "w", encoding="ascii")
            self._write("+", self.names)
            fresh.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            mend = "the archive notes deletes there: give its folder to us"
            raise BadInput(f"cannot be written ({error.strerror})", str(path), mend) from None

    def _read(self, text: str) -> None:
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
                self._write("+", fresh)
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

    def _write(self, mark: str, names: Iterable[str]) -> None:
        self._file.write("".join(f"{mark} {name}\n" for name in names))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """What was added stays."""
        self._file.close()
