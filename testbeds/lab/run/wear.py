"""What a drive wears by: the store's writes of a trace's KV, on a drive that collects.

Model: each prefix block of the trace is an object, one record of the real store (`store.h`) on the
simulated drive. A request writes the objects that the store lacks. Where the store lacks room
(`room_percent`) or a place its coldest go, as in `device/purge.c`: those that fewest requests named
again, of these the longest unnamed. A stream is a tenant of the store: it has segments of its own,
and a lifetime that the drive maps to a placement handle. With streams by lifetime an object begins
in the first, and is written again, to the second, when a request names it again.

The scale: one layer stands for all; a page is an eighth of a drive's, a record and its trailer as
many of them as in a drive; the store holds a `WRITTEN`-th of the trace's objects; and the drive is
that large, with the preset's share of spare blocks. Amplification is of what is written from the
first purge on. Same figures on every machine.

What can fail: BadInput for a trace without blocks or with few, more streams than handles, and a
drive that does not collect.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from errno import EAGAIN, ENOSPC

import msgspec

from offstage.bindings.drives import Preset
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import Clock, NvmeModel, Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.bindings.tradeoffs import life_years, write_budget_bytes
from offstage.dpu.config.options import Store as Settings
from offstage.testbeds.drives import random_amplification
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["STREAMS", "DriveWear", "WearOptions", "WearRow", "drive_wear"]

PAGE_BYTES, RECORD_PAGES = 512, 33
"""An eighth of 4 KiB; and in pages, 128 KiB with the trailer."""
SEGMENT_RECORDS, RESERVE_SEGMENTS = 4, 4
PLANES, BLOCKS = 4, 256
"""A reclaim unit is a block of each plane."""
WRITTEN = 4
PURGED = 8
"""At once: a segment of 4 MiB has 31 records of 132 KiB, and 64 are purged, so twice a segment."""
NAMED_MAX = 3
OBJECTS_MIN = 512
IN_FLIGHT, QUANTUM_NS = 32, 1_000_000
STREAMS = ("one", "tenant", "lifetime")
LIFE_YEARS = 5
"""Over which a drive's endurance is given in writes a day."""


@dataclass(frozen=True)
class WearOptions:
    """handles: that the drive has; 0: it has no placement. admit: requests that must have tried to
    write an object before. room_percent: of the store, that it keeps empty.
    spare_permille: of the flash; None: the preset's. token_bytes: KV of one token, all layers."""

    streams: tuple[str, ...] = STREAMS
    handles: int = 8
    tenants: int = 4
    admit: tuple[int, ...] = (1, 2)
    room_percent: int = Settings().room_percent
    spare_permille: int | None = None
    token_bytes: int = 160 << 10

    def count(self, streams: str) -> int:
        """Streams of that kind."""
        return {"one": 1, "tenant": self.tenants, "lifetime": 2}[streams]

    def check(self) -> None:
        """BadInput for an unknown kind of streams, and for more streams than handles."""
        for one in self.streams:
            if one not in STREAMS:
                raise BadInput(f"no streams {one!r}", "--streams", f"give {', '.join(STREAMS)}")
            needs = self.count(one) + 1
            if self.handles and needs > self.handles:
                raise BadInput(
                    f"streams by {one!r} need {needs} placement handles, one of them for headers, "
                    f"and the drive has {self.handles}",
                    "--handles",
                    "give more, or 0 for a drive without placement; or lower --tenants",
                )


class WearRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to place the same objects. `handles` in use; 0: without placement. `hit`: of the
    blocks looked up. Bytes are of the scaled drive, over the whole trace. `writes_per_day`: of the
    capacity, in KV, over 5 years; `years` at the trace's rate; `saved`: of the flash's writes,
    against everything admitted. Null where `absent` of the document says why."""

    streams: str
    handles: int
    admit: int
    hit: float
    object_bytes: int
    flash_bytes: int
    store_amplification: float | None
    drive_amplification: float | None
    amplification: float | None
    writes_per_day: float | None
    years: float | None
    saved: float | None


class DriveWear(msgspec.Struct, frozen=True, kw_only=True):
    """`drive_bytes`: of the scaled drive, and its reclaim units; capacity and endurance are the
    preset's; `rated_amplification`: of 4 KiB random writes in the model, for which the endurance is
    given."""

    drive: str
    trace: str
    requests: int
    objects: int
    store_objects: int
    room_percent: int
    drive_bytes: int
    reclaim_unit_bytes: int
    spare_permille: int
    capacity_bytes: int | None
    endurance_bytes: int | None
    rated_amplification: float
    rows: list[WearRow]
    absent: dict[str, str]
    provenance: str = "modelled"


class _Cold:
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
class _Wrote:
    """Up to a moment: objects put, and pages that the store and then the flash wrote."""

    put: int
    store: int
    flash: int

    def since(self, before: "_Wrote") -> "_Wrote":
        return _Wrote(self.put - before.put, self.store - before.store, self.flash - before.flash)


class _Tier:
    """A store on a scaled drive."""

    def __init__(
        self, params: dict[str, int], objects: int, room_percent: int, streams: int, handles: int
    ) -> None:
        record_bytes = RECORD_PAGES * PAGE_BYTES
        self.params = scaled(params, objects, streams, handles)
        NvmeModel(self.params)  # says in one line what is wrong
        clock = Clock(simulated=True)
        self._clock = clock
        self._storage = Storage(
            StorageConfig(
                backend="sim",
                size_bytes=kept_pages(self.params) * PAGE_BYTES,
                lba_size_bytes=PAGE_BYTES,
                discard=True,
                nvme=self.params,
            ),
            clock,
        )
        self._store = Store(
            self._storage,
            StoreConfig(
                payload_size_bytes=record_bytes - PAGE_BYTES,
                layer_count=1,
                segment_size_bytes=SEGMENT_RECORDS * record_bytes + PAGE_BYTES,
                tenant_max=streams,
                io_max=IN_FLIGHT,
                reserve_segments=RESERVE_SEGMENTS,
                room_percent=room_percent,
            ),
        )
        self._payload = bytes(record_bytes - PAGE_BYTES)
        self._copied = 0
        self.cold = _Cold()
        self.filled: _Wrote | None = None

    def close(self) -> _Wrote:
        """What was written in all."""
        self._store.drain()
        wrote = self.wrote()
        self._store.close()
        self._storage.close()
        return wrote

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

    def wrote(self) -> _Wrote:
        """Up to now."""
        wear = self._storage.wear()
        return _Wrote(
            self._store.stats()["puts"] - self._copied,
            wear["written_pages"],
            wear["written_pages"] + wear["moved_pages"],
        )

    def _put(self, key: int, stream: int) -> None:
        if (lacks := self._store.lacks()) > 0:
            self._purge(min(lacks, PURGED))
        while (rc := self._store.put(key, 0, self._payload, 0, stream)) != 0:
            if rc == -ENOSPC:
                self._purge(PURGED)
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
    return found


def drive_wear(drive: Preset, trace: Trace, options: WearOptions, progress: Progress) -> DriveWear:
    """Every kind of streams without and with handles, then the last one with fewer admitted."""
    options.check()
    tokens = trace.need_blocks("wear")
    params = drive.params
    if not params["scheduled"]:
        raise BadInput(
            f"{drive.name} does not collect",
            "drive wear",
            "choose one with schedulers: `offstage drive presets`",
        )
    if options.spare_permille is not None:
        params |= {"spare_permille": options.spare_permille}
    objects = trace.runs.block_count // WRITTEN
    if objects < OBJECTS_MIN:
        raise BadInput(
            f"{trace.runs.block_count:,} different blocks write no store {WRITTEN} times",
            trace.origin.name,
            f"give a trace, or a --limit, with {WRITTEN * OBJECTS_MIN:,} or more",
        )
    sized = scaled(params, objects, 1, 0)
    NvmeModel(sized)  # in one line, before what takes long
    runs = list(_runs(options))
    judge = _Judge(drive, trace, tokens * options.token_bytes, random_amplification(params))
    progress.start("wear", len(runs), "runs")
    for run in runs:
        judge.add(run, *_replayed(params, trace, objects, options.room_percent, run))
        progress.advance(1)
    return DriveWear(
        drive=drive.name,
        trace=trace.origin.name,
        requests=len(trace),
        objects=trace.runs.block_count,
        store_objects=objects,
        room_percent=options.room_percent,
        drive_bytes=kept_pages(sized) * PAGE_BYTES,
        reclaim_unit_bytes=sized["pages_per_block"] * PLANES * PAGE_BYTES,
        spare_permille=params["spare_permille"],
        capacity_bytes=judge.capacity_bytes,
        endurance_bytes=judge.endurance_bytes,
        rated_amplification=judge.rated,
        rows=judge.rows,
        absent=judge.absent,
    )


@dataclass(frozen=True)
class _Run:
    streams: str
    count: int
    handles: int
    admit: int


def _runs(options: WearOptions) -> Iterator[_Run]:
    for one in options.streams:
        count = options.count(one)
        for handles in (0, count + 1) if options.handles else (0,):
            last = _Run(one, count, handles, 0)
            yield last
    for admit in options.admit:
        yield replace(last, admit=admit)


def _replayed(
    params: dict[str, int], trace: Trace, objects: int, room_percent: int, run: _Run
) -> tuple[_Wrote, _Wrote | None, float]:
    """What was written in all, what since the store was full, and the share of hits."""
    tier = _Tier(params, objects, room_percent, run.count, run.handles)
    tried: dict[int, int] = {}
    hits = 0
    for request in range(len(trace)):
        keys: list[int] = trace.block_ids(request).tolist()
        tenant = _tenant(trace, request, keys, run)
        for key in keys:
            if key in tier.cold:
                hits += 1
                if tier.cold.name(key) == 0 and run.streams == "lifetime":
                    tier.again(key, 1)
                continue
            tried[key] = tried.get(key, 0) + 1
            if tried[key] > run.admit:
                tier.put(key, tenant)
    wrote = tier.close()
    since = wrote.since(tier.filled) if tier.filled else None
    return wrote, since, hits / trace.runs.access_count


def _tenant(trace: Trace, request: int, keys: list[int], run: _Run) -> int:
    """Sessions take turns, and where there are none the second blocks of prompts: traces have one
    first block for all."""
    if run.streams != "tenant" or not keys:
        return 0
    session = int(trace.session[request]) if trace.has_sessions else keys[:2][-1]
    return session % run.count


class _Judge:
    """Rows with their figures. The endurance is given for random writes of 4 KiB, so flash bears
    that many bytes times `rated`, the model's amplification of these."""

    def __init__(self, drive: Preset, trace: Trace, object_bytes: int, rated: float) -> None:
        self.capacity_bytes = drive.cited.get("capacity_bytes")
        self.endurance_bytes = drive.cited.get("endurance_bytes")
        self.rated, self.rows = rated, list[WearRow]()
        self.absent: dict[str, str] = {}
        self._object_bytes = object_bytes
        self._duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
        if not self.endurance_bytes or not self.capacity_bytes:
            self.absent["years"] = f"nobody says what {drive.name} endures"
        elif not self._duration_s:
            self.absent["years"] = "the trace has no duration"

    def add(self, run: _Run, wrote: _Wrote, since: _Wrote | None, hit: float) -> None:
        """A row, compared with the row of the same streams that admits everything."""
        store = drive = both = None
        if since and since.put:
            store, drive = since.store / (since.put * RECORD_PAGES), since.flash / since.store
            both = store * drive
        else:
            self.absent["amplification"] = "what was admitted did not fill the store"
        per_day, years = self._life(wrote, both)
        flash_bytes = wrote.flash * PAGE_BYTES
        self.rows.append(
            WearRow(
                streams=run.streams,
                handles=run.handles,
                admit=run.admit,
                hit=hit,
                object_bytes=wrote.put * RECORD_PAGES * PAGE_BYTES,
                flash_bytes=flash_bytes,
                store_amplification=store,
                drive_amplification=drive,
                amplification=both,
                writes_per_day=per_day,
                years=years,
                saved=1 - flash_bytes / self._whole(run) if run.admit else None,
            )
        )

    def _whole(self, run: _Run) -> int:
        found = [
            one.flash_bytes
            for one in self.rows
            if (one.streams, one.handles, one.admit) == (run.streams, run.handles, 0)
        ]
        return found[0]

    def _life(self, wrote: _Wrote, both: float | None) -> tuple[float | None, float | None]:
        """Writes of the capacity in KV that `LIFE_YEARS` allow a day, and years at the trace's."""
        if "years" in self.absent or both is None or not wrote.put:
            return None, None
        assert self.endurance_bytes and self.capacity_bytes
        flash_bytes = self.endurance_bytes * self.rated / both
        per_day = write_budget_bytes(flash_bytes, LIFE_YEARS) / self.capacity_bytes
        rate = wrote.put * self._object_bytes / self._duration_s
        return per_day, life_years(flash_bytes, rate)
