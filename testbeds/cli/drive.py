"""`offstage drive`: the drives that the NVMe model knows, the card of one, and what wears it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit
from offstage.testbeds.cli.names import drives

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import DriveListed, DrivesListed
    from offstage.testbeds.drives import DriveCard
    from offstage.testbeds.lab.run.wear import DriveWear
    from offstage.testbeds.table import Table

__all__ = ["register"]

drive = typer.Typer(no_args_is_help=True)
BAR_CHARS = 24
StreamsOption = Annotated[
    str, typer.Option("--streams", metavar="KIND,...", help="what has segments of its own")
]
HandlesOption = Annotated[
    int, typer.Option("--handles", min=0, max=64, help="of placement; 0: the drive has none")
]
TenantsOption = Annotated[int, typer.Option("--tenants", min=1, max=64, help="of the trace")]
AdmitOption = Annotated[
    str,
    typer.Option("--admit", metavar="N,...", help="requests that tried before, once more each"),
]
RoomOption = Annotated[
    int | None,
    typer.Option("--room", min=0, max=50, help="store.room_percent; default: the daemon's"),
]
SpareOption = Annotated[
    float | None,
    typer.Option(
        "--spare", metavar="PERCENT", min=0, max=100, help="of the flash; default: the preset's"
    ),
]
TokenOption = Annotated[
    str, typer.Option("--token", metavar="SIZE", help="KV of one token, all layers")
]
ZoneOption = Annotated[
    str,
    typer.Option("--zone", metavar="SIZE", help="rows of the drive with zones of that flash"),
]
ZonesOpenOption = Annotated[
    int | None,
    typer.Option(
        "--zones-open", min=1, help="with --zone: that may be open and active at once; default: 14"
    ),
]
LevelOption = Annotated[
    int,
    typer.Option("--level", min=0, max=999, help="a row with blocks levelled at this spread"),
]
EraseLimitOption = Annotated[
    int,
    typer.Option(
        "--erase-limit", min=0, max=1000, help="write until blocks of so many erases are worn"
    ),
]


def register(app: typer.Typer) -> None:
    """Add `offstage drive`."""
    app.add_typer(drive, name="drive")


@drive.callback()
def about() -> None:
    """The drives that a tier stands on, as the NVMe model has them."""


@drive.command()
def presets(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=drives, help="a drive")
    ] = "",
    form: FormatOption = Format.text,
) -> None:
    """List the drives; or the card of one: published figures beside the model's, latency against
    load, IOPS by size, and writes from fresh to steady.

    A card is computed, which takes seconds, and is the same on every machine.
    """
    from offstage.bindings.drives import preset

    if name:
        from rich.console import Group

        from offstage.testbeds.drives import card

        found = card(preset(name))
        parts: list[Any] = []
        for part in _card(found):
            parts += [part, ""]
        emit(found, form, Group(*parts[:-1]))
    else:
        _list(form)


@drive.command()
def wear(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", autocompletion=drives, help="a drive preset with garbage collection"
        ),
    ],
    trace: Annotated[Path, typer.Option("--trace", metavar="FILE", help="request trace")],
    trace_format: Annotated[
        str | None, typer.Option("--trace-format", metavar="NAME", help="format of the trace")
    ] = None,
    time_unit: TimeUnitOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="only so many requests of the trace")
    ] = None,
    streams: StreamsOption = "one,tenant,lifetime",
    handles: HandlesOption = 8,
    tenants: TenantsOption = 4,
    admit: AdmitOption = "1,2",
    room: RoomOption = None,
    spare: SpareOption = None,
    token: TokenOption = "160KiB",
    zone: ZoneOption = "",
    zones_open: ZonesOpenOption = None,
    level: LevelOption = 0,
    erase_limit: EraseLimitOption = 0,
    form: FormatOption = Format.text,
) -> None:
    """Write amplification of store and drive on a trace's KV, in one stream, by tenant, by
    lifetime, with placement handles and without, on zones; years of life; what admission saves; how
    evenly blocks wear, and what is written until the drive takes no more.

    The real store writes to a drive that is sized so that the trace overwrites it four times.
    """
    from rich.console import Group

    from offstage.bindings.drives import preset
    from offstage.bindings.units import parse_size
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.run.wear import drive_wear
    from offstage.testbeds.lab.run.wear_runs import WearOptions
    from offstage.testbeds.workloads.requests.importer import open_trace

    if zones_open is not None and not zone:
        raise BadInput("a drive without zones", "--zones-open", "give --zone SIZE, or leave it out")
    options = WearOptions(
        streams=tuple(streams.split(",")),
        handles=handles,
        tenants=tenants,
        admit=_counts(admit),
        **({} if room is None else {"room_percent": room}),
        spare_permille=None if spare is None else round(spare * 10),
        token_bytes=parse_size(token, "--token"),
        zone_bytes=parse_size(zone, "--zone") if zone else 0,
        **({} if zones_open is None else {"zones_open": zones_open}),
        level=level,
        erase_limit=erase_limit,
    )
    options.check()
    requests = open_trace(trace, trace_format, limit=limit, time_unit=time_unit)
    with shown(2 if erase_limit else 1) as progress:
        worn = drive_wear(preset(name), requests, options, progress)
    parts: list[Any] = [_worn(worn)]
    if worn.ends:
        parts += ["", _ends(worn)]
    emit(worn, form, Group(*parts))


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(",") if one)
    except ValueError:
        found = (0,)
    if any(not 1 <= one <= 255 for one in found):
        raise BadInput(f"{text!r} is not a list of numbers", "--admit", "give such as 1,2")
    return found


def _worn(found: "DriveWear") -> "Table":
    from offstage.bindings.units import format_rate
    from offstage.testbeds.table import NOTHING, Table

    def text(value: float | None, form: str) -> str:
        return NOTHING if value is None else format(value, form)

    rows = [
        [
            one.streams,
            f"{one.zones} zones" if one.zones else str(one.handles or NOTHING),
            str(one.admit or NOTHING),
            f"{one.hit:.1%}",
            text(one.store_amplification, ".2f"),
            text(one.drive_amplification, ".2f"),
            text(one.amplification, ".2f"),
            NOTHING if one.bytes_per_s is None else format_rate(one.bytes_per_s),
            text(one.writes_per_day, ".2f"),
            text(one.years, ".1f"),
            text(one.saved, ".0%"),
            str(one.level or NOTHING),
            f"{one.erases_least} to {one.erases_most}",
        ]
        for one in found.rows
    ]
    names = "streams handles admit hits store drive both KV/s DWPD years saved level erases".split()
    title = (
        f"{found.drive}, {found.trace}: {found.provenance}. Write amplification of store and "
        f"drive; random writes of 4 KiB: {found.rated_amplification:.2f}"
    )
    note = "; ".join(f"no {key}: {why}" for key, why in found.absent.items())
    table = Table.named(names, rows, title)
    return Table(table.columns, table.parts, table.title, note)


def _ends(found: "DriveWear") -> "Table":
    from offstage.bindings.units import format_size
    from offstage.testbeds.table import NOTHING, Table

    rows = [
        [
            str(one.level or NOTHING),
            format_size(one.written_bytes),
            f"{one.drive_amplification:.2f}",
            format_size(round(one.endurance_bytes)),
            f"{one.share:.0%}",
            f"{one.erases_least} to {one.erases_most}",
            f"{one.erases_mean:.1f}",
            str(one.retired_blocks),
        ]
        for one in found.ends
    ]
    names = "level written drive endurance reached erases mean retired".split()
    title = (
        f"Until the drive takes no writes; its blocks endure {found.ends[0].erase_limit} erases. "
        "Endurance: those of all blocks, over the drive's amplification"
    )
    return Table.named(names, rows, title)


def _list(form: Format) -> None:
    from offstage.bindings.drives import PUBLISHED, TAGS, preset, presets
    from offstage.testbeds.table import NOTHING, Column, Table

    listed: list[DriveListed] = []
    rows = []
    for one in map(preset, presets()):
        known = (*one.numbers.values(), *one.geometry.values())
        tags: list[str] = [told.tag for told in known]
        listed.append(
            {
                "name": one.name,
                "about": one.about,
                "scheduled": bool(one.params["scheduled"]),
                "tags": {tag: tags.count(tag) for tag in TAGS},
                "published": one.cited,
                "kept_bytes": one.kept_bytes,
            }
        )
        figures = [
            _figure(key, one.cited[key]) if key in one.cited else NOTHING
            for key in ("read_bytes_per_s", "write_bytes_per_s", "read_iops", "read_latency_ps")
        ]
        guessed = f"{tags.count('guess')} of {len(tags)}"
        scheduled = "yes" if one.params["scheduled"] else "no"
        rows.append([one.name, scheduled, *figures, _kept(one.kept_bytes), guessed, one.about])
    columns = [
        Column("drive", left=True),
        Column("schedulers", left=True),
        *map(Column, ("read", "write", "4 KiB reads", "latency", "keeps", "guessed")),
        Column("what it is", left=True, wrap=True),
    ]
    document: DrivesListed = {"presets": listed, "tags": TAGS, "figures": PUBLISHED}
    emit(document, form, Table.of(columns, rows))


def _kept(size_bytes: int | None) -> str:
    """As drives are sold, in powers of ten."""
    from offstage.testbeds.table import NOTHING

    return NOTHING if size_bytes is None else f"{size_bytes / 1e12:.2f} TB"


def _card(found: "DriveCard") -> "list[Table | str]":
    """The tables of a card."""
    return [
        f"{found.name}: {found.about}. Its blocks keep {_kept(found.kept_bytes)}. "
        f"{found.provenance.capitalize()}.",
        _figures(found),
        _load(found),
        _sizes(found),
        _cliff(found) if found.cliff else f"Write cliff: none. {found.cliff_absent}.",
        "Parameters, in ps, bytes and bytes per second",
        *_parameters(found),
    ]


def _parameters(found: "DriveCard") -> "list[Table]":
    """Those of one source together."""
    from offstage.testbeds.table import Column, Table

    groups: dict[str, list[list[str]]] = {}
    for one in found.numbers:
        groups.setdefault(f"{one.tag}, {one.date}: {one.source}", []).append(
            [one.parameter, f"{one.value:,}"]
        )
    columns = [Column("parameter", left=True), Column("value")]
    return [Table.of(columns, rows, said, heads=False) for said, rows in groups.items()]


def _figure(key: str, value: float) -> str:
    """With its unit."""
    from offstage.bindings.units import format_rate, format_time

    if key.endswith("_ps"):
        return format_time(value / 1000)
    return format_rate(value) if key.endswith("bytes_per_s") else f"{value:,.0f}/s"


def _figures(found: "DriveCard") -> "Table":
    from offstage.bindings.drives import PUBLISHED
    from offstage.testbeds.table import NOTHING, Table

    rows = [
        [
            PUBLISHED[one.figure],
            _figure(one.figure, one.published),
            NOTHING if one.modelled is None else _figure(one.figure, one.modelled),
            NOTHING if one.difference is None else f"{one.difference:+.1%}",
            one.tag,
            one.date,
        ]
        for one in found.figures
    ] or [["nothing was found", *[NOTHING] * 3]]
    return Table.named(
        ("figure", "published", "modelled", "difference", "tag", "date"),
        rows,
        "Published and modelled",
    )


def _bar(value: float, most: float) -> str:
    return "#" * max(1, round(value / most * BAR_CHARS))


def _load(found: "DriveCard") -> "Table":
    from offstage.bindings.units import format_time
    from offstage.testbeds.table import Column, Table

    most = max(one.latency_ps_p99 for one in found.load)
    times = ("latency_ps_mean", "latency_ps_p50", "latency_ps_p99")
    rows = [
        [
            f"{one.percent} %",
            f"{one.per_second:,.0f}",
            *(format_time(getattr(one, key) / 1000) for key in times),
            _bar(one.latency_ps_p99, most),
        ]
        for one in found.load
    ]
    names = ("load", "reads/s", "mean", "p50", "p99")
    title = f"4 KiB random reads against load; saturated at {found.saturated_per_second:,.0f}/s"
    return Table.of([*map(Column, names), Column("p99", left=True)], rows, title)


def _sizes(found: "DriveCard") -> "Table":
    from offstage.bindings.units import format_rate, format_size
    from offstage.testbeds.table import Column, Table

    most = max(one.per_second for one in found.sizes)
    rows = [
        [
            format_size(one.size_bytes),
            f"{one.per_second:,.0f}",
            format_rate(one.bytes_per_s),
            _bar(one.per_second, most),
        ]
        for one in found.sizes
    ]
    columns = [*map(Column, ("size", "reads/s", "rate")), Column("reads/s", left=True)]
    return Table.of(columns, rows, "Random reads by size, the queue full")


def _cliff(found: "DriveCard") -> "Table":
    from offstage.bindings.units import format_rate
    from offstage.testbeds.table import Column, Table

    most = max(one.per_second for one in found.cliff)
    rows = [
        [
            f"{one.written:.2f}",
            f"{one.per_second:,.0f}",
            format_rate(one.per_second * 4096),
            f"{one.amplification:.2f}",
            _bar(one.per_second, most),
        ]
        for one in found.cliff[1::2]
    ]
    names = ("written, capacities", "writes/s", "rate", "amplification")
    return Table.of(
        [*map(Column, names), Column("writes/s", left=True)],
        rows,
        "4 KiB random writes, from a fresh drive to steady state",
    )
