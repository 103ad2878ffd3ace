"""`offstage doctor`: what this machine offers, and the command that fixes what is missing."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.doctor import Check, examine, to_dict

__all__ = ["register"]

MARKS = {
    "ok": ("ok", "green"),
    "missing": ("missing", "yellow"),
    "required": ("needed", "bold red"),
}


def register(app: typer.Typer) -> None:
    """Add `offstage doctor`."""
    app.command()(doctor)


def doctor(
    folder: Annotated[
        Path, typer.Option("--out", help="where stores would be written: its disk is looked at")
    ] = Path(),
    form: FormatOption = Format.text,
) -> None:
    """Look at this machine; exit 1 where something is missing that nothing runs without."""
    if not folder.is_dir():
        raise BadInput("no such folder", str(folder), "make it, or name another --out")
    checks = examine(folder.resolve())
    emit(to_dict(checks), form, drawn(checks))
    if not to_dict(checks)["ready"]:
        raise typer.Exit(1)


def drawn(checks: list[Check]) -> Table:
    """One row per check: what was found, what it is for, and under it the mend."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        word, style = MARKS[check.state]
        found = Text.assemble(check.found, (f"  ({check.purpose})", "dim"))
        if check.mend:
            found.append(f"\n→ {check.mend}", style="cyan")
        table.add_row(Text(word, style=style), check.name, found)
    return table
