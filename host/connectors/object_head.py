"""What says that an object's blocks are of one put: its head, block 0.

A head is the object's size and a digest over the checksums of all other blocks, in their order;
behind it stands an object that fits into that block. It is written when all others are
acknowledged, and whoever reads compares it with the checksums of what came, which the fabric has
checked against the bytes. Blocks of two puts have no head that agrees with them, whichever of them
is missing, was replaced or came too late.
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
