"""The head, block 0 of an object: it proves that all blocks are of one put.

A head is the object's size and a digest over the checksums of all other blocks, in order; a small
object follows it in the same block. The head is written once all other blocks are acknowledged. A
reader compares it with the checksums of the blocks it got, which the fabric has checked against the
bytes. A mix of blocks of two puts never matches a head.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.keys import checksum

__all__ = ["HEAD_BYTES", "head_of", "sums_of"]

DIGEST_BYTES = 16
HEAD_BYTES = 8 + DIGEST_BYTES
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]


def head_of(size: int, sums: U64) -> bytes:
    """The HEAD_BYTES of an object of `size` bytes; `sums`: XXH3-64 of each block behind it."""
    text = size.to_bytes(8, "little")
    made = hashlib.blake2b(text + sums.astype("<u8").tobytes(), digest_size=DIGEST_BYTES)
    return text + made.digest()


def sums_of(buffer: U8, payload: int) -> U64:
    """XXH3-64 of each block of `payload` bytes, the last of what is left: what a put says."""
    return np.array(
        [checksum(buffer[at : at + payload]) for at in range(0, len(buffer), payload)], np.uint64
    )
