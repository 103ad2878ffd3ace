"""Tasks on values by messages: what `struct ofs_value_io` does where there is no driver beside it.

Each task is a generator that yields what it waits for. It asks for its session, sends or reads its
pieces (`message_pieces`), and commits; many tasks are under way together. What they ask of the
daemon is gathered, so that a turn sends one message for a verb.

One thread owns it, as it owns the fabric; any thread submits tasks. If the fabric fails, every task
ends with -EPIPE.
"""

import errno
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import CAUSES, GUESS
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.fabric import Call, Fetch
from offstage.bindings.layouts import VALUE_ASK, VALUE_TOLD, constant
from offstage.bindings.lost import gone
from offstage.bindings.value_io import VERBS, ValueIO, ValueTask
from offstage.host.fabrics.message_pieces import MessageFabric, Pieces, Wait, Work, pause

__all__ = ["MessageValues"]

BUSY_S = COMMIT_S = 0.001  # until the next try for a session, or to commit
SLICE_S = 0.0005  # the longest wait for messages between looks for new tasks
PAUSE_S = 0.001, 0.02  # before a value that comes back is looked at again: at first, and at most
STEP_S = 0.001  # unit of a guess's deadline
TASK_FIRST, TASK_HOLD, TASK_ONCE, TASK_PARTS, TASK_WHOLE = (
    constant(f"OFS_TASK_{one}") for one in ("FIRST", "HOLD", "ONCE", "PARTS", "WHOLE")
)
LIST_HEAD_BYTES = constant("OFS_LIST_HEAD_BYTES")
LIST_ASKS = 64
STORE_FLAGS = {
    constant(f"OFS_TASK_{one}"): constant(f"OFS_VALUE_{one}") for one in ("KEEP", "OVER", "DURABLE")
}
OPENING = VERBS["store"], VERBS["retrieve"]


@dataclass(eq=False)
class _Ask:
    """One value of a command, and what was said of it."""

    verb: int
    row: tuple[Any, ...]  # VALUE_ASK
    told: Any = None  # VALUE_TOLD; of a list, all of its command
    orphan: bool = False  # nobody waits for it


@dataclass(eq=False)
class _Run:
    """A task under way."""

    task: ValueTask
    deadline_s: float
    work: Work
    wait: Wait
    ask: _Ask | None = None


@dataclass(eq=False)
class _Batch:
    """Asks of one verb in a message under way."""

    call: Call
    asks: list[_Ask]
    told: NDArray[np.void] = field(repr=False)


class MessageValues(ValueIO):
    """Tasks on values over one fabric of messages."""

    def __init__(
        self, fabric: MessageFabric, layer_count: int, sessions_max: int, timeout_s: float
    ) -> None:
        """`layer_count` of the daemon's chunks; the rest as of `DriverValues`."""
        self._fabric, self._layers = fabric, layer_count
        self._pieces = Pieces(fabric, layer_count, int(timeout_s * 1e9))
        self._sessions_max, self._timeout_s = sessions_max, timeout_s
        self._asked, self._batches = list[_Ask](), list[_Batch]()
        self._used = 0  # sessions that are open, or asked for
        self._holds: dict[tuple[int, bytes], tuple[int, float, bool]] = {}  # session, until, once
        self._numbers = itertools.count()
        self._runs, self._ended = list[_Run](), deque[ValueTask]()
        self._lost = self._closed = self._news = False
        self._stirred = threading.Event()

    def submit(self, tasks: Sequence[ValueTask]) -> None:
        """BadInput: a task without the memory that it needs."""
        now_s = time.monotonic()
        for task in tasks:
            c = task.c
            moves = task.verb in ("store", "retrieve", "list") and not c.flags & TASK_HOLD
            if moves and task.memory is None:
                raise BadInput(f"a task to {task.verb} without memory", "values", "give it some")
            c.rc = c.value_length = c.landed = c.dropped = 0
            late_s = now_s + c.timeout_ns / 1e9 if c.timeout_ns else math.inf
            run = _Run(task, late_s, iter(()), Wait(lambda: True))  # type: ignore[arg-type]
            run.work = self._work(run)
            self._runs.append(run)
        self._stirred.set()

    def run(self, timeout_s: float = 0.0) -> list[ValueTask]:
        """Tasks move in turns; between them it waits for the fabric, or for a pause to end."""
        with self._fabric.beside():
            self._run(time.monotonic() + timeout_s)
        if self._lost and not self._ended:
            gone(-errno.EPIPE, "moving values")
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def serve(self, timeout_s: float) -> list[ValueTask]:
        """Between turns, which look for new tasks, it waits for messages."""
        if not self.busy:
            due_s = self._due_s() - time.monotonic()
            self._stirred.wait(max(min(timeout_s, due_s), 0.0))
        self._stirred.clear()
        return self.run(SLICE_S)

    def wake(self) -> None:
        """A serve that is waiting for messages ends soon."""
        self._stirred.set()

    def _run(self, until_s: float) -> None:
        self._news = False
        while not self._lost:
            try:
                moved = self._turn()
            except OffstageError:
                self._lose()
                break
            left_s = min(until_s, self._due_s()) - time.monotonic()
            if self._ended or self._news or not self._runs or time.monotonic() >= until_s:
                break
            if moved:
                continue
            if self._flying:
                self._fabric.poll(max(int(left_s * 1e9), 0))
            elif left_s < math.inf and self.busy:
                time.sleep(max(left_s, 0.0))
            else:
                break  # stores that are not filled

    def fill(self, task: ValueTask, size: int, *, commit: bool = False) -> None:
        """What it may send grows."""
        task.c.filled, task.c.committed = min(size, int(task.c.length)), commit

    def drop(self, task: ValueTask) -> None:
        """It ends at its next turn."""
        task.c.dropped = not task.c.committed

    def release(self, key: bytes) -> None:
        """All holds of the key end."""
        self._end_holds(key)

    @property
    def count(self) -> int:
        """Those that have ended included."""
        return len(self._runs) + len(self._ended)

    @property
    def held(self) -> int:
        """As many sessions of the daemon."""
        return len(self._holds)

    @property
    def busy(self) -> bool:
        """Whether a call is in flight, or a task can go on now or later."""
        some = self._asked or self._flying or self._ended
        return not self._lost and bool(
            some
            or any(
                min(one.wait.due_s, one.deadline_s) < math.inf or one.wait.ready()
                for one in self._runs
            )
        )

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Reads are cancelled; the daemon's sessions end with the login."""
        if not self._closed:
            self._closed = True
            with self._fabric.beside():
                for run in self._runs:
                    self._give_up(run)
            self._runs.clear()

    # ---- turns ----

    @property
    def _flying(self) -> bool:
        return bool(self._batches) or any(one.wait.call is not None for one in self._runs)

    def _due_s(self) -> float:
        """When something is to be done without an answer."""
        holds = (until_s for _, until_s, _ in self._holds.values())
        tasks = (min(one.wait.due_s, one.deadline_s) for one in self._runs)
        return min(min(tasks, default=math.inf), min(holds, default=math.inf))

    def _turn(self) -> bool:
        """Whether a task moved."""
        self._fabric.poll(0)
        self._take()
        now_s = time.monotonic()
        for number in [one for one, (_, until_s, _) in self._holds.items() if until_s <= now_s]:
            self._let_go(number)
        moved = False
        for run in list(self._runs):
            if run.task.verb != "store" and now_s >= run.deadline_s:
                self._give_up(run)
                self._end(run, -errno.ETIMEDOUT)
            elif run.wait.ready():
                moved = True
                self._step(run)
        self._send()
        return moved

    def _step(self, run: _Run) -> None:
        c = run.task.c
        landed = c.landed
        try:
            run.wait = next(run.work)
        except StopIteration as ended:
            self._end(run, ended.value)
        self._news = self._news or bool(c.flags & TASK_PARTS and c.landed > landed)

    def _end(self, run: _Run, rc: int) -> None:
        self._runs.remove(run)
        run.task.c.rc = rc
        self._ended.append(run.task)

    def _give_up(self, run: _Run) -> None:
        if isinstance(run.wait.call, Fetch) and not self._lost:
            self._fabric.fetch_cancel(run.wait.call)
        if run.ask is not None:
            run.ask.orphan = True
        run.work.close()

    def _lose(self) -> None:
        self._lost = True
        for run in list(self._runs):
            self._give_up(run)
            self._end(run, -errno.EPIPE)
        self._holds.clear()
        self._asked.clear()
        self._batches.clear()

    # ---- commands ----

    def _send(self) -> None:
        """One message for each verb that tasks have asked for."""
        asked, self._asked = self._asked, []
        for verb in sorted({one.verb for one in asked}):
            some = [one for one in asked if one.verb == verb]
            step = 1 if verb == VERBS["list"] else self._fabric.demand_max
            for first in range(0, len(some), step):
                asks = some[first : first + step]
                rows = np.array([one.row for one in asks], VALUE_ASK)
                if verb == VERBS["list"]:
                    rows = np.pad(
                        rows, (0, max(2, min(LIST_ASKS, self._fabric.demand_max // 2)) - 1)
                    )
                told = np.zeros(len(rows), VALUE_TOLD)
                timeout_ns = int(self._timeout_s * 1e9)
                try:
                    call = self._fabric.ask_begin(verb, rows, told, timeout_ns)
                except OffstageError as error:
                    if error.errno != errno.EAGAIN:
                        raise
                    self._asked += asks
                    continue
                self._batches.append(_Batch(call, asks, told))

    def _take(self) -> None:
        """Answers of commands."""
        for batch in [one for one in self._batches if one.call.ended]:
            self._batches.remove(batch)
            self._fabric.ask_end(batch.call)
            lists = batch.asks[0].verb == VERBS["list"]
            for ask, told in zip(batch.asks, [batch.told] if lists else batch.told, strict=True):
                ask.told = told
                opened = ask.verb in OPENING
                self._used -= ask.verb == VERBS["end"] or (opened and told["rc"] != 0)
                if ask.orphan and opened and told["rc"] == 0:
                    self._over(int(told["session"]))

    def _ask(self, run: _Run, verb: str, session: int = 0) -> Generator[Wait, None, Any]:
        """The answer of one command for this task."""
        c = run.task.c
        length = c.home if verb in ("list", "delete") else c.length
        name_bytes = c.name_bytes if verb == "store" else 0
        name = c.name.lo, c.name.hi
        key = c.key.lo, c.key.hi
        row = (key, length, session, _flags(run.task), name_bytes, name)
        run.ask = ask = _Ask(VERBS[verb], row)
        self._asked.append(ask)
        yield Wait(lambda: ask.told is not None)
        run.ask = None
        return ask.told

    def _over(self, session: int) -> None:
        self._asked.append(_Ask(VERBS["end"], ((0, 0), 0, session, 0, 0, (0, 0))))

    def _end_holds(self, key: bytes, *, once: bool = False) -> None:
        """Those of a key; `once`: those alone that a retrieve or store of it ends."""
        for number in [one for one in self._holds if one[1] == key]:
            if self._holds[number][2] or not once:
                self._let_go(number)

    def _let_go(self, number: tuple[int, bytes]) -> None:
        self._over(self._holds.pop(number)[0])

    def _has_room(self) -> bool:
        """Whether a session may be asked for; the oldest holds end until what moves has half."""
        if self._used < self._sessions_max:
            return True
        if self._holds and 2 * (self._used - len(self._holds)) < self._sessions_max:
            self._let_go(next(iter(self._holds)))
        return False

    # ---- tasks ----

    def _work(self, run: _Run) -> Work:
        task, pause_s = run.task, PAUSE_S[0]
        until_s = time.monotonic() + self._timeout_s
        if task.verb == "list":
            return (yield from self._list(run))
        while True:
            if task.verb in ("store", "retrieve"):
                rc = yield from self._with_session(run)
            else:
                told = yield from self._ask(run, task.verb)
                rc = int(told["rc"])
                if task.verb == "delete" and rc == -errno.EAGAIN:
                    task.c.home = int(told["length"])  # 0: waits for an archive, else for the drive
                    if task.c.home == 0:
                        until_s = time.monotonic() + self._timeout_s
                    elif time.monotonic() > until_s:
                        rc = -errno.ETIMEDOUT
                if rc == -errno.ENOENT and task.verb == "delete" and pause_s > PAUSE_S[0]:
                    rc = 0  # it was there, and has gone since
                if rc == 0:
                    rc = self._sized(task, int(told["length"]))
            if rc != -errno.EAGAIN:
                return rc
            yield pause(pause_s)  # it is being brought back, or its delete has yet to end
            pause_s = min(2 * pause_s, PAUSE_S[1])

    def _list(self, run: _Run) -> Work:
        """As `ofs_task_listed` does it."""
        c, memory = run.task.c, run.task.memory
        assert memory is not None
        c.home, c.landed = int(bool(c.flags & TASK_FIRST)), LIST_HEAD_BYTES
        while True:
            told = yield from self._ask(run, "list")
            last = next(i for i, one in enumerate(told) if one["rc"] != 0)
            for one in told[:last]:
                size = int(one["session"])
                key = one["chunk"].tobytes()[:size]
                entry = size.to_bytes(2, "little") + key + bytes(-(2 + size) % 4)
                if c.landed + len(entry) > memory.nbytes:
                    last = -1
                    break
                memory[c.landed : c.landed + len(entry)] = np.frombuffer(entry, np.uint8)
                c.landed += len(entry)
                c.value_length += 1
            rc = int(told[last]["rc"]) if last >= 0 else -errno.ENOENT
            if rc == -errno.ENOENT:
                count = int(c.value_length).to_bytes(LIST_HEAD_BYTES, "little")
                memory[:LIST_HEAD_BYTES] = np.frombuffer(count, np.uint8)
                return 0
            if rc != -errno.EAGAIN:
                return rc
            c.home, chunk = int(told[last]["length"]), told[last]["chunk"]
            c.key.lo, c.key.hi = int(chunk["lo"]), int(chunk["hi"])

    def _sized(self, task: ValueTask, length: int) -> int:
        task.c.value_length = length
        wrong = task.c.flags & TASK_WHOLE and length != task.c.length
        return -errno.EMSGSIZE if wrong and task.verb != "delete" else 0

    def _with_session(self, run: _Run) -> Work:
        """-EAGAIN: the value is being brought back."""
        task = run.task
        holds = bool(task.c.flags & TASK_HOLD)
        patience_s = time.monotonic() + self._timeout_s
        while True:
            yield Wait(lambda: bool(task.c.dropped) or self._has_room())
            if task.c.dropped:
                return -errno.ECANCELED
            self._used += 1
            told = yield from self._ask(run, task.verb)
            rc = int(told["rc"])
            if rc != -errno.EBUSY or holds or time.monotonic() >= patience_s:
                break
            yield pause(BUSY_S)
        if rc != 0:
            return rc
        session: int | None = int(told["session"])
        assert session is not None
        try:
            if task.verb == "store":
                task.c.value_length = task.c.length
                self._end_holds(task.key, once=True)
                rc = yield from self._pieces.put(task, session)
                if rc == 0:
                    rc = yield from self._commit(run, session)
                    session = None if rc == 0 else session
                return rc
            rc = self._sized(task, int(told["length"]))
            if rc == 0 and holds:
                self._hold(task, session)
                session = None
            elif rc == 0:
                rc = yield from self._pieces.get(task, session, told["chunk"].tobytes())
                self._end_holds(task.key, once=True)
            return rc
        finally:
            if session is not None:
                self._over(session)

    def _hold(self, task: ValueTask, session: int) -> None:
        c = task.c
        key = next(self._numbers), task.key
        once = bool(c.flags & TASK_ONCE)
        self._holds[key] = session, time.monotonic() + c.hold_ns / 1e9, once
        if not c.probability:
            return
        pieces = np.arange(self._pieces.count(c.value_length))
        guesses = np.zeros(len(pieces), GUESS)
        guesses["layer"], guesses["ordinal"] = pieces % self._layers, pieces // self._layers
        guesses["steps"] = min(c.due_ns / 1e9 / STEP_S, 0xFFFF)
        guesses["probability"], guesses["cause"] = c.probability, CAUSES.index("lookahead")
        self._fabric.hint(session, guesses)

    def _commit(self, run: _Run, session: int) -> Work:
        patience_s = time.monotonic() + self._timeout_s
        while True:
            told = yield from self._ask(run, "commit", session)
            rc = int(told["rc"])
            if rc == 0:
                self._used -= 1  # the commit ended it
            if rc != -errno.EAGAIN:
                return rc
            if time.monotonic() >= patience_s:
                return -errno.ETIMEDOUT
            yield pause(COMMIT_S)


def _flags(task: ValueTask) -> int:
    """Of a STORE, as the command has them."""
    return sum(value for flag, value in STORE_FLAGS.items() if task.c.flags & flag)
