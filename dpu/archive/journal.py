"""Deletes of bucket objects that are not yet confirmed: a file next to the store.

A delete is acknowledged when its line is on the disk. The bucket may be out of reach for days, and
the daemon may be killed meanwhile: until the server has confirmed the delete, no start takes the
object for present. A line is `+ NAME` or `- NAME`. The file is rewritten, with the pending deletes
only, at each open, and when it is long and most of its lines are obsolete.
"""

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from offstage.bindings.durable import sync_folder
from offstage.bindings.errors import BadInput
from offstage.bindings.private import check_private

__all__ = ["Journal"]

SIZE_BYTES_MAX = 1 << 20  # of a file that is long, and twice what was left when it was begun


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
            self._begin()
            self._sync_name()
        except OSError as error:
            fix = "the archive notes deletes there: give its folder to us"
            raise BadInput(f"cannot be written ({error.strerror})", str(path), fix) from None

    def _take_in(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            mark, _, name = line.rstrip("\n").partition(" ")
            if not line.endswith("\n") or not name:
                continue  # cut short by a kill: it was not acknowledged
            (self.names.add if mark == "+" else self.names.discard)(name)

    def _begin(self) -> None:
        """Replace the file by one with the pending deletes. OSError: the old one stays in use."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.unlink(missing_ok=True)  # of a kill; no link that lies there is followed
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        file = os.fdopen(fd, "w", encoding="utf-8")
        try:
            size = _write(file, "+", self.names)
            fresh.replace(self.path)
        except OSError:
            file.close()
            raise
        self._file, self._size, self._long = file, size, max(SIZE_BYTES_MAX, 2 * size)
        self._is_named = False  # on the disk

    def _sync_name(self) -> None:
        """A cut of the power leaves the old file in place of one whose name is not on the disk."""
        if not self._is_named:
            sync_folder(self.path.parent)
            self._is_named = True

    def add(self, names: Iterable[str]) -> None:
        """They are to go; on the disk when this returns. OSError."""
        with self._lock:
            fresh = sorted(set(names) - self.names)
            if fresh:
                self._size += _write(self._file, "+", fresh)
                self._sync_name()
                self.names.update(fresh)

    def done(self, name: str) -> None:
        """Its delete is confirmed. If this line is lost, it is deleted once more."""
        with self._lock:
            self.names.discard(name)
            self._file.write(line := f"- {name}\n")
            self._file.flush()
            self._size += len(line)
            if self._size > self._long:
                old = self._file
                try:
                    self._begin()
                    old.close()
                except OSError:  # not again before it has grown as much once more
                    self._long = 2 * self._size

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
            raise BadInput(
                "is not a file", str(path), "the archive notes deletes there: move it away"
            )
        check_private(path, found=found)
        text = os.pread(fd, found.st_size, 0).decode("utf-8", errors="replace").rstrip("\0")
    finally:
        os.close(fd)
    if any(
        not "+ ".startswith(line[:2]) and not "- ".startswith(line[:2])
        for line in text.splitlines()
    ):
        raise BadInput(
            "is not a journal of deletes",
            str(path),
            "the archive notes deletes there: move it away",
        )
    return text


def _write(file: IO[str], mark: str, names: Iterable[str]) -> int:
    """Lines, on the disk when this returns; their bytes."""
    text = "".join(f"{mark} {name}\n" for name in names)
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
    return len(text.encode())
