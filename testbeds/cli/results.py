"""`offstage results`: the runs below a folder, beside each other."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import printable
from offstage.testbeds.cli.common import Format, emit

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import ResultsListed

__all__ = ["register"]


class ListFormat(StrEnum):
    """How a list of runs is printed."""

    text = "text"
    json = "json"
    csv = "csv"


class Tracker(StrEnum):
    """Where the figures of runs can be written to."""

    mlflow = "mlflow"
    otel = "otel"


def register(app: typer.Typer) -> None:
    """Add `offstage results`."""
    app.command()(results)


def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder with runs below it")],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="only such rows, also with !=, <, <=, > or >=; may be repeated",
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="by this figure, the best first")
    ] = "",
    columns: Annotated[
        str, typer.Option("--columns", metavar="KEY,...", help="these figures, in this order")
    ] = "",
    form: Annotated[
        ListFormat,
        typer.Option("--format", help="text for people, json for programs, csv for spreadsheets"),
    ] = ListFormat.text,
    to: Annotated[
        Tracker | None,
        typer.Option("--to", help="also write all figures of the rows listed into this tracker"),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="URL",
            help="the tracking server of MLflow, or the collector of OpenTelemetry (OTLP over "
            "HTTP); default: what their own variables say",
        ),
    ] = "",
) -> None:
    """List the runs below a folder: a row for each arm of a demo or host run, and each lab point.

    Any figure of their summary.json can be a column, a condition or the order. What cannot be read
    is skipped, and named. With --to mlflow a row becomes a run, once, however often it is written;
    with --to otel each of its figures is a gauge.
    """
    from rich.console import Group
    from rich.text import Text

    from offstage.testbeds.report import listing
    from offstage.testbeds.report.trackers import TRACKERS

    found, skipped = listing.rows_below(folder)
    rows = listing.filtered(found, where or [])
    if sort:
        rows = listing.sorted_by(rows, sort, found)
    if to is not None:
        new = TRACKERS[to.value](rows, at)
        before = f", {len(rows) - new} were there" if new < len(rows) else ""
        sys.stderr.write(f"offstage: {new} rows written to {to.value}{before}\n")
    names = [one.strip() for one in columns.split(",")] if columns else listing.shown_of(rows)
    rows = listing.chosen(rows, names, found)
    lines = [f"skipped: {printable(line)}" for line in skipped]
    if form is ListFormat.csv:
        sys.stdout.write(listing.as_csv(rows, names))
        sys.stderr.writelines(f"offstage: {line}\n" for line in lines)
        return
    document: ResultsListed = {"rows": rows, "skipped": skipped}
    count = f"{len(rows)} of {len(found)} rows" if where else f"{len(rows)} rows"
    shown = (listing.as_table(rows, names), "") if rows else ()
    text = Group(*shown, *map(Text, [count, *lines]))
    emit(document, Format(form.value), text)
