"""`offstage doctor`: what this machine offers, and the command that adds what is missing."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.doctor import Check, Machine, examine, repair

__all__ = ["register", "to_dict"]

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
    fix: Annotated[
        bool, typer.Option("--fix", help="reserve huge pages and load modules, as root")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Look at this machine: what Offstage can use here, and the command that adds what is missing.

    A check is ok, missing (not used, or slower) or needed. Exit code 1 where something is needed,
    or a step of --fix failed.
    """
    if not folder.is_dir():
        raise BadInput("no such folder", str(folder), "make it, or name another --out")
    checks = examine(Machine(folder.resolve()))
    failed: list[str] = []
    if fix:
        failed = repair(checks, Machine(folder.resolve()), _say)
        checks = examine(Machine(folder.resolve()))
    emit(to_dict(checks), form, drawn(checks))
    if failed:
        raise RunFailed("; ".join(failed), "--fix", "see what stands under each check")
    if not to_dict(checks)["ready"]:
        raise typer.Exit(1)


def to_dict(checks: list[Check]) -> dict[str, Any]:
    """The checks as JSON-ready values."""
    rows = [{**asdict(check), "repairs": [str(step) for step in check.repairs]} for check in checks]
    return {"ready": not any(check.state == "required" for check in checks), "checks": rows}


def drawn(checks: list[Check]) -> Table:
    """One row per check: what was found, what it enables, and under it the fix."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        word, style = MARKS[check.state]
        found = Text.assemble(check.found, (f"  ({check.purpose})", "dim"))
        if check.fix:
            found.append(f"\n→ {check.fix}", style="cyan")
        table.add_row(Text(word, style=style), check.name, found)
    return table


def _say(step: str) -> None:
    """Announces the next step of `--fix`; not on stdout, which may be JSON."""
    sys.stderr.write(f"offstage: doctor: {step}\n")
