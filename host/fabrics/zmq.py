"""The ZMQ fabric's host side: fetches and puts as messages to a driver next to the daemon.

Payload travels in separate frames, never inside msgpack, with the checksum that the daemon's driver
verified. Every row is compared with it here: a row damaged in transit ends as -EBADMSG and is not
delivered. Times in the result are the daemon's, without the link.

Each call has one request in flight; a call too large for one message sends the next request once
the last is answered. Replies are matched by number and may come in any order. A cancelled call
occupies its slot at the daemon until it is answered.
"""

import errno
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq
from numpy.typing import DTypeLike, NDArray

from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import (
    UNKNOWN_END,
    Call,
    Fabric,
    Fetch,
    FetchRequest,
    FetchResult,
    Put,
    PutRequest,
)
from offstage.bindings.keys import checksum
from offstage.bindings.scores import pack
from offstage.bindings.value_io import ValueIO
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.host.fabrics.message_values import MessageValues
from offstage.host.link.control import Control
from offstage.host.link.tier_sessions import ALL_SCORES

__all__ = ["ZmqDriver", "connect"]

LINK_NS = 2_000_000_000  # allowance for the link, in addition to the request's deadline
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
    """Attach over ZMQ. Raises the daemon's error reply."""
    attached = control.attach("zmq")
    socket = control.fabric_dealer(attached.endpoint)
    return ZmqDriver(socket, attached, control.limits.put_slot_count, control.geometry.layer_count)


@dataclass(eq=False)
class _Request:
    """One message, the type of its reply, and the reply's handler."""

    message: Any
    kind: type[Any]
    timeout_ns: int
    accept: Callable[[Any, memoryview], None]
    payload: Any = None


@dataclass(eq=False)
class _Work:
    """The remaining requests of a fetch, put, release or hint, in order."""

    requests: Iterator[_Request]
    pieces: list[FetchResult] = field(default_factory=list)
    current: _Request | None = None
    deadline_ns: int = 0


class ZmqDriver(Fabric):
    """A fabric over one DEALER; it closes the socket."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        attached: p.Attached,
        put_slot_count: int,
        layer_count: int = 1,
    ) -> None:
        """`put_slot_count` is how many blocks the daemon takes in one message, `layer_count` the
        layers of a chunk."""
        super().__init__()
        self.payload_size_bytes = attached.payload_size_bytes
        self.demand_max = attached.demand_max
        self.calls_max = zmq_messages.FABRIC_REQUESTS_MAX - 1  # and one hint
        self._socket, self.where = socket, attached.endpoint
        self._ticket = bytes.fromhex(attached.token)
        self._put_max, self._layers = put_slot_count, layer_count
        self._id = 0
        self._waiting: dict[int, Call] = {}  # by the number of the request under way
        self._later: deque[Call] = deque()  # begun, and not sent yet
        self._hint = Call(0)
        self._hint.ended = True
        self._stats = dict.fromkeys(COUNTERS, 0)
        self._limits = ALL_SCORES
        self._beside: dict[Any, bool] = {}  # `_in_flight` of tasks on values
        self._closed = False

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Request the blocks, in messages of as many as the daemon takes in one demand."""
        count, index, target = len(request.ordinals), request.rows, request.target
        assert request.keys.shape == (count, 2) and len(index) == count and target.ndim == 2
        assert target.shape[1] >= self.payload_size_bytes
        pieces: list[FetchResult] = []
        hint = None
        if request.scores is not None:
            hint = pack(self._limits, request.step, request.scores)

        def requests() -> Iterator[_Request]:
            for first in range(0, max(count, 1), self.demand_max):
                piece = slice(first, min(first + self.demand_max, count))
                # The first piece has the scores, and the selected blocks that are not demanded.
                more = request.resident if first == 0 else 0
                message = zmq_messages.FabricFetch(
                    session=request.session,
                    step=request.step,
                    layer=request.layer,
                    selected_count=piece.stop - first + more,
                    ordinals=np.ascontiguousarray(request.ordinals[piece], "<u4").tobytes(),
                    keys=np.ascontiguousarray(request.keys[piece], "<u8").tobytes(),
                    timeout_ns=request.timeout_ns,
                )
                if hint is not None and not first:
                    message.scores = hint.data
                    if hint.flags:
                        message.packed = hint.flags, hint.count, hint.best

                def accept(reply: Any, payload: memoryview, piece: slice = piece) -> None:
                    pieces.append(self._accept(reply, payload, request, index[piece]))

                yield _Request(message, zmq_messages.FabricFetchReply, request.timeout_ns, accept)

        fetch: Fetch = self._admit(Fetch(request, _Work(requests(), pieces)))
        self._stats["fetches"] += 1
        self._begin(fetch)
        return fetch

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch. A reply that does not come in time: RunFailed."""
        self._finish(fetch)
        return _join(fetch.work.pieces)

    def fetch_cancel(self, fetch: Fetch) -> None:
        """Cancel this fetch without waiting; late replies are dropped."""
        del self._in_flight[fetch]
        work: _Work = fetch.work
        work.requests = iter(())
        if fetch in self._later:
            self._later.remove(fetch)
        elif work.current is not None:
            work.current.accept = lambda reply, payload: None

    def put_begin(self, request: PutRequest) -> Put:
        """Send the blocks, in messages of as many as the daemon's window takes."""
        count, length, source = len(request.ordinals), request.length, request.source
        assert source.ndim == 2 and source.shape[0] == count
        assert length <= source.shape[1]
        if not 0 < length <= self.payload_size_bytes:
            raise BadInput(
                f"blocks of {length} B",
                self.where,
                f"put between 1 and {self.payload_size_bytes} B",
            )

        def requests() -> Iterator[_Request]:
            for first in range(0, count, self._put_max):
                piece = slice(first, min(first + self._put_max, count))
                rows = np.ascontiguousarray(source[piece, :length])
                put.checksums[piece] = [checksum(row) for row in rows]
                message = zmq_messages.FabricPut(
                    session=request.session,
                    layer=request.layer,
                    length_bytes=length,
                    ordinals=np.ascontiguousarray(request.ordinals[piece], "<u4").tobytes(),
                    checksums=put.checksums[piece].astype("<u8").tobytes(),
                    timeout_ns=request.timeout_ns,
                )

                def accept(reply: Any, _: memoryview, piece: slice = piece) -> None:
                    taken = _array(reply.rcs, "<i4", piece.stop - piece.start, self.where)
                    put.rcs[piece] = taken
                    good = int((taken == 0).sum())
                    self._stats["puts"] += good
                    self._stats["bytes_put"] += good * length

                yield _Request(
                    message, zmq_messages.FabricPutReply, request.timeout_ns, accept, rows
                )

        put: Put = self._admit(Put(request, _Work(requests())))
        self._begin(put)
        return put

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send guesses, one message at a time; the daemon's errors are ignored."""
        self._advance(0)
        if not self._hint.ended:
            return 0
        some = guesses[: self.demand_max]
        self._hint = self._send(zmq_messages.FabricHint(session=session, guesses=some.tobytes()))
        self._stats["guesses"] += len(some)
        return len(some)

    def ask_begin(
        self, verb: int, asks: NDArray[np.void], told: NDArray[np.void], timeout_ns: int
    ) -> Call:
        """Do this (`bindings.value_io.VERBS`) with each of these values, as `Driver.ask`: `told`
        says what became of each once the call has ended. RunFailed with EAGAIN as `fetch_begin`."""

        def accept(reply: Any, _: memoryview) -> None:
            told[:] = _array(reply.told, told.dtype, len(told), self.where)

        message = zmq_messages.FabricValues(verb=verb, asks=asks.tobytes(), timeout_ns=timeout_ns)
        kind = zmq_messages.FabricValuesReply
        request = _Request(message, kind, timeout_ns, accept)
        call: Call = self._admit(Call(0, work=_Work(iter([request]))))
        self._begin(call)
        return call

    def ask_end(self, call: Call) -> None:
        """Wait for it. Raises its error."""
        self._finish(call)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Calls within are those of tasks on values: counted apart, and reported there alone."""
        self._in_flight, self._beside = self._beside, self._in_flight
        try:
            yield
        finally:
            self._in_flight, self._beside = self._beside, self._in_flight

    def value_io(self, sessions_max: int, timeout_s: float) -> ValueIO:
        """Moved by messages, many tasks at once."""
        return MessageValues(self, self._layers, sessions_max, timeout_s)

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """From the next fetch on."""
        self._limits = scores_max, every_steps, score_bits

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._finish(self._send(zmq_messages.FabricRelease(session=session)))

    def stats(self) -> dict[str, int]:
        """Counters of this side, by the names of `struct ofs_driver_stats`."""
        return dict(self._stats)

    def close(self) -> None:
        """Close the socket and fail the calls in flight. The daemon's side ends with the login."""
        if not self._closed:
            self._closed = True
            for call in (*self._waiting.values(), *self._later):
                _fail(call, self._shut())
            self._waiting.clear()
            self._later.clear()
            self._socket.close(0)

    def _begin(self, call: Call) -> None:
        if len(self._waiting) >= self.calls_max:
            self._later.append(call)
            return
        try:
            self._next(call)
        except OffstageError:
            self._in_flight.pop(call, None)
            raise

    def _send(self, message: Any) -> Call:
        """Send one message whose reply is a plain acknowledgement."""
        request = _Request(message, p.Ok, 0, lambda reply, payload: None)
        call = Call(0, work=_Work(iter([request])))
        self._next(call)
        return call

    def _next(self, call: Call) -> None:
        """Send the call's next request; without one it has ended."""
        if self._closed:
            raise self._shut()
        work: _Work = call.work
        request = work.current = next(work.requests, None)
        if request is None:
            call.ended = True
            return
        self._id = self._id % 0xFFFFFFFF + 1
        request.message.id = self._id
        frames: list[Any] = [self._ticket, p.encode(request.message)]
        if request.payload is not None:
            frames.append(request.payload.data.cast("B"))
        work.deadline_ns = time.monotonic_ns() + request.timeout_ns + LINK_NS
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            _fail(call, self._silent())
            return
        self._waiting[self._id] = call

    def _advance(self, timeout_ns: int) -> None:
        """Process all available replies, waiting for the first; late ones are dropped."""
        due_ns = min((call.work.deadline_ns for call in self._waiting.values()), default=0)
        wait_ns = min(timeout_ns, due_ns - time.monotonic_ns())
        ready = self._socket.poll(max(wait_ns, 0) // 1_000_000 + (wait_ns > 0))
        while ready:
            self._take(self._socket.recv_multipart(copy=False))
            ready = self._socket.poll(0)
        now_ns = time.monotonic_ns()
        for number, call in list(self._waiting.items()):
            if now_ns >= call.work.deadline_ns:
                del self._waiting[number]
                _fail(call, self._silent())
        while self._later and len(self._waiting) < self.calls_max:
            self._next(self._later.popleft())

    def _take(self, answer: list[Any]) -> None:
        try:
            reply = zmq_messages.decode_fabric_reply(bytes(answer[0].buffer))
        except OffstageError as error:  # the reply's call is unknown
            for call in self._waiting.values():
                _fail(call, error)
            self._waiting.clear()
            return
        call_or_none = self._waiting.pop(reply.id, None)
        if call_or_none is None:
            return
        call, request = call_or_none, call_or_none.work.current
        assert request is not None
        try:
            if isinstance(reply, p.Error):
                raise RunFailed(reply.what, reply.where or self.where, reply.fix, errno=reply.errno)
            if not isinstance(reply, request.kind):
                raise RunFailed(
                    f"{type(reply).__name__} in answer to {type(request.message).__name__}",
                    self.where,
                    "use the same release on both sides",
                )
            request.accept(reply, answer[1].buffer if len(answer) > 1 else memoryview(b""))
            self._next(call)
        except OffstageError as error:
            _fail(call, error)

    def _shut(self) -> RunFailed:
        return RunFailed("this fabric is closed", self.where, "start the host again")

    def _silent(self) -> RunFailed:
        return RunFailed(
            "the daemon's ZMQ fabric does not answer",
            self.where,
            "see `offstage dpu status`; start the host again",
            errno=errno.EPIPE,
        )

    def _accept(
        self,
        reply: zmq_messages.FabricFetchReply,
        payload: memoryview,
        request: FetchRequest,
        index: NDArray[np.uint32],
    ) -> FetchResult:
        """Compare every row with its checksum, and copy the good ones to their rows."""
        count = len(index)
        ends = _array(reply.ends, "u1", count, self.where)
        rcs = _array(reply.rcs, "<i4", count, self.where)
        lengths = _array(reply.lengths, "<u4", count, self.where)
        checksums = _array(reply.checksums, "<u8", count, self.where)
        if len(payload) != count * self.payload_size_bytes:
            raise RunFailed(
                f"{len(payload)} B for {count} blocks",
                self.where,
                "use the same release on both sides",
            )
        rows = np.frombuffer(payload, np.uint8).reshape(count, -1) if count else request.target[:0]
        failed = reply.failed_count
        for i in np.flatnonzero(rcs == 0):
            length = int(lengths[i])
            if length > self.payload_size_bytes or checksum(rows[i, :length]) != checksums[i]:
                rcs[i], ends[i], failed = -errno.EBADMSG, UNKNOWN_END, failed + 1
                continue
            request.row(int(index[i]))[:length] = rows[i, :length]
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


def _fail(call: Call, error: OffstageError) -> None:
    call.error, call.ended = error, True


def _array(data: bytes, dtype: DTypeLike, count: int, where: str) -> Any:
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
