"""The ZMQ fabric: for hosts that share no memory with the daemon and have no RDMA.

For each such host the daemon attaches a port as for a local one, and a worker thread here runs the
ordinary driver on it. The host's fetches and puts arrive as messages, are in flight together, and
are answered as they complete; block bytes travel in separate frames. This fabric runs the
protocol over a real link; it is not built for speed. One thread owns the ROUTER; workers pass
their replies to it through an inproc socket.
"""

import errno
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from offstage.bindings.attachment import Attachment
from offstage.bindings.core import GUESS
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput
from offstage.bindings.fabric import Fetch, FetchRequest, Put, PutRequest
from offstage.bindings.keys import checksum
from offstage.bindings.layouts import VALUE_ASK
from offstage.bindings.scores import Packed, unpack
from offstage.bindings.value_io import VERBS
from offstage.dpu import protocol as p
from offstage.dpu.control.replies import error_reply
from offstage.dpu.log import Log
from offstage.dpu.protocol import zmq_messages

__all__ = ["ZmqFabric", "bound_endpoint"]

Answer = tuple[zmq_messages.FabricReply, list[Any]]
WAIT_NS = 200_000  # between looks at the queue while something is in flight
EBADMSG = 74
Frames = list[bytes]
Took = Callable[[Sequence[zmq.Frame]], object]


class ZmqFabric:
    """The proxy. `admit` and `remove` come from the daemon's loop, the rest runs on its threads."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        frame_max: int,
        log: Log,
        took: Took = lambda frames: None,
    ) -> None:
        """Bind; BadInput where the endpoint is taken. A frame above `frame_max` is refused.
        `took` is called for every message received."""
        self._context, self._log, self._took = context, log, took
        self._workers: dict[bytes, _Worker] = {}
        self._lock = threading.Lock()
        self._replies_at = f"inproc://offstage-fabric-{id(self)}"
        self._replies = context.socket(zmq.PULL)
        self._replies.bind(self._replies_at)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, frame_max)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 8)  # of one host; each may carry a whole put window
        self._endpoint = endpoint
        self.endpoint = ""
        self._thread = threading.Thread(target=self._run, name="ofs-zmq-fabric", daemon=True)
        self._stop = threading.Event()

    def start(self) -> None:
        """Bind and begin to serve."""
        try:
            self.socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            raise BadInput(
                f"the ZMQ fabric cannot listen ({error.strerror})",
                self._endpoint,
                "choose another daemon.fabric_endpoint",
            ) from None
        self.endpoint = bound_endpoint(self.socket)
        self._thread.start()

    def admit(self, ticket: bytes, attachment: Attachment) -> None:
        """Run a driver over this port for the holder of the ticket. Takes the attachment over."""
        try:
            driver = Driver(attachment)
        finally:
            attachment.close()
        with self._lock:
            self._workers[ticket] = _Worker(driver, self._context, self._replies_at, self._log)

    def remove(self, ticket: bytes) -> None:
        """The host has left: end its worker."""
        with self._lock:
            worker = self._workers.pop(ticket, None)
        if worker is not None:
            worker.stop()

    def close(self) -> None:
        """End every worker and the ROUTER's thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self._lock:
            workers = list(self._workers.values())
            self._workers.clear()
        for worker in workers:
            worker.stop()
        self.socket.close(0)
        self._replies.close(0)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self._replies, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(200))
            if self._replies in ready:
                self._send(self._replies.recv_multipart(copy=False))
            if self.socket in ready:
                frames = self.socket.recv_multipart(copy=False)
                self._took(frames)
                self._take([frame.bytes for frame in frames])

    def _send(self, frames: list[Any]) -> None:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            self._log.debug("fabric_reply_dropped", error=str(error))

    def _take(self, frames: Frames) -> None:
        """Pass one request to the worker of its ticket; answer anything else with an error."""
        if len(frames) not in (3, 4):
            self._log.warning("fabric_message_bad", frames=len(frames))
            return
        routing, ticket, body = frames[:3]
        payload = frames[3] if len(frames) == 4 else b""
        try:
            request = zmq_messages.decode_fabric_request(body)
        except BadInput as error:
            self._log.warning("fabric_message_bad", error=str(error))
            bad = p.Error(code="bad_message", what=error.what, where=error.where, fix=error.fix)
            self._send([routing, p.encode(bad)])
            return
        with self._lock:
            worker = self._workers.get(ticket)
        if worker is None:
            gone = p.Error(
                id=request.id,
                code="unauthenticated",
                what="no such ticket",
                fix="start the host again",
            )
            self._send([routing, p.encode(gone)])
        elif not worker.offer(routing, request, payload):
            busy = p.Error(
                id=request.id,
                code="busy",
                fix="send the next when one is answered",
                what=f"{zmq_messages.FABRIC_REQUESTS_MAX} requests wait already",
            )
            self._send([routing, p.encode(busy)])


@dataclass(frozen=True, slots=True)
class _Begun:
    """A request in flight: whose, which, and what makes the answer once the driver has ended it."""

    routing: bytes
    request_id: int
    end: Callable[[], Answer]


class _Worker:
    """One host's driver on one thread; its requests are in flight together, as far as it takes."""

    def __init__(
        self, driver: Driver, context: "zmq.Context[zmq.Socket[bytes]]", replies_at: str, log: Log
    ) -> None:
        self._driver, self._replies_at, self._log = driver, replies_at, log
        self._socket = context.socket(zmq.PUSH)  # from its first use on the thread's
        self._begun: dict[Fetch | Put, _Begun] = {}
        self._queue: queue.Queue[tuple[bytes, zmq_messages.FabricRequest, bytes] | None]
        self._queue = queue.Queue(zmq_messages.FABRIC_REQUESTS_MAX)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ofs-zmq-worker", daemon=True)
        self._thread.start()

    def offer(self, routing: bytes, request: zmq_messages.FabricRequest, payload: bytes) -> bool:
        """False where the queue is full."""
        try:
            self._queue.put_nowait((routing, request, payload))
            return True
        except queue.Full:
            return False

    def stop(self) -> None:
        """End after the request in hand; the thread closes its own driver."""
        self._stopping = True
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # it sees the flag after the request in hand
        self._thread.join(timeout=15)

    def _run(self) -> None:
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._replies_at)
        try:
            while not self._stopping:
                if len(self._begun) < min(self._driver.calls_max, zmq_messages.FABRIC_REQUESTS_MAX):
                    self._take()
                if self._begun:
                    for call in self._driver.poll(WAIT_NS):
                        begun = self._begun.pop(call)
                        self._reply(begun.routing, begun.request_id, begun.end)
        except zmq.ZMQError as error:
            self._log.debug("fabric_worker_ended", error=str(error))
        finally:
            self._socket.close(0)
            self._driver.close()

    def _take(self) -> None:
        """Begin the next request; without one, wait for it unless something is in flight."""
        try:
            item = self._queue.get(block=not self._begun)
        except queue.Empty:
            return
        if item is None:
            self._stopping = True
            return
        routing, request, payload = item

        def begin() -> Answer | None:
            if isinstance(request, zmq_messages.FabricRelease):
                self._driver.release(request.session)
                return p.Ok(), []
            if isinstance(request, zmq_messages.FabricHint):
                self._driver.hint(request.session, _unpack(request.guesses, GUESS, "guesses"))
                return p.Ok(), []
            if isinstance(request, zmq_messages.FabricValues):
                return self._values(request), []
            call, end = (
                self._fetch(request)
                if isinstance(request, zmq_messages.FabricFetch)
                else self._put(request, payload)
            )
            self._begun[call] = _Begun(routing, request.id, end)
            return None

        self._reply(routing, request.id, begin)

    def _reply(self, routing: bytes, request_id: int, make: Callable[[], Answer | None]) -> None:
        """Send the reply that `make` returns; None: not yet."""
        reply: zmq_messages.FabricReply
        try:
            made = make()
            if made is None:
                return
            reply, payload = made
        except Exception as error:
            reply, payload = error_reply(error, "fabric", self._log), []
        reply.id = request_id
        frames: list[Any] = [routing, p.encode(reply)]
        self._socket.send_multipart(frames + payload, copy=False)

    def _values(self, request: zmq_messages.FabricValues) -> zmq_messages.FabricValuesReply:
        asks = _unpack(request.asks, VALUE_ASK, "asks")
        if not 0 < len(asks) <= self._driver.demand_max:
            raise BadInput(
                f"{len(asks)} values", "FabricValues", f"send 1 to {self._driver.demand_max}"
            )
        if request.verb not in VERBS.values():
            raise BadInput(f"verb {request.verb}", "FabricValues", f"send one of {VERBS}")
        told = self._driver.ask(request.verb, asks, request.timeout_ns)
        return zmq_messages.FabricValuesReply(told=told.tobytes())

    def _fetch(self, request: zmq_messages.FabricFetch) -> tuple[Fetch | Put, Callable[[], Answer]]:
        ordinals = _unpack(request.ordinals, "<u4", "ordinals")
        keys = _unpack(request.keys, "<u8", "keys")
        scores = self._scores(request)
        count = len(ordinals)
        if count > self._driver.demand_max or len(keys) != 2 * count:
            raise BadInput(
                f"{count} demands with {len(keys) // 2} keys",
                "FabricFetch",
                f"send one key for each, and at most {self._driver.demand_max}",
            )
        rows = np.zeros((max(count, 1), self._driver.payload_size_bytes), np.uint8)
        fetch = self._driver.fetch_begin(
            FetchRequest(
                request.session,
                request.step,
                request.layer,
                ordinals,
                keys.reshape(count, 2),
                rows,
                selected_count=request.selected_count,
                scores=scores if len(scores) else None,
                timeout_ns=request.timeout_ns,
            )
        )

        def end() -> Answer:
            done = self._driver.fetch_end(fetch)
            if fetch.unanswered:  # of a reactor that may not serve any more: pod/fence.py
                done.rcs[done.rcs == 0] = -errno.ETIMEDOUT
            rows[:count][done.rcs != 0] = 0  # do not expose stale bytes of a failed block
            reply = zmq_messages.FabricFetchReply(
                ends=done.ends.tobytes(),
                rcs=done.rcs.tobytes(),
                lengths=done.lengths.tobytes(),
                checksums=done.checksums.tobytes(),
                hit_count=done.hit_count,
                failed_count=int(np.count_nonzero(done.rcs)),
                retry_count=done.retry_count,
                torn_count=done.torn_count,
                stall_ns=done.stall_ns,
                copy_ns=done.copy_ns,
            )
            return reply, [rows[:count].data.cast("B")] if count else [b""]

        return fetch, end

    def _scores(self, request: zmq_messages.FabricFetch) -> npt.NDArray[np.uint16]:
        """The scores of the step; the driver here sends on as many as arrived."""
        count = request.packed[1] if request.packed else len(request.scores) // 2
        if count > self._driver.score_max:  # a short message may claim millions
            raise BadInput(
                f"{count} scores", "FabricFetch", f"send at most {self._driver.score_max}"
            )
        if request.packed is None:
            self._driver.limit_scores(0, 1, 16)
            whole: npt.NDArray[np.uint16] = _unpack(request.scores, "<u2", "scores")
            return whole
        packed = Packed(*request.packed, request.scores)
        scores = unpack(packed)
        self._driver.limit_scores(*packed.limits)
        return scores

    def _put(
        self, request: zmq_messages.FabricPut, payload: bytes
    ) -> tuple[Fetch | Put, Callable[[], Answer]]:
        """Rows that do not match their checksum were damaged in transit: not stored."""
        ordinals = _unpack(request.ordinals, "<u4", "ordinals")
        checksums = _unpack(request.checksums, "<u8", "checksums")
        count, length = len(ordinals), request.length_bytes
        if len(checksums) != count or len(payload) != count * length or not payload:
            raise BadInput(
                f"{count} blocks of {length} B with {len(checksums)} checksums and "
                f"{len(payload)} B",
                "FabricPut",
                "send a checksum and length_bytes for each",
            )
        if count > self._driver.put_slot_count:  # each has a fixed cost, however short
            raise BadInput(
                f"{count} blocks in a message",
                "FabricPut",
                f"send at most {self._driver.put_slot_count}",
            )
        rows = np.frombuffer(payload, np.uint8).reshape(count, length)
        whole = memoryview(payload)
        sound = np.array(
            [checksum(whole[i * length : (i + 1) * length]) == checksums[i] for i in range(count)],
            np.bool_,
        )
        put = self._driver.put_begin(
            PutRequest(
                request.session,
                request.layer,
                ordinals[sound],
                np.ascontiguousarray(rows[sound]),
                timeout_ns=request.timeout_ns,
            )
        )

        def end() -> Answer:
            rcs = np.full(count, -EBADMSG, np.int32)
            rcs[sound] = self._driver.put_end(put)
            return zmq_messages.FabricPutReply(rcs=rcs.tobytes()), []

        return put, end


def bound_endpoint(socket: "zmq.Socket[bytes]") -> str:
    """Where a socket listens, with the port it was given."""
    raw = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(raw, bytes)
    return raw.decode().rstrip("\0")


def _unpack(data: bytes, dtype: npt.DTypeLike, what: str) -> Any:
    """A packed array of a message; BadInput where the bytes are no whole number of elements."""
    if len(data) % np.dtype(dtype).itemsize:
        raise BadInput(f"{what} has {len(data)} bytes", "fabric message", f"pack it as {dtype}")
    return np.frombuffer(data, dtype)
