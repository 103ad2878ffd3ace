"""The file of a baseline, and the index of its blocks. One thread.

A chunk is named by its content and all chunks before it, as at the tier, so that a shared prefix is
stored once. Each chunk gets a row of the file, with a fixed place for each layer. The index is in
memory and lasts as long as this object: a baseline has nothing to recover.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import StoreFull

__all__ = ["LocalStore"]

LBA_BYTES = 4096


@dataclass
class LocalStore:
    """Room for `chunk_max` chunks of `layer_count` blocks at `path`; attributes are counts."""

    path: Path
    layer_count: int
    payload_bytes: int
    chunk_max: int
    shared_chunks: int = 0
    """Appended chunks that were already there."""
    _rows: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = np.zeros((self.chunk_max, self.layer_count), np.bool_)

    @property
    def stride_bytes(self) -> int:
        """From one block to the next: whole logical blocks of the drive."""
        return -(-self.payload_bytes // LBA_BYTES) * LBA_BYTES

    @property
    def size_bytes(self) -> int:
        """The whole file."""
        return self.chunk_max * self.layer_count * self.stride_bytes

    def append(self, parent: bytes, contents: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
        """Name chunks that follow `parent`; the 16-byte key and the row of each. StoreFull."""
        keys, rows = [], []
        for content in contents:
            parent = hashlib.blake2b(parent + content, digest_size=16).digest()
            row = self._rows.get(parent)
            if row is not None:
                self.shared_chunks += 1
            elif (row := len(self._rows)) == self.chunk_max:
                raise StoreFull(
                    f"the baseline's file has room for {self.chunk_max} chunks",
                    str(self.path),
                    "lower the contexts or the steps",
                )
            self._rows[parent] = row
            keys.append(parent)
            rows.append(row)
        return keys, rows

    def stored_layers(self, rows: Sequence[int]) -> list[int]:
        """How many layers of each row are written."""
        return [int(count) for count in self._stored[list(rows)].sum(axis=1)]

    def written(self, numbers: NDArray[np.int64]) -> None:
        """These blocks are on the drive."""
        self._stored.reshape(-1)[numbers] = True
