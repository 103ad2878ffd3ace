"""`offstage requests`: what the requests of a run took, by one definition for every kind of run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import writable, write_text
from offstage.testbeds.cli.common import Format, FormatOption, emit

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import RequestsServed

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage requests`."""
    app.command()(requests)


def requests(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="folder of `lab run`, `lab pod --requests` or `host run --out`; or its file",
        ),
    ],
    ttft: Annotated[
        str,
        typer.Option("--ttft", metavar="TIME", help="objective: longest time to the first token"),
    ] = "",
    tpot: Annotated[
        str,
        typer.Option("--tpot", metavar="TIME", help="objective: longest time per token after it"),
    ] = "",
    prometheus: Annotated[
        Path | None,
        typer.Option(
            "--prometheus",
            callback=writable,
            help="also write the records as Prometheus metrics, in text",
        ),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Say what the requests of a run took: TTFT, TPOT, goodput, hits, and what was busy.

    Goodput counts requests within --ttft and --tpot; without either, within twice the median of
    requests that were alone on their host. A figure that a run cannot have is absent, with the
    reason.
    """
    from rich.console import Group
    from rich.text import Text

    from offstage.testbeds.report.served.prometheus import exposition
    from offstage.testbeds.report.served.records import records_of
    from offstage.testbeds.report.served.table import lines_below, served_tables
    from offstage.testbeds.workloads.requests.served import served_figures

    limits = _limit_ms(ttft, "--ttft"), _limit_ms(tpot, "--tpot")
    recorded = records_of(run)
    found = [served_figures(about, records, *limits) for about, records in recorded]
    if prometheus is not None:
        write_text(prometheus, exposition(recorded))
    document: RequestsServed = {"runs": found}
    tables = (each for one in found for table in served_tables(one) for each in (table, ""))
    emit(document, form, Group(*tables, *map(Text, lines_below(found))))


def _limit_ms(text: str, where: str) -> float | None:
    from offstage.bindings.units import parse_time

    return parse_time(text, where) / 1e6 if text else None
