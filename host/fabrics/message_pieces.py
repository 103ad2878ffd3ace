"""The pieces of values by messages: which blocks of a session they are, and their calls.

A store or retrieve is a generator, which yields what it waits for (`Wait`): one call at a time, of
up to PIECES blocks of a layer.
"""

import errno
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import OffstageError
from offstage.bindings.fabric import Call, Fetch, FetchRequest, FetchResult, Put, PutRequest
from offstage.bindings.keys import block_keys, fold_key
from offstage.bindings.value_io import ValueTask

__all__ = ["MessageFabric", "Pieces", "Wait", "Work", "pause"]

PIECES = 64  # of a layer, in one call
BUSY_S = 0.001  # until the next try for a call
U8 = NDArray[np.uint8]


class MessageFabric(Protocol):
    """What it needs of the fabric: calls in flight, one of which is a command on values."""

    payload_size_bytes: int
    demand_max: int

    def ask_begin(
        self, verb: int, asks: NDArray[np.void], told: NDArray[np.void], timeout_ns: int
    ) -> Call:
        """Do this with each of these values; `told` says what became of each."""

    def ask_end(self, call: Call) -> None:
        """Wait for it. Raises its error."""

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """As of `Fabric`, and so are those that follow."""

    def fetch_end(self, fetch: Fetch) -> FetchResult: ...

    def fetch_cancel(self, fetch: Fetch) -> None: ...

    def put_begin(self, request: PutRequest) -> Put: ...

    def put_end(self, put: Put) -> NDArray[np.int32]: ...

    def hint(self, session: int, guesses: NDArray[np.void]) -> int: ...

    def beside(self) -> AbstractContextManager[None]:
        """Within it, `poll` is of the calls that begin within it."""

    def poll(self, timeout_ns: int = 0) -> list[Any]: ...


@dataclass(eq=False)
class Wait:
    """`ready` says when a task goes on: at `due_s`, or when `call` has ended."""

    ready: Callable[[], bool]
    due_s: float = math.inf
    call: Call | None = None


Work = Generator[Wait, None, int]
"""A task; it returns 0 or -errno."""


class Pieces:
    """Those of values over one fabric."""

    def __init__(self, fabric: MessageFabric, layer_count: int, timeout_ns: int) -> None:
        """`layer_count` of a chunk, `timeout_ns` of a read."""
        self.fabric, self._layers, self._timeout_ns = fabric, layer_count, timeout_ns

    def put(self, task: ValueTask, session: int) -> Work:
        """Sends pieces as they are filled, until the store is committed."""
        memory, sent = task.memory, 0
        assert memory is not None
        while True:
            yield Wait(partial(self._may_go_on, task, sent))
            if task.c.dropped:
                return -errno.ECANCELED
            end = self._filled(task)
            for layer, pieces, rows in self._rows(memory, sent, end):
                ordinals = (pieces // self._layers).astype(np.uint32)
                request = PutRequest(session, layer, ordinals, rows)
                put = yield from self._call(self.fabric.put_begin, request)
                rcs = self.fabric.put_end(put)
                if rcs.any():
                    return int(rcs[rcs != 0][0])
            sent = end
            if task.c.committed and sent == self.count(len(memory)):
                return 0

    def get(self, task: ValueTask, session: int, chunk: bytes) -> Work:
        """Reads pieces into the task's memory, as many of the value as it has room for."""
        c, memory, payload = task.c, task.memory, self.fabric.payload_size_bytes
        assert memory is not None
        size = min(int(c.length), int(c.value_length))
        full, count, step = size // payload, self.count(size), PIECES * self._layers
        target = memory[: full * payload].reshape(-1, payload)
        last = np.empty((1, payload), np.uint8)  # a piece that is not whole
        for first in range(0, count, step):
            end = min(first + step, count)
            chunks = range(first // self._layers, self._chunks(end))
            keys = block_keys([fold_key(chunk, one) for one in chunks], self._layers)
            for layer, pieces in self._spread(first, end):
                ordinals = (pieces // self._layers).astype(np.uint32)
                request = FetchRequest(
                    session,
                    1,
                    layer,
                    ordinals,
                    np.ascontiguousarray(keys[layer, ordinals - chunks[0]]),
                    target,
                    pieces.astype(np.uint32),
                    timeout_ns=self._timeout_ns,
                    spare=last,
                )
                fetch = yield from self._call(self.fabric.fetch_begin, request)
                rc = self._landed(c, pieces, self.fabric.fetch_end(fetch))
                if rc != 0:
                    return rc
            if end > full:
                memory[full * payload : size] = last[0, : size - full * payload]
            c.landed = min(end * payload, size)
        return 0

    def _landed(self, c: Any, pieces: NDArray[np.int64], got: FetchResult) -> int:
        """Of blocks that were read: 0, or the first error."""
        if got.failed_count:
            return int(got.rcs[got.rcs != 0][0])
        payload = self.fabric.payload_size_bytes
        if (got.lengths != np.minimum(int(c.value_length) - pieces * payload, payload)).any():
            return -errno.EBADMSG
        for end, count in zip(*np.unique(got.ends, return_counts=True), strict=True):
            c.ends[int(end)] += int(count)
        return 0

    def _call(self, begin: Callable[[Any], Any], request: Any) -> Generator[Wait, None, Any]:
        """The call, once it has ended."""
        while True:
            try:
                call = begin(request)
                break
            except OffstageError as error:
                if error.errno != errno.EAGAIN:
                    raise
            yield pause(BUSY_S)
        yield Wait(lambda: bool(call.ended), call=call)
        return call

    def _may_go_on(self, task: ValueTask, sent: int) -> bool:
        filled, c = self._filled(task), task.c
        return bool(c.dropped or filled > sent or (c.committed and filled == self.count(c.length)))

    def _filled(self, task: ValueTask) -> int:
        """Pieces of a store that may be sent."""
        c = task.c
        if c.filled >= c.length:
            return self.count(c.length)
        return int(c.filled) // self.fabric.payload_size_bytes

    def count(self, size: int) -> int:
        """How many a value of this size has."""
        return -(-int(size) // self.fabric.payload_size_bytes)

    def _chunks(self, pieces: int) -> int:
        return -(-pieces // self._layers)

    def _spread(self, first: int, end: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """The pieces from `first` to `end`, by their layers, at most PIECES at a time."""
        for layer in range(self._layers):
            pieces = np.arange(first + (layer - first) % self._layers, end, self._layers)
            for at in range(0, len(pieces), PIECES):
                yield layer, pieces[at : at + PIECES]

    def _rows(
        self, memory: U8, first: int, end: int
    ) -> Iterator[tuple[int, NDArray[np.int64], U8]]:
        """Pieces of a value by their layers, with their bytes [pieces, bytes]."""
        payload = self.fabric.payload_size_bytes
        full = len(memory) // payload
        rows = memory[: full * payload].reshape(-1, payload)
        for layer, pieces in self._spread(first, min(end, full)):
            yield layer, pieces, rows[pieces[0] : pieces[-1] + 1 : self._layers]
        if first <= full < end:
            yield full % self._layers, np.array([full]), memory[None, full * payload :]


def pause(seconds: float) -> Wait:
    """For so long."""
    due_s = time.monotonic() + seconds
    return Wait(lambda: time.monotonic() >= due_s, due_s)
