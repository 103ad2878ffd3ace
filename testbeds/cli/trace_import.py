"""`offstage trace import`: any request trace into the one form that everything here reads."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit

__all__ = ["TraceFormatOption", "register"]

TraceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--trace-format", metavar="NAME", help="what the file is, where its content is not to say"
    ),
]


def register(app: typer.Typer) -> None:
    """Add `offstage trace import`."""
    app.command(name="import")(import_trace)


def import_trace(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="one trace")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="where to write it")],
    trace_format: TraceFormatOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="only so many requests from the front")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of formats that are a generator")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """Read a trace of any known format and write it in ours."""
    from offstage.testbeds.workloads.requests.importer import open_trace, write_trace

    if limit is not None and limit < 1:
        raise BadInput(f"--limit = {limit}", "trace import", "give 1 or more")
    trace = open_trace(files, trace_format, limit=limit, seed=seed)
    write_trace(trace, out)
    origin = trace.origin
    sessions = len(trace.session_names) if trace.has_sessions else 0
    done = {
        "trace": str(out),
        "name": origin.name,
        "format": origin.format,
        "licence": origin.licence,
        "sha256": list(origin.sha256),
        "notes": list(origin.notes),
        "requests": len(trace),
        "sessions": sessions,
        "block_tokens": trace.block_tokens,
    }
    held = f"{sessions:,} sessions" if sessions else "no sessions"
    blocks = f"blocks of {trace.block_tokens} tokens" if trace.block_tokens else "no blocks"
    text = f"{out}: {len(trace):,} requests of {origin.name} ({origin.format}), {held}, {blocks}"
    emit(done, form, "\n".join([text, *(f"  {note}" for note in origin.notes)]))
