"""`offstage man`: write the manual pages where `man` finds them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage man`."""
    app.command()(man)


def man(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="folder for man1 and its pages; default: share/man of this environment, where "
            "`man` looks while the environment's bin is on the path",
        ),
    ] = None,
) -> None:
    """Write a manual page of every command, for `man offstage` and `man offstage-lab-run`."""
    from offstage.testbeds.cli.common import Format, emit
    from offstage.testbeds.cli.man_pages import SECTION, write_pages

    folder = Path(sys.prefix, "share", "man") if out is None else out
    count = len(write_pages(folder))
    emit(None, Format.text, f"{count} pages in {folder / SECTION}: man -M {folder} offstage")
