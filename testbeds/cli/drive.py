"""`offstage drive`: the drives that the NVMe model knows, and the card of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.names import drives

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import DriveListed, DrivesListed
    from offstage.testbeds.drives import DriveCard
    from offstage.testbeds.table import Table

__all__ = ["register"]

drive = typer.Typer(no_args_is_help=True)
BAR_CHARS = 24


def register(app: typer.Typer) -> None:
    """Add `offstage drive`."""
    app.add_typer(drive, name="drive")


@drive.callback()
def about() -> None:
    """The drives that a tier stands on, as the NVMe model has them."""


@drive.command()
def presets(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", autocompletion=drives, help="a drive")
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


def _list(form: Format) -> None:
    from offstage.bindings.drives import PUBLISHED, TAGS, preset, presets
    from offstage.testbeds.table import NOTHING, Column, Table

    listed: list[DriveListed] = []
    rows = []
    for one in map(preset, presets()):
        tags: list[str] = [told.tag for told in one.numbers.values()]
        listed.append(
            {
                "name": one.name,
                "about": one.about,
                "scheduled": bool(one.params["scheduled"]),
                "tags": {tag: tags.count(tag) for tag in TAGS},
                "published": one.cited,
            }
        )
        figures = [
            _figure(key, one.cited[key]) if key in one.cited else NOTHING
            for key in ("read_bytes_per_s", "write_bytes_per_s", "read_iops", "read_latency_ps")
        ]
        guessed = f"{tags.count('guess')} of {len(tags)}"
        rows.append(
            [one.name, "yes" if one.params["scheduled"] else "no", *figures, guessed, one.about]
        )
    columns = [
        Column("drive", left=True),
        Column("schedulers", left=True),
        *map(Column, ("read", "write", "4 KiB reads", "latency", "guessed")),
        Column("what it is", left=True, wrap=True),
    ]
    document: DrivesListed = {"presets": listed, "tags": TAGS, "figures": PUBLISHED}
    emit(document, form, Table.of(columns, rows))


def _card(found: "DriveCard") -> "list[Table | str]":
    """The tables of a card."""
    return [
        f"{found.name}: {found.about}. {found.provenance.capitalize()}.",
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
