"""Whole objects on the tier: the base of every engine's connector.

An object is opaque bytes under an engine's key: the KV of a run of tokens, of all layers or of one.
It is one of the values of the daemon (`bindings.value_io`), of at most a session's blocks, under
a hash of the key and of the model and layout that it belongs to. The daemon's store and staging
memory hold it: there is no other store.

Operations are submitted in batches and complete in any order. A batch has a ticket; `fd` becomes
readable when one has completed, and `drain` returns the completed ones. Bytes are copied once
between the engine's buffers and the tier's memory; a buffer belongs to the client until its
operation has completed.

Every operation on an object ends in one of six ways: `State`. A DONE object was checked block by
block, from the put's checksum to the copy in the engine's buffer, and all blocks are of one put. A
block that fails its check, or another size, is UNREADABLE and logged; wrong bytes are never
returned. The `layout` of a model's objects is part of every key, and is also stored by the model's
name: if it changes, one log line says so, and older objects are not found.

A read or lookup ends within its limit (`within_s`): otherwise it is LATE, whether the daemon is
frozen or the drive slow. Nothing is written into its buffer after that.
"""

import hashlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.bindings.value_io import memory_of
from offstage.host.connectors.late import counters
from offstage.host.connectors.moves import Batch, Completion, Kind, Landed, Move, State, guarded
from offstage.host.connectors.object_mover import Mover
from offstage.host.endpoint import Endpoint

__all__ = ["Completion", "ObjectClient", "State", "Stream"]

FABRICS = ("shm", "verbs", "zmq")
LAYOUT_BYTES = 256  # size of the object that stores a model's layout
WITHIN_MIN_S = 0.001  # limit used when the given one has already passed
QUIET_S = 10.0  # interval between log lines of one kind; those between are counted
log = logging.getLogger("offstage.connectors")


class Stream:
    """A put whose buffers are filled incrementally, from the first byte on."""

    def __init__(self, mover: Mover, moves: list[Move]) -> None:
        """Of an object client."""
        self._mover, self._moves = mover, moves

    def fill(self, size: int) -> None:
        """The first `size` bytes of every buffer are filled."""
        self._mover.fill(self._moves, size)

    def commit(self) -> None:
        """All buffers are filled: store the objects."""
        self._mover.fill(self._moves, -1, commit=True)

    def drop(self) -> None:
        """Do not store the objects."""
        self._mover.drop(self._moves)


class ObjectClient:
    """Objects of one model at one daemon. Any thread may call; a separate thread moves bytes."""

    def __init__(
        self, endpoint: Endpoint, *, model: str = "", layout: str = "", late: bool = False
    ) -> None:
        """Log in. `model` and `layout` (dtype, shapes, weights: one line) identify the objects'
        content. `late`: where no daemon answers yet, all is AWAY until one does. BadInput,
        RunFailed: no daemon answers, or it refuses; an engine should not start then."""
        if endpoint.fabric not in FABRICS:
            raise BadInput(
                f"{endpoint.fabric!r} does not carry objects",
                "fabric",
                f"choose one of {', '.join(FABRICS)}",
            )
        self.endpoint = endpoint
        self._space = _named(
            hashlib.blake2b(f"{model}\0{layout}".encode(), digest_size=32).digest()
        )
        self._lock = threading.Lock()
        self._tickets, self._late = itertools.count(1), counters()
        self._completed: deque[Completion] = deque()
        self._said: dict[str, tuple[float, int]] = {}
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._mover = Mover(
                endpoint.connect, self._ended, log.warning, endpoint.timeout_s, late
            )
        except BaseException:
            os.close(self.fd)
            raise
        if model:
            self._keep_layout(model, layout)

    # ---- batches ----

    def put(self, keys: Sequence[bytes], buffers: Sequence[Any], **more: Any) -> int:
        """Store objects: `buffers[i]`, contiguous bytes, under `keys[i]`. Each replaces, in one
        step, what its key had. DONE: acknowledged as the daemon's write mode says."""
        return self._begin(Kind.PUT, keys, [memory_of(one) for one in buffers], **more)

    def get(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[Any],
        *,
        cuts: Sequence[int] = (),
        landed: Landed | None = None,
        **more: Any,
    ) -> int:
        """Read objects of the buffers' sizes into them. One that is not DONE may hold anything.
        `cuts`, ascending, the last one the size: where the objects' parts end. `landed` is called
        with each part, in order, when no object of the batch has it still to come, and with those
        objects (their numbers in the batch) that will not have it. Only the end tells that the
        parts are of one put: what is made of a part counts where its object ends as DONE.
        `within_s`: what has not come by then is LATE; by default `patience_s` of the endpoint."""
        return self._begin(
            Kind.GET,
            keys,
            [memory_of(one, into=True) for one in buffers],
            cuts=tuple(cuts),
            landed=landed,
            **more,
        )

    def stream(self, keys: Sequence[bytes], buffers: Sequence[Any], **more: Any) -> Stream:
        """A put of buffers that are filled incrementally, by calls of `Stream`. The filled part is
        sent while the rest is computed; the objects are absent until the commit."""
        _, moves = self._moves(
            Kind.PUT, keys, [memory_of(one) for one in buffers], filled=0, **more
        )
        self._mover.submit(moves)
        return Stream(self._mover, moves)

    def exists(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int] | None = None,
        *,
        lease_s: float = 0.0,
        **more: Any,
    ) -> int:
        """Whether objects are there; with `sizes`, other than 0, whether they are so large.
        `lease_s`: what is there is not forgotten for so long, unless others need its session, or
        any client deletes it. `within_s`: as of `get`; what is LATE is not leased."""
        return self._begin(Kind.LOOK, keys, sizes=sizes, hold_s=lease_s, **more)

    def prefetch(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int] | None = None,
        *,
        lease_s: float = 10.0,
        due_s: float = 0.0,
        chance: float = 1.0,
        once: bool = False,
        **more: Any,
    ) -> int:
        """As `exists` with a lease, and what is there is brought into the tier's memory, as far as
        the daemon's policy lets it: it is asked for in `due_s`, with this chance. `once`: a read or
        put of an object ends its lease."""
        leased = {"hold_s": lease_s, "ahead": chance, "due_s": due_s, "once": once}
        return self._begin(Kind.LOOK, keys, sizes=sizes, **leased, **more)

    def delete(self, keys: Sequence[bytes], **more: Any) -> int:
        """Delete objects, leased ones too; a read that has begun goes on. ABSENT: it was not
        there."""
        return self._begin(Kind.DELETE, keys, **more)

    def release(self, keys: Sequence[bytes]) -> None:
        """Release leases now."""
        self._mover.unlease([self.name(key) for key in keys])

    def drain(self) -> list[Completion]:
        """Completed batches that were submitted without `tell`; does not wait."""
        with self._lock:
            ended = list(self._completed)
            self._completed.clear()
            try:
                if self.fd >= 0:
                    os.eventfd_read(self.fd)
            except BlockingIOError:
                pass
        return ended

    def wait(self, begin: Callable[..., int], *arguments: Any, **more: Any) -> Completion:
        """Submit a batch and wait for it: `client.wait(client.get, keys, buffers)`."""
        found: list[Completion] = []
        ended = threading.Event()

        def tell(completion: Completion) -> None:
            found.append(completion)
            ended.set()

        begin(*arguments, **more, tell=tell)
        ended.wait()
        return found[0]

    def signal(self, fd: int) -> None:
        """Make an eventfd readable: in `tell`, once for all that ends at the same time."""
        if fd >= 0:
            self._mover.signal(fd)

    # ---- memory ----

    def register(self, buffer: Any) -> None:
        """Objects will be read into parts of this contiguous memory until it is unregistered: over
        verbs the adapter then writes them there itself. Other targets do too, and are registered
        for each read. BadInput, RunFailed: no more can be, or locked memory is at its limit."""
        self._mover.register(memory_of(buffer, into=True))

    def unregister(self, buffer: Any) -> None:
        """Unregister memory before it is freed; no read into it may be in flight."""
        self._mover.register(memory_of(buffer), keep=False)

    # ---- the client ----

    def name(self, key: bytes) -> bytes:
        """The 16 bytes that name an object to the daemon."""
        hashed = self._space.copy()
        hashed.update(key)
        return hashed.digest()

    def counts(self) -> dict[str, int]:
        """Objects by operation and end, bytes, and blocks read by how the tier had them."""
        return dict(self._mover.counts)

    @property
    def streams_max(self) -> int:
        """Limit of concurrently streamed objects, which leaves room for other operations."""
        return self._mover.streams_max

    @property
    def away(self) -> bool:
        """Whether the daemon is lost now, or the client is closed."""
        return self._mover.away

    def close(self) -> None:
        """End what was begun, but for streams that are not committed, and leave. Closing twice does
        nothing; what is asked for later ends as AWAY, as it does in a process that was forked."""
        if self.fd >= 0:
            self._mover.close()
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> "ObjectClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(self, kind: Kind, keys: Sequence[bytes], *arguments: Any, **more: Any) -> int:
        ticket, moves = self._moves(kind, keys, *arguments, **more)
        if moves:
            self._mover.submit(moves)
        return ticket

    def _moves(
        self,
        kind: Kind,
        keys: Sequence[bytes],
        buffers: Sequence[NDArray[np.uint8]] | None = None,
        *,
        sizes: Sequence[int] | None = None,
        tell: Callable[[Completion], None] | None = None,
        landed: Landed | None = None,
        within_s: float | None = None,
        **more: Any,
    ) -> tuple[int, list[Move]]:
        """A new batch, which has ended where nothing is asked for."""
        count = len(keys)
        assert buffers is None or len(buffers) == count
        assert sizes is None or len(sizes) == count
        if any(len(one) == 0 for one in buffers or ()):
            raise BadInput("an object is empty", "objects", "leave it out")
        if kind in (Kind.GET, Kind.LOOK):
            bound_s = self.endpoint.patience_s if within_s is None else within_s
            more["within_s"] = max(WITHIN_MIN_S, bound_s)  # also where it is NaN
        batch = Batch(next(self._tickets), keys, tell, len(more.get("cuts", ())), landed)
        if buffers is not None:
            moves = [
                Move(batch, i, kind, self.name(key), len(buffers[i]), buffers[i], **more)
                for i, key in enumerate(keys)
            ]
        else:
            moves = [
                Move(batch, i, kind, self.name(key), sizes[i] if sizes else 0, **more)
                for i, key in enumerate(keys)
            ]
        if not moves:
            self._finish(batch)
        return batch.ticket, moves

    def _ended(self, move: Move, state: State, what: str) -> None:
        batch = move.batch
        batch.end(move.index, state, what)
        if state is State.LATE and move.kind in self._late:
            self._late[move.kind].inc()
        if state in (State.UNREADABLE, State.REFUSED, State.LATE):
            key = batch.keys[move.index].hex()[:32]
            self._say(f"{move.kind} {state}", f"object {key}: {what}")
        if batch.left == 0:
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        if batch.tell is not None:
            guarded(batch.tell, batch)
            return
        with self._lock:
            self._completed.append(batch)
        self.signal(self.fd)

    def _say(self, kind: str, what: str) -> None:
        """One line of a kind in QUIET_S."""
        now_s = time.monotonic()
        last_s, count = self._said.get(kind, (-QUIET_S, 0))
        if now_s - last_s < QUIET_S:
            self._said[kind] = (last_s, count + 1)
            return
        more = f" ({count} more like it before)" if count else ""
        log.warning("%s: %s%s; the engine computes it", kind, what, more)
        self._said[kind] = (now_s, 0)

    def _keep_layout(self, model: str, layout: str) -> None:
        """Say it where the model's objects were of another layout, and keep this one."""
        text = hashlib.sha256(layout.encode()).hexdigest() + " " + layout
        ours = np.zeros(LAYOUT_BYTES, np.uint8)
        encoded = text.encode()[:LAYOUT_BYTES]
        ours[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        space, self._space = self._space, _named(hashlib.blake2b(b"offstage layout").digest()[:32])
        key = model.encode()
        found = np.zeros(LAYOUT_BYTES, np.uint8)
        state = self.wait(self.get, [key], [found]).states[0]
        if state is State.DONE and not np.array_equal(found, ours):
            was = bytes(found).split(b"\0")[0].decode(errors="replace").partition(" ")[2]
            log.warning(
                "objects of %s were of the layout %r and are now of %r: what is stored of "
                "the former is not used",
                model,
                was,
                layout,
            )
        if state not in (State.AWAY, State.LATE) and not np.array_equal(found, ours):
            self.wait(self.put, [key], [ours])
        self._space = space


def _named(space: bytes) -> "hashlib.blake2b":
    """The hash of a key of this space, before its first byte."""
    return hashlib.blake2b(digest_size=16, key=space)
