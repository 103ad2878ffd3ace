"""Values under keys of 1 to 16 bytes, by the commands that the firmware has for them.

A value is stored whole and read whole; a store replaces what its key had in one step, and a reader
gets the bytes of one store. A *volume* of 16 bytes has keys of its own. A value has at most as many
blocks as a session (`limits.context_tokens`, in blocks of all layers). Every piece is checked as it
is copied, so that what is returned is what was stored, or an error.

One thread owns it, as it owns the fabric. What can fail: `BadInput` for a key, a value or a daemon
that cannot be; `StoreFull`; `RunFailed` where the daemon does not answer or a piece cannot be read.
"""

import errno
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed, StoreFull
from offstage.bindings.fabric import Fabric
from offstage.bindings.keys import value_key
from offstage.bindings.layouts import VALUE_ASK
from offstage.bindings.lost import gone
from offstage.bindings.value_io import ValueTask, memory_of

__all__ = ["Values"]

KEY_BYTES_MAX = VOLUME_BYTES = 16
ABSENT = -1
PATIENCE_S = 10.0
SESSIONS_MAX = 4  # one value moves at a time
LIST_BYTES = 16384
ENTRY_BYTES_MAX = 20


class Values:
    """The values of one tenant's volume, over a fabric that it does not close.

    Blocks may be fetched and put over the same fabric, by the same thread."""

    def __init__(
        self, fabric: Fabric, volume: bytes = bytes(VOLUME_BYTES), *, durable: bool = False
    ) -> None:
        """Over `shm`, `verbs`, `nixl` or `zmq`; other fabrics carry no values. `volume` is
        what libdoca_kv calls an NGUID; zeros are the one that has no name. `durable`: a store ends
        when the value is on the drive, also where the daemon writes back (`store.write`)."""
        if len(volume) != VOLUME_BYTES:
            raise BadInput(f"a volume of {len(volume)} bytes", "values", f"give {VOLUME_BYTES}")
        self._fabric, self._volume, self._durable = fabric, volume, durable
        self._io = fabric.value_io(SESSIONS_MAX, PATIENCE_S)

    def store(self, key: bytes, value: Any, *, keep: bool = False, over: bool = False) -> bool:
        """Make these contiguous bytes the key's value. `keep`: only if it has none, `over`: only
        if it has one; False: so nothing was stored. Over `verbs` bytes that are registered with the
        fabric are written from where they are."""
        data = memory_of(value)
        if data.size == 0:
            raise BadInput("the value is empty", "values", "leave it out")
        flags = {"keep": keep, "over": over, "durable": self._durable}
        (task,) = self._done([ValueTask("store", self.name(key), data, name=key, **flags)])
        if _unwanted(task.rc, keep, over):
            return False
        _refuse(task.rc, f"a value of {data.size:,} bytes")
        return True

    def retrieve(self, key: bytes) -> bytes | None:
        """The key's value; None: it has none."""
        length = self.lengths([key])[0]
        while length != ABSENT:
            memory = np.empty(length, np.uint8)
            self._fabric.register(memory)
            try:
                found = self.read(key, memory)
            finally:
                self._fabric.unregister(memory)
            if found is None:
                break
            if found <= length:
                return memory[:found].tobytes()
            length = found  # of a later store
        return None

    def read(self, key: bytes, memory: NDArray[np.uint8]) -> int | None:
        """Read the key's value into this contiguous memory, as much of it as there is room for. The
        value's length in bytes; None: it has none. Over `verbs` and `nixl` memory that is
        registered with the fabric is read into directly; other memory costs a copy."""
        memory = memory_of(memory, into=True)
        (task,) = self._done([ValueTask("retrieve", self.name(key), memory, whole=False)])
        if task.rc == -errno.ENOENT:
            return None
        _refuse(task.rc, "a value")
        return task.value_length

    def lengths(self, keys: Sequence[bytes]) -> list[int]:
        """The length of each key's value; -1: it has none."""
        told = self._done([ValueTask("exist", self.name(key)) for key in keys])
        return [task.value_length if _is_there(task) else ABSENT for task in told]

    def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """Delete the value of each key: whether it had one. Who reads it reads on."""
        return [
            _is_there(task)
            for task in self._done([ValueTask("delete", self.name(key)) for key in keys])
        ]

    def keys(self, start: bytes = b"") -> Iterator[bytes]:
        """The volume's keys, from `start` on or where that would stand; empty: all. Each that is
        there all the while comes once, in the daemon's own order. Values that were stored before
        daemons kept keys are left out."""
        memory = np.zeros(LIST_BYTES, np.uint8)
        last = start
        while True:
            name = self.name(last) if last else bytes(KEY_BYTES_MAX)
            (task,) = self._done(
                [ValueTask("list", name, memory, name=self._volume, first=not last)]
            )
            _refuse(task.rc, "a list")
            listed = listed_keys(memory.tobytes())
            fresh = listed[1:] if last != start and listed[:1] == [last] else listed
            yield from fresh
            if not fresh or task.landed + ENTRY_BYTES_MAX <= LIST_BYTES:
                return
            last = fresh[-1]

    def name(self, key: bytes) -> bytes:
        """The 16 bytes that name the value in the tenant."""
        if not 0 < len(key) <= KEY_BYTES_MAX:
            raise BadInput(
                f"a key of {len(key)} bytes", "values", f"give 1 to {KEY_BYTES_MAX} bytes"
            )
        return value_key(self._volume, key)

    def asks(self, keys: Sequence[bytes]) -> NDArray[np.void]:
        """The keys as the ring names them: `VALUE_ASK` `[n]`."""
        asks = np.zeros(len(keys), VALUE_ASK)
        asks["key"] = np.frombuffer(b"".join(map(self.name, keys)), asks.dtype["key"])
        return asks

    def _done(self, tasks: list[ValueTask]) -> list[ValueTask]:
        """The same tasks, ended. After a loss the next ones are asked over a new connection, where
        the fabric makes one."""
        if self._io.closed:
            self._io = self._fabric.value_io(SESSIONS_MAX, PATIENCE_S)
        self._io.submit(tasks)
        while self._io.count:
            self._io.run(PATIENCE_S)
        if any(task.rc == -errno.EPIPE for task in tasks):
            self._io.close()
        return tasks


def listed_keys(data: bytes) -> list[bytes]:
    """The keys of a list as NVMe's Key Value commands lay it out."""
    (count,) = struct.unpack_from("<I", data)
    keys, at = list[bytes](), 4
    for _ in range(count):
        (size,) = struct.unpack_from("<H", data, at)
        keys.append(data[at + 2 : at + 2 + size])
        at += (2 + size + 3) // 4 * 4
    return keys


def _is_there(task: ValueTask) -> bool:
    if task.rc != -errno.ENOENT:
        _refuse(task.rc, "a value")
    return task.rc == 0


def _unwanted(rc: int, keep: bool, over: bool) -> bool:
    return (keep and rc == -errno.EEXIST) or (over and rc == -errno.ENOENT)


def _refuse(rc: int, what: str) -> None:
    """Raise the error of a return code other than 0."""
    code = -int(rc)
    if code == 0:
        return
    if code == errno.ENOTSUP:
        raise BadInput("the daemon stores nothing by key", "values", "set limits.values")
    if code == errno.EMSGSIZE:
        raise BadInput(
            f"{what} is longer than a session", "values", "raise limits.context_tokens, or cut it"
        )
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise StoreFull(
            f"no room for {what}", "values", "raise limits.values, limits.sessions or storage.size"
        )
    if code in (errno.EPIPE, errno.EPROTO):
        gone(-code, f"moving {what}")
    name = errno.errorcode.get(code, str(code))
    raise RunFailed(f"{what}: {name}", "values", "see the daemon's log", errno=code)
