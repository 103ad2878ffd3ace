"""Access to blocks of the store by key, independent of the hosts. Contract: device.h.

The device has `archive_places` records of memory; a caller owns those that it names until its call
returns. Nothing is staged, and nothing counts as a demand. `ValueNotes` is what the device and an
archive tell each other of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offstage.bindings.device import FirmwareDevice
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import constant, numbered

__all__ = ["LOOK_MAX", "NOTES_MAX", "Places", "Value", "ValueNotes"]

LOOK_MAX = constant("OFS_ARCHIVE_LOOK_MAX")
NOTES_MAX = 64
"""Notes that one call takes."""
KINDS = numbered("enum ofs_value_note_kind", "OFS_NOTE_")


@dataclass(frozen=True, slots=True)
class Value:
    """One store of a key: the 16-byte keys of value and chunk, `length` in bytes."""

    key: bytes
    store_key: bytes
    generation: int
    length: int


class Places:
    """The places from `first` on, `count` of them, for one thread."""

    def __init__(self, device: FirmwareDevice, first: int, count: int, payload_bytes: int) -> None:
        """Of an open device that was given at least `first + count` places."""
        self._device, self._first, self.count = device, first, count
        self._memory = [
            ffi.buffer(lib.ofs_device_archive_place(device.handle, first + i), payload_bytes)
            for i in range(count)
        ]

    def read(self, tenant: int, names: Sequence[tuple[bytes, int]]) -> list[tuple[int, Any]]:
        """For each (store key, layer), at most `count`: its rc, and its payload where that is 0,
        which stands until the next call. RunFailed with EBUSY: the store moves; retry."""
        blocks = self._move(tenant, names, [0] * len(names), deletes=None)
        return [
            (int(one.rc), memoryview(memory)[: one.length] if one.rc == 0 else b"")
            for one, memory in zip(blocks, self._memory, strict=False)
        ]

    def write(
        self,
        tenant: int,
        deletes: int,
        blocks: Sequence[tuple[bytes, int, Any]],
        value: Value | None = None,
    ) -> list[int]:
        """Store each (store key, layer, payload), at most `count`, of this value, if of any; their
        rcs. -ECANCELED: blocks of the tenant were deleted since `look` gave `deletes`, or the
        device does not wait for the value. RunFailed with EBUSY as in `read`,
        or where the drive still holds a place since it did not answer in time."""
        free = lib.ofs_device_archive_free(self._device.handle, self._first, len(blocks))
        check_rc(free, "taking places of the archive")
        for memory, (_, _, payload) in zip(self._memory, blocks, strict=False):
            memory[: len(payload)] = payload
        names = [(key, layer) for key, layer, _ in blocks]
        lengths = [len(payload) for _, _, payload in blocks]
        moved = self._move(tenant, names, lengths, deletes, value)
        return [int(moved[i].rc) for i in range(len(blocks))]

    def look(self, tenant: int, keys: Sequence[bytes]) -> tuple[list[int], int]:
        """How many layers of each store key the store has (at most LOOK_MAX keys), and how often
        blocks of the tenant were deleted until then."""
        packed: Any = ffi.new("struct ofs_key[]", max(len(keys), 1))
        ffi.buffer(packed)[: 16 * len(keys)] = b"".join(keys)
        layers: Any = ffi.new("uint32_t[]", max(len(keys), 1))
        deletes: Any = ffi.new("uint64_t *")
        rc = lib.ofs_device_archive_look(
            self._device.handle, tenant, len(keys), packed, layers, deletes
        )
        check_rc(rc, "looking at the store")
        return [int(layers[i]) for i in range(len(keys))], int(deletes[0])

    def _move(
        self,
        tenant: int,
        names: Sequence[tuple[bytes, int]],
        lengths: Sequence[int],
        deletes: int | None,
        value: Value | None = None,
    ) -> Any:
        assert len(names) <= self.count
        blocks: Any = ffi.new("struct ofs_archive_block[]", max(len(names), 1))
        for block, (key, layer), length in zip(blocks, names, lengths, strict=False):
            ffi.buffer(ffi.addressof(block, "store_key"))[:] = key
            block.layer, block.length = layer, length
            if value is not None:
                ffi.buffer(ffi.addressof(block, "key"))[:] = value.key
                block.generation, block.value_length = value.generation, value.length
        rc = lib.ofs_device_archive_move(
            self._device.handle,
            int(deletes is not None),
            tenant,
            deletes or 0,
            self._first,
            len(names),
            blocks,
        )
        check_rc(rc, "moving blocks of the archive")
        return blocks


class ValueNotes:
    """Notes on values; any thread may call."""

    def __init__(self, device: FirmwareDevice) -> None:
        """Of an open device with an archive that keeps values."""
        self._device = device

    def wait(self, stored: bool, timeout_s: float) -> bool:
        """Whether there are notes now, or within that time; `stored`: of those too."""
        rc = lib.ofs_device_value_await(self._device.handle, stored, int(timeout_s * 1e9))
        return bool(rc)

    def take(self, stored: bool, most: int = NOTES_MAX) -> list[tuple[str, int, Value]]:
        """Some of them: kind (`stored`, `replaced`, `wanted`, `gone`), tenant and value, which is
        told once. Hosts wait for the `end` of a `wanted` or `gone`."""
        notes: Any = ffi.new("struct ofs_value_note[]", most)
        count = lib.ofs_device_value_notes(self._device.handle, stored, notes, most)
        check_rc(min(count, 0), "taking notes on values")
        return [
            (
                KINDS[note.kind],
                int(note.tenant),
                Value(
                    bytes(ffi.buffer(ffi.addressof(note, "key"))),
                    bytes(ffi.buffer(ffi.addressof(note, "store_key"))),
                    int(note.generation),
                    int(note.length),
                ),
            )
            for note in notes[0:count]
        ]

    def archived(self, tenant: int, values: Sequence[Value]) -> list[int]:
        """The archive has these; rcs: 0, or -ESTALE: not any more the key's, -ENOSPC: no room in
        the table, -EINVAL: no value of this device."""
        rcs: Any = ffi.new("int32_t[]", max(len(values), 1))
        rc = lib.ofs_device_value_archived(
            self._device.handle, len(values), _packed(tenant, values), rcs
        )
        check_rc(rc, "telling of archived values")
        return [int(rcs[i]) for i in range(len(values))]

    def end(self, tenant: int, values: Sequence[Value], gone: bool) -> None:
        """Of `wanted` ones: they did not come back, or (`gone`) never will; of `gone` ones: it is
        noted. One that came back stays."""
        rc = lib.ofs_device_value_end(
            self._device.handle, len(values), _packed(tenant, values), gone
        )
        check_rc(rc, "ending notes on values")

    def listed(self) -> None:
        """The device knows every value in the archive."""
        check_rc(lib.ofs_device_value_listed(self._device.handle, 1), "telling of archived values")

    @property
    def waiting(self) -> int:
        """Values that notes wait for."""
        count: Any = ffi.new("uint32_t *")
        check_rc(lib.ofs_device_value_waiting(self._device.handle, count), "counting notes")
        return int(count[0])


def _packed(tenant: int, values: Sequence[Value]) -> Any:
    notes: Any = ffi.new("struct ofs_value_note[]", max(len(values), 1))
    for note, value in zip(notes, values, strict=False):
        ffi.buffer(ffi.addressof(note, "key"))[:] = value.key
        ffi.buffer(ffi.addressof(note, "store_key"))[:] = value.store_key
        note.generation, note.length, note.tenant = value.generation, value.length, tenant
    return notes
