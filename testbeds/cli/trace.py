"""`offstage trace`: request traces, their contents and their conversion into one format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import writable
from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit
from offstage.testbeds.cli.trace_capture import capture
from offstage.testbeds.cli.trace_generate import generate

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import TraceImported

__all__ = ["register"]

TraceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--trace-format", metavar="NAME", help="format of the file, if its content does not tell"
    ),
]

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="one trace")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="only the first N requests")
]
SeedOption = Annotated[int, typer.Option("--seed", help="seed for formats that are generators")]

trace = typer.Typer(no_args_is_help=True, help="Request traces.")


def register(app: typer.Typer) -> None:
    """Add `offstage trace`."""
    app.add_typer(trace, name="trace")
    trace.command()(capture)
    trace.command()(generate)
    trace.command(name="import")(import_trace)


@trace.callback()
def about() -> None:
    """Request traces: their contents, and conversion into one format."""


@trace.command()
def info(
    files: FilesArgument,
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 1,
    form: FormatOption = Format.text,
) -> None:
    """Show a trace of any known format: requests, lengths, rates, sessions and gaps.

    Where it has blocks: how often they return, and the hits of an ideal cache, LRU and OPT at
    several sizes. Of a file of recorded selections or scores: what it holds and the lab spec that
    runs it.
    """
    from offstage.testbeds.cli.trace_selections import described, shown_with_spec
    from offstage.testbeds.workloads.requests.importer import open_trace, selections_kind
    from offstage.testbeds.workloads.requests.stats import render, summarise, to_dict

    said = trace_format is not None or time_unit is not None
    if len(files) == 1 and not said and (kind := selections_kind(files[0])):
        held = described(files[0], kind)
        emit(held, form, shown_with_spec(held))
        return
    found = summarise(open_trace(files, trace_format, limit=limit, seed=seed, time_unit=time_unit))
    emit(to_dict(found), form, render(found))


def import_trace(
    files: FilesArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", callback=writable, help="where to write it")
    ],
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 1,
    form: FormatOption = Format.text,
) -> None:
    """Convert a trace of any known format into ours.

    Several files only where a format has one per session.
    """
    from offstage.testbeds.workloads.requests.importer import open_trace, write_trace

    trace = open_trace(files, trace_format, limit=limit, seed=seed, time_unit=time_unit)
    write_trace(trace, out)
    origin = trace.origin
    sessions = len(trace.session_names) if trace.has_sessions else 0
    done: TraceImported = {
        "trace": str(out),
        "name": origin.name,
        "format": origin.format,
        "licence": origin.licence,
        "sha256": list(origin.sha256),
        "notes": list(trace.notes),
        "requests": len(trace),
        "sessions": sessions,
        "block_tokens": trace.block_tokens,
    }
    held = f"{sessions:,} sessions" if sessions else "no sessions"
    blocks = f"blocks of {trace.block_tokens} tokens" if trace.block_tokens else "no blocks"
    text = f"{out}: {len(trace):,} requests of {origin.name} ({origin.format}), {held}, {blocks}"
    emit(done, form, "\n".join([text, *note_lines(trace.notes)]))
