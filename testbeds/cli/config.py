"""`offstage config show`: every value of the daemon's configuration, and its source."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import ConfigOption, Format, FormatOption, emit, parse_settings
from offstage.testbeds.table import Cell, Table

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import ConfigShown

__all__ = ["register"]

config = typer.Typer(no_args_is_help=True, help="The configuration that a daemon would start with.")


def register(app: typer.Typer) -> None:
    """Add `offstage config`."""
    app.add_typer(config, name="config")


@config.callback()
def about() -> None:
    """The configuration that a daemon would start with."""


@config.command()
def show(
    file: ConfigOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value; may be repeated")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Print each value of the daemon's configuration, where it came from, and what follows from it.

    Checks all relations between settings, as `dpu serve` does, which also looks at its machine:
    memory, cores, secrets, the store. Says which settings have no effect.
    """
    from offstage.dpu.config.derive import derive
    from offstage.dpu.config.idle import unused
    from offstage.dpu.config.values import load, rows

    loaded = load(file, parse_settings(settings or []))
    shown, notes = list(rows(loaded)), unused(loaded)
    told = [Text(line) for line in note_lines(notes)]
    lines = [[Cell(text, "dim" if row[2] == "default" else "") for text in row] for row in shown]
    document: ConfigShown = {
        "options": {where: {"value": value, "source": source} for where, value, source in shown},
        "derived": None,
        "notes": notes,
    }
    try:
        document["derived"] = derived = derive(loaded)
    except BadInput:
        # Show what the error is about.
        emit(document, form, Group(*told, _table(lines)))
        raise
    lines += [
        [Cell(text, "dim") for text in (name, str(value), "derived")]
        for name, value in asdict(derived).items()
    ]
    emit(document, form, Group(*told, _table(lines)))


def _table(lines: list[list[Cell]]) -> Table:
    names = ("option", "value", "from")
    return Table.named(names, lines, left=3, wrap=names)
