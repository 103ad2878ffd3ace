"""`offstage trace`: request traces, their contents and their conversion into one format."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import writable
from offstage.bindings.notes import Note, note_lines
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit, seed_option
from offstage.testbeds.cli.trace_capture import capture
from offstage.testbeds.cli.trace_generate import generate

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import TraceExported, TraceImported
    from offstage.testbeds.progress import Progress
    from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["register"]

TraceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--trace-format", metavar="NAME", help="format of the file, if its content does not tell"
    ),
]

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE", help="one trace")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="only the first N requests")
]
BlockTokensOption = Annotated[
    int | None,
    typer.Option(
        "--block-tokens", min=1, max=1 << 20, help="tokens behind one id, if not the format's"
    ),
]
SeedOption = Annotated[int, seed_option("seed for formats that are generators")]

trace = typer.Typer(no_args_is_help=True, help="Request traces.")


def register(app: typer.Typer) -> None:
    """Add `offstage trace`."""
    app.add_typer(trace, name="trace")
    trace.command()(capture)
    trace.command()(generate)
    trace.command(name="import")(import_trace)
    trace.command(name="export")(export)


LONG_BYTES = 64 << 20
"""Files of fewer bytes are read without showing progress."""


@contextlib.contextmanager
def _shown(files: list[Path], phases: int) -> Iterator["Progress"]:
    """The progress of a command, with the reading of the files as its first phase."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.progress import Silent

    size = sum(path.stat().st_size for path in files if path.is_file())
    if size < LONG_BYTES:
        yield Silent()
        return
    with shown(phases) as progress:
        progress.start("read", size, "bytes")
        yield progress


def _read(
    files: list[Path],
    trace_format: str | None,
    time_unit: str | None,
    block_tokens: int | None,
    limit: int | None,
    seed: int,
    progress: "Progress",
) -> "Trace":
    from offstage.testbeds.workloads.requests.importer import open_trace

    return open_trace(
        files,
        trace_format,
        limit=limit,
        seed=seed,
        time_unit=time_unit,
        block_tokens=block_tokens,
        counted=progress.advance,
    )


@trace.callback()
def about() -> None:
    """Request traces: their contents, and conversion into one format."""


@trace.command()
def info(
    files: FilesArgument,
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    block_tokens: BlockTokensOption = None,
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
    from offstage.testbeds.workloads.requests.importer import selections_kind
    from offstage.testbeds.workloads.requests.stats import render, summarise, to_dict

    said = trace_format is not None or time_unit is not None or block_tokens is not None
    if len(files) == 1 and not said and (kind := selections_kind(files[0])):
        held = described(files[0], kind)
        emit(held, form, shown_with_spec(held))
        return
    with _shown(files, 2) as progress:
        read = _read(files, trace_format, time_unit, block_tokens, limit, seed, progress)
        progress.start("figures", 1, "")
        found = summarise(read)
    emit(to_dict(found), form, render(found))


def import_trace(
    files: FilesArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", callback=writable, help="where to write it")
    ],
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    block_tokens: BlockTokensOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 1,
    form: FormatOption = Format.text,
) -> None:
    """Convert a trace of any known format into ours.

    Several files only where a format has one per session.
    """
    from offstage.testbeds.workloads.requests.importer import write_trace

    with _shown(files, 2) as progress:
        trace = _read(files, trace_format, time_unit, block_tokens, limit, seed, progress)
        progress.start("write", 1, "")
        write_trace(trace, out)
    origin = trace.origin
    sessions = trace.session_count
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


def export(
    files: FilesArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="FORM", help="mooncake, aiperf or vllm: who reads it")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", callback=writable, help="where to write it")
    ],
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    block_tokens: BlockTokensOption = None,
    limit: LimitOption = None,
    seed: SeedOption = 1,
    form: FormatOption = Format.text,
) -> None:
    """Write a trace as a load generator reads it, so that a live run gets a lab run's requests.

    mooncake: as published, in blocks of 512 tokens. aiperf: with sessions and delays. vllm: for
    `vllm bench serve`. Prints the command that sends them.
    """
    from offstage.testbeds.workloads.requests.exporter import export_trace

    with _shown(files, 2) as progress:
        trace = _read(files, trace_format, time_unit, block_tokens, limit, seed, progress)
        done = export_trace(trace, out, to, progress)
    notes = [*trace.notes, *(Note("trace", text) for text in done.notes)]
    exported: TraceExported = {
        "file": str(out),
        "form": to,
        "name": trace.origin.name,
        "requests": done.requests,
        "sessions": done.sessions,
        "block_tokens": done.block_tokens,
        "command": list(done.command),
        "notes": notes,
    }
    held = f"{done.sessions:,} sessions" if done.sessions else "no sessions"
    blocks = f"blocks of {done.block_tokens} tokens" if done.block_tokens else "no blocks"
    text = f"{out}: {done.requests:,} requests of {trace.origin.name} for {to}, {held}, {blocks}"
    told = "\n".join([text, *note_lines(notes)])
    emit(exported, form, f"{told}\n\nsent by:\n  {shlex.join(done.command)}")
