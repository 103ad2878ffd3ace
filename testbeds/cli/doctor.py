"""`offstage doctor`: what this machine offers, and the command that adds what is missing."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.doctor import Check, Machine, examine, repair

__all__ = ["examined", "register", "verdict"]

MARKS = {
    "ok": ("ok", "green"),
    "missing": ("missing", "yellow"),
    "required": ("needed", "bold red"),
}


class ShownCheck(msgspec.Struct, frozen=True):
    """A check as programs read it: a repair is the command that it stands for."""

    name: str
    state: str
    found: str
    purpose: str
    fix: str
    repairs: list[str]
    details: tuple[object, ...]


class Examined(msgspec.Struct, frozen=True):
    """What `--format json` prints. `ready`: nothing that is required is missing."""

    ready: bool
    checks: list[ShownCheck]


def register(app: typer.Typer) -> None:
    """Add `offstage doctor`."""
    app.command()(doctor)


def doctor(
    folder: Annotated[
        Path, typer.Option("--out", help="folder for stores, whose disk is checked")
    ] = Path(),
    fix: Annotated[
        bool, typer.Option("--fix", help="reserve huge pages and load modules, as root")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Check this machine: what Offstage can use, and the commands that add what is missing.

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
    result = examined(checks)
    emit(result, form, Group(drawn(checks), "", Text(verdict(checks))))
    if failed:
        raise RunFailed("; ".join(failed), "--fix", "see what stands under each check")
    if not result.ready:
        raise typer.Exit(1)


def examined(checks: list[Check]) -> Examined:
    """The checks for a program."""
    rows = [
        ShownCheck(
            one.name,
            one.state,
            one.found,
            one.purpose,
            one.fix,
            [str(step) for step in one.repairs],
            one.details,
        )
        for one in checks
    ]
    return Examined(not any(one.state == "required" for one in checks), rows)


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


def verdict(checks: list[Check]) -> str:
    """What this machine is ready for, or what to do first; the exit code says the same."""
    needed = [one for one in checks if one.state == "required"]
    if needed:
        first, others = needed[0], [one.name for one in needed[1:]]
        more = f"; then {', '.join(others)}" if others else ""
        return f"Not ready. First: {first.name}, {first.fix or first.found}{more}."
    text = "Ready for `offstage demo`, the laboratory and a daemon on this machine."
    missing = [one.name for one in checks if one.state == "missing"]
    if missing:
        text += f" Missing, and not needed for these: {', '.join(missing)}."
    return text


def _say(step: str) -> None:
    """Announces the next step of `--fix`; not on stdout, which may be JSON."""
    sys.stderr.write(f"offstage: doctor: {step}\n")
