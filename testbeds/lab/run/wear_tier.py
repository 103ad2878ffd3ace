"""A store on a scaled drive, for what wears it (`wear.py`): the real store (`store.h`) on the
simulated drive, and which objects go first.

Model: a page is an eighth of a drive's, a record and its trailer as many of them as in a drive; a
block has fewer pages, and is erased as much sooner. A
drive with zones has the flash of the others: a zone is `zone_blocks` erase blocks of each plane, a
segment is a zone, what the store rewrites in place goes to a conventional namespace of
`CONVENTIONAL` blocks of each plane, and a discard resets. The store writes a segment in order, so
the drive refuses nothing, but every write when blocks with an `erase_limit` are worn out.
"""

from collections import OrderedDict
from dataclasses import dataclass
from errno import EAGAIN, ENOSPC

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import constant
from offstage.bindings.storage import Clock, NvmeModel, Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig

__all__ = [
    "PAGE_BYTES",
    "PLANES",
    "RECORD_PAGES",
    "Cold",
    "Tier",
    "Wrote",
    "kept_pages",
    "scaled",
    "zoned",
]

PAGE_BYTES, RECORD_PAGES = 512, 33
"""An eighth of 4 KiB; and in pages, 128 KiB with the trailer."""
SEGMENT_RECORDS, RESERVE_SEGMENTS = 4, 4
PLANES, BLOCKS, CONVENTIONAL = 4, 256, 6
"""A reclaim unit is a block of each plane."""
PURGED_SEGMENTS = 2
"""At once: a segment of 4 MiB has 31 records of 132 KiB, and 64 are purged, so twice a segment."""
NAMED_MAX = 3
IN_FLIGHT, QUANTUM_NS = 32, 1_000_000
ZONES_OFFSET = constant("OFS_STORE_SEGMENTS_OFFSET") + PAGE_BYTES
"""Behind the first segment's header; those of the others lie between zones, where no address is."""


class Cold:
    """Which objects go first: `ofs_purge_coldest`."""

    def __init__(self) -> None:
        self._named: dict[int, int] = {}
        self._keys: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(NAMED_MAX + 1)]

    def __contains__(self, key: int) -> bool:
        return key in self._named

    def __len__(self) -> int:
        return len(self._named)

    def put(self, key: int, named: int = 0) -> None:
        self._named[key] = named
        self._keys[named][key] = None

    def name(self, key: int) -> int:
        """How often others had named it before."""
        named = self._named[key]
        del self._keys[named][key]
        self.put(key, min(named + 1, NAMED_MAX))
        return named

    def take(self, count: int) -> list[int]:
        found: list[int] = []
        often = True
        for named, keys in enumerate(self._keys):
            while keys and len(found) < count:
                found.append(keys.popitem(last=False)[0])
                del self._named[found[-1]]
                often = often and named > 0
        if often and found:  # nothing is left that was never named again
            self._keys = [*self._keys[1:], OrderedDict()]
            for key in self._named:
                self._named[key] -= 1
        return found


@dataclass(frozen=True)
class Wrote:
    """Up to a moment, in ns of the drive's time: objects put, and pages that the store and then
    the flash wrote."""

    put: int
    store: int
    flash: int
    now_ns: int

    def since(self, before: "Wrote") -> "Wrote":
        """From that moment to this one."""
        return Wrote(
            self.put - before.put,
            self.store - before.store,
            self.flash - before.flash,
            self.now_ns - before.now_ns,
        )


class Tier:
    """A store on a drive that `scaled` or `zoned` made."""

    def __init__(self, params: dict[str, int], room_percent: int, streams: int) -> None:
        record_bytes = RECORD_PAGES * PAGE_BYTES
        NvmeModel(params)  # says in one line what is wrong
        zone_bytes, size_bytes = params.get("zone_size_bytes", 0), kept_pages(params) * PAGE_BYTES
        segment_bytes = zone_bytes or SEGMENT_RECORDS * record_bytes + PAGE_BYTES
        if zone_bytes:
            size_bytes = ZONES_OFFSET + params["zone_count"] * zone_bytes
        self._purged = PURGED_SEGMENTS * ((segment_bytes - PAGE_BYTES) // record_bytes)
        clock = Clock(simulated=True)
        self._clock = clock
        self._storage = Storage(
            StorageConfig(
                backend="sim",
                size_bytes=size_bytes,
                lba_size_bytes=PAGE_BYTES,
                discard=True,
                nvme=params,
                zones_offset_bytes=ZONES_OFFSET,
            ),
            clock,
        )
        self._store = Store(
            self._storage,
            StoreConfig(
                payload_size_bytes=record_bytes - PAGE_BYTES,
                layer_count=1,
                segment_size_bytes=segment_bytes,
                tenant_max=streams,
                io_max=IN_FLIGHT,
                reserve_segments=RESERVE_SEGMENTS,
                room_percent=room_percent,
            ),
        )
        self._payload = bytes(record_bytes - PAGE_BYTES)
        self._copied = 0
        self.cold = Cold()
        self.filled: Wrote | None = None

    def close(self) -> Wrote:
        """What was written in all."""
        self._store.drain()
        wrote = self.wrote()
        assert self._storage.wear()["read_only"] or not self.ended
        self._store.close()
        self._storage.close()
        return wrote

    @property
    def ended(self) -> bool:
        """The drive takes no writes any more; nothing else makes an I/O fail here."""
        return self._storage.stats()["errors"] > 0

    def wear(self) -> dict[str, int]:
        """What the drive has done to its flash up to now."""
        return self._storage.wear()

    def put(self, key: int, stream: int) -> None:
        """Write an object that the store lacks."""
        self._put(key, stream)
        self.cold.put(key)

    def again(self, key: int, stream: int) -> None:
        """Write one that it has to another stream."""
        self._store.delete(key, 0)
        self._copied += 1
        self._put(key, stream)
        if key not in self.cold:  # purged for its own copy
            self.cold.put(key)

    def wrote(self) -> Wrote:
        """Up to now."""
        wear = self._storage.wear()
        return Wrote(
            self._store.stats()["puts"] - self._copied,
            wear["written_pages"],
            wear["written_pages"] + wear["moved_pages"],
            self._clock.now_ns(),
        )

    def _put(self, key: int, stream: int) -> None:
        if (lacks := self._store.lacks()) > 0:
            self._purge(min(lacks, self._purged))
        while (rc := self._store.put(key, 0, self._payload, 0, stream)) != 0:
            if self.ended:
                return
            if rc == -ENOSPC:
                self._purge(self._purged)
            assert rc in (-ENOSPC, -EAGAIN), rc
            self._step()

    def _purge(self, count: int) -> None:
        self.filled = self.filled or self.wrote()
        for one in self.cold.take(count):
            self._store.delete(one, 0)

    def _step(self) -> None:
        self._clock.advance_to(self._clock.now_ns() + QUANTUM_NS)
        self._store.poll()
        self._store.tick(0)


def kept_pages(params: dict[str, int]) -> int:
    """Pages that the scaled drive keeps."""
    each = params["blocks_per_plane"] * params["pages_per_block"]
    return each * (1000 - params["spare_permille"]) // 1000 * PLANES


def scaled(params: dict[str, int], objects: int, streams: int, handles: int) -> dict[str, int]:
    """The drive, as large as a store of so many objects; BadInput: it is all spare."""
    segments = -(-objects // SEGMENT_RECORDS) + RESERVE_SEGMENTS + streams
    pages = 2 + segments * (1 + SEGMENT_RECORDS * RECORD_PAGES)
    kept_permille = 1000 - params["spare_permille"]
    if kept_permille <= 0:
        raise BadInput("a drive that is all over-provisioning", "--spare", "give below 100")
    found = params | {
        "channel_count": 1,
        "dies_per_channel": PLANES,
        "planes_per_die": 1,
        "page_size_bytes": PAGE_BYTES,
        "write_buffer_bytes": 0,
        "blocks_per_plane": BLOCKS,
        "pages_per_block": -(-pages * 1000 // (PLANES * BLOCKS * kept_permille)),
        "handle_count": handles,
    }
    while kept_pages(found) < pages:
        found["pages_per_block"] += 1
    found["erase_ps"] = params["erase_ps"] * found["pages_per_block"] // params["pages_per_block"]
    return found


def zoned(params: dict[str, int], zone_blocks: int, open_max: int, streams: int) -> dict[str, int]:
    """A drive of `scaled` as one with zones, each of so many blocks of each plane, written as far
    as records fill it. BadInput: too few for the store."""
    count, needs = (BLOCKS - CONVENTIONAL) // zone_blocks, RESERVE_SEGMENTS + streams + 1
    if count < needs:
        raise BadInput(
            f"zones of {zone_blocks} of {BLOCKS} blocks are {count}, and a store of {streams} "
            f"streams needs {needs}",
            "--zone",
            "give smaller zones",
        )
    zone_pages = zone_blocks * params["pages_per_block"] * PLANES
    return params | {
        "zone_size_bytes": zone_pages * PAGE_BYTES,
        "zone_capacity_bytes": (zone_pages - 1) // RECORD_PAGES * RECORD_PAGES * PAGE_BYTES,
        "zone_count": count,
        "zone_open_max": open_max,
        "zone_active_max": open_max,
    }
