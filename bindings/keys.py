"""Names of blocks: a chunk's key combined with the layer, as in the firmware."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.firmware import ffi, lib

__all__ = ["block_keys", "checksum", "checksums", "value_key"]


def block_keys(chunk_keys: Sequence[bytes], layer_count: int) -> NDArray[np.uint64]:
    """Block keys of chunks, uint64 `[layers, chunks, 2]` (lo, hi), from 16-byte chunk keys.

    The layer is combined by exclusive-or with its two words, which the firmware gives for
    the zero key; the rest is one numpy operation.
    """
    keys = np.frombuffer(b"".join(chunk_keys), dtype="<u8").reshape(1, -1, 2)
    return np.ascontiguousarray(keys ^ _layer_words(layer_count))


@lru_cache(maxsize=16)
def _layer_words(layer_count: int) -> NDArray[np.uint64]:
    words = np.zeros((layer_count, 1, 2), np.uint64)
    chunk: Any = ffi.new("struct ofs_key *")
    folded: Any = ffi.new("struct ofs_key *")
    for layer in range(layer_count):
        lib.ofs_block_key(chunk, layer, folded)
        words[layer, 0] = folded.lo, folded.hi
    words.flags.writeable = False
    return words


def fold_key(first: bytes, number: int) -> bytes:
    """The 16-byte key of chunk `number` of several that are named by the first one's."""
    folded: Any = ffi.new("struct ofs_key *")
    lib.ofs_fold_key(ffi.cast("struct ofs_key *", ffi.from_buffer(first)), number, folded)
    return bytes(ffi.buffer(folded))


def value_key(volume: bytes, key: bytes) -> bytes:
    """The 16 bytes that name, in the tenant, what a volume (16 bytes) has under `key` (1 to 16)."""
    named: Any = ffi.new("struct ofs_key *")
    lib.ofs_value_key(volume, key, len(key), named)
    return bytes(ffi.buffer(named))


def checksum(data: bytes | memoryview | NDArray[Any]) -> int:
    """XXH3-64 of contiguous bytes, as the firmware computes it."""
    held: Any = data
    view: Any = ffi.from_buffer(held)
    return int(lib.ofs_checksum(view, len(view)))


def checksums(blocks: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The checksum of each block, uint64 `[blocks]`."""
    return np.array([checksum(block) for block in blocks], np.uint64)
