"""The mover: the thread that moves objects, as tasks of the fabric of one login.

It stays in the fabric, without the interpreter's lock: tasks of other threads begin there while
those threads go on, and it comes back when some have ended or something else is asked of it.

When the daemon is lost everything in flight ends as AWAY, and new moves end as AWAY immediately,
until the link is back (`link`). A read or lookup that misses its deadline ends as LATE, also where
the daemon is frozen: nothing is written into an engine's memory after that. Nothing here raises
into an engine.
"""

import contextlib
import errno
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from offstage.bindings.errors import OffstageError
from offstage.bindings.layouts import ENDS
from offstage.bindings.lost import gone
from offstage.host.connectors.link import Link
from offstage.host.connectors.memory import READS_MAX, Memory
from offstage.host.connectors.moves import U8, Kind, Move, State, outcome, tier_of
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control

__all__ = ["Mover"]

BLOCKS = [f"blocks_{end}" for end in ENDS]
OBJECTS = [f"objects_{tier_of(end)}" for end in range(len(ENDS))]
SERVE_S = 1.0  # longest stay in the fabric
AWAY = "the tier is away, and engines compute what they need themselves: {}"


@dataclass
class Mover:
    """`connect` logs in and attaches, given the timeout of a reply; `ended` is called once for each
    move, on the mover's thread; `say` gets messages for the user, a line each; `timeout_s`: limit
    for a reply of the daemon."""

    connect: Callable[[float], tuple[Control, Fabric]]
    ended: Callable[[Move, State, str], None]
    say: Callable[[str], None]
    timeout_s: float
    late: bool = False
    """Where no daemon answers yet, the first one is waited for as one that was lost."""
    counts: Counter[str] = field(default_factory=Counter)
    """Blocks read by how they ended (`ENDS`), objects and bytes by operation."""

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._asked: deque[Move] = deque()
        self._released: deque[bytes] = deque()
        self._filled: list[Move] = []
        self._signals: set[int] = set()
        self._stop = False
        self._memory = Memory(self._wake, self._stir)
        self._link = Link(self.connect, self.timeout_s, self._found, late=self.late)
        if self._link.lost:
            self.say(AWAY.format(self._link.why))
        self._live: set[Move] = set()
        self._cut: set[Move] = set()  # of `_live`, those whose parts are reported
        self._waiting: deque[Move] = deque()  # until others of their registered memory have ended
        self._thread = threading.Thread(target=self._run, name="ofs-objects", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def submit(self, moves: list[Move]) -> None:
        """Submit moves. After `close`, or in a child of the process that logged in, they end as
        AWAY at once."""
        with self._open() as is_open:
            if is_open and (self._link.lost or self._link.pins or self._released):
                self._asked.extend(moves)  # behind what the mover's thread has to do first
                self._stir()
            elif is_open:
                self._submit(moves)
        for move in moves if not is_open else ():
            self._end(move, State.AWAY, "closed, or made before this process was forked")

    def fill(self, moves: list[Move], size: int, *, commit: bool = False) -> None:
        """The first `size` bytes of these puts' buffers may be sent; `commit`: all, and stored."""
        with self._open() as is_open:
            for move in moves if is_open else ():
                move.fill(size, commit=commit)
                self._filled.append(move)
                self._stir()

    def drop(self, moves: list[Move]) -> None:
        """End puts that were not committed as ABSENT."""
        with self._open() as is_open:
            for move in moves if is_open else ():
                move.dropped = not move.committed
                self._filled.append(move)
                self._stir()

    def unlease(self, names: list[bytes]) -> None:
        """Release leases before they expire."""
        with self._open() as is_open:
            if is_open:
                self._released.extend(names)
                self._stir()

    def signal(self, fd: int) -> None:
        """Make an eventfd readable: at the end of the turn, once for all that ended in it. A write
        for each object would hand the interpreter to the reader and back each time."""
        if threading.current_thread() is self._thread:
            self._signals.add(fd)
        else:
            os.eventfd_write(fd, 1)

    def register(self, array: U8, keep: bool = True) -> None:
        """Register memory before it is read into, or (not `keep`) unregister it before it is freed.
        Raises the fabric's error."""
        if self._thread.is_alive() and not self._stop:
            self._memory.ask(array, keep).result()

    def close(self) -> None:
        """End after all submitted moves, except puts not committed. Closing twice does nothing."""
        with self._open() as is_open:
            if is_open:
                self._stop = True
                self._stir()
        self._thread.join()
        self._memory.answer(None)

    @contextlib.contextmanager
    def _open(self) -> Iterator[bool]:
        """With the lock held, whether something may be asked of the mover's thread. A child of the
        process that logged in has no such thread, and was perhaps forked with the lock held."""
        if not self._thread.is_alive():
            yield False
            return
        with self._wake:
            yield not self._stop

    def _stir(self) -> None:
        """The lock is held: the mover's thread is to look at what is asked of it."""
        if self._link.lost:
            self._wake.notify()
        else:
            self._link.values.wake()

    @property
    def streams_max(self) -> int:
        """Half of the sessions: a step that streams what it makes may wait for what it reads."""
        return self._link.sessions_max // 2

    @property
    def away(self) -> bool:
        """Whether the daemon is lost now, or the mover is closed."""
        return self._link.lost or self._stop

    def _found(self) -> None:
        """The thread of the link: a daemon has answered. It is taken though nobody asks for it, so
        that `away` says so."""
        with self._wake:
            self._wake.notify()

    # ---- the mover's thread ----

    def _run(self) -> None:
        while self._take():
            try:
                self._turn()
            except Exception as error:  # a bug here must not leave an engine waiting
                self._lose(error)
            while self._signals:
                os.eventfd_write(self._signals.pop(), 1)
        with self._wake:
            self._link.close()

    def _take(self) -> bool:
        """Take new requests; without a daemon it waits for one. False: the mover is closed."""
        with self._wake:
            while self._link.lost and not (self._stop or self._link.found or self._asks()):
                self._wake.wait()
            asked, self._asked = list(self._asked), deque()
            filled, self._filled = self._filled, []
            if self._stop:
                filled += [one for one in self._live if not one.committed and not one.dropped]
            while self._released:  # while nobody looks the same object up again
                name = self._released.popleft()
                if not self._link.lost:
                    self._link.values.release(name)
        self._memory.answer(None if self._link.lost else self._link.fabric)
        self._waiting.extend(asked)
        for move in filled:
            self._go_on(move)
        return bool(self._live or self._waiting) or not self._stop

    def _asks(self) -> bool:
        return bool(
            self._asked or self._released or self._filled or self._memory.asked or self._waiting
        )

    def _go_on(self, move: Move) -> None:
        """More of a put is filled, or it is committed or dropped."""
        move.dropped = move.dropped or (self._stop and not move.committed)
        if move not in self._live:
            return  # it has ended, or has not begun
        if move.dropped:
            self._link.values.drop(move)
        else:
            self._link.values.fill(move, move.filled, commit=move.committed)

    def _turn(self) -> None:
        if self._link.lost and not self._is_back():
            return
        self._begin()
        ended = self._link.values.serve(SERVE_S)
        if any(task.rc == -errno.EPIPE for task in ended):
            gone(-errno.EPIPE, "moving objects")  # all that is live ends as AWAY
        for move in ended:
            assert isinstance(move, Move)
            self._ended(move)
        if self._cut:
            with self._wake:
                landing = list(self._cut)
            for move in landing:
                move.land(move.landed)

    def _begin(self) -> None:
        """Hand waiting moves to the fabric: of reads into memory that is registered for them alone
        only as many as it has room for."""
        if not self._waiting:
            return
        room, begun = READS_MAX, list[Move]()
        if self._link.pins:
            room -= sum(bool(move.pinned) for move in self._live)
        while self._waiting and (room > 0 or not self._link.pins):
            move = self._waiting.popleft()
            if move.dropped:
                self._end(move, State.ABSENT, "")
                continue
            try:
                self._pin(move)
            except OffstageError as error:
                self._end(move, State.REFUSED, str(error))
                continue
            room -= bool(move.pinned)
            move.begin()
            begun.append(move)
        self._submit(begun)

    def _pin(self, move: Move) -> None:
        if move.kind is Kind.GET and self._link.pins and move.memory is not None:
            pinned = self._memory.to_pin(move.memory)
            for one in pinned:
                self._link.fabric.register(one)
            move.pinned = pinned

    def _submit(self, moves: list[Move]) -> None:
        self._live.update(moves)
        self._cut.update(move for move in moves if move.cuts)
        self._link.values.submit(moves)

    def _ended(self, move: Move) -> None:
        self._live.remove(move)
        self._cut.discard(move)
        for one in move.pinned:
            self._link.fabric.unregister(one)
        if move.rc == -errno.EBUSY and move.kind is Kind.LOOK:
            # It is looked up all the same, where no session is left to lease it.
            self._submit([move.unheld()])
            return
        state, why = outcome(move)
        if move.kind is Kind.GET:
            worst = 0
            for end, count in enumerate(move.ends):
                if count:
                    self.counts[BLOCKS[end]] += count
                    worst = end
            if state is State.DONE:
                self.counts[OBJECTS[worst]] += 1
            move.land(move.landed)
        self._end(move, state, why)

    def _end(self, move: Move, state: State, why: str) -> None:
        self.counts[f"{move.kind}_{state}"] += 1
        if state is State.DONE and move.memory is not None:
            self.counts[f"{move.kind}_bytes"] += move.size
        self.ended(move, state, why)
        move.land(0, ended=True)

    def _lose(self, error: Exception) -> None:
        self.say(AWAY.format(error))
        with self._wake:
            live, self._live, self._cut = list(self._live), set(), set()
            self._link.lose()  # before engines learn of it, who use their memory again
        self._fail(live, str(error))

    def _fail(self, live: list[Move], why: str) -> None:
        while self._waiting:
            live.append(self._waiting.popleft())
        for move in live:
            self._end(move, State.AWAY, why)

    def _is_back(self) -> bool:
        """Whether the link is back, over a new connection."""
        with self._wake:
            adopted = self._link.adopt()
        if not adopted:
            self._fail([], "no daemon answers yet")
            return False
        self._memory.again(self._link.fabric)
        self.say("the tier is back")
        return True
