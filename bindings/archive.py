"""Access to blocks of the store by key, independent of the hosts. Contract: device.h.

The device has `archive_places` records of memory; a caller owns those that it names until its call
returns. Nothing is staged, and nothing counts as a demand.
"""

from collections.abc import Sequence
from typing import Any

from offstage.bindings.device import FirmwareDevice
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import constant

__all__ = ["LOOK_MAX", "Places"]

LOOK_MAX = constant("OFS_ARCHIVE_LOOK_MAX")


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
        self, tenant: int, deletes: int, blocks: Sequence[tuple[bytes, int, Any]]
    ) -> list[int]:
        """Store each (store key, layer, payload), at most `count`; their rcs. -ECANCELED: blocks
        of the tenant were deleted since `look` gave `deletes`. RunFailed with EBUSY as in `read`,
        or where the drive still holds a place since it did not answer in time."""
        free = lib.ofs_device_archive_free(self._device.handle, self._first, len(blocks))
        check_rc(free, "taking places of the archive")
        for memory, (_, _, payload) in zip(self._memory, blocks, strict=False):
            memory[: len(payload)] = payload
        names = [(key, layer) for key, layer, _ in blocks]
        lengths = [len(payload) for _, _, payload in blocks]
        moved = self._move(tenant, names, lengths, deletes)
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
    ) -> Any:
        assert len(names) <= self.count
        blocks: Any = ffi.new("struct ofs_archive_block[]", max(len(names), 1))
        for block, (key, layer), length in zip(blocks, names, lengths, strict=False):
            ffi.buffer(ffi.addressof(block, "store_key"))[:] = key
            block.layer, block.length = layer, length
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
