"""The mover: the thread that moves objects. It owns one login and all calls in flight on it.

While an object is moved or leased it has an open session at the daemon, so that its blocks are not
deleted. Sessions are opened and closed in batches, while blocks are in flight.

When the daemon is lost everything in flight ends as AWAY, and new moves end as AWAY immediately,
until the link is back (`link`). A move that misses its deadline ends as LATE (`late`): its calls
are cancelled before that is reported, so that nothing is written into an engine's memory later, and
its session is closed when the daemon answers again. Nothing here raises into an engine.
"""

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import gt

import numpy as np

from offstage.bindings.fabric import Fetch, Put
from offstage.bindings.keys import block_keys
from offstage.bindings.layouts import ENDS
from offstage.host.connectors.ahead import copy_ahead, drop_held, send_held
from offstage.host.connectors.calls import Calls
from offstage.host.connectors.inbox import Inbox
from offstage.host.connectors.leases import Leases
from offstage.host.connectors.link import Link
from offstage.host.connectors.moves import (
    HELD,
    Chain,
    Kind,
    Move,
    Piece,
    State,
    contents,
    get_pieces,
    guesses,
    head_piece,
    is_head_of,
    is_ragged,
    land,
    may_clear,
    not_whole,
    put_pieces,
    refuse,
    tell_landed,
    tier_of,
)
from offstage.host.connectors.object_head import head_of
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control

__all__ = ["Mover"]

WAIT_NS = 500_000  # longest wait for blocks between checks for new requests
LINGER_S = 0.005  # a finished session is closed with the next message, or after this
BATCH_OBJECTS = 64  # in one message to the daemon
FILL_S = 1.0  # longest wait for an incremental put between checks for other work
ROOM_S = 10.0  # an object that gets no session for this long ends as REFUSED


@dataclass
class Mover(Inbox):
    """`connect` logs in and attaches, given the timeout of a reply; `say` gets messages for the
    user, a line each; `timeout_s`: limit for a reply of the daemon."""

    connect: Callable[[float], tuple[Control, Fabric]]
    say: Callable[[str], None]
    timeout_s: float
    counts: Counter[str] = field(default_factory=Counter)
    """Blocks read by how they ended (`ends` of the fabric), objects and bytes by operation."""

    def __post_init__(self) -> None:
        super().__init__()
        self._link = Link(self.connect, self.timeout_s)
        self._live: dict[int, Move] = {}
        self._waiting: deque[Move] = deque()
        self._calls = Calls()
        self._leases = Leases()
        self._closing: list[int] = []
        self._deleting: list[int] = []
        self._open = 0
        self._thread = threading.Thread(target=self._run, name="ofs-objects", daemon=True)
        self._thread.start()

    # ---- any thread ----

    def close(self) -> None:
        """End after all submitted moves, except puts not committed. Closing twice does nothing."""
        self.drop(list(self._live.values()))
        with self._wake:
            self._stop = True
            self._wake.notify()
        self._thread.join()
        self._memory.answer(None)

    @property
    def streams_max(self) -> int:
        """Half of the sessions: a step that streams what it makes may wait for what it reads."""
        return self._link.sessions_max // 2

    @property
    def away(self) -> bool:
        """Whether the daemon is lost now."""
        return self._link.lost

    # ---- the mover's thread ----

    def _run(self) -> None:
        while self._take():
            try:
                self._turn()
            except Exception as error:  # a bug here must not leave an engine waiting
                self._lose(error)
        self._link.close()

    def _take(self) -> bool:
        """Take new requests; waits while there is nothing to do. False: the mover is closed."""
        with self._wake:
            while True:
                self._take_asked()
                names = list(self._unlease)
                self._unlease.clear()
                filled, self._filled = self._filled, []
                busy = bool(self._live or names)
                if busy or self._stop or self._memory.asked or self._leases.expired():
                    break
                if self._closing or self._deleting:
                    if not self._wake.wait(LINGER_S):
                        break
                else:
                    self._wake.wait(1.0 if self._leases else None)
        self._memory.answer(None if self._link.lost else self._link.fabric)
        for name in names:
            self._closing += self._leases.end(name)
        for move in filled:
            if id(move) in self._live:
                self._go_on(move)
        return busy or not self._stop

    def _take_asked(self) -> None:
        self._waiting.extend(self._asked)
        self._live.update((id(one), one) for one in self._asked)
        self._asked.clear()

    def _end_late(self) -> None:
        """Cancel moves past their deadline, in any state."""
        with self._wake:
            past = self._deadlines.past()
            if past:
                self._take_asked()
        late = {id(move): move for move in past if id(move) in self._live}
        if late:
            self._calls.give_up(late.values())
            self._waiting = deque(one for one in self._waiting if id(one) not in late)
        for move in late.values():
            self._end(
                move,
                State.LATE,
                f"it did not come within {move.within_s:.3g} s: is the "
                "daemon frozen, or its drive slow?",
            )

    def _turn(self) -> None:
        if self._link.lost and not self._is_back():
            return
        self._end_late()
        for name in self._leases.expired():
            self._closing += self._leases.end(name)
        opened = self._open_some()
        self._calls.begin(self._link.calls_max)
        if self._calls.flying:
            for call in self._link.fabric.poll(0 if self._calls.ready or opened else WAIT_NS):
                self._ended(call)
        elif not opened and not self._calls.ready:
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._closing or self._deleting:
            self._flush([], [])
        elif self._waiting:
            now_s = time.monotonic()
            first = self._waiting[0]
            first.until_s = first.until_s or now_s + ROOM_S
            if self._leases:  # the daemon itself has no more
                self._closing += self._leases.end(next(iter(self._leases)))
            elif now_s > first.until_s:
                self._waiting.popleft()
                self._end(first, State.REFUSED, "the daemon has no free session or chunk")
            else:
                time.sleep(0.001)
        else:  # puts that are filled by and by
            with self._wake:
                if not (self._filled or self._asked or self._unlease):
                    self._wake.wait(FILL_S)

    # ---- sessions ----

    def _open_some(self) -> bool:
        """Open sessions for waiting moves, several in one message, and close finished ones."""
        batch: list[Move] = []
        texts: list[bytes] = []
        self._start_leased()
        room = min(self._free_sessions(), BATCH_OBJECTS)
        while self._waiting and len(batch) < room:
            move = self._waiting.popleft()
            text = contents(move, self._link.payload, self._link.layers, self._link.chunks_max)
            if len(text) // 16 > self._link.chunks_max:
                self._end(
                    move,
                    State.REFUSED,
                    f"an object of {move.size} bytes has more blocks "
                    "than a session: raise limits.context_tokens",
                )
                continue
            if batch and sum(map(len, texts)) + len(text) > self._link.message_max:
                self._waiting.appendleft(move)
                break
            batch.append(move)
            texts.append(text)
        return bool(batch) and self._flush(batch, texts)

    def _free_sessions(self) -> int:
        """How many may be opened. The oldest leases end until moves have half of all sessions."""
        ending = len(self._closing) + len(self._deleting)
        free = self._link.sessions_max - self._open + ending
        idle = self._leases.idle()
        moving = self._open - ending - len(idle)
        giving = idle[: max(0, min(len(self._waiting), self.streams_max - moving) - free)]
        for name in giving:
            self._closing += self._leases.end(name)
        return free + len(giving)

    def _start_leased(self) -> None:
        """Start reads of leased objects: they already have a session."""
        for move in [one for one in self._waiting if one.kind is Kind.GET] if self._leases else []:
            if (leased := self._leases.take(move.name)) is not None:
                self._waiting.remove(move)
                move.chain = leased
                self._start_get(move)

    def _flush(self, batch: list[Move], texts: list[bytes]) -> bool:
        """Send one message; returns whether an object got its session."""
        closing, deleting = self._closing, self._deleting
        self._closing, self._deleting = [], []
        due_s = min((move.due_s for move in batch if move.due_s > 0), default=0.0)
        fabric, room = self._link.fabric, self._link.calls_max - self._calls.flying
        copying = copy_ahead(fabric, batch, self._link.payload, self._link.layers, room)

        def meanwhile() -> bool:
            self._end_late()
            return next(copying, False)

        reply = self._link.control.sessions_open(
            texts,
            closing=closing,
            deleting=deleting,
            due_s=due_s,
            timeout_s=self.timeout_s,
            meanwhile=meanwhile,
        )
        for move in [] if reply.deleted else [*batch, *self._waiting]:
            if move.clears:
                move.failure = (State.REFUSED, "the drive does not take the delete; see its daemon")
        before = self._open = self._open - len(closing) - len(deleting)
        answers = zip(batch, reply.sessions, reply.keys, reply.stored_layers, strict=True)
        for move, session, keys, stored in answers:
            self._open += session >= 0
            if id(move) not in self._live:  # given up while this was asked
                self._closing += [session] * (session >= 0)
            elif session == -errno.ENOSPC:
                self._waiting.append(move)
            elif session < 0:
                self._end(move, State.REFUSED, f"no session: {errno.errorcode.get(-session)}")
            else:
                move.chain = Chain(
                    session,
                    block_keys([keys], self._link.layers),
                    np.frombuffer(stored, "<u4").tolist(),
                )
                self._start(move)
        drop_held(fabric, batch)
        return self._open > before

    # ---- one object ----

    def _start(self, move: Move) -> None:
        assert move.chain is not None
        if move.failure is not None:
            self._end(move, *move.failure)
        elif move.clearing or move.kind is Kind.DELETE:
            self._clear(move, move.chain)
        elif move.kind is Kind.GET:
            self._start_get(move)
        elif move.kind is Kind.PUT:
            self._start_put(move)
        else:
            self._look(move, move.chain)

    def _clear(self, move: Move, chain: Chain) -> None:
        """Delete until nothing is left; an object in use by another move stays until that ends."""
        move.chain = None
        staged = move.kind is Kind.PUT and move.clears == 0  # only there, maybe: it had expired
        if (staged or any(chain.stored)) and may_clear(move):
            self._deleting.append(chain.session)
            move.clears += 1
            if chain.stored[-1]:
                move.chunks *= 4
            self._waiting.appendleft(move)
            return
        self._closing.append(chain.session)
        if any(chain.stored):
            self._end(move, State.REFUSED, HELD)
        elif move.kind is Kind.DELETE:
            self._end(move, State.DONE if move.clears else State.ABSENT, "")
        else:
            move.clearing = False
            self._waiting.appendleft(move)

    def _check_whole(self, move: Move) -> bool:
        """Whether the object is there, and of this size; else it has ended."""
        assert move.chain is not None
        wrong = not_whole(move.chain.stored, self._link.shape(move))
        if wrong is not None:
            self._end(move, *wrong)
        return wrong is None

    def _look(self, move: Move, chain: Chain) -> None:
        if move.size == 0:
            self._end(move, State.DONE if chain.stored[0] else State.ABSENT, "")
        elif self._check_whole(move):
            if move.ahead:
                self._link.fabric.hint(chain.session, guesses(self._link.shape(move), move.ahead))
            if move.hold_s > 0 and move.name not in self._leases:
                self._leases.hold(move.name, chain, move.hold_s)
                move.chain = None
            self._end(move, State.DONE, "")

    def _start_get(self, move: Move) -> None:
        chain = move.chain
        assert chain is not None and move.buffer is not None
        if not self._check_whole(move):
            return
        shape = self._link.shape(move)
        pieces = get_pieces(shape, move.buffer, move.cuts)
        move.sums = np.zeros(shape.blocks, np.uint64)
        chain.step += 1
        move.pieces = [0] * max(1, len(move.cuts))
        for piece in pieces:
            move.pieces[piece.part] += 1
        for piece in pieces:
            self._fetch(move, chain, piece)

    def _fetch(self, move: Move, chain: Chain, piece: Piece) -> None:
        request = chain.fetch(piece)
        pinned = self._memory.to_pin(request.target, request.spare) if self._link.pins else []

        def begin() -> Fetch | Put:
            for one in pinned:
                self._link.fabric.register(one)
            return self._link.fabric.fetch_begin(request)

        def end(call: Fetch | Put, late: bool) -> None:
            assert isinstance(call, Fetch)
            if late:
                self._link.fabric.fetch_cancel(call)
            got = None if late else self._link.fabric.fetch_end(call)
            for one in pinned:
                self._link.fabric.unregister(one)
            if got is None:
                return
            if move.kind is Kind.GET:
                self._count(move, got.ends.tolist())
                land(move, piece, got)
            elif is_head_of(move, self._link.shape(move), piece, got):
                move.rival = False  # its blocks are ours: what is missing of them is put again
            else:
                refuse(move, errno.EEXIST)

        self._calls.queue(move, piece.part, begin, end)

    def _count(self, move: Move, ends: list[int]) -> None:
        for kind, count in Counter(ends).items():
            self.counts[f"blocks_{ENDS[kind] if kind < len(ENDS) else 'failed'}"] += count
        move.worst = max(move.worst, *ends)

    def _start_put(self, move: Move) -> None:
        assert move.chain is not None
        stored, shape = move.chain.stored, self._link.shape(move)
        if stored[-1] or any(map(gt, stored, shape.stored)) or is_ragged(stored, shape):
            self._clear_first(move)
            return
        move.sent, move.headed, move.rival = 1, False, stored[0] > 0
        move.sums = np.zeros(shape.blocks, np.uint64)
        self._go_on(move)

    def _go_on(self, move: Move) -> None:
        """Send the filled part of a put, and the head once all other blocks are acknowledged. If a
        head is already stored, nothing is sent unless it has the same bytes."""
        if move.chain is None or move.clearing or move.failure is not None or move.headed:
            return
        assert move.buffer is not None
        shape = self._link.shape(move)
        whole = move.filled < 0 or move.filled >= move.size
        ready = shape.blocks if whole else 1 + move.filled // self._link.payload
        if move.rival and not move.dropped:
            if whole and move.committed and not move.calls:
                move.chain.step += 1
                self._fetch(move, move.chain, head_piece(shape))
            return
        if not move.dropped:
            for piece in put_pieces(shape, move.buffer, move.sent, ready):
                self._put(move, piece)
            move.sent = max(move.sent, ready)
        if move.calls:  # blocks that are not acknowledged
            return
        if move.dropped:
            self._end(move, State.ABSENT, "")
        elif move.sent >= shape.blocks and move.committed:
            move.headed = True
            head = head_of(move.size, move.sums[1:])
            self._put(move, head_piece(shape, head, move.buffer[: shape.inline]))

    def _put(self, move: Move, piece: Piece) -> None:
        chain = move.chain
        assert chain is not None

        def begin() -> Fetch | Put:
            return self._link.fabric.put_begin(chain.put(piece))

        def end(call: Fetch | Put, _: bool) -> None:
            assert isinstance(call, Put)
            rcs = self._link.fabric.put_end(call).tolist()
            self.counts["put_blocks"] += rcs.count(0)
            move.sums[piece.run.blocks] = call.checksums
            if any(rcs):
                refuse(move, -next(rc for rc in rcs if rc))

        if move.held:
            self._calls.begun(move, send_held(self._link.fabric, move, chain.session), end)
        else:
            self._calls.queue(move, 0, begin, end)

    def _ended(self, call: Fetch | Put) -> None:
        move = self._calls.end(call)
        if move.calls:
            return
        if move.clearing and move.failure is None:
            self._clear_first(move)
        elif move.failure is not None or move.kind is not Kind.PUT or move.headed:
            self._end(move, *(move.failure or (State.DONE, "")))
        else:
            self._go_on(move)

    def _clear_first(self, move: Move) -> None:
        """The stored object has other bytes or another size: delete it, then write this one."""
        assert move.chain is not None
        self._closing.append(move.chain.session)
        move.clearing, move.chain = True, None
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
        if move.kind is Kind.GET and state is State.DONE:
            self.counts[f"objects_{tier_of(move)}"] += 1
        move.ended(move, state, what)
        tell_landed(move, ended=True)

    def _lose(self, error: Exception) -> None:
        self.say(f"the tier is away, and engines compute what they need themselves: {error}")
        self._fail_all(str(error))
        self._link.lose()

    def _fail_all(self, why: str) -> None:
        self._calls.clear()
        self._waiting.clear()
        self._leases.clear()
        self._closing, self._deleting, self._open = [], [], 0
        for move in list(self._live.values()):
            move.chain = None
            self._end(move, State.AWAY, why)

    def _is_back(self) -> bool:
        """Whether the link is back, over a new connection."""
        if not self._link.adopt():
            self._fail_all("the daemon was lost a moment ago")
            return False
        self._memory.again(self._link.fabric)
        self.say("the tier is back")
        return True
