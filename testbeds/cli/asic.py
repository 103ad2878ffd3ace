"""`offstage asic`: the model of the KV ASIC, and of the DPUs that it is compared with."""

from typing import Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit

__all__ = ["register"]

ABOUT = "The KV ASIC in virtual time: its presets, and traces that run through them."

asic = typer.Typer(no_args_is_help=True, help=ABOUT)


def register(app: typer.Typer) -> None:
    """Add `offstage asic`."""
    app.add_typer(asic, name="asic")


@asic.callback()
def about() -> None:
    """The KV ASIC in virtual time: its presets, and traces that run through them."""


@asic.command()
def presets(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="a preset, or a TOML file of one")
    ] = "",
    form: FormatOption = Format.text,
) -> None:
    """Every preset; or every number of one, with its range, its source and what kind of knowledge
    it is."""
    from rich.table import Table

    from offstage.asic_model.parameters import TAGS, names, read_preset, rows

    table = Table(box=None, pad_edge=False)
    if name:
        preset = read_preset(name)
        found = rows(preset)
        for column in ("parameter", "value", "low", "high", "tag", "source"):
            table.add_column(column, overflow="fold", no_wrap=column == "parameter")
        for row in found:
            unit = "" if row["unit"] == "1" else f" {row['unit']}"
            table.add_row(row["parameter"], f"{row['value']:g}{unit}", f"{row['low']:g}",
                          f"{row['high']:g}", row["tag"], row["source"])  # fmt: skip
        head = {key: getattr(preset, key) for key in ("name", "title", "kind", "about", "staging",
                                                      "spill", "calibrated")}  # fmt: skip
        emit({**head, "drive": preset.nvme.drive, "numbers": found}, form, table)
        return
    for column in ("preset", "what it is", "calibrated", *TAGS):
        table.add_column(column, overflow="fold", no_wrap=column == "preset")
    listed = []
    for one in map(read_preset, names()):
        tags: list[str] = [number.tag for _, number in one.numbers()]
        counts = {tag: tags.count(tag) for tag in TAGS}
        listed.append({"name": one.name, "title": one.title, "kind": one.kind,
                       "calibrated": one.calibrated, "tags": counts})  # fmt: skip
        yes = "yes" if one.calibrated else "uncalibrated"
        table.add_row(one.name, one.title, yes, *map(str, counts.values()))
    emit({"presets": listed, "tags": TAGS}, form, table)


@asic.command()
def commands(form: FormatOption = Format.text) -> None:
    """The chip's command set, what of today's rings each command is, and what hardware adds."""
    from rich.table import Table

    from offstage.asic_model.commands import FIELDS, rows

    found = rows()
    table = Table(box=None, pad_edge=False)
    for column in found[0]:
        table.add_column(column, overflow="fold", no_wrap=column == "command")
    for row in found:
        table.add_row(*row.values())
    emit({"commands": found, "fields": FIELDS}, form, table)
