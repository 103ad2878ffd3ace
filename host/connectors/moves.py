"""One object on its way: what is asked of it, how it ends, and how it lies in blocks.

An object is a chain of chunks of its own. Chunk 0 is named by the object's 16-byte name and has one
block, the *head*: the object's first bytes, written when all others are acknowledged, so that an
object without a head is absent. Block b > 0 is block `(b - 1) % layers` of chunk
`1 + (b - 1) // layers`, so an object may lie in all layers that the daemon has. Which blocks the
store has of each chunk comes with the session that names the chain, and so an object that was cut
short, or is longer than it is asked for, is seen before a byte is read: every chain is asked for
one chunk more than it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["U8", "U32", "Chain", "Kind", "Move", "Shape", "State", "contents", "shape_of"]

CLEAR_CHUNKS = 64  # an object of unknown size: so many at first, and four times as many each time
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


class State(Enum):
    """How an operation on one object ended."""

    DONE = "done"
    ABSENT = "absent"  # the tier does not have it
    UNREADABLE = "unreadable"  # it is there, and not as it is asked for, or failed its check
    REFUSED = "refused"  # the tier took no more, or there is no such object that it would take
    AWAY = "away"  # no daemon answers


class Kind(Enum):
    """What is done with an object."""

    PUT = 1
    GET = 2
    LOOK = 3
    DELETE = 4


@dataclass(eq=False)
class Move:
    """One object on its way. `size` 0: not known, of LOOK and DELETE."""

    kind: Kind
    name: bytes
    label: str  # in a log
    size: int
    ended: Callable[["Move", State, str], None]
    buffer: U8 | None = None
    hold_s: float = 0.0  # LOOK: so long the object is leased
    ahead: bool = False  # LOOK: and brought into the tier's memory
    clearing: bool = False  # PUT: what is under this name goes first
    chunks: int = CLEAR_CHUNKS
    clears: int = 0  # how often something was found that had to go
    clear_until_s: float = 0.0
    until_s: float = 0.0
    chain: "Chain | None" = None
    calls: int = 0  # in flight
    failure: tuple[State, str] | None = None
    then: Callable[[], None] | None = None  # when no call of it is in flight


@dataclass(frozen=True)
class Shape:
    """How an object of one size lies in blocks of `payload` bytes and `layers` of them a chunk."""

    size: int
    payload: int
    layers: int
    blocks: int
    full: int  # blocks that are whole; the last may not be
    stored: U32  # layers that the store has of each chunk of a whole object
    tail: bytes  # contents behind the name, and of the chunk that must not be there

    def place(self, block: int) -> tuple[int, int]:
        """Layer and ordinal of one block."""
        if block == 0:
            return 0, 0
        return (block - 1) % self.layers, 1 + (block - 1) // self.layers

    def runs(self, first: int) -> list[tuple[int, U32, U32]]:
        """Layer, ordinals and rows of the whole blocks from `first` on, a layer each."""
        blocks = np.arange(first, self.full, dtype=np.uint32)
        layer = np.where(blocks == 0, 0, (blocks - 1) % self.layers)
        ordinal = np.where(blocks == 0, 0, 1 + (blocks - 1) // self.layers).astype(np.uint32)
        return [(one, np.ascontiguousarray(ordinal[layer == one]), blocks[layer == one])
                for one in range(self.layers) if (layer == one).any()]  # fmt: skip


@lru_cache(maxsize=256)
def shape_of(size: int, payload: int, layers: int) -> Shape:
    """The shape of an object of `size` bytes, at least one."""
    blocks = -(-size // payload)
    chunks = 1 + -(-(blocks - 1) // layers)
    stored = np.full(chunks, layers, np.uint32)
    stored[0] = 1
    if (blocks - 1) % layers:
        stored[-1] = (blocks - 1) % layers
    return Shape(size, payload, layers, blocks, size // payload, stored, _tail(chunks))


def _tail(chunks: int) -> bytes:
    ordinals = np.zeros((chunks, 2), "<u8")
    ordinals[:, 0] = np.arange(1, chunks + 1)
    return ordinals.tobytes()


@dataclass
class Chain:
    """The session of one object: directory keys `[layers, chunks, 2]`, what the store has."""

    session: int
    keys: NDArray[np.uint64]
    stored: U32
    until_s: float = 0.0
    busy: bool = True
    step: int = 0


def contents(move: Move, payload: int, layers: int, chunks_max: int) -> bytes:
    """The 16-byte hashes that name the chain of an object, or as much of it as is looked at."""
    if move.clearing or move.kind is Kind.DELETE:
        return move.name + _tail(min(move.chunks, chunks_max) - 1)
    if move.size == 0:
        return move.name
    return move.name + shape_of(move.size, payload, layers).tail
