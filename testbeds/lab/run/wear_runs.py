"""The ways to place a trace's objects that `wear.py` compares, and the replay of one of them.

Model: a request writes the objects that the store lacks. A stream is a tenant of the store. With
streams by lifetime an object begins in the first, and is written again, to the second, when a
request names it again. Until the end of a drive's life the trace is replayed again and again, each
time as other objects. What can fail: BadInput for options that do not go together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from offstage.bindings.drives import Preset
from offstage.bindings.errors import BadInput
from offstage.bindings.units import format_size
from offstage.dpu.config.options import Store as Settings
from offstage.testbeds.lab.run.wear_tier import Tier, Wrote, scaled, zoned
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["STREAMS", "Replayed", "Run", "WearOptions", "drive_of", "replayed", "runs", "worn_out"]

STREAMS = ("one", "tenant", "lifetime")
ROUND_SHIFT = 40
"""Of a key: blocks of a trace have lower numbers."""


@dataclass(frozen=True)
class WearOptions:
    """handles: that the drive has; 0: it has no placement. admit: requests that must have tried to
    write an object before. room_percent: of the store, that it keeps empty.
    spare_permille: of the flash; None: the preset's. token_bytes: KV of one token, all layers.
    zone_bytes: flash of a zone of the whole drive; 0: no drive with zones. zones_open: at once.
    level: a block erased so much less than another of its plane is moved in one more run; 0: no
    such run. erase_limit: writes until blocks of so many erases do not suffice; 0: no such runs."""

    streams: tuple[str, ...] = STREAMS
    handles: int = 8
    tenants: int = 4
    admit: tuple[int, ...] = (1, 2)
    room_percent: int = Settings().room_percent
    spare_permille: int | None = None
    token_bytes: int = 160 << 10
    zone_bytes: int = 0
    zones_open: int = 14
    level: int = 0
    erase_limit: int = 0

    def count(self, streams: str) -> int:
        """Streams of that kind."""
        return {"one": 1, "tenant": self.tenants, "lifetime": 2}[streams]

    def check(self) -> None:
        """BadInput for an unknown kind of streams, and for more streams than handles or zones."""
        if 0 < self.erase_limit <= self.level:
            raise BadInput(
                f"no block is erased {self.level} times more than another before it was erased "
                f"{self.erase_limit} times",
                "--level",
                "give less than --erase-limit",
            )
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
            if self.zone_bytes and needs > self.zones_open + 1:
                raise BadInput(
                    f"streams by {one!r} need {needs - 1} open zones, and the drive has "
                    f"{self.zones_open}",
                    "--zones-open",
                    "give more; or lower --tenants",
                )

    def zone_blocks(self, drive: Preset) -> int:
        """Erase blocks of each plane of the drive in a zone; BadInput: not a whole number."""
        unit = drive.unit_bytes
        if self.zone_bytes % unit:
            raise BadInput(
                f"a zone of {format_size(self.zone_bytes)} is not a multiple of the erase block of "
                f"every plane, {format_size(unit)}",
                "--zone",
                f"give {format_size(unit)} or a multiple",
            )
        return self.zone_bytes // unit


@dataclass(frozen=True)
class Run:
    """One way: `count` streams, `handles` of the drive, `admit` requests that tried before, erase
    blocks of each plane in a zone (0: no zones), and the spread of erases that is levelled (0:
    none is)."""

    streams: str
    count: int
    handles: int
    admit: int
    zone_blocks: int = 0
    level: int = 0


@dataclass(frozen=True)
class Replayed:
    """What was written in all and since the store was full, the share of hits, and what the drive
    has done to its flash (`NvmeModel.wear`)."""

    wrote: Wrote
    since: Wrote | None
    hit: float
    wear: dict[str, int]


def runs(options: WearOptions, zone_blocks: int) -> Iterator[Run]:
    """Every kind of streams without and with handles; the last one levelled, and with fewer
    admitted."""
    for one in options.streams:
        count = options.count(one)
        for handles in (0, count + 1) if options.handles else (0,):
            last = Run(one, count, handles, 0)
            yield last
        if zone_blocks:
            yield Run(one, count, 0, 0, zone_blocks)
    if options.level:
        yield replace(last, level=options.level)
    for admit in options.admit:
        yield replace(last, admit=admit)


def drive_of(
    params: dict[str, int], objects: int, options: WearOptions, run: Run
) -> dict[str, int]:
    """The scaled drive of that run."""
    made = scaled(params, objects, run.count, run.handles) | {"level_erases": run.level}
    if not run.zone_blocks:
        return made
    return zoned(made, run.zone_blocks, options.zones_open, run.count)


def replayed(params: dict[str, int], trace: Trace, room_percent: int, run: Run) -> Replayed:
    """Once through the trace."""
    tier = Tier(params, room_percent, run.count)
    hits = _round(tier, trace, run, 0)
    wear, wrote = tier.wear(), tier.close()
    since = wrote.since(tier.filled) if tier.filled else None
    return Replayed(wrote, since, hits / trace.runs.access_count, wear)


def worn_out(params: dict[str, int], trace: Trace, room_percent: int, run: Run) -> Replayed:
    """Again and again, until the drive takes no writes."""
    tier = Tier(params, room_percent, run.count)
    hits = rounds = 0
    while not tier.ended:
        hits += _round(tier, trace, run, rounds)
        rounds += 1
    wear, wrote = tier.wear(), tier.close()
    return Replayed(wrote, None, hits / (rounds * trace.runs.access_count), wear)


def _round(tier: Tier, trace: Trace, run: Run, number: int) -> int:
    """Hits of one pass, as far as the drive lives."""
    tried: dict[int, int] = {}
    hits = 0
    for request in range(len(trace)):
        blocks: list[int] = trace.block_ids(request).tolist()
        tenant = _tenant(trace, request, blocks, run)
        for key in ((number << ROUND_SHIFT) + block for block in blocks):
            if key in tier.cold:
                hits += 1
                if tier.cold.name(key) == 0 and run.streams == "lifetime":
                    tier.again(key, 1)
                continue
            tried[key] = tried.get(key, 0) + 1
            if tried[key] > run.admit:
                tier.put(key, tenant)
        if tier.ended:
            break
    return hits


def _tenant(trace: Trace, request: int, keys: list[int], run: Run) -> int:
    """Sessions take turns, and where there are none the second blocks of prompts: traces have one
    first block for all."""
    if run.streams != "tenant" or not keys:
        return 0
    session = int(trace.session[request]) if trace.has_sessions else keys[:2][-1]
    return session % run.count
