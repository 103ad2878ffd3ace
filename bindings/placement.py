"""When each member of a pod would take each shard: `placement.h`."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.firmware import ffi, lib

__all__ = ["times"]


def times(
    shards: Sequence[bytes], members: Sequence[str], weights: Sequence[int]
) -> NDArray[np.uint64]:
    """-log2(h) / weight of each shard and member, uint64 `[shards, members]` in units of 2^-52;
    h is a hash of the shard's 16-byte name and the member's name, and a weight is at least 1."""
    found = np.empty((len(shards), len(members)), np.uint64)
    keys: Any = ffi.new("struct ofs_key[]", max(len(shards), 1))
    ffi.buffer(keys)[: 16 * len(shards)] = b"".join(shards)
    rows: Any = found
    lib.ofs_placement_times(
        keys,
        len(shards),
        [_number(one) for one in members],
        weights,
        len(members),
        ffi.cast("uint64_t *", ffi.from_buffer(rows)),
    )
    return found


@lru_cache(maxsize=1024)
def _number(member: str) -> int:
    """The hash of a member's name."""
    return int.from_bytes(blake2b(member.encode(), digest_size=8).digest(), "little")
