"""`offstage trace`: request traces, what they hold and how they are brought into one form."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import trace_capture, trace_generate, trace_import
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.trace_import import TraceFormatOption

__all__ = ["register"]

trace = typer.Typer(no_args_is_help=True, help="Request traces.")


def register(app: typer.Typer) -> None:
    """Add `offstage trace`."""
    app.add_typer(trace, name="trace")
    trace_capture.register(trace)
    trace_generate.register(trace)
    trace_import.register(trace)


@trace.callback()
def about() -> None:
    """Request traces: what they hold, and one form for all of them."""


@trace.command()
def info(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="one trace")],
    trace_format: TraceFormatOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="only so many requests from the front")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of formats that are a generator")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """Requests, lengths, sessions, blocks, and what an ideal cache and LRU would hit."""
    from offstage.testbeds.workloads.requests.importer import open_trace
    from offstage.testbeds.workloads.requests.stats import summarise, to_dict
    from offstage.testbeds.workloads.requests.stats_table import render

    if limit is not None and limit < 1:
        raise BadInput(f"--limit = {limit}", "trace info", "give 1 or more")
    found = summarise(open_trace(files, trace_format, limit=limit, seed=seed))
    emit(to_dict(found), form, render(found))
