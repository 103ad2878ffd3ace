"""One operation on an object: its parameters, its outcome, and the object's layout in blocks.

An object is a separate chain of chunks. Chunk 0 is named by the object's 16-byte name and has one
block, the *head*, which identifies the put of all other blocks (`identity`). It is written once
they are acknowledged, so an object without a head is absent. Block b > 0, the object's bytes from
`(b - 1) * payload` on, is block `(b - 1) % layers` of chunk `1 + (b - 1) // layers`, so an object
may use all layers that the daemon has. A small object is stored in its head. Opening the session of
a chain returns which blocks of each chunk are stored. Every chain is opened with one chunk more
than the object has, so an object that is too short or too long is detected before any byte is read.
"""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.bindings.fabric import FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.layouts import CAUSES, HIT_ENDS
from offstage.host.connectors.object_head import HEAD_BYTES, head_of, sums_of

__all__ = [
    "HELD",
    "U8",
    "U32",
    "Chain",
    "Kind",
    "Move",
    "Piece",
    "Shape",
    "State",
    "contents",
    "get_pieces",
    "guesses",
    "head_piece",
    "is_head_of",
    "is_ragged",
    "land",
    "may_clear",
    "not_whole",
    "put_pieces",
    "refuse",
    "shape_of",
    "tell_landed",
    "tier_of",
]

HELD = "other bytes are there, which somebody reads or leases"

HELD_S = 2.0  # how long to wait for readers and leases before an object is replaced
CLEAR_PAUSE_S = 0.005
CLEAR_CHUNKS = 64  # deleted at first of an object of unknown size; four times as many each retry
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


class State(Enum):
    """Outcome of an operation on one object."""

    DONE = "done"
    ABSENT = "absent"  # the tier does not have it
    UNREADABLE = "unreadable"  # it is stored but has another size, or failed its check
    REFUSED = "refused"  # the tier has no room, or does not take such an object
    AWAY = "away"  # no daemon answers
    LATE = "late"  # it missed its deadline; late blocks are not written anywhere


class Kind(Enum):
    """Kind of operation."""

    PUT = 1
    GET = 2
    LOOK = 3
    DELETE = 4


@dataclass(eq=False)
class Move:
    """One operation on an object. `size` 0: unknown, for LOOK and DELETE."""

    kind: Kind
    name: bytes
    label: str  # for log lines
    size: int
    ended: Callable[["Move", State, str], None]
    buffer: U8 | None = None
    hold_s: float = 0.0  # LOOK: length of the lease
    ahead: float = 0.0  # LOOK: probability of the read, for the prefetch; 0: no prefetch
    due_s: float = 0.0  # LOOK: when the prefetch is due, from the start of the move
    within_s: float = 0.0  # GET, LOOK: deadline from submission, then LATE; 0: none
    cuts: tuple[int, ...] = ()  # GET: ends of the parts that are reported as they land
    landed: Callable[["Move", int], None] | None = None  # once a part, at the latest at the end
    filled: int = -1  # PUT: how many bytes of the buffer may be sent; -1: all
    committed: bool = True  # PUT: the head may be sent
    dropped: bool = False  # PUT: it shall not be stored
    sent: int = 1  # PUT: the blocks before this one are sent
    headed: bool = False  # PUT: the head is sent
    rival: bool = False  # PUT: a head is already stored, of the same put or another
    sums: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # of blocks that came or went
    head: U8 | None = None  # GET: the head, once read
    held: list[Put] = field(default_factory=list)  # PUT: begun before it has a session
    pieces: list[int] = field(default_factory=list)  # GET: pieces in flight, by part
    told: int = 0  # GET: parts reported to the caller
    worst: int = -1  # GET: worst end of its blocks
    clearing: bool = False  # PUT: the stored object is deleted first
    chunks: int = CLEAR_CHUNKS
    clears: int = 0  # how often there was something to delete
    clear_until_s: float = 0.0
    until_s: float = 0.0
    chain: "Chain | None" = None
    calls: int = 0  # in flight
    failure: tuple[State, str] | None = None


@dataclass(frozen=True)
class Run:
    """Blocks of one layer, ascending, that travel in one call: to be read only, since all objects
    of a size share it. In a read, block b goes to row b - 1 of the object's whole blocks. The head
    and the last block, where it is not whole, go to memory of their own, of which the rows are
    numbered after those; or from 0 on, where the run has no others."""

    layer: int
    ordinals: U32
    rows: U32
    blocks: U32
    lengths: list[int]
    own: int  # how many go to memory of their own


@dataclass(frozen=True)
class Shape:
    """Layout of an object of one size, in blocks of `payload` bytes, `layers` of them a chunk."""

    size: int
    payload: int
    layers: int
    inline: int  # bytes of the object that stand in its head: all or none
    blocks: int
    full: int  # blocks behind the head that are whole; the last may not be
    stored: list[int]  # layers that the store has of each chunk of a whole object
    tail: bytes  # contents behind the name, and of the chunk that must not be there
    _runs: dict[tuple[int, int], list[Run]] = field(default_factory=dict)

    def place(self, block: int) -> tuple[int, int]:
        """Layer and ordinal of one block."""
        if block == 0:
            return 0, 0
        return (block - 1) % self.layers, 1 + (block - 1) // self.layers

    def end_of(self, size: int) -> int:
        """How many blocks hold an object's first `size` bytes; the head is one of them."""
        return 1 if self.inline else 1 + -(-min(size, self.size) // self.payload)

    def runs(self, first: int, end: int) -> list[Run]:
        """The blocks from `first` to `end`, a run for each layer."""
        if (first, end) not in self._runs:
            blocks = np.arange(max(first, 1), end, dtype=np.uint32)
            found = [blocks[(blocks - 1) % self.layers == one] for one in range(self.layers)]
            if first == 0 < end:
                found[0] = np.append(np.uint32(0), found[0])
            self._runs[first, end] = [self._run(one) for one in found if len(one)]
        return self._runs[first, end]

    def _run(self, blocks: U32) -> Run:
        places = [self.place(int(block)) for block in blocks]
        lengths = np.full(len(blocks), self.payload)
        lengths[blocks > self.full] = self.size - self.full * self.payload
        lengths[blocks == 0] = HEAD_BYTES + self.inline
        own = (blocks == 0) | (blocks > self.full)
        rows = np.where(own, np.cumsum(own) + (0 if own.all() else self.full), blocks) - 1
        ordinals = np.array([ordinal for _, ordinal in places], np.uint32)
        return Run(
            places[0][0], ordinals, rows.astype(np.uint32), blocks, lengths.tolist(), int(own.sum())
        )


@lru_cache(maxsize=256)
def shape_of(size: int, payload: int, layers: int) -> Shape:
    """The shape of an object of `size` bytes, at least one."""
    inline = size if size + HEAD_BYTES <= payload else 0
    blocks = 1 + -(-(size - inline) // payload)
    chunks = 1 + -(-(blocks - 1) // layers)
    stored = [1] + [layers] * (chunks - 1)
    if (blocks - 1) % layers:
        stored[-1] = (blocks - 1) % layers
    full = (size - inline) // payload
    return Shape(size, payload, layers, inline, blocks, full, stored, _tail(chunks))


def _tail(chunks: int) -> bytes:
    ordinals = np.zeros((chunks, 2), "<u8")
    ordinals[:, 0] = np.arange(1, chunks + 1)
    return ordinals.tobytes()


@dataclass
class Chain:
    """The session of one object: directory keys `[layers, chunks, 2]`, what the store has."""

    session: int
    keys: NDArray[np.uint64]
    stored: list[int]
    until_s: float = 0.0
    busy: bool = True
    step: int = 0

    def fetch(self, piece: "Piece") -> FetchRequest:
        """The blocks of a piece, into its memory."""
        run = piece.run
        return FetchRequest(
            self.session,
            self.step,
            run.layer,
            run.ordinals,
            self.of(run.layer, run.ordinals),
            piece.memory,
            target_index=run.rows,
            spare=None if piece.own is piece.memory else piece.own,
        )

    def put(self, piece: "Piece") -> PutRequest:
        """The blocks of a piece, out of its memory."""
        return PutRequest(self.session, piece.run.layer, piece.run.ordinals, piece.memory)

    def of(self, layer: int, ordinals: U32) -> NDArray[np.uint64]:
        """Keys of blocks of one layer, ascending; most often they lie in a row."""
        first, last = int(ordinals[0]), int(ordinals[-1])
        keys = self.keys[layer, first : last + 1]
        return keys if len(keys) == len(ordinals) else np.ascontiguousarray(keys[ordinals - first])


def contents(move: Move, payload: int, layers: int, chunks_max: int) -> bytes:
    """The 16-byte hashes that name the chain of an object, or as much of it as is looked at."""
    if move.clearing or move.kind is Kind.DELETE:
        return move.name + _tail(min(move.chunks, chunks_max) - 1)
    if move.size == 0:
        return move.name
    return move.name + shape_of(move.size, payload, layers).tail


@dataclass(frozen=True)
class Piece:
    """Blocks of one object that travel in one call. A read has what its run says in `own`."""

    run: Run
    memory: U8
    part: int = 0
    own: U8 | None = None


def head_piece(shape: Shape, head: bytes = b"", inline: U8 | None = None) -> Piece:
    """The head, in memory of its own: to be read, or with what is written."""
    run = shape.runs(0, 1)[0]
    if not head:
        return _get_piece(shape, run, np.empty((0, shape.payload), np.uint8), 0)
    memory = np.frombuffer(head, np.uint8)
    if shape.inline and inline is not None:
        memory = np.concatenate([memory, inline])
    return Piece(run, memory[None])


def get_pieces(shape: Shape, buffer: U8, cuts: tuple[int, ...]) -> list[Piece]:
    """All blocks of an object, in as many parts as there are cuts, or one. The head is of the first
    part, in one call with that part's blocks of its layer: a call costs more than a head."""
    whole = buffer[: shape.full * shape.payload].reshape(-1, shape.payload)
    pieces, first = list[Piece](), 0
    for part, cut in enumerate(cuts or (shape.size,)):
        end = shape.end_of(cut)
        pieces += [_get_piece(shape, run, whole, part) for run in shape.runs(first, end)]
        first = max(first, end)
    return pieces


def _get_piece(shape: Shape, run: Run, whole: U8, part: int) -> Piece:
    own = np.empty((run.own, shape.payload), np.uint8) if run.own else None
    alone = own is not None and run.own == len(run.blocks)
    return Piece(run, own if own is not None and alone else whole, part, own)


def put_pieces(shape: Shape, buffer: U8, first: int, end: int) -> list[Piece]:
    """The blocks from `first` > 0 to `end`; rows of memory are given in a row."""
    whole = buffer[: shape.full * shape.payload].reshape(-1, shape.payload)
    pieces = []
    for run in shape.runs(first, min(end, shape.full + 1)):
        rows = run.rows
        step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
        pieces.append(Piece(run, whole[int(rows[0]) : int(rows[-1]) + 1 : step]))
    if first <= shape.full + 1 < end:
        run = shape.runs(shape.full + 1, shape.full + 2)[0]
        pieces.append(Piece(run, buffer[None, shape.full * shape.payload :]))
    return pieces


def is_head_of(move: Move, shape: Shape, piece: Piece, got: FetchResult) -> bool:
    """Whether the head that is there is that of the object to be put."""
    if got.failed_count or got.lengths.tolist() != piece.run.lengths or move.buffer is None:
        return False
    ours = head_of(move.size, sums_of(move.buffer[shape.inline :], shape.payload))
    ours += move.buffer[: shape.inline].tobytes()
    return bool(piece.memory[0, : piece.run.lengths[0]].tobytes() == ours)


def land(move: Move, piece: Piece, got: FetchResult) -> None:
    """Process a completed piece of a read: note an error, or report the parts that are complete."""
    if got.failed_count:
        worst = -next(rc for rc in got.rcs.tolist() if rc)
        why = errno.errorcode.get(worst, worst)
        move.failure = (State.UNREADABLE, f"a block could not be read: {why}")
    elif got.lengths.tolist() != piece.run.lengths:
        move.failure = (State.UNREADABLE, "a block has another length")
    else:
        move.sums[piece.run.blocks] = got.checksums
        if piece.own is not None:
            _copy(move, piece.run, piece.own)
    move.pieces[piece.part] -= 1
    if not any(move.pieces) and move.failure is None:
        assert move.head is not None
        if move.head.tobytes() != head_of(move.size, move.sums[1:]):
            move.failure = (State.UNREADABLE, "its blocks are not those of one put")
    if move.failure is None:
        tell_landed(move)


def _copy(move: Move, run: Run, own: U8) -> None:
    """Copy what was read into memory of its own to its place: a head's bytes are the object's first
    ones, and those of the last block its last."""
    assert move.buffer is not None
    if run.blocks[0] == 0:
        row = own[0, : run.lengths[0]]
        move.head, inline = row[:HEAD_BYTES], row[HEAD_BYTES:]
        move.buffer[: len(inline)] = inline
    if run.own > (run.blocks[0] == 0):
        length = run.lengths[-1]
        move.buffer[len(move.buffer) - length :] = own[-1, :length]


def tell_landed(move: Move, *, ended: bool = False) -> None:
    """Report complete parts, in order; at the end all of them, whatever the outcome."""
    while move.told < len(move.cuts) and (ended or move.pieces[move.told] == 0):
        move.told += 1
        if move.landed is not None:
            move.landed(move, move.told - 1)


def tier_of(move: Move) -> str:
    """State in the tier of an object that was read: `on_time`, all of it in memory; `late`, part of
    it still being staged; `missing`, part of it only in the store."""
    if move.worst < HIT_ENDS:
        return "on_time"
    return "late" if move.worst == HIT_ENDS else "missing"


def guesses(shape: Shape, probability: float) -> NDArray[np.void]:
    """Guesses for every block of an object, with this probability."""
    made = np.zeros(shape.blocks, GUESS)
    places = [shape.place(block) for block in range(shape.blocks)]
    made["layer"] = [layer for layer, _ in places]
    made["ordinal"] = [ordinal for _, ordinal in places]
    made["probability"], made["cause"] = int(65535 * probability), CAUSES.index("window")
    return made


def not_whole(stored: list[int], shape: Shape) -> tuple[State, str] | None:
    """The failure of a read before any byte is read; None if the object is stored with this shape.
    `stored`: stored layers of each chunk of its chain."""
    if stored[0] == 0:
        return State.ABSENT, ""
    if stored[-1] == 0 and stored[:-1] == shape.stored:
        return None
    has = f"{sum(stored)} blocks" if stored[-1] == 0 else "more blocks"
    return State.UNREADABLE, (
        f"{has} are there, and an object of {shape.size} bytes has {shape.blocks}"
    )


def is_ragged(stored: list[int], shape: Shape) -> bool:
    """Whether an object that is not whole has blocks in a last chunk that this shape fills in part:
    they may be of layers that are not its own, which no count tells."""
    return bool(
        stored[:-1] != shape.stored
        and shape.stored[-1] < shape.layers
        and len(shape.stored) > 1
        and stored[-2]
    )


def may_clear(move: Move) -> bool:
    """Whether to try the delete again, after a pause from the second time on: the object may be
    read or leased."""
    now_s = time.monotonic()
    move.clear_until_s = move.clear_until_s or now_s + HELD_S
    if move.clears > 1:
        time.sleep(CLEAR_PAUSE_S)
    return now_s < move.clear_until_s


def refuse(move: Move, worst: int) -> None:
    """A block of a put was refused: delete other bytes first, for a while; else the put fails."""
    if worst == errno.EEXIST and may_clear(move):
        move.clearing = True  # once none of its blocks is in flight
    else:
        move.failure = (State.REFUSED, _why_refused(worst))


def _why_refused(worst: int) -> str:
    """The user's message for a refused block."""
    if worst == errno.EEXIST:
        return HELD
    if worst == errno.ENOSPC:
        return "the store is full: raise storage.size or set store.ttl"
    return f"a block was not taken: {errno.errorcode.get(worst)}"
