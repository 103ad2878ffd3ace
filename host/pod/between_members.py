"""Moves shards from one member to another, alongside the decode loop and within bounds.

The host fetches the blocks from the source and puts them at the target like any others: they pass
the checks of every read, and daemons need no connection to each other. A few shards move at the
same time, with one call in flight for each; every turn advances them. A move ends when a member
fails, and is started again by the caller that still wants it.

    WAITING -> BETWEEN     there is room for it: it is opened at both members
    BETWEEN -> READING     the source has room for the next batch
    BETWEEN -> ENDED       there is no next batch
    READING -> WRITING     the batch has come, and the target has room
    READING -> BETWEEN     nothing of it came
    WRITING -> BETWEEN     the batch is written
    any     -> ENDED       a member is silent, lost or refuses; the shard is deleted
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError
from offstage.bindings.fabric import Fetch, FetchRequest, Put, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.joined import Joined, Silent

__all__ = ["Move", "Moves"]

MOVES_MAX = 4
BATCH_BLOCKS = 16
Kind = Literal["filled", "copied"]


class State(Enum):
    """Of a move; `Moves._go_on` alone changes it."""

    WAITING = auto()
    BETWEEN = auto()
    READING = auto()
    WRITING = auto()
    ENDED = auto()


@dataclass(eq=False)
class Move:
    """The move of one shard: the names of its chunks, and its progress."""

    name: bytes
    chain: list[bytes]
    source: Joined
    target: Joined
    kind: Kind
    ended: "Callable[[Move], None]"
    """Called when the move has ended."""
    state: State = State.WAITING
    whole: bool = False
    """Whether the target has all of it."""
    why: str = ""
    moved_blocks: int = 0
    moved_bytes: int = 0
    sessions: list[tuple[Joined, int]] = field(default_factory=list)
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, 0, 2), np.uint64))
    batches: Iterator[tuple[int, NDArray[np.uint32]]] = field(default_factory=lambda: iter(()))
    layer: int = 0
    ordinals: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    step: int = 0
    lost: int = 0
    """Blocks that the source did not give, or the target did not take."""
    length: int = 0
    row: int = 0
    """Where its rows of the buffer begin."""
    call: Fetch | Put | None = None


class Moves:
    """The moves in progress over one fabric; its owner calls `turn`."""

    def __init__(self, fabric: PodFabric, layers: int) -> None:
        """`layers`: of a chunk."""
        self._fabric, self._layers = fabric, layers
        rows = MOVES_MAX * BATCH_BLOCKS
        self._buffer = np.empty((rows, fabric.payload_size_bytes), np.uint8)
        self._free = [number * BATCH_BLOCKS for number in range(MOVES_MAX)]
        self._waiting: deque[Move] = deque()
        self._under_way: list[Move] = []
        fabric.register(self._buffer)
        self.bytes: Counter[Kind] = Counter()
        self.blocks: Counter[Kind] = Counter()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def wants(self, name: bytes, target: Joined) -> bool:
        """Whether a move of this shard to `target` is already in progress."""
        return any(
            one.name == name and one.target is target for one in (*self._waiting, *self._under_way)
        )

    def add(self, move: Move) -> None:
        """Queue a move; a duplicate is ignored."""
        if not self.wants(move.name, move.target):
            self._waiting.append(move)

    def turn(self) -> None:
        """Advance moves whose calls have completed, and start new ones while there is room."""
        for move in list(self._under_way):
            self._go_on(move)
        while self._waiting and self._free:
            self._go_on(self._waiting.popleft())

    def drop(self, name: bytes) -> None:
        """End the moves of a deleted shard; waits for calls in flight."""
        for move in [one for one in (*self._waiting, *self._under_way) if one.name == name]:
            self._go_on(move, "it is deleted")
        self._waiting = deque(one for one in self._waiting if one.state is State.WAITING)

    def close(self) -> None:
        """Drop all moves; waits for calls in flight."""
        self._waiting.clear()
        for move in list(self._under_way):
            self._go_on(move, "given up")
        self._fabric.unregister(self._buffer)

    def _go_on(self, move: Move, why: str = "") -> None:
        """Advance a move until it has to wait. Only this function changes its state. `why`: end it
        now, for this reason."""
        while move.state is not State.ENDED:
            why = why or self._hindered(move)
            if why:
                return self._end(move, why)
            if move.call is not None and not move.call.ended:
                return None
            if move.state is State.WAITING:
                why = self._begin(move)
                move.state = State.BETWEEN
            elif move.state is State.WRITING:
                self._written(move)
                move.state = State.BETWEEN
            elif move.state is State.READING:
                if not self._fabric.has_room(move.target):
                    return None
                self._write(move)
                move.state = State.BETWEEN if move.call is None else State.WRITING
            else:
                if not self._fabric.has_room(move.source):
                    return None
                if (batch := next(move.batches, None)) is None:
                    return self._end(move, "")
                self._read(move, *batch)
                move.state = State.READING
        return None

    def _hindered(self, move: Move) -> str:
        """Why the move cannot continue, or ""."""
        if move.state is not State.WAITING:
            return "a member was lost" if move.source.lost or move.target.lost else ""
        now_ns = move.source.clock.now_ns()
        if move.source.usable(now_ns) and move.target.usable(now_ns):
            return ""
        return "a member does not answer"  # so one timeout is paid, not one for each move

    def _begin(self, move: Move) -> str:
        """Open the shard at both members and list the blocks to move. Returns the reason when
        that fails."""
        move.row = self._free.pop()
        self._under_way.append(move)
        try:
            has, move.keys = self._open(move, move.source)
            lacks, _ = self._open(move, move.target)
        except Silent as error:
            return str(error)
        except OffstageError as error:  # full or draining: no reason to suspect a member
            return error.what
        whole = lacks == self._layers
        chunks = np.flatnonzero(~whole & (has == self._layers)).astype(np.uint32)
        move.lost = self._layers * int(np.count_nonzero(~whole & (has != self._layers)))
        move.batches = iter(
            [
                (layer, chunks[first : first + BATCH_BLOCKS])
                for layer in range(self._layers)
                for first in range(0, len(chunks), BATCH_BLOCKS)
            ]
        )
        return ""

    def _open(self, move: Move, at: Joined) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Open a separate session there: the stored layers of each chunk, and the keys."""
        handle = at.ask(at.control.session_open, select_blocks=BATCH_BLOCKS, may_refuse=True)
        move.sessions.append((at, handle))
        found = at.ask(at.control.append, handle, move.chain, may_refuse=True)
        return np.array(found.stored_layers), block_keys(list(found.keys), self._layers)

    def _written(self, move: Move) -> None:
        """Count what was put."""
        assert isinstance(move.call, Put)
        taken = int(np.count_nonzero(self._fabric.put_end(move.call) == 0))
        move.lost += len(move.ordinals) - taken
        move.moved_blocks += taken
        move.moved_bytes += taken * move.length
        self.blocks[move.kind] += taken
        self.bytes[move.kind] += taken * move.length
        move.call = None

    def _read(self, move: Move, layer: int, ordinals: NDArray[np.uint32]) -> None:
        """Fetch the next batch."""
        move.layer, move.ordinals = layer, ordinals
        move.step += 1
        rows = np.arange(move.row, move.row + len(move.ordinals), dtype=np.uint32)
        at, session = move.sessions[0]
        move.call = self._fabric.fetch_at(
            at,
            FetchRequest(
                session,
                move.step,
                move.layer,
                move.ordinals,
                np.ascontiguousarray(move.keys[move.layer, move.ordinals]),
                self._buffer,
                target_index=rows,
            ),
        )

    def _write(self, move: Move) -> None:
        """Put the blocks that came; the others count as lost to this move."""
        assert isinstance(move.call, Fetch)
        result = self._fabric.fetch_end(move.call)
        move.call = None
        came = result.rcs == 0
        if came.any():  # the blocks of a layer have one length
            move.length = int(result.lengths[came][0])
            came &= result.lengths == move.length
        move.lost += int(np.count_nonzero(~came))
        move.ordinals = move.ordinals[came]
        if came.any():
            rows = self._buffer[move.row + np.flatnonzero(came), : move.length]
            at, session = move.sessions[1]
            move.call = self._fabric.put_at(
                at, PutRequest(session, move.layer, move.ordinals, np.ascontiguousarray(rows))
            )

    def _end(self, move: Move, why: str) -> None:
        if isinstance(move.call, Fetch):
            self._fabric.fetch_end(move.call)
        elif isinstance(move.call, Put):
            self._fabric.put_end(move.call)
        move.call, move.why = None, why
        if move.state is not State.WAITING:
            self._under_way.remove(move)
            self._free.append(move.row)
            move.whole = not why and not move.lost
        move.state = State.ENDED
        for at, handle in move.sessions:
            at.close_session(handle)
        move.sessions.clear()
        move.ended(move)
