"""`offstage config show`: every value of the daemon's configuration, and who gave it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import Format, FormatOption, emit, parse_settings

__all__ = ["register"]

config = typer.Typer(no_args_is_help=True, help="What the daemon would be started with.")


def register(app: typer.Typer) -> None:
    """Add `offstage config`."""
    app.add_typer(config, name="config")


@config.callback()
def about() -> None:
    """What the daemon would be started with."""


@config.command()
def show(
    file: Annotated[Path | None, typer.Option("--config", help="TOML file")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, as often as needed")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Print each value of the daemon's configuration, where it came from, and what follows from it.

    Checks all relations: what `dpu serve` would refuse is refused here. Says which settings have no
    effect.
    """
    from offstage.dpu.config import load, rows
    from offstage.dpu.derive import derive
    from offstage.dpu.idle import unused

    loaded = load(file, parse_settings(settings or []))
    shown, notes = list(rows(loaded)), unused(loaded)
    told = [Text(line) for line in note_lines(notes)]
    drawn = Table(box=None, pad_edge=False)
    for heading in ("option", "value", "from"):
        drawn.add_column(heading, overflow="fold")
    for where, value, source in shown:
        drawn.add_row(where, value, source, style="dim" if source == "default" else None)
    options = {where: {"value": value, "source": source} for where, value, source in shown}
    try:
        derived = asdict(derive(loaded))
    except BadInput:
        # Show what the error is about.
        emit({"options": options, "derived": None, "notes": notes}, form, Group(*told, drawn))
        raise
    for name, value in derived.items():
        drawn.add_row(name, str(value), "derived", style="dim")
    emit({"options": options, "derived": derived, "notes": notes}, form, Group(*told, drawn))
