"""`offstage trace`: request traces, what they hold and how they are brought into one form."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.durable import writable
from offstage.bindings.errors import BadInput
from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit, table
from offstage.testbeds.cli.progress import shown

__all__ = ["register"]

TraceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--trace-format", metavar="NAME", help="what the file is, where its content is not to say"
    ),
]

trace = typer.Typer(no_args_is_help=True, help="Request traces.")


def register(app: typer.Typer) -> None:
    """Add `offstage trace`."""
    app.add_typer(trace, name="trace")
    trace.command()(capture)
    trace.command()(generate)
    trace.command(name="import")(import_trace)


@trace.callback()
def about() -> None:
    """Request traces: what they hold, and one form for all of them."""


@trace.command()
def info(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="one trace")],
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    limit: Annotated[int | None, typer.Option("--limit", help="only the first N requests")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of formats that are a generator")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """Requests, lengths, sessions, blocks, and what an ideal cache and LRU would hit; of a file of
    selections, what it holds and the lab spec that runs it."""
    from offstage.testbeds.cli.trace_selections import described, shown_with_spec
    from offstage.testbeds.workloads.requests.importer import open_trace, selections_kind
    from offstage.testbeds.workloads.requests.stats import render, summarise, to_dict

    if limit is not None and limit < 1:
        raise BadInput(f"--limit = {limit}", "trace info", "give 1 or more")
    said = trace_format is not None or time_unit is not None
    if len(files) == 1 and not said and (kind := selections_kind(files[0])):
        held = described(files[0], kind)
        emit(held, form, shown_with_spec(held))
        return
    found = summarise(open_trace(files, trace_format, limit=limit, seed=seed, time_unit=time_unit))
    emit(to_dict(found), form, render(found))


# `offstage trace import`: any request trace into the one form that everything here reads.


def import_trace(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="one trace")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", callback=writable, help="where to write it")
    ],
    trace_format: TraceFormatOption = None,
    time_unit: TimeUnitOption = None,
    limit: Annotated[int | None, typer.Option("--limit", help="only the first N requests")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of formats that are a generator")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """Read a trace of any known format and write it in ours."""
    from offstage.testbeds.workloads.requests.importer import open_trace, write_trace

    if limit is not None and limit < 1:
        raise BadInput(f"--limit = {limit}", "trace import", "give 1 or more")
    trace = open_trace(files, trace_format, limit=limit, seed=seed, time_unit=time_unit)
    write_trace(trace, out)
    origin = trace.origin
    sessions = len(trace.session_names) if trace.has_sessions else 0
    done = {
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


# `offstage trace generate`: a generated workload held against published figures, or written.


def generate(
    profile: Annotated[
        str, typer.Option("--profile", help="which layers behave how")
    ] = "published-mix",
    explain: Annotated[
        bool, typer.Option("--explain", help="measure the profile against published figures")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="write a workload in the capture format")
    ] = None,
    layers: Annotated[int, typer.Option("--layers", help="that store KV")] = 8,
    context_tokens: Annotated[
        int, typer.Option("--context-tokens", help="of each session, whole blocks")
    ] = 32768,
    steps: Annotated[int, typer.Option("--steps", help="decode steps of each session")] = 128,
    sessions: Annotated[int, typer.Option("--sessions", help="that decode")] = 1,
    block_tokens: Annotated[int, typer.Option("--block-tokens", help="tokens of one block")] = 64,
    turn_steps: Annotated[
        int | None, typer.Option("--turn-steps", help="a new turn every N steps")
    ] = None,
    shared_prefix_tokens: Annotated[
        int, typer.Option("--shared-prefix-tokens", help="that all sessions begin with")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="fixes what is drawn")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """A workload drawn from fitted score processes: how true it is, or a file of it."""
    if explain == (out is not None):
        raise BadInput(
            "nothing to do" if out is None else "two things to do",
            "trace generate",
            "give --explain or --out FILE",
        )
    if out is None:
        _explain(profile, seed, form)
        return
    from offstage.testbeds.capture.export import export
    from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload

    # A file has scores, and whoever replays it selects: one block stands for any selection here.
    options = GeneratedOptions(
        profile,
        layers,
        context_tokens,
        steps,
        sessions,
        block_tokens,
        select_blocks=1,
        sink_blocks=0,
        window_blocks=0,
        turn_steps=turn_steps,
        shared_prefix_tokens=shared_prefix_tokens,
        seed=seed,
    )
    workload = GeneratedWorkload(options)
    with shown(1) as progress:
        export(workload, out, progress)
    result = {"file": str(out), "size_bytes": out.stat().st_size, **workload.describe()}
    emit(result, form, table(result))


def _explain(profile: str, seed: int, form: Format) -> None:
    from offstage.testbeds.workloads.selections import fit as figures

    with shown(len(figures.processes_of(profile)) + 2) as progress:
        rows = figures.explain(profile, seed, progress=progress)
    emit(figures.to_dict(profile, rows, seed), form, figures.render(profile, rows))


# `offstage trace capture`: which blocks a real model looks at, step by step.


class Mode(StrEnum):
    """How decoding goes on behind the context."""

    teacher = "teacher"
    free = "free"
    both = "both"


class Dtype(StrEnum):
    """What the model is run in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Device(StrEnum):
    """Where the model is run."""

    cpu = "cpu"
    cuda = "cuda"


def capture(
    model: Annotated[Path, typer.Option("--model", help="folder of a Hugging Face-format model")],
    text: Annotated[Path, typer.Option("--text", help="what it reads, UTF-8")],
    out: Annotated[Path, typer.Option("--out", help="file to write")] = Path("capture.parquet"),
    mode: Annotated[
        Mode, typer.Option("--mode", help="teacher: the text goes on; free: the model's own tokens")
    ] = Mode.both,
    steps: Annotated[int, typer.Option("--steps", help="decode steps of each session")] = 256,
    context_tokens: Annotated[
        int | None,
        typer.Option("--context-tokens", help="prefilled; default: the text, but for the steps"),
    ] = None,
    block_tokens: Annotated[int, typer.Option("--block-tokens", help="tokens of one block")] = 64,
    prefill_piece: Annotated[
        int, typer.Option("--prefill-piece", help="tokens fed in at once")
    ] = 2048,
    limit_layers: Annotated[
        str | None, typer.Option("--limit-layers", help="record only these, as 0-3,8")
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="auto: as stored")] = Dtype.auto,
    device: Annotated[Device, typer.Option("--device", help="where to run it")] = Device.cpu,
    draft_model: Annotated[
        Path | None, typer.Option("--draft-model", help="a smaller model that drafts tokens")
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="of free running; 0: the most likely token")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="fixes what is drawn")] = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", help="of the CPU; default: all cores")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Records the block scores of a model's attention, for `offstage lab`."""
    from offstage.testbeds.capture.run import Options
    from offstage.testbeds.capture.run import capture as run
    from offstage.testbeds.workloads.selections.locality import overlap_of_file

    options = Options(
        model=model,
        text=text,
        out=out,
        mode=mode.value,
        steps=steps,
        context_tokens=context_tokens,
        block_tokens=block_tokens,
        prefill_piece=prefill_piece,
        layers=limit_layers,
        dtype=dtype.value,
        device=device.value,
        temperature=temperature,
        seed=seed,
        threads=len(os.sched_getaffinity(0)) if threads is None else threads,
        draft_model=draft_model,
    )
    with shown(4 if mode is Mode.both else 3) as progress:
        result = run(options, progress)
    header = result.header
    found = {
        "file": str(result.path),
        "model": header.model,
        "dtype": header.dtype,
        "sessions": [
            {"name": one.name, "context_tokens": one.context_tokens, "steps": one.steps}
            for one in header.sessions
        ],
        "layers": header.layer_count,
        "groups": header.group_count,
        "block_tokens": header.block_tokens,
        "drafts_accepted": result.drafts_accepted,
        "some_draft_accepted": result.some_draft_accepted,
        "lookups_accepted": result.lookups_accepted,
        "model_drafts_accepted": result.model_drafts_accepted,
        "rows": result.row_count,
        "size_bytes": result.size_bytes,
        "wall_s": round(result.wall_s, 1),
        "overlap": overlap_of_file(result.path),
    }
    emit(found, form, table(found))
