"""What a drive wears by: the store's writes of a trace's KV, on a drive that collects.

Model: each prefix block of the trace is an object, one record of the real store (`store.h`) on the
simulated drive. A request writes the objects that the store lacks. Where the store lacks room
(`room_percent`) or a place its coldest go, as in `device/purge.c`: those that fewest requests named
again, of these the longest unnamed. A stream is a tenant of the store (`wear_runs.py`): it has
segments of its own, and a lifetime that the drive maps to a placement handle.

The scale (`wear_tier.py`): one layer stands for all; the store holds a `WRITTEN`-th of the trace's
objects; and the drive is that large, with the preset's share of spare blocks. Of the same flash a
drive may have zones. Amplification and rate are of what is written from the first purge on. Same
figures on every machine.

What can fail: BadInput for a trace without blocks or with few, more streams than handles or than
open zones, zones of no whole erase blocks, and a drive that does not collect.
"""

from collections.abc import Sequence

import msgspec

from offstage.bindings.drives import Preset, params_wrong
from offstage.bindings.errors import BadInput
from offstage.bindings.tradeoffs import life_years, write_budget_bytes
from offstage.testbeds.drives import random_amplification
from offstage.testbeds.lab.run.wear_end import EndRow, ends_of
from offstage.testbeds.lab.run.wear_runs import (
    Replayed,
    Run,
    WearOptions,
    drive_of,
    replayed,
    runs,
)
from offstage.testbeds.lab.run.wear_tier import (
    PAGE_BYTES,
    PLANES,
    RECORD_PAGES,
    Wrote,
    kept_pages,
    scaled,
)
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["DriveWear", "WearRow", "drive_wear"]

WRITTEN = 4
OBJECTS_MIN = 512
LIFE_YEARS = 5
"""Over which a drive's endurance is given in writes a day."""


def planes_of(params: dict[str, int]) -> int:
    """Planes of the drive."""
    return params["channel_count"] * params["dies_per_channel"] * params["planes_per_die"]


class WearRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to place the same objects. `handles` in use; 0: without placement; `zones` that the
    drive has. `hit`: of the blocks looked up. Bytes are of the scaled drive, over the whole trace.
    `bytes_per_s`: KV that the whole drive takes with its writes never idle. `writes_per_day`: of
    the capacity, in KV, over 5 years; `years` at the trace's rate; `saved`: of the flash's writes,
    against everything admitted. Null where `absent` of the document says why. `level`: the spread
    of erases at which a block is moved, 0: none is; then erases of the block that has least and of
    the one that has most."""

    streams: str
    handles: int
    zones: int
    admit: int
    hit: float
    object_bytes: int
    flash_bytes: int
    store_amplification: float | None
    drive_amplification: float | None
    amplification: float | None
    bytes_per_s: float | None
    writes_per_day: float | None
    years: float | None
    saved: float | None
    level: int
    erases_least: int
    erases_most: int


class DriveWear(msgspec.Struct, frozen=True, kw_only=True):
    """`drive_bytes`: of the scaled drive, and its reclaim units; capacity and endurance are the
    preset's; `rated_amplification`: of 4 KiB random writes in the model, for which the endurance is
    given; `ends`: until the drive is worn out, where that was asked."""

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
    ends: list[EndRow]
    absent: dict[str, str]
    provenance: str = "modelled"


def _check_spare(drives: Sequence[dict[str, int]]) -> None:
    """In one line, before what takes long: BadInput for a drive of too little over-provisioning."""
    for params in drives:
        needed = params["spare_permille"]
        while needed < 1000 and params_wrong(params | {"spare_permille": needed}):
            needed += 1
        if params["spare_permille"] < needed < 1000:
            raise BadInput(
                f"{params['spare_permille'] / 10:g} % of over-provisioning cannot collect with "
                f"{params['handle_count']} handles",
                "--spare",
                f"give {needed / 10:g} or more, or fewer --handles",
            )


def drive_wear(drive: Preset, trace: Trace, options: WearOptions, progress: Progress) -> DriveWear:
    """Every kind of streams without and with handles, then the last one with fewer admitted."""
    options.check()
    tokens = trace.need_blocks("wear")
    params = drive.params
    if not drive.collects:
        raise BadInput(
            f"the model of {drive.name} does not collect",
            "drive wear",
            "choose one whose card has a write cliff: `offstage drive presets NAME`",
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
    ways = list(runs(options, options.zone_blocks(drive)))
    drives = [drive_of(params, objects, options, run) for run in ways]
    _check_spare([sized, *drives])
    judge = _Judge(drive, trace, tokens * options.token_bytes, random_amplification(params))
    progress.start("wear", len(ways), "runs")
    for run, made in zip(ways, drives, strict=True):
        judge.add(run, made, replayed(made, trace, options.room_percent, run))
        progress.advance(1)
    ends = ends_of(params, objects, trace, options, progress)
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
        ends=ends,
        absent=judge.absent,
    )


class _Judge:
    """Rows with their figures. The endurance is given for random writes of 4 KiB, so flash bears
    that many bytes times `rated`, the model's amplification of these."""

    def __init__(self, drive: Preset, trace: Trace, object_bytes: int, rated: float) -> None:
        self.capacity_bytes = drive.cited.get("capacity_bytes")
        self.endurance_bytes = drive.cited.get("endurance_bytes")
        self.rated, self.rows = rated, list[WearRow]()
        self.absent: dict[str, str] = {}
        self._object_bytes = object_bytes
        self._page_bytes = drive.params["page_size_bytes"] * planes_of(drive.params) / PLANES
        self._duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
        if not self.endurance_bytes or not self.capacity_bytes:
            self.absent["years"] = f"nobody says what {drive.name} endures"
        elif not self._duration_s:
            self.absent["years"] = "the trace has no duration"

    def add(self, run: Run, params: dict[str, int], found: Replayed) -> None:
        """A row, compared with the row of the same streams that admits everything."""
        wrote, since = found.wrote, found.since
        store = drive = both = rate = None
        if since and since.put:
            store, drive = since.store / (since.put * RECORD_PAGES), since.flash / since.store
            both = store * drive
            rate = since.put * RECORD_PAGES * self._page_bytes / (since.now_ns / 1e9)
        else:
            self.absent["amplification"] = "what was admitted did not fill the store"
        per_day, years = self._life(wrote, both)
        flash_bytes = wrote.flash * PAGE_BYTES
        self.rows.append(
            WearRow(
                streams=run.streams,
                handles=run.handles,
                zones=params.get("zone_count", 0),
                admit=run.admit,
                hit=found.hit,
                object_bytes=wrote.put * RECORD_PAGES * PAGE_BYTES,
                flash_bytes=flash_bytes,
                store_amplification=store,
                drive_amplification=drive,
                amplification=both,
                bytes_per_s=rate,
                writes_per_day=per_day,
                years=years,
                saved=1 - flash_bytes / self._whole(run) if run.admit else None,
                level=run.level,
                erases_least=found.wear["erases_least"],
                erases_most=found.wear["erases_most"],
            )
        )

    def _whole(self, run: Run) -> int:
        found = [
            one.flash_bytes
            for one in self.rows
            if (one.streams, one.handles, one.zones, one.admit) == (run.streams, run.handles, 0, 0)
        ]
        return found[0]

    def _life(self, wrote: Wrote, both: float | None) -> tuple[float | None, float | None]:
        """Writes of the capacity in KV that `LIFE_YEARS` allow a day, and years at the trace's."""
        if "years" in self.absent or both is None or not wrote.put:
            return None, None
        assert self.endurance_bytes and self.capacity_bytes
        flash_bytes = self.endurance_bytes * self.rated / both
        per_day = write_budget_bytes(flash_bytes, LIFE_YEARS) / self.capacity_bytes
        rate = wrote.put * self._object_bytes / self._duration_s
        return per_day, life_years(flash_bytes, rate)
