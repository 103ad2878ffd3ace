"""Access to a store from Python: a file, a block device, or a namespace of SPDK.

A namespace has no file. What must be read of its store before the firmware opens it is read through
a temporary storage.
"""

import io
import os
from pathlib import Path
from typing import BinaryIO

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import READ, Buffer, Io, Storage, StorageConfig
from offstage.dpu.config import options

__all__ = ["Namespace", "file_of", "opened"]

READ_TIMEOUT_NS = 5_000_000_000


def file_of(storage: options.Storage) -> str:
    """The file the blocks are in, which a target of the daemon's own has too; empty without."""
    if storage.backend == "spdk":
        return storage.target_file if storage.target else ""
    return storage.path


def opened(storage: options.Storage, huge: bool) -> BinaryIO:
    """The store's bytes, to be read. `BadInput` where a namespace cannot be opened, OSError where a
    file cannot. `huge`: as the configuration has it, for all of this process."""
    if storage.backend == "spdk" and not storage.target:
        return io.BufferedReader(Namespace(storage.path, storage.lba_bytes, huge), 1 << 20)
    return Path(file_of(storage)).open("rb")


class Namespace(io.RawIOBase):
    """A namespace of SPDK as a file that is only read. It is taken by this process meanwhile."""

    def __init__(self, path: str, lba_bytes: int, huge: bool) -> None:
        super().__init__()
        self._at = 0
        self._path = path
        self._storage = Storage(
            StorageConfig(
                "spdk",
                path,
                queue_depth_max=4,
                lba_size_bytes=lba_bytes,
                timeout_ns=READ_TIMEOUT_NS,
                huge=huge,
            )
        )

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._storage.size_bytes}
        self._at = base[whence] + offset
        return self._at

    def readinto(self, into: "memoryview | bytearray") -> int:  # type: ignore[override]
        """Reads whole logical blocks; returns the requested part."""
        lba, size_bytes = self._storage.lba_size_bytes, self._storage.size_bytes
        count = max(0, min(len(into), size_bytes - self._at))
        if count == 0:
            return 0
        begin = self._at // lba * lba
        end = min(-(-(self._at + count) // lba) * lba, size_bytes)
        buffer = Buffer(end - begin)
        (done,) = self._storage.run([Io(READ, 0, begin, end - begin, buffer)])
        if done.result != end - begin:
            raise BadInput(
                f"the namespace cannot be read ({os.strerror(-done.result)})",
                self._path,
                "look at the target",
            )
        skip = self._at - begin
        into[:count] = buffer.view[skip : skip + count]
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._storage.close()
        super().close()
