"""`offstage report`: the page of a run, made again from its summary.json."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    """Write report.html from summary.json, and show the table of runs or points."""
    from rich.console import Group

    from offstage.testbeds.report.page.files import holds_lab_summary

    page = out or (run if run.is_dir() else run.parent) / "report.html"
    sentence, table = (_lab if holds_lab_summary(run) else _demo)(run, page)
    result = {"sentence": sentence, "report": str(page)}
    emit(result, form, Group(table, "", sentence, "", str(page)))


def _demo(run: Path, page: Path) -> "tuple[str, RenderableType]":
    from offstage.testbeds.report import console_table, read_summary, write_report

    summary = read_summary(run)
    write_report(summary, page)
    return summary.sentence, console_table(summary)


def _lab(run: Path, page: Path) -> "tuple[str, RenderableType]":
    from offstage.testbeds.report.lab.page import write_lab_report
    from offstage.testbeds.report.lab.requests import requests_table
    from offstage.testbeds.report.lab.sentence import lab_sentence
    from offstage.testbeds.report.lab.table import lab_table
    from offstage.testbeds.report.page.files import read_lab_summary

    summary = read_lab_summary(run)
    write_lab_report(summary, page)
    table = lab_table(summary) if summary.points else requests_table(summary.requests)
    return lab_sentence(summary), table
