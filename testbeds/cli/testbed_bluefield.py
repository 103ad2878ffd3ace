"""`offstage testbed` for a DPU reached by ssh."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from offstage.bindings.errors import BadInput, printable
from offstage.testbeds.beds.bluefield import (
    Far,
    Step,
    down_steps,
    execute,
    read_inventory,
    shown,
    up_steps,
    wait,
)
from offstage.testbeds.beds.local import LocalBed
from offstage.testbeds.cli.common import Format, emit, table
from offstage.testbeds.cli.summary import print_summary
from offstage.testbeds.cli.testbed_here import drive, size_words, sizes_for
from offstage.testbeds.cli.then import then

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import BedEnded, BedUp

__all__ = ["down", "run", "up"]


def up(
    inventory: Path | None, out: Path, sizes: tuple[int, int, int], dry_run: bool, form: Format
) -> None:
    """Set the DPU up and start its daemon, or print every command of that."""
    far = _far(inventory, out)
    if _go(far, _up_steps(far, sizes), dry_run):
        wait(far)
        told: BedUp = {
            "bed": far.bed,
            "endpoint": far.endpoint,
            "out": str(far.out),
            "real": far.real,
        }
        words = ["--inventory", str(inventory), *size_words(*sizes), "--out", str(out)]
        emit(told, form, then(table(told), "testbed", "run", "bluefield", *words))


def run(
    inventory: Path | None, out: Path, sizes: tuple[int, int, int], dry_run: bool, form: Format
) -> None:
    """The same, then the arms on it; it stays up."""
    far = _far(inventory, out)
    if _go(far, _up_steps(far, sizes), dry_run):
        wait(far)
        print_summary(drive(far, *sizes), far.out, form)


def down(inventory: Path | None, out: Path, dry_run: bool, form: Format) -> None:
    """Stop the daemon there, and fetch its log."""
    far = _far(inventory, out)
    if _go(far, down_steps(far.dpu, far.out), dry_run):
        ended: BedEnded = {"ended": True, "log": str(far.out / "dpu.log")}
        emit(ended, form, ended["log"])


def _far(inventory: Path | None, out: Path) -> Far:
    if inventory is None:
        raise BadInput("bluefield needs an inventory", "testbed", "name it with --inventory FILE")
    return Far("bluefield", out.absolute(), read_inventory(inventory))


def _up_steps(far: Far, sizes: tuple[int, int, int]) -> list[Step]:
    LocalBed(far.out).take()
    return up_steps(far.dpu, far.out, sizes_for(*sizes))


def _go(far: Far, steps: list[Step], dry_run: bool) -> bool:
    """Run the steps; False if they were only printed."""
    for number, step in enumerate(steps, 1):
        if dry_run:
            typer.echo(printable(shown(far.dpu, step), "\n\t"))
        else:
            line = f"[{number}/{len(steps)}] {step.place}: {step.command}"
            typer.echo(printable(line, "\n\t"), err=True)
            execute(far.dpu, step)
    return not dry_run
