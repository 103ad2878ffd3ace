"""The ZMQ fabric's host side: fetches and puts as messages to a driver beside the daemon.

Bytes travel in frames of their own, never inside msgpack. The checksum that the daemon's driver
verified travels along, and every row is held against it here: what was damaged on the way is
-EBADMSG and not handed out. Times in the result are the daemon's; the link comes on top.
"""

import errno
import time
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from offstage.bindings.driver import FetchResult
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.keys import checksum
from offstage.dpu import protocol as p
from offstage.host.control import Control

__all__ = ["ZmqDriver", "connect"]

LINK_NS = 2_000_000_000  # what a reply may take on its way beyond the time it was allowed
UNKNOWN_END = 255
COUNTERS = (
    "fetches", "hits", "misses", "torn", "retries", "failed", "puts", "bytes_read", "bytes_put",
)  # fmt: skip


def connect(control: Control) -> "ZmqDriver":
    """Attach over ZMQ. Raises what the daemon answers."""
    attached = control.attach("zmq")
    socket = control.dealer(attached.endpoint)
    return ZmqDriver(socket, attached, control.limits.put_slot_count)


class ZmqDriver:
    """The calls of `Fabric` over one DEALER; it closes the socket."""

    def __init__(
        self, socket: "zmq.Socket[bytes]", attached: p.Attached, put_slot_count: int
    ) -> None:
        """`put_slot_count` is how many blocks the daemon takes in one message."""
        self.payload_size_bytes = attached.payload_size_bytes
        self.demand_max = attached.demand_max
        self._socket, self._where = socket, attached.endpoint
        self._ticket = bytes.fromhex(attached.token)
        self._put_max = put_slot_count
        self._id = 0
        self._stats = dict.fromkeys(COUNTERS, 0)
        self._closed = False

    def fetch(
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
    ) -> FetchResult:
        """As `bindings.driver.Driver.fetch`. A reply that does not come in time: RunFailed."""
        count = len(ordinals)
        index = np.arange(count, dtype=np.uint32) if target_index is None else target_index
        assert keys.shape == (count, 2) and len(index) == count and target.ndim == 2
        assert target.shape[1] >= self.payload_size_bytes
        selected = count if selected_count is None else selected_count
        self._stats["fetches"] += 1
        parts = []
        for first in range(0, max(count, 1), self.demand_max):
            part = slice(first, min(first + self.demand_max, count))
            # The first part carries the scores, and what was selected and is not demanded.
            more = selected - count if first == 0 else 0
            request = p.FabricFetch(
                session=session, step=step, layer=layer,
                selected_count=part.stop - first + more,
                ordinals=np.ascontiguousarray(ordinals[part], "<u4").tobytes(),
                keys=np.ascontiguousarray(keys[part], "<u8").tobytes(),
                scores=b"" if scores is None or first else np.asarray(scores, "<u2").tobytes(),
                timeout_ns=timeout_ns,
            )  # fmt: skip
            reply, payload = self._call(request, p.FabricFetchReply, timeout_ns)
            parts.append(self._accept(reply, payload, target, index[part]))
        return _join(parts)

    def put(
        self,
        session: int,
        layer: int,
        ordinals: NDArray[np.uint32],
        source: NDArray[np.uint8],
        *,
        length_bytes: int | None = None,
        timeout_ns: int = 10_000_000_000,
    ) -> NDArray[np.int32]:
        """As `bindings.driver.Driver.put`; as many blocks in a message as the daemon takes."""
        count = len(ordinals)
        assert source.ndim == 2 and source.shape[0] == count
        length = source.shape[1] if length_bytes is None else length_bytes
        assert length <= source.shape[1]
        if not 0 < length <= self.payload_size_bytes:
            raise BadInput(f"blocks of {length} B", self._where,
                           f"put between 1 and {self.payload_size_bytes} B")  # fmt: skip
        rcs = np.zeros(count, np.int32)
        for first in range(0, count, self._put_max):
            part = slice(first, min(first + self._put_max, count))
            rows = np.ascontiguousarray(source[part, :length])
            request = p.FabricPut(
                session=session, layer=layer, length_bytes=length,
                ordinals=np.ascontiguousarray(ordinals[part], "<u4").tobytes(),
                checksums=np.array([checksum(row) for row in rows], "<u8").tobytes(),
                timeout_ns=timeout_ns,
            )  # fmt: skip
            reply, _ = self._call(request, p.FabricPutReply, timeout_ns, rows)
            rcs[part] = _array(reply.rcs, "<i4", len(rows), self._where)
        good = int((rcs == 0).sum())
        self._stats["puts"] += good
        self._stats["bytes_put"] += good * length
        return rcs

    def release(self, session: int) -> None:
        """End the session's pins now."""
        self._call(p.FabricRelease(session=session), p.Ok, 0)

    def stats(self) -> dict[str, int]:
        """Counters of this side, by the names of `struct ofs_driver_stats`."""
        return dict(self._stats)

    def close(self) -> None:
        """Close the socket; the daemon's side ends with the host's login."""
        if not self._closed:
            self._closed = True
            self._socket.close(0)

    def __enter__(self) -> "ZmqDriver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(
        self, request: Any, kind: type[Any], timeout_ns: int, payload: Any = None
    ) -> tuple[Any, memoryview]:
        """One request, there and back; late replies to earlier ones are dropped."""
        if self._closed:
            raise RunFailed("this fabric is closed", self._where, "attach again")
        self._id = self._id % 0xFFFFFFFF + 1
        request.id = self._id
        frames: list[Any] = [self._ticket, p.encode(request)]
        if payload is not None:
            frames.append(payload.data.cast("B"))
        deadline_ns = time.monotonic_ns() + timeout_ns + LINK_NS
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            raise self._silent() from None
        while True:
            left_ms = (deadline_ns - time.monotonic_ns()) // 1_000_000
            if left_ms <= 0 or not self._socket.poll(left_ms):
                raise self._silent()
            answer = self._socket.recv_multipart(copy=False)
            reply = p.decode_fabric_reply(bytes(answer[0].buffer))
            if reply.id == self._id:
                break
        if isinstance(reply, p.Error):
            raise RunFailed(reply.what, reply.where or self._where, reply.mend, errno=reply.errno)
        if not isinstance(reply, kind):
            raise RunFailed(f"{type(reply).__name__} in answer to {type(request).__name__}",
                            self._where, "use the same release on both sides")  # fmt: skip
        return reply, answer[1].buffer if len(answer) > 1 else memoryview(b"")

    def _silent(self) -> RunFailed:
        return RunFailed("the daemon's ZMQ fabric does not answer", self._where,
                         "see `offstage dpu status`; attach again", errno=errno.EPIPE)  # fmt: skip

    def _accept(
        self, reply: p.FabricFetchReply, payload: memoryview, target: NDArray[np.uint8],
        index: NDArray[np.uint32],
    ) -> FetchResult:  # fmt: skip
        """Hold every row against its checksum, and copy the good ones to their places."""
        count = len(index)
        ends = _array(reply.ends, "u1", count, self._where)
        rcs = _array(reply.rcs, "<i4", count, self._where)
        lengths = _array(reply.lengths, "<u4", count, self._where)
        checksums = _array(reply.checksums, "<u8", count, self._where)
        if len(payload) != count * self.payload_size_bytes:
            raise RunFailed(f"{len(payload)} B for {count} blocks", self._where,
                            "use the same release on both sides")  # fmt: skip
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
            ends, rcs, lengths, checksums, reply.hit_count, failed, reply.retry_count,
            reply.torn_count, reply.stall_ns, reply.copy_ns,
        )  # fmt: skip


def _array(data: bytes, dtype: str, count: int, where: str) -> Any:
    """A packed array of a reply, writable; RunFailed where it is not `count` long."""
    if len(data) != count * np.dtype(dtype).itemsize:
        raise RunFailed(f"{len(data)} B where {count} of {dtype} belong", where,
                        "use the same release on both sides")  # fmt: skip
    return np.frombuffer(data, dtype).copy()


def _join(parts: list[FetchResult]) -> FetchResult:
    """Parts of one fetch as one result, in demand order."""
    if len(parts) == 1:
        return parts[0]
    arrays: list[Any] = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("ends", "rcs", "lengths", "checksums")
    ]
    sums = [
        sum(getattr(part, name) for part in parts)
        for name in ("hit_count", "failed_count", "retry_count", "torn_count", "stall_ns",
                     "copy_ns")
    ]  # fmt: skip
    return FetchResult(*arrays, *sums)
