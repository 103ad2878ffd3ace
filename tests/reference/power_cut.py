"""The files after a power cut: the bytes and names that were synced."""

import os
import stat
from pathlib import Path

import pytest


class Medium:
    """Records each `os.fsync` of this process from its construction on; a file that existed before
    is on the medium once it is synced again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes: dict[tuple[int, int], bytes] = {}
        self._names: dict[Path, tuple[int, int]] = {}
        self._sync = os.fsync
        monkeypatch.setattr("os.fsync", self._note)

    def _note(self, fd: int) -> None:
        self._sync(fd)
        found, path = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        if not stat.S_ISDIR(found.st_mode):
            self._bytes[found.st_dev, found.st_ino] = path.read_bytes()
            return
        folder = path.resolve()
        self._names = {one: inode for one, inode in self._names.items() if one.parent != folder}
        for one in folder.iterdir():
            inode = one.lstat()
            self._names[one] = (inode.st_dev, inode.st_ino)

    def left(self, path: Path) -> bytes | None:
        """The file's content after a power cut now; None: no file of that name."""
        inode = self._names.get(path.resolve())
        return None if inode is None else self._bytes.get(inode, b"")
