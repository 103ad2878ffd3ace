"""The thread that moves objects: it owns one host of the daemon and everything in flight on it.

A session at the daemon is open for as long as an object is moved, or leased: its blocks are not
deleted meanwhile. Sessions are opened and closed several in a message, while blocks are under way.

When the daemon is lost everything in flight ends as AWAY, and so does what comes after, at once,
until an attempt to come back, once in RETRY_S on a thread of its own, succeeds. Nothing here raises
into an engine.
"""

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import GUESS
from offstage.bindings.driver import Fetch, Put
from offstage.bindings.errors import OffstageError
from offstage.bindings.keys import block_keys
from offstage.bindings.layouts import CAUSES, ENDS
from offstage.host.connectors.moves import U8, U32, Chain, Kind, Move, State, contents, shape_of
from offstage.host.control import Control
from offstage.host.fabrics import Fabric

__all__ = ["Mover"]

RETRY_S = 1.0
AGAIN_S = 1.5  # for each answer of a daemon that may not be there
WAIT_NS = 500_000  # for blocks, before what was newly asked for is looked at
LINGER_S = 0.005  # a session that is done is closed with the next message, or after this
BATCH_OBJECTS = 64  # in one message to the daemon
HELD_S = 2.0  # what somebody reads or leases is waited for so long, before it is replaced
HELD = "other bytes are there, which somebody reads or leases"
ROOM_S = 10.0  # without a free session an object ends as REFUSED


@dataclass
class Mover:
    """`connect` logs in and attaches, with so long for an answer; `say` gets what a person should
    read, a line at a time; `timeout_s`: for an answer of the daemon."""

    connect: Callable[[float], tuple[Control, Fabric]]
    say: Callable[[str], None]
    timeout_s: float
    counts: Counter[str] = field(default_factory=Counter)
    """Blocks read by how they ended (`ends` of the fabric), objects and bytes by operation."""

    def __post_init__(self) -> None:
        self._control, self._fabric = self.connect(self.timeout_s)
        self._learn()
        self._wake = threading.Condition()
        self._asked: deque[Move] = deque()
        self._unlease: deque[bytes] = deque()
        self._stop = False
        self._live: dict[int, Move] = {}
        self._waiting: deque[Move] = deque()
        self._ready: deque[tuple[Move, Callable[[], Fetch | Put], Callable[[Fetch | Put], None]]]
        self._ready = deque()
        self._flying: dict[int, tuple[Move, Callable[[Fetch | Put], None], Fetch | Put]] = {}
        self._leases: dict[bytes, Chain] = {}
        self._closing: list[int] = []
        self._deleting: list[int] = []
        self._open = 0
        self._lost = False
        self._found: tuple[Control, Fabric] | None = None
        self._back: threading.Thread | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ofs-objects", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def submit(self, moves: list[Move]) -> None:
        """Begin; each `ended` is called once, on the mover's thread."""
        with self._wake:
            self._asked.extend(moves)
            self._wake.notify()

    def unlease(self, names: list[bytes]) -> None:
        """Let go of leases, now and not at their end."""
        with self._wake:
            self._unlease.extend(names)
            self._wake.notify()

    def close(self) -> None:
        """End: what was asked for is done first. Closing twice does nothing."""
        with self._wake:
            self._stop = True
            self._wake.notify()
        self._thread.join()

    @property
    def away(self) -> bool:
        """Whether the daemon is lost now."""
        return self._lost

    # ---- the mover's thread ----

    def _run(self) -> None:
        while self._take():
            try:
                self._turn()
            except OffstageError as error:
                self._lose(error)
            except Exception as error:  # a mistake of ours must not leave an engine waiting
                self._lose(error)
        self._stopped.set()
        if self._back is not None:
            self._back.join()
        if self._found is not None:
            self._control, self._fabric = self._found
        self._fabric.close()
        self._control.close()

    def _take(self) -> bool:
        """What was newly asked for; waits while there is nothing to do. False: it is the end."""
        with self._wake:
            while True:
                self._waiting.extend(self._asked)
                self._live.update((id(one), one) for one in self._asked)
                self._asked.clear()
                names = list(self._unlease)
                self._unlease.clear()
                busy = bool(self._live or names)
                if busy or self._stop or self._expired():
                    break
                if self._closing or self._deleting:
                    if not self._wake.wait(LINGER_S):
                        break
                else:
                    self._wake.wait(1.0 if self._leases else None)
        for name in names:
            self._end_lease(name)
        return busy or not self._stop

    def _turn(self) -> None:
        if self._lost and not self._adopt():
            return
        for name in self._expired():
            self._end_lease(name)
        opened = self._open_some()
        self._begin_ready()
        if self._flying:
            for call in self._fabric.poll(0 if self._ready or opened else WAIT_NS):
                self._ended(call)
        elif not opened and not self._ready:
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._closing or self._deleting:
            self._flush([], [])
        elif self._waiting:
            now_s = time.monotonic()
            first = self._waiting[0]
            first.until_s = first.until_s or now_s + ROOM_S
            if self._leases:  # what nobody has asked for yet gives way to what is asked for
                self._end_lease(next(iter(self._leases)))
            elif now_s > first.until_s:
                self._waiting.popleft()
                self._end(first, State.REFUSED, "the daemon has no free session or chunk")
            else:
                time.sleep(0.001)

    # ---- sessions ----

    def _learn(self) -> None:
        geometry, limits = self._control.geometry, self._control.limits
        self._payload, self._layers = geometry.payload_size_bytes, geometry.layer_count
        self._chunks_max = limits.session_chunk_max
        self._sessions_max = max(1, min(64, limits.session_max // 2))
        self._message_max = limits.message_size_bytes_max // 4

    def _open_some(self) -> bool:
        """Open sessions for what waits, several in one message; and close those that are done."""
        batch: list[Move] = []
        texts: list[bytes] = []
        size = 0
        room = min(self._sessions_max - self._open + len(self._closing) + len(self._deleting),
                   BATCH_OBJECTS)  # fmt: skip
        while self._waiting and len(batch) < room:
            move = self._waiting.popleft()
            leased = self._leases.get(move.name)
            if leased is not None and not leased.busy and move.kind is Kind.GET:
                leased.busy = True
                move.chain = leased
                self._start_get(move)
                continue
            text = contents(move, self._payload, self._layers, self._chunks_max)
            if len(text) // 16 > self._chunks_max:
                self._end(move, State.REFUSED, f"an object of {move.size} bytes has more blocks "
                          "than a session: raise limits.context_tokens")  # fmt: skip
                continue
            if batch and size + len(text) > self._message_max:
                self._waiting.appendleft(move)
                break
            batch.append(move)
            texts.append(text)
            size += len(text)
        return bool(batch) and self._flush(batch, texts)

    def _flush(self, batch: list[Move], texts: list[bytes]) -> bool:
        """One message. Whether an object got its session."""
        closing, deleting, before = self._closing, self._deleting, self._open
        self._closing, self._deleting = [], []
        reply = self._control.sessions_open(
            texts, closing=closing, deleting=deleting, timeout_s=self.timeout_s
        )
        self._open -= len(closing) + len(deleting)
        before -= len(closing) + len(deleting)
        answers = zip(batch, reply.sessions, reply.keys, reply.stored_layers, strict=True)
        for move, session, keys, stored in answers:
            if session == -errno.ENOSPC:
                self._waiting.append(move)
            elif session < 0:
                self._end(move, State.REFUSED, f"no session: {errno.errorcode.get(-session)}")
            else:
                self._open += 1
                move.chain = Chain(session, block_keys([keys], self._layers),
                                   np.frombuffer(stored, "<u4"))  # fmt: skip
                self._start(move)
        return self._open > before

    def _expired(self) -> list[bytes]:
        now_s = time.monotonic()
        return [name for name, one in self._leases.items() if one.until_s < now_s and not one.busy]

    def _end_lease(self, name: bytes) -> None:
        chain = self._leases.pop(name, None)
        if chain is not None and not chain.busy:
            self._closing.append(chain.session)

    # ---- one object ----

    def _start(self, move: Move) -> None:
        assert move.chain is not None
        if move.clearing or move.kind is Kind.DELETE:
            self._clear(move, move.chain)
        elif move.kind is Kind.GET:
            self._start_get(move)
        elif move.kind is Kind.PUT:
            self._start_put(move)
        else:
            self._look(move, move.chain)

    def _clear(self, move: Move, chain: Chain) -> None:
        """Delete until nothing is there: what somebody moves stays until he is done with it."""
        move.chain = None
        staged = move.kind is Kind.PUT and move.clears == 0  # only there, maybe: it had expired
        if (staged or chain.stored.any()) and self._may_clear(move):
            self._deleting.append(chain.session)
            move.clears += 1
            if chain.stored[-1]:
                move.chunks *= 4
            self._waiting.appendleft(move)
            return
        self._closing.append(chain.session)
        if chain.stored.any():
            self._end(move, State.REFUSED, HELD)
        elif move.kind is Kind.DELETE:
            self._end(move, State.DONE if move.clears else State.ABSENT, "")
        else:
            move.clearing = False
            self._waiting.appendleft(move)

    def _may_clear(self, move: Move) -> bool:
        """Whether to try once more, after a while if it is not the first time."""
        now_s = time.monotonic()
        move.clear_until_s = move.clear_until_s or now_s + HELD_S
        if move.clears > 1:
            time.sleep(LINGER_S)
        return now_s < move.clear_until_s

    def _check_whole(self, move: Move) -> bool:
        """Whether the object is there, and of this size; else it has ended."""
        assert move.chain is not None
        stored = move.chain.stored
        shape = shape_of(move.size, self._payload, self._layers)
        if stored[0] == 0:
            self._end(move, State.ABSENT, "")
        elif stored[-1] or (stored[:-1] != shape.stored).any():
            has = f"{stored.sum()} blocks" if stored[-1] == 0 else "more blocks"
            self._end(move, State.UNREADABLE, f"{has} are there, and an object of "
                      f"{move.size} bytes has {shape.blocks}")  # fmt: skip
        else:
            return True
        return False

    def _look(self, move: Move, chain: Chain) -> None:
        if move.size == 0:
            self._end(move, State.DONE if chain.stored[0] else State.ABSENT, "")
        elif self._check_whole(move):
            if move.ahead:
                self._fabric.hint(chain.session, self._guesses(move))
            if move.hold_s > 0 and move.name not in self._leases:
                chain.until_s, chain.busy = time.monotonic() + move.hold_s, False
                self._leases[move.name] = chain
                move.chain = None
            self._end(move, State.DONE, "")

    def _guesses(self, move: Move) -> NDArray[np.void]:
        shape = shape_of(move.size, self._payload, self._layers)
        guesses = np.zeros(shape.blocks, GUESS)
        places = [shape.place(block) for block in range(shape.blocks)]
        guesses["layer"] = [layer for layer, _ in places]
        guesses["ordinal"] = [ordinal for _, ordinal in places]
        guesses["probability"], guesses["cause"] = 65535, CAUSES.index("window")
        return guesses

    def _start_get(self, move: Move) -> None:
        chain = move.chain
        assert chain is not None and move.buffer is not None
        if not self._check_whole(move):
            return
        shape = shape_of(move.size, self._payload, self._layers)
        whole = move.buffer[: shape.full * self._payload].reshape(-1, self._payload)
        chain.step += 1
        for layer, ordinals, rows in shape.runs(0):
            self._fetch(move, layer, ordinals, whole, rows, self._payload)
        if shape.full < shape.blocks:
            layer, ordinal = shape.place(shape.full)
            last = np.empty((1, self._payload), np.uint8)
            length = move.size - shape.full * self._payload
            self._fetch(move, layer, np.array([ordinal], np.uint32), last,
                        np.zeros(1, np.uint32), length)  # fmt: skip
            move.then = lambda: _copy(move, last[0, :length], shape.full * self._payload)

    def _fetch(
        self, move: Move, layer: int, ordinals: U32, target: U8, rows: U32, length: int
    ) -> None:
        chain = move.chain
        assert chain is not None
        keys = np.ascontiguousarray(chain.keys[layer][ordinals])

        def begin() -> Fetch | Put:
            return self._fabric.fetch_begin(
                chain.session, chain.step, layer, ordinals, keys, target, target_index=rows
            )

        def end(call: Fetch | Put) -> None:
            assert isinstance(call, Fetch)
            got = self._fabric.fetch_end(call)
            for kind, count in Counter(got.ends.tolist()).items():
                self.counts[f"blocks_{ENDS[kind] if kind < len(ENDS) else 'failed'}"] += count
            if got.rcs.any():
                worst = -int(got.rcs[got.rcs != 0][0])
                move.failure = (State.UNREADABLE, "a block could not be read: "
                                f"{errno.errorcode.get(worst, worst)}")  # fmt: skip
            elif (got.lengths != length).any():
                move.failure = (State.UNREADABLE, "a block has another length")

        self._ready.append((move, begin, end))
        move.calls += 1

    def _start_put(self, move: Move) -> None:
        assert move.buffer is not None and move.chain is not None
        shape, stored = shape_of(move.size, self._payload, self._layers), move.chain.stored
        if stored[-1] or (stored[:-1] > shape.stored).any():
            self._clear_first(move)
            return
        whole = move.buffer[: shape.full * self._payload].reshape(-1, self._payload)
        for layer, ordinals, rows in shape.runs(1):
            step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
            self._put(move, layer, ordinals, whole[int(rows[0]) : int(rows[-1]) + 1 : step])
        if 0 < shape.full < shape.blocks:
            layer, ordinal = shape.place(shape.full)
            self._put(move, layer, np.array([ordinal], np.uint32),
                      move.buffer[None, shape.full * self._payload :])  # fmt: skip

        def head() -> None:
            assert move.buffer is not None
            move.then = None
            self._put(move, 0, np.zeros(1, np.uint32), move.buffer[None, : self._payload])

        move.then = head
        if move.calls == 0:
            head()

    def _put(self, move: Move, layer: int, ordinals: U32, source: U8) -> None:
        chain = move.chain
        assert chain is not None

        def begin() -> Fetch | Put:
            return self._fabric.put_begin(chain.session, layer, ordinals, source)

        def end(call: Fetch | Put) -> None:
            assert isinstance(call, Put)
            rcs = self._fabric.put_end(call)
            if rcs.any():
                self._refuse(move, -int(rcs[rcs != 0][0]))

        self._ready.append((move, begin, end))
        move.calls += 1

    def _refuse(self, move: Move, worst: int) -> None:
        if worst == errno.EEXIST and self._may_clear(move):
            move.clearing = True  # once none of its blocks is on its way
        elif worst == errno.EEXIST:
            move.failure = (State.REFUSED, HELD)
        elif worst == errno.ENOSPC:
            move.failure = (State.REFUSED, "the store is full: raise storage.size or set store.ttl")
        else:
            move.failure = (State.REFUSED, f"a block was not taken: {errno.errorcode.get(worst)}")

    def _begin_ready(self) -> None:
        while self._ready and len(self._flying) < self._fabric.calls_max:
            move, begin, end = self._ready[0]
            call = begin()
            self._ready.popleft()
            self._flying[id(call)] = (move, end, call)

    def _ended(self, call: Fetch | Put) -> None:
        move, end, _ = self._flying[id(call)]
        end(call)
        del self._flying[id(call)]
        move.calls -= 1
        if move.calls:
            return
        if move.clearing and move.failure is None:
            self._clear_first(move)
            return
        if move.failure is None and move.then is not None:
            move.then()
            if move.calls:
                return
        self._end(move, *(move.failure or (State.DONE, "")))

    def _clear_first(self, move: Move) -> None:
        """What is there is of other bytes or another size: it goes, then this is written."""
        assert move.chain is not None
        self._closing.append(move.chain.session)
        move.clearing, move.chain, move.then = True, None, None
        self._waiting.appendleft(move)

    def _end(self, move: Move, state: State, what: str) -> None:
        del self._live[id(move)]
        chain, move.chain = move.chain, None
        if chain is not None and self._leases.get(move.name) is chain:
            chain.busy = False
        elif chain is not None:
            self._closing.append(chain.session)
        self.counts[f"{move.kind.name.lower()}_{state.value}"] += 1
        if state is State.DONE and move.buffer is not None:
            self.counts[f"{move.kind.name.lower()}_bytes"] += move.size
        move.ended(move, state, what)

    # ---- a daemon that goes and comes ----

    def _lose(self, error: Exception) -> None:
        self.say(f"the tier is away, and engines compute what they need themselves: {error}")
        self._lost = True
        self._fail_all(str(error))
        self._back = threading.Thread(target=self._come_back, name="ofs-objects-back", daemon=True)
        self._back.start()

    def _fail_all(self, why: str) -> None:
        self._flying.clear()
        self._ready.clear()
        self._waiting.clear()
        self._leases.clear()
        self._closing, self._deleting, self._open = [], [], 0
        for move in list(self._live.values()):
            move.chain = None
            self._end(move, State.AWAY, why)

    def _come_back(self) -> None:
        """On its own thread: leave what was lost, and try until there is a daemon again."""
        self._fabric.close()
        self._control.close()
        while not self._stopped.wait(RETRY_S):
            try:
                self._found = self.connect(AGAIN_S)
            except OffstageError:
                continue
            return

    def _adopt(self) -> bool:
        """Whether the daemon is there, since another connection was found to it."""
        if self._found is None:
            self._fail_all("the daemon was lost a moment ago")
            return False
        self._control, self._fabric = self._found
        self._found, self._lost = None, False
        self._learn()
        self.say("the tier is back")
        return True


def _copy(move: Move, tail: U8, at: int) -> None:
    assert move.buffer is not None
    move.buffer[at:] = tail
    move.then = None
