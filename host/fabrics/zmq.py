"""The ZMQ fabric's host side: fetches and puts as messages to a driver beside the daemon.

Bytes travel in frames of their own, never inside msgpack. The checksum that the daemon's driver
verified travels along, and every row is compared with it here: what was damaged on the way is
-EBADMSG and not handed out. Times in the result are the daemon's; the link comes on top.

Each call in flight has one request under way; what a message cannot carry is asked for by the next
when it has been answered. Replies are matched by their number and may come in any order. The daemon
has a call that was given up until it answers it: meanwhile one less is sent.
"""

import errno
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import zmq
from numpy.typing import NDArray

from offstage.bindings.driver import Fetch, FetchResult, Put, blocking
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.keys import checksum
from offstage.bindings.scores import pack
from offstage.dpu import protocol as p
from offstage.dpu import zmq_messages
from offstage.host.control import Control
from offstage.host.sessions import ALL_SCORES

__all__ = ["ZmqDriver", "connect"]

LINK_NS = 2_000_000_000  # what a reply may take on its way beyond the time it was allowed
UNKNOWN_END = 255
Handle = TypeVar("Handle", Fetch, Put)
COUNTERS = (
    "fetches",
    "hits",
    "misses",
    "torn",
    "retries",
    "failed",
    "puts",
    "bytes_read",
    "bytes_put",
    "remembered",
    "moved_on",
    "guesses",
)


def connect(control: Control) -> "ZmqDriver":
    """Attach over ZMQ. Raises what the daemon answers."""
    attached = control.attach("zmq")
    socket = control.fabric_dealer(attached.endpoint)
    return ZmqDriver(socket, attached, control.limits.put_slot_count)


@dataclass(eq=False)
class _Request:
    """One message, the kind of its reply, and what to do with that."""

    message: Any
    kind: type[Any]
    timeout_ns: int
    accept: Callable[[Any, memoryview], None]
    payload: Any = None


@dataclass(eq=False)
class _Call:
    """A fetch, put or release: its requests one after the other, and how it ended."""

    requests: Iterator[_Request]
    pieces: list[Any]
    current: _Request | None = None
    deadline_ns: int = 0
    error: OffstageError | None = None
    ended: bool = False
    reported: bool = False


class ZmqDriver:
    """The calls of `Fabric` over one DEALER; it closes the socket."""

    def __init__(
        self, socket: "zmq.Socket[bytes]", attached: p.Attached, put_slot_count: int
    ) -> None:
        """`put_slot_count` is how many blocks the daemon takes in one message."""
        self.payload_size_bytes = attached.payload_size_bytes
        self.demand_max = attached.demand_max
        self.calls_max = zmq_messages.FABRIC_REQUESTS_MAX - 1  # and one hint
        self.dilation = 1
        self._socket, self._where = socket, attached.endpoint
        self._ticket = bytes.fromhex(attached.token)
        self._put_max = put_slot_count
        self._id = 0
        self._waiting: dict[int, _Call] = {}  # by the number of the request under way
        self._later: deque[_Call] = deque()  # begun, and not sent yet
        self._handles: list[Fetch | Put] = []
        self._hint = _Call(iter(()), [], ended=True)
        self._stats = dict.fromkeys(COUNTERS, 0)
        self._limits = ALL_SCORES
        self._closed = False

    def fetch_begin(
        self,
        session: int,
        step: int,
        layer: int,
        ordinals: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        target: NDArray[np.uint8],
        *,
        target_index: NDArray[np.uint32] | None = None,
        selected_count: int | None = None,
        scores: NDArray[np.uint16] | None = None,
        timeout_ns: int = 2_000_000_000,
    ) -> Fetch:
        """As `bindings.driver.Driver.fetch_begin`."""
        count = len(ordinals)
        index = np.arange(count, dtype=np.uint32) if target_index is None else target_index
        assert keys.shape == (count, 2) and len(index) == count and target.ndim == 2
        assert target.shape[1] >= self.payload_size_bytes
        selected = count if selected_count is None else selected_count
        pieces: list[FetchResult] = []
        hint = None if scores is None else pack(self._limits, step, scores)

        def requests() -> Iterator[_Request]:
            for first in range(0, max(count, 1), self.demand_max):
                piece = slice(first, min(first + self.demand_max, count))
                # The first piece carries the scores, and what was selected and is not demanded.
                more = selected - count if first == 0 else 0
                message = zmq_messages.FabricFetch(
                    session=session,
                    step=step,
                    layer=layer,
                    selected_count=piece.stop - first + more,
                    ordinals=np.ascontiguousarray(ordinals[piece], "<u4").tobytes(),
                    keys=np.ascontiguousarray(keys[piece], "<u8").tobytes(),
                    timeout_ns=timeout_ns,
                )
                if hint is not None and not first:
                    message.scores = hint.data
                    if hint.flags:
                        message.packed = hint.flags, hint.count, hint.best

                def accept(reply: Any, payload: memoryview, piece: slice = piece) -> None:
                    pieces.append(self._accept(reply, payload, target, index[piece]))

                yield _Request(message, zmq_messages.FabricFetchReply, timeout_ns, accept)

        self._stats["fetches"] += 1
        call = _Call(requests(), pieces)
        return self._begin(call, Fetch(count, call, ()))

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """As `bindings.driver.Driver.fetch_end`. A reply that does not come in time: RunFailed."""
        return _join(self._end(fetch))

    def fetch_cancel(self, fetch: Fetch) -> None:
        """As `bindings.driver.Driver.fetch_cancel`."""
        self._handles.remove(fetch)
        call: _Call = fetch.call
        call.requests = iter(())
        if call in self._later:
            self._later.remove(call)
        elif call.current is not None:
            call.current.accept = lambda reply, payload: None

    fetch = blocking(fetch_begin, fetch_end)

    def put_begin(
        self,
        session: int,
        layer: int,
        ordinals: NDArray[np.uint32],
        source: NDArray[np.uint8],
        *,
        length_bytes: int | None = None,
        timeout_ns: int = 10_000_000_000,
    ) -> Put:
        """As `bindings.driver.Driver.put_begin`; a message holds what the daemon's window does."""
        count = len(ordinals)
        assert source.ndim == 2 and source.shape[0] == count
        length = source.shape[1] if length_bytes is None else length_bytes
        assert length <= source.shape[1]
        if not 0 < length <= self.payload_size_bytes:
            raise BadInput(
                f"blocks of {length} B",
                self._where,
                f"put between 1 and {self.payload_size_bytes} B",
            )

        def requests() -> Iterator[_Request]:
            for first in range(0, count, self._put_max):
                piece = slice(first, min(first + self._put_max, count))
                rows = np.ascontiguousarray(source[piece, :length])
                put.checksums[piece] = [checksum(row) for row in rows]
                message = zmq_messages.FabricPut(
                    session=session,
                    layer=layer,
                    length_bytes=length,
                    ordinals=np.ascontiguousarray(ordinals[piece], "<u4").tobytes(),
                    checksums=put.checksums[piece].astype("<u8").tobytes(),
                    timeout_ns=timeout_ns,
                )

                def accept(reply: Any, _: memoryview, piece: slice = piece) -> None:
                    taken = _array(reply.rcs, "<i4", piece.stop - piece.start, self._where)
                    put.rcs[piece] = taken
                    good = int((taken == 0).sum())
                    self._stats["puts"] += good
                    self._stats["bytes_put"] += good * length

                yield _Request(message, zmq_messages.FabricPutReply, timeout_ns, accept, rows)

        call = _Call(requests(), [])
        put = Put(count, call, ())
        return self._begin(call, put)

    def put_end(self, put: Put) -> NDArray[np.int32]:
        """As `bindings.driver.Driver.put_end`. A reply that does not come in time: RunFailed."""
        self._end(put)
        return put.rcs

    put = blocking(put_begin, put_end)

    def poll(self, timeout_ns: int = 0) -> list[Fetch | Put]:
        """As `bindings.driver.Driver.poll`."""
        until_ns = time.monotonic_ns() + timeout_ns
        while True:
            self._turn(0)
            ended = [one for one in self._handles if one.call.ended and not one.call.reported]
            for one in ended:
                one.call.reported = True
            left_ns = until_ns - time.monotonic_ns()
            if ended or left_ns <= 0 or not (self._waiting or self._later):
                return ended
            self._turn(left_ns)

    def register(self, array: NDArray[Any]) -> None:
        """Nothing: rows come as messages and are copied by this side."""

    def unregister(self, array: NDArray[Any]) -> None:
        """Nothing."""

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """As `bindings.driver.Driver.hint`; one message at a time, and refusals are nobody's."""
        self._turn(0)
        if not self._hint.ended:
            return 0
        some = guesses[: self.demand_max]
        message = zmq_messages.FabricHint(session=session, guesses=some.tobytes())
        request = _Request(message, p.Ok, 0, lambda reply, payload: None)
        self._hint = _Call(iter([request]), [])
        self._next(self._hint)
        self._stats["guesses"] += len(some)
        return len(some)

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """As `bindings.driver.Driver.limit_scores`."""
        self._limits = scores_max, every_steps, score_bits

    def release(self, session: int) -> None:
        """End the session's pins now."""
        request = _Request(
            zmq_messages.FabricRelease(session=session), p.Ok, 0, lambda reply, payload: None
        )
        call = _Call(iter([request]), [])
        self._next(call)
        self._finish(call)

    def stages(self) -> dict[str, dict[str, Any]]:
        """None: the driver that copies and checks is the daemon's."""
        return {}

    def stats(self) -> dict[str, int]:
        """Counters of this side, by the names of `struct ofs_driver_stats`."""
        return dict(self._stats)

    def close(self) -> None:
        """Close the socket; calls in flight have failed. The daemon's side ends with the login."""
        if not self._closed:
            self._closed = True
            for call in (*self._waiting.values(), *self._later):
                self._fail(call, self._shut())
            self._waiting.clear()
            self._later.clear()
            self._socket.close(0)

    def __enter__(self) -> "ZmqDriver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self, call: _Call, handle: Handle) -> Handle:
        if len(self._handles) == self.calls_max:
            raise RunFailed(
                f"{self.calls_max} calls are in flight",
                self._where,
                "end one before the next begins",
                errno=errno.EAGAIN,
            )
        if len(self._waiting) >= self.calls_max:
            self._later.append(call)
        else:
            self._next(call)
        self._handles.append(handle)
        return handle

    def _end(self, handle: Fetch | Put) -> list[Any]:
        self._handles.remove(handle)
        call: _Call = handle.call
        self._finish(call)
        return call.pieces

    def _finish(self, call: _Call) -> None:
        while not call.ended:
            self._turn(LINK_NS)
        if call.error is not None:
            raise call.error

    def _next(self, call: _Call) -> None:
        """Send the call's next request; without one it has ended."""
        if self._closed:
            raise self._shut()
        request = call.current = next(call.requests, None)
        if request is None:
            call.ended = True
            return
        self._id = self._id % 0xFFFFFFFF + 1
        request.message.id = self._id
        frames: list[Any] = [self._ticket, p.encode(request.message)]
        if request.payload is not None:
            frames.append(request.payload.data.cast("B"))
        call.deadline_ns = time.monotonic_ns() + request.timeout_ns + LINK_NS
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._fail(call, self._silent())
            return
        self._waiting[self._id] = call

    def _turn(self, timeout_ns: int) -> None:
        """Take every reply that is there, waiting for the first; late ones are dropped."""
        due_ns = min((call.deadline_ns for call in self._waiting.values()), default=0)
        wait_ns = min(timeout_ns, due_ns - time.monotonic_ns())
        ready = self._socket.poll(max(wait_ns, 0) // 1_000_000 + (wait_ns > 0))
        while ready:
            self._take(self._socket.recv_multipart(copy=False))
            ready = self._socket.poll(0)
        now_ns = time.monotonic_ns()
        for number, call in list(self._waiting.items()):
            if now_ns >= call.deadline_ns:
                del self._waiting[number]
                self._fail(call, self._silent())
        while self._later and len(self._waiting) < self.calls_max:
            self._next(self._later.popleft())

    def _take(self, answer: list[Any]) -> None:
        try:
            reply = zmq_messages.decode_fabric_reply(bytes(answer[0].buffer))
        except OffstageError as error:  # whose it was cannot be said
            for call in self._waiting.values():
                self._fail(call, error)
            self._waiting.clear()
            return
        call_or_none = self._waiting.pop(reply.id, None)
        if call_or_none is None:
            return
        call, request = call_or_none, call_or_none.current
        assert request is not None
        try:
            if isinstance(reply, p.Error):
                raise RunFailed(
                    reply.what, reply.where or self._where, reply.mend, errno=reply.errno
                )
            if not isinstance(reply, request.kind):
                raise RunFailed(
                    f"{type(reply).__name__} in answer to {type(request.message).__name__}",
                    self._where,
                    "use the same release on both sides",
                )
            request.accept(reply, answer[1].buffer if len(answer) > 1 else memoryview(b""))
            self._next(call)
        except OffstageError as error:
            self._fail(call, error)

    def _fail(self, call: _Call, error: OffstageError) -> None:
        call.error, call.ended = error, True

    def _shut(self) -> RunFailed:
        return RunFailed("this fabric is closed", self._where, "start the host again")

    def _silent(self) -> RunFailed:
        return RunFailed(
            "the daemon's ZMQ fabric does not answer",
            self._where,
            "see `offstage dpu status`; start the host again",
            errno=errno.EPIPE,
        )

    def _accept(
        self,
        reply: zmq_messages.FabricFetchReply,
        payload: memoryview,
        target: NDArray[np.uint8],
        index: NDArray[np.uint32],
    ) -> FetchResult:
        """Compare every row with its checksum, and copy the good ones to their rows."""
        count = len(index)
        ends = _array(reply.ends, "u1", count, self._where)
        rcs = _array(reply.rcs, "<i4", count, self._where)
        lengths = _array(reply.lengths, "<u4", count, self._where)
        checksums = _array(reply.checksums, "<u8", count, self._where)
        if len(payload) != count * self.payload_size_bytes:
            raise RunFailed(
                f"{len(payload)} B for {count} blocks",
                self._where,
                "use the same release on both sides",
            )
        rows = np.frombuffer(payload, np.uint8).reshape(count, -1) if count else target[:0]
        failed = reply.failed_count
        for i in np.flatnonzero(rcs == 0):
            length = int(lengths[i])
            if length > self.payload_size_bytes or checksum(rows[i, :length]) != checksums[i]:
                rcs[i], ends[i], failed = -errno.EBADMSG, UNKNOWN_END, failed + 1
                continue
            target[index[i], :length] = rows[i, :length]
            self._stats["bytes_read"] += length
        self._stats["hits"] += reply.hit_count
        self._stats["misses"] += count - reply.hit_count
        self._stats["torn"] += reply.torn_count
        self._stats["retries"] += reply.retry_count
        self._stats["failed"] += failed
        return FetchResult(
            ends,
            rcs,
            lengths,
            checksums,
            reply.hit_count,
            failed,
            reply.retry_count,
            reply.torn_count,
            reply.stall_ns,
            reply.copy_ns,
        )


def _array(data: bytes, dtype: str, count: int, where: str) -> Any:
    """A packed array of a reply, writable; RunFailed where it is not `count` long."""
    if len(data) != count * np.dtype(dtype).itemsize:
        raise RunFailed(
            f"{len(data)} B where {count} of {dtype} belong",
            where,
            "use the same release on both sides",
        )
    return np.frombuffer(data, dtype).copy()


def _join(pieces: list[FetchResult]) -> FetchResult:
    """Pieces of one fetch as one result, in demand order."""
    if len(pieces) == 1:
        return pieces[0]
    arrays: list[Any] = [
        np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("ends", "rcs", "lengths", "checksums")
    ]
    sums = [
        sum(getattr(piece, name) for piece in pieces)
        for name in (
            "hit_count",
            "failed_count",
            "retry_count",
            "torn_count",
            "stall_ns",
            "copy_ns",
        )
    ]
    return FetchResult(*arrays, *sums)
