"""A store driven from Python: for tests and tools; the daemon drives its store from C.

A `Store` uses a `Storage`, belongs to the same thread, and owns one record buffer for each I/O
in flight, so that callers deal in payload `bytes`. Keys are 128-bit integers. Calls that start an
I/O return 0 or -errno as in `store.h` (-EAGAIN: poll, then retry); only its `StoreDone` has the
outcome of an I/O. A store that cannot be opened raises `BadInput` (or `StoreFull`, `DeviceTimeout`)
with the firmware's error line.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from offstage.bindings.errors import BadInput, DeviceTimeout, OffstageError, StoreFull
from offstage.bindings.firmware import ffi, lib, text_of
from offstage.bindings.storage import Buffer, Storage

__all__ = ["Store", "StoreConfig", "StoreDone", "StoreEntry"]

ERROR_SIZE_BYTES = 512
DONE_MAX = 64
KEY_MASK = 2**64 - 1
OPEN_ERRORS: dict[int, type[OffstageError]] = {
    errno.ENOSPC: StoreFull,
    errno.ETIMEDOUT: DeviceTimeout,
    errno.EIO: OffstageError,
    errno.ENOMEM: OffstageError,
}


@dataclass(frozen=True)
class StoreConfig:
    """What a store is opened with; the fields are those of `struct ofs_store_config`."""

    payload_size_bytes: int
    layer_count: int
    segment_size_bytes: int
    tenant_max: int = 1
    io_max: int = 64
    durable: bool = True
    ttl_s: int = 0
    reserve_segments: int = 1
    room_percent: int = 0
    format: bool = True
    erase: bool = False
    codec: int = 0
    """0, or one more than the index of a dtype in `bindings.codec.DTYPES`."""

    def struct(self) -> Any:
        """The C struct; `BadInput` for a number that does not fit its field."""
        config: Any = ffi.new("struct ofs_store_config *")
        for name in (one.name for one in fields(self)):
            try:
                setattr(config, name, int(getattr(self, name)))
            except OverflowError:
                raise BadInput(
                    f"{name} is {getattr(self, name)}", "store", "give a number from 0 to 2^32 - 1"
                ) from None
        return config


@dataclass(frozen=True)
class StoreDone:
    """The end of a put or get: `rc` 0 or -errno; `payload` of a get that ended well."""

    user: int
    rc: int
    payload: bytes | None = None


@dataclass(frozen=True)
class StoreEntry:
    """One block of the index. `expire_s` is Unix time, 0 never."""

    key: int
    layer: int
    tenant: int
    sequence: int
    expire_s: int


class Store:
    """One open store; a context manager. The storage stays the caller's to close, afterwards."""

    def __init__(
        self, storage: Storage, config: StoreConfig, lock_path: str = "", now_s: int = 0
    ) -> None:
        self.storage = storage
        self.config = config
        self._handle: Any = None
        out = ffi.new("struct ofs_store **")
        text = ffi.new(f"char[{ERROR_SIZE_BYTES}]")
        rc = lib.ofs_store_open(
            out, storage._handle, lock_path.encode(), config.struct(), now_s, text, ERROR_SIZE_BYTES
        )
        if rc < 0:
            what, _, fix = text_of(text).partition("; ")
            raise OPEN_ERRORS.get(-rc, BadInput)(what, lock_path, fix, errno=-rc)
        self._handle = out[0]
        self.record_size_bytes = int(lib.ofs_store_record_size_bytes(self._handle))
        self._buffer = Buffer(self.record_size_bytes * config.io_max)
        storage.register(self._buffer)
        self._free = list(range(config.io_max))
        self._flying: dict[int, tuple[int, bool]] = {}  # slot: (user, is a get)
        self._done = ffi.new(f"struct ofs_store_done[{DONE_MAX}]")

    def close(self) -> None:
        """Waits for I/O in flight (bounded); recovery needs no clean close."""
        if self._handle is not None:
            lib.ofs_store_close(self._handle)
            self._handle = None
            if self.storage.stats()["in_flight"] == 0:
                self.storage.unregister(self._buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(
        self, key: int, layer: int, payload: bytes, user: int = 0, tenant: int = 0, now_s: int = 0
    ) -> int:
        """Write a block of 1 to `payload_size_bytes` bytes; returns 0 or -errno immediately."""
        if not 0 < len(payload) <= self.config.payload_size_bytes:
            return -errno.EINVAL
        if not self._free:
            return -errno.EAGAIN
        slot = self._free[-1]
        at = slot * self.record_size_bytes
        self._buffer.view[at : at + len(payload)] = payload
        trailer = self._trailer(slot)
        trailer.length = len(payload)
        trailer.checksum = lib.ofs_checksum(self._buffer.at(at), len(payload))
        rc = int(
            lib.ofs_store_put(
                self._handle, tenant, _key(key), layer, self._buffer.at(at), slot, now_s
            )
        )
        return self._started(rc, slot, user, False)

    def get(self, key: int, layer: int, user: int = 0, now_s: int = 0) -> int:
        """Read a block; returns 0 or -errno immediately."""
        if not self._free:
            return -errno.EAGAIN
        slot = self._free[-1]
        address = self._buffer.at(slot * self.record_size_bytes)
        rc = int(lib.ofs_store_get(self._handle, _key(key), layer, address, slot, now_s))
        return self._started(rc, slot, user, True)

    def poll(self) -> list[StoreDone]:
        """What has ended; a simulated clock is moved to the next completion first."""
        storage = self.storage
        clock = storage.clock
        if clock.simulated and clock.now_ns() < storage.due_ns < 2**64 - 1:
            clock.advance_to(storage.due_ns)
        count = lib.ofs_store_poll(self._handle, self._done, DONE_MAX)
        return [self._ended(done) for done in self._done[0:count]]

    def drain(self, polls_max: int = 1_000_000) -> list[StoreDone]:
        """Polls until every put and get has ended; gives up after that many polls without one."""
        found: list[StoreDone] = []
        idle = 0
        while self._flying and idle < polls_max:
            more = self.poll()
            idle = 0 if more else idle + 1
            found += more
        return found

    def put_wait(
        self, key: int, layer: int, payload: bytes, tenant: int = 0, now_s: int = 0
    ) -> int:
        """Write a block and wait for its end; 0 or -errno. Nothing else may be in flight."""
        return self._wait(lambda: self.put(key, layer, payload, 0, tenant, now_s)).rc

    def get_wait(self, key: int, layer: int, now_s: int = 0) -> StoreDone:
        """Read a block and wait for its end. Nothing else may be in flight."""
        return self._wait(lambda: self.get(key, layer, 0, now_s))

    def delete(self, key: int, layer: int) -> int:
        """0, or -ENOENT."""
        return int(lib.ofs_store_delete(self._handle, _key(key), layer))

    def lacks(self) -> int:
        """Blocks to delete, so that the store has its `room_percent`; 0: it has."""
        return int(lib.ofs_store_lacks(self._handle))

    def wiped(self, tenant: int, ticket: int = 0) -> tuple[bool, int]:
        """Whether later opens find nothing of what the tenant had deleted when the ticket was taken
        (0: now); and the ticket."""
        held = ffi.new("uint64_t *", ticket)
        return lib.ofs_store_wiped(self._handle, tenant, held) == 0, int(held[0])

    def position(self, key: int, layer: int) -> int | None:
        """The physical order number of a block, for sorting reads; None where it is absent."""
        found = int(lib.ofs_store_position(self._handle, _key(key), layer))
        return None if found == 2**64 - 1 else found

    def scan(self) -> Iterator[StoreEntry]:
        """Every live block, in physical order."""
        cursor = ffi.new("uint64_t *")
        entries = ffi.new("struct ofs_store_entry[256]")
        while (count := lib.ofs_store_scan(self._handle, cursor, entries, 256)) > 0:
            yield from [_entry(one) for one in entries[0:count]]

    def tick(self, now_s: int, max_entries: int = 256) -> list[StoreEntry]:
        """Let time pass; the blocks that were dropped."""
        entries = ffi.new("struct ofs_store_entry[]", max_entries)
        count = lib.ofs_store_tick(self._handle, now_s, entries, max_entries)
        return [_entry(one) for one in entries[0:count]]

    def stats(self) -> dict[str, int]:
        out = ffi.new("struct ofs_store_stats *")
        lib.ofs_store_stats_get(self._handle, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof(out[0]).fields}

    @property
    def in_flight(self) -> int:
        """Puts and gets not handed out yet, and the cleaner's own I/O."""
        return int(lib.ofs_store_in_flight(self._handle))

    def verify(self) -> int:
        """0, or which of the running counts disagrees with a recount: our own mistake."""
        return int(lib.ofs_store_verify(self._handle))

    def _trailer(self, slot: int) -> Any:
        at = slot * self.record_size_bytes + self.config.payload_size_bytes
        return ffi.cast("struct ofs_trailer *", self._buffer.at(at))

    def _started(self, rc: int, slot: int, user: int, is_get: bool) -> int:
        if rc == 0:
            assert self._free.pop() == slot
            self._flying[slot] = (user, is_get)
        return rc

    def _ended(self, done: Any) -> StoreDone:
        user, is_get = self._flying.pop(done.user)
        self._free.append(done.user)
        payload = None
        if is_get and done.rc == 0:
            at = done.user * self.record_size_bytes
            payload = bytes(self._buffer.view[at : at + done.length])
        return StoreDone(user, done.rc, payload)

    def _wait(self, start: Any) -> StoreDone:
        assert not self._flying
        for _ in range(1_000_000):
            rc = start()
            if rc == 0:
                ended = self.drain()
                return ended[0] if ended else StoreDone(0, -errno.ETIMEDOUT)
            if rc != -errno.EAGAIN:
                return StoreDone(0, rc)
            self.poll()
        return StoreDone(0, -errno.EAGAIN)


def _key(key: int) -> Any:
    assert 0 <= key < 2**128
    return ffi.new("struct ofs_key *", {"lo": key & KEY_MASK, "hi": key >> 64})


def _entry(entry: Any) -> StoreEntry:
    key = entry.store_key.lo | entry.store_key.hi << 64
    return StoreEntry(key, entry.layer, entry.tenant, entry.sequence, entry.expire_s)
