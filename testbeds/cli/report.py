"""`offstage report`: the page of a run, made again from its summary.json."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage report`."""
    app.command()(report)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, or a summary.json")],
    out: Annotated[
        Path | None, typer.Option("--out", help="file to write; default: report.html beside it")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Write report.html from summary.json, and show the table of runs."""
    from rich.console import Group

    from offstage.testbeds.report import console_table, read_summary, write_report

    summary = read_summary(run)
    page = out or (run if run.is_dir() else run.parent) / "report.html"
    write_report(summary, page)
    result = {"sentence": summary.sentence, "report": str(page)}
    emit(result, form, Group(console_table(summary), "", summary.sentence, "", str(page)))
