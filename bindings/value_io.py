"""Operations on values as tasks, many in flight.

A fabric's `ValueIO` moves them: `DriverValues` is `struct ofs_value_io` (value_io.h) over one
driver, without the GIL. One thread owns both, and may have fetches and puts of the fabric in flight
meanwhile; any thread submits tasks, which begin while it is in `run` or `serve`.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import ENDS, numbered
from offstage.bindings.lost import gone

__all__ = ["VERBS", "DriverValues", "ValueIO", "ValueTask", "memory_of", "nanoseconds"]

VERBS = {name: number for number, name in numbered("enum ofs_value_verb", "OFS_VALUE_").items()}
ENDED_BATCH = 64
KEY_BYTES = 16
TASK = ffi.typeof("struct ofs_value_task *")
_KEEP, _OVER, _WHOLE = lib.OFS_TASK_KEEP, lib.OFS_TASK_OVER, lib.OFS_TASK_WHOLE
_PARTS, _HOLD, _ONCE = lib.OFS_TASK_PARTS, lib.OFS_TASK_HOLD, lib.OFS_TASK_ONCE
_DURABLE, _FIRST = lib.OFS_TASK_DURABLE, lib.OFS_TASK_FIRST
NS_MAX = 10**18  # thirty years, far from where 64 bits end
U8 = NDArray[np.uint8]


def memory_of(buffer: Any, *, into: bool = False) -> U8:
    """Contiguous memory as bytes, uncopied. BadInput: it is something else, or (`into`) cannot be
    written."""
    try:
        if isinstance(buffer, np.ndarray) and not buffer.flags.c_contiguous:
            raise ValueError("its elements do not follow each other")
        whole = isinstance(buffer, np.ndarray)
        data = buffer.reshape(-1).view(np.uint8) if whole else np.frombuffer(buffer, np.uint8)
    except (BufferError, TypeError, ValueError) as error:
        raise BadInput(f"not contiguous bytes: {error}", "values", "copy it first") from None
    if into and not data.flags.writeable:
        raise BadInput("memory that cannot be written", "values", "read into memory of your own")
    return data


def nanoseconds(seconds: float) -> int:
    """A time as the driver takes it: infinity is the longest, NaN and what is negative are 0."""
    return int(min(seconds * 1e9, NS_MAX)) if seconds > 0 else 0


class ValueTask:
    """One operation on one value. Its memory may not change or go from submit until its end.

    `verb`: `exist`, `retrieve`, `store`, `delete` or `list`. `key` is the name in the tenant, 16
    bytes (`bindings.keys.value_key`). `memory`: contiguous bytes, which a store sends and a
    retrieve fills. `name`: of a store, the key in its volume, which a list tells; of a list, the
    volume. `list` fills its memory with keys as value_io.h says, from that of `key` on, or from the
    `first` of the volume. `keep`, `over`: a store only where the key has no value, or only where it
    has one; `durable`: it ends when the value is on the drive, also where the daemon writes back.
    `length`: of an `exist` or hold, the length that the value must have, or -EMSGSIZE; of a
    retrieve that is its memory's, unless `whole` is False. `hold_s` above 0, of a retrieve without
    memory: the value is held for so long, `once` at most until a retrieve of its key ends or a
    store of it begins, and with `chance` (0 to 1) announced to the prefetch as read in `due_s`.
    `parts`: `landed` grows before the end. `filled` (of a store): so many bytes may be sent at
    first; -1: all, and it is committed. `timeout_s`: then -ETIMEDOUT; 0: none.

    At its end: `rc` 0 or -errno, `value_length` in bytes (of a list the number of keys), `ends`
    pieces by `bindings.layouts.ENDS`.
    """

    __slots__ = ("_kept", "address", "c", "key", "memory", "verb")

    def __init__(
        self,
        verb: str,
        key: bytes,
        memory: U8 | None = None,
        *,
        name: bytes = b"",
        first: bool = False,
        length: int = -1,
        whole: bool = True,
        keep: bool = False,
        over: bool = False,
        durable: bool = False,
        parts: bool = False,
        once: bool = False,
        hold_s: float = 0.0,
        due_s: float = 0.0,
        chance: float = 0.0,
        filled: int = -1,
        timeout_s: float = 0.0,
    ) -> None:
        assert len(key) == KEY_BYTES
        self.verb, self.key, self.memory = verb, key, memory
        c: Any = ffi.new(TASK)
        self.c = c
        start = ffi.NULL
        if memory is not None:
            start, length = ffi.from_buffer(memory), memory.nbytes  # type: ignore[call-overload]
        flags = _WHOLE if whole and length >= 0 and verb != "list" else 0
        if keep or over or durable or parts or first or hold_s > 0:
            flags |= (
                keep * _KEEP
                | over * _OVER
                | durable * _DURABLE
                | parts * _PARTS
                | once * _ONCE
                | (hold_s > 0) * _HOLD
                | first * _FIRST
            )
        self._kept = start  # the memory, while there is a task
        self.address: int = lib.ofs_value_task_set(
            c,
            key,
            VERBS[verb],
            flags,
            start,
            max(length, 0),
            filled,
            nanoseconds(timeout_s),
        )
        if name:
            c.name_bytes = len(name)
            ffi.memmove(ffi.addressof(c, "name"), name, len(name))
        if hold_s:
            c.hold_ns, c.due_ns = nanoseconds(hold_s), nanoseconds(due_s)
            c.probability = int(65535 * min(chance, 1.0)) if chance > 0 else 0

    @property
    def rc(self) -> int:
        """0 or -errno, once it has ended."""
        return int(self.c.rc)

    @property
    def value_length(self) -> int:
        """Bytes of the value that is there."""
        return int(self.c.value_length)

    @property
    def landed(self) -> int:
        """The bytes before this have come."""
        return int(self.c.landed)

    @property
    def ends(self) -> list[int]:
        """[len(ENDS)] pieces of a retrieve, by how they ended."""
        return list(ffi.unpack(self.c.ends, len(ENDS)))


class ValueIO(ABC):
    """Tasks on values over one fabric, which it does not close."""

    @abstractmethod
    def submit(self, tasks: Sequence[ValueTask]) -> None:
        """Any thread: take over these tasks; `run` or `serve` returns each once. BadInput: no such
        operation."""

    @abstractmethod
    def run(self, timeout_s: float = 0.0) -> list[ValueTask]:
        """Move everything on, and wait up to `timeout_s` for a task to end or one of parts to land
        more; not where nothing can happen by itself. Returns what has ended. RunFailed: the daemon
        is lost, and every task has been returned (-EPIPE)."""

    @abstractmethod
    def serve(self, timeout_s: float) -> list[ValueTask]:
        """As `run`, for a thread that does nothing else: while nothing can happen by itself it
        sleeps, until a task is submitted or it is woken."""

    @abstractmethod
    def wake(self) -> None:
        """Any thread: end the `serve` under way, or else the next one."""

    @abstractmethod
    def fill(self, task: ValueTask, size: int, *, commit: bool = False) -> None:
        """The first `size` bytes of a store's memory may be sent; `commit`: nothing else comes."""

    @abstractmethod
    def drop(self, task: ValueTask) -> None:
        """A store that was not committed ends with -ECANCELED."""

    @abstractmethod
    def release(self, key: bytes) -> None:
        """End the hold of a key."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Tasks that `run` has not returned."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Values that are held."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether `run` has something to do by itself: not while stores only wait to be filled."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it was closed."""

    @abstractmethod
    def close(self) -> None:
        """Nothing of a task is used any more. Before the fabric is closed; closing twice does
        nothing."""


class DriverValues(ValueIO):
    """Tasks on values, moved by a driver of the firmware."""

    def __init__(self, driver: Any, sessions_max: int, timeout_s: float) -> None:
        """`driver`: `struct ofs_driver *`. `sessions_max`: of the daemon, open at once.
        `timeout_s`: without an answer for so long the daemon is lost. BadInput: its port takes no
        values."""
        out: Any = ffi.new("struct ofs_value_io **")
        rc = lib.ofs_value_io_open(out, driver, sessions_max, nanoseconds(timeout_s))
        check_rc(rc, "opening the values of a port", "fabric", "set limits.values at the daemon")
        self._io = out[0]
        self._tasks: dict[int, ValueTask] = {}
        self._ended = np.zeros(ENDED_BATCH, np.uintp)
        self._ended_c: Any = ffi.cast("struct ofs_value_task **", self._ended.ctypes.data)
        self._closed = False

    def lose(self) -> None:
        """The driver is closed: `run` returns every task with -EPIPE."""
        if self._io is not None:
            lib.ofs_value_io_close(self._io)
            self._io = None

    def submit(self, tasks: Sequence[ValueTask]) -> None:
        for task in tasks:
            self._tasks[task.address] = task  # it may have ended before submit returns
            rc = 0 if self._io is None else lib.ofs_value_io_submit(self._io, task.c)
            if rc != 0:
                del self._tasks[task.address]
                raise BadInput(f"a task to {task.verb} without memory", "values", "give it some")

    def run(self, timeout_s: float = 0.0) -> list[ValueTask]:
        return self._moved(lib.ofs_value_io_run, timeout_s)

    def serve(self, timeout_s: float) -> list[ValueTask]:
        return self._moved(lib.ofs_value_io_serve, timeout_s)

    def wake(self) -> None:
        if self._io is not None:
            lib.ofs_value_io_wake(self._io)

    def _moved(self, move: Any, timeout_s: float) -> list[ValueTask]:
        if self._io is None:
            return self._lost()
        count = move(self._io, nanoseconds(timeout_s), self._ended_c, ENDED_BATCH)
        if count < 0:
            gone(count, "moving values")
        return list(map(self._tasks.pop, self._ended[:count].tolist()))

    def _lost(self) -> list[ValueTask]:
        ended = list(self._tasks.values())
        if not ended:
            gone(-errno.EPIPE, "moving values")
        self._tasks.clear()
        for task in ended:
            task.c.rc, task.c.state = -errno.EPIPE, lib.OFS_TASK_IDLE
        return ended

    def fill(self, task: ValueTask, size: int, *, commit: bool = False) -> None:
        if self._io is not None:
            lib.ofs_value_io_fill(self._io, task.c, size, commit)

    def drop(self, task: ValueTask) -> None:
        if self._io is not None:
            lib.ofs_value_io_drop(self._io, task.c)

    def release(self, key: bytes) -> None:
        if self._io is not None:
            lib.ofs_value_io_release(self._io, ffi.cast("struct ofs_key *", ffi.from_buffer(key)))

    @property
    def count(self) -> int:
        return len(self._tasks) if self._io is None else int(lib.ofs_value_io_count(self._io))

    @property
    def held(self) -> int:
        return 0 if self._io is None else int(lib.ofs_value_io_held(self._io))

    @property
    def busy(self) -> bool:
        return self._io is not None and bool(lib.ofs_value_io_busy(self._io))

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self.lose()
        self._tasks.clear()
        self._closed = True
