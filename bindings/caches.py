"""Many least-recently-used caches over the same numbered blocks, for Python.

Arrays in, arrays out; meanings are those of `ofs_caches.h`. Belongs to one thread.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from offstage.bindings.analysis import ffi, lib
from offstage.bindings.firmware import check_rc

__all__ = ["NO_CACHE", "Caches"]

NO_CACHE = 2**32 - 1
"""In the place of a cache's number: nowhere."""

U32 = npt.NDArray[np.uint32]


class Caches:
    """Caches with the given capacities in blocks; a cache of capacity 0 stays empty."""

    def __init__(self, room: Sequence[int]) -> None:
        self.count = len(room)
        out = ffi.new("struct ofs_caches **")
        rooms = np.array(room, np.uint64)
        rc = lib.ofs_caches_open(out, self.count, ffi.from_buffer("uint64_t[]", rooms.data))
        check_rc(rc, "opening caches", "caches", "give at least one")
        self._caches = ffi.gc(out[0], lib.ofs_caches_close)

    def held(self, cache: int) -> int:
        """Blocks that the cache holds."""
        return self._checked(int(lib.ofs_caches_held(self._caches, cache)))

    def clear(self, cache: int) -> None:
        """The cache holds nothing any more."""
        self._checked(int(lib.ofs_caches_clear(self._caches, cache)))

    def find(self, at: U32, blocks: U32) -> npt.NDArray[np.bool_]:
        """Whether cache `at[i]` holds `blocks[i]`, both uint32 `[n]`: bool `[n]`."""
        found = np.empty(len(blocks), np.uint8)
        out = ffi.from_buffer("uint8_t[]", found.data)
        lib.ofs_caches_find(self._caches, _u32(at), _u32(blocks), len(blocks), out)
        return found.view(np.bool_)

    def use(self, at: U32, blocks: U32) -> int:
        """Each block becomes the most recent of its cache, in order; how many were not there."""
        return self._checked(
            int(lib.ofs_caches_use(self._caches, _u32(at), _u32(blocks), len(blocks)))
        )

    def matched(self, blocks: U32) -> U32:
        """How many of `blocks`, from the front, each cache holds: uint32 `[caches]`."""
        found = np.empty(self.count, np.uint32)
        lib.ofs_caches_matched(self._caches, _u32(blocks), len(blocks), _u32(found))
        return found

    def _checked(self, rc: int) -> int:
        check_rc(min(rc, 0), "caches", "caches", "name a cache that there is")
        return rc


def _u32(values: U32) -> object:
    assert values.dtype == np.uint32
    return ffi.from_buffer("uint32_t[]", values.data)
