"""`offstage trace`: what a request trace holds."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import trace_capture, trace_generate
from offstage.testbeds.cli.common import Format, FormatOption, emit

__all__ = ["register"]

trace = typer.Typer(no_args_is_help=True, help="Request traces in the format of Mooncake.")


def register(app: typer.Typer) -> None:
    """Add `offstage trace`."""
    app.add_typer(trace, name="trace")
    trace_capture.register(trace)
    trace_generate.register(trace)


@trace.callback()
def about() -> None:
    """Request traces in the format of Mooncake."""


@trace.command()
def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines, one request each")],
    limit: Annotated[
        int | None, typer.Option("--limit", help="only so many requests from the front")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Requests, blocks, and the hit rates that an ideal cache and LRU would have."""
    from offstage.testbeds.workloads.stats import render, to_dict, trace_info

    if limit is not None and limit < 1:
        raise BadInput(f"--limit = {limit}", "trace info", "give 1 or more")
    found = trace_info(file, limit)
    emit(to_dict(found), form, render(found))
