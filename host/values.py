"""Values under keys of 1 to 16 bytes, by the commands that the firmware has for them.

A value is stored whole and read whole; a store replaces what its key had in one step, and a reader
gets the bytes of one store. A *volume* of 16 bytes has keys of its own. The maximum of a value is
`arena.layers` blocks of the daemon. Every piece is checked as it is copied, so that what is
returned is what was stored, or an error.

One thread owns it, as it owns the fabric. What can fail: `BadInput` for a key, a value or a daemon
that cannot be; `StoreFull`; `RunFailed` where the daemon does not answer or a piece cannot be read.
"""

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed, StoreFull
from offstage.bindings.fabric import Fabric, Fetch, FetchRequest, Put, PutRequest
from offstage.bindings.keys import block_keys, value_key
from offstage.bindings.layouts import VALUE_ASK, constant, numbered

__all__ = ["Values"]

VERBS = {name: number for number, name in numbered("enum ofs_value_verb", "OFS_VALUE_").items()}
KEY_BYTES_MAX = VOLUME_BYTES = 16
ABSENT = -1
PATIENCE_S, PAUSE_S = 10.0, 0.001
FIRST = np.zeros(1, np.uint32)


class Values:
    """The values of one tenant's volume, over a fabric of its own that it does not close."""

    def __init__(self, fabric: Fabric, volume: bytes = bytes(VOLUME_BYTES)) -> None:
        """Over `shm`, `verbs` or `nixl`; other fabrics carry no commands on values. `volume` is
        what libdoca_kv calls an NGUID; zeros are the one that has no name."""
        if len(volume) != VOLUME_BYTES:
            raise BadInput(f"a volume of {len(volume)} bytes", "values", f"give {VOLUME_BYTES}")
        self._fabric, self._volume = fabric, volume

    def store(self, key: bytes, value: Any, *, keep: bool = False, over: bool = False) -> bool:
        """Make these contiguous bytes the key's value. `keep`: only if it has none, `over`: only
        if it has one; False: so nothing was stored."""
        data = np.frombuffer(value, np.uint8)
        flags = keep * constant("OFS_VALUE_KEEP") | over * constant("OFS_VALUE_OVER")
        asks = self.asks([key])
        asks["length"], asks["flags"] = data.size, flags
        told = self._opened("store", asks)
        if _unwanted(told["rc"], keep, over):
            return False
        _refuse(told["rc"], f"a value of {data.size:,} bytes")
        session = int(told["session"])
        try:
            self._write(session, data)
            rc = self._commit(session)
        except BaseException:
            self._end("end", session)
            raise
        if rc:
            self._end("end", session)
        if _unwanted(rc, keep, over):
            return False
        _refuse(rc, "the commit of a value")
        return True

    def retrieve(self, key: bytes) -> bytes | None:
        """The key's value; None: it has none."""
        told = self._opened("retrieve", self.asks([key]))
        if told["rc"] == -errno.ENOENT:
            return None
        _refuse(told["rc"], "a value")
        session = int(told["session"])
        try:
            return self._read(session, int(told["length"]), told["chunk"].tobytes())
        finally:
            self._end("end", session)

    def lengths(self, keys: Sequence[bytes]) -> list[int]:
        """The length of each key's value; -1: it has none."""
        told = self._fabric.values(VERBS["exist"], self.asks(keys))
        for rc in told["rc"][told["rc"] != -errno.ENOENT]:
            _refuse(rc, "a value")
        found: list[int] = np.where(
            told["rc"] == 0, told["length"].astype(np.int64), ABSENT
        ).tolist()
        return found

    def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """Delete the value of each key: whether it had one. Who reads it reads on."""
        told = self._fabric.values(VERBS["delete"], self.asks(keys))
        for rc in told["rc"][told["rc"] != -errno.ENOENT]:
            _refuse(rc, "a value")
        found: list[bool] = (told["rc"] == 0).tolist()
        return found

    def asks(self, keys: Sequence[bytes]) -> NDArray[np.void]:
        """The keys as the ring names them: `VALUE_ASK` `[n]`."""
        wrong = next((one for one in keys if not 0 < len(one) <= KEY_BYTES_MAX), None)
        if wrong is not None:
            raise BadInput(
                f"a key of {len(wrong)} bytes", "values", f"give 1 to {KEY_BYTES_MAX} bytes"
            )
        asks = np.zeros(len(keys), VALUE_ASK)
        names = b"".join(value_key(self._volume, key) for key in keys)
        asks["key"] = np.frombuffer(names, asks.dtype["key"])
        return asks

    def _opened(self, verb: str, asks: NDArray[np.void]) -> Any:
        """Asks again while other hosts have all sessions."""
        until_s = time.monotonic() + PATIENCE_S
        while (told := self._fabric.values(VERBS[verb], asks)[0])["rc"] == -errno.EBUSY:
            if time.monotonic() >= until_s:
                raise RunFailed(
                    "no session became free", "values", "raise limits.sessions", errno=errno.EBUSY
                )
            time.sleep(PAUSE_S)
        return told

    def _commit(self, session: int) -> int:
        """Asks again while a piece is not on the drive, as where no sessions share."""
        until_s = time.monotonic() + PATIENCE_S
        while (rc := self._end("commit", session)) == -errno.EAGAIN and time.monotonic() < until_s:
            time.sleep(PAUSE_S)
        return rc

    def _end(self, verb: str, session: int) -> int:
        asks = np.zeros(1, VALUE_ASK)
        asks["session"] = session
        return int(self._fabric.values(VERBS[verb], asks)["rc"][0])

    def _write(self, session: int, data: NDArray[np.uint8]) -> None:
        fabric, size = self._fabric, self._fabric.payload_size_bytes

        def begin(layer: int) -> Put:
            piece = data[layer * size : (layer + 1) * size]
            return fabric.put_begin(PutRequest(session, layer, FIRST, piece[None]))

        _refuse(self._each(-(-data.size // size), begin, fabric.put_end), "a piece of a value")

    def _read(self, session: int, length: int, chunk: bytes) -> bytes:
        fabric, size = self._fabric, self._fabric.payload_size_bytes
        pieces = -(-length // size)
        keys = block_keys([chunk], pieces)
        rows = np.empty((pieces, size), np.uint8)

        def begin(layer: int) -> Fetch:
            row = rows[layer : layer + 1]
            return fabric.fetch_begin(FetchRequest(session, 1, layer, FIRST, keys[layer], row))

        fabric.register(rows)
        try:
            failed = self._each(pieces, begin, lambda one: fabric.fetch_end(one).rcs)
        finally:
            fabric.unregister(rows)
        _refuse(failed, "a piece of a value")
        return rows.reshape(-1)[:length].tobytes()

    def _each(
        self, count: int, begin: Callable[[int], Any], end: Callable[[Any], NDArray[np.int32]]
    ) -> int:
        """Begin a call for each piece, as many at once as the fabric takes, and end them all: the
        last return code other than 0."""
        flying: deque[Any] = deque()
        failed = 0
        for layer in range(count):
            if len(flying) == self._fabric.calls_max:
                failed = int(end(flying.popleft())[0]) or failed
            flying.append(begin(layer))
        while flying:
            failed = int(end(flying.popleft())[0]) or failed
        return failed


def _unwanted(rc: int, keep: bool, over: bool) -> bool:
    return (keep and rc == -errno.EEXIST) or (over and rc == -errno.ENOENT)


def _refuse(rc: int, what: str) -> None:
    """Raise the error of a return code other than 0."""
    code = -int(rc)
    if code == 0:
        return
    if code == errno.ENOTSUP:
        raise BadInput(
            "the daemon stores nothing by key", "values", "set limits.values, and use fabric shm"
        )
    if code == errno.EMSGSIZE:
        raise BadInput(f"{what} has more pieces than the arena has layers", "values", "cut it")
    if code == errno.EINVAL:
        raise BadInput(f"{what} is empty", "values", "leave it out")
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise StoreFull(
            f"no room for {what}", "values", "raise limits.values, limits.sessions or storage.size"
        )
    name = errno.errorcode.get(code, str(code))
    raise RunFailed(f"{what}: {name}", "values", "see the daemon's log", errno=code)
