"""`offstage trace capture`: the blocks that a real model reads, step by step."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import (
    Dtype,
    Format,
    FormatOption,
    RopeOption,
    emit,
    seed_option,
    table,
)
from offstage.testbeds.cli.models import model_folder
from offstage.testbeds.cli.names import models
from offstage.testbeds.cli.progress import shown

if TYPE_CHECKING:
    from offstage.testbeds.capture.run import Result
    from offstage.testbeds.cli.printed import TraceCaptured

__all__ = ["capture"]


class Mode(StrEnum):
    """How decoding continues after the context."""

    teacher = "teacher"
    free = "free"
    both = "both"


class Device(StrEnum):
    """The device of the model's run."""

    cpu = "cpu"
    cuda = "cuda"


ModelOption = Annotated[
    Path, typer.Option("--model", autocompletion=models, help="model: name, folder or GGUF file")
]
WindowsOption = Annotated[
    int | None,
    typer.Option(
        "--windows",
        min=1,
        help="blocks at the prefill's end that are recorded too",
        show_default="32",
    ),
]


def capture(
    model: ModelOption,
    text: Annotated[Path, typer.Option("--text", help="text that the model reads, UTF-8")],
    out: Annotated[Path, typer.Option("--out", help="file to write")] = Path("capture.parquet"),
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="decode the text's tokens (teacher), or the model's (free)"),
    ] = Mode.both,
    steps: Annotated[int, typer.Option("--steps", help="decode steps of each session")] = 256,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            "--context-tokens", help="tokens to prefill; default: the text less the steps"
        ),
    ] = None,
    block_tokens: Annotated[int, typer.Option("--block-tokens", help="tokens of one block")] = 64,
    windows: WindowsOption = None,
    prefill_piece: Annotated[
        int, typer.Option("--prefill-piece", help="tokens per prefill chunk")
    ] = 2048,
    limit_layers: Annotated[
        str | None, typer.Option("--limit-layers", help="record only these layers, such as 0-3,8")
    ] = None,
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="type of the computation; auto: as stored")
    ] = Dtype.auto,
    device: Annotated[Device, typer.Option("--device", help="device of the model")] = Device.cpu,
    draft_model: Annotated[
        Path | None, typer.Option("--draft-model", help="a smaller one that drafts tokens")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", help="temperature of --mode free; 0: the most likely token"),
    ] = 0.0,
    seed: Annotated[int, seed_option("seed of the draws")] = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads; default: all cores")
    ] = None,
    rope: RopeOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Run a model over a text and record each block's score at every decode step.

    By layer and KV head. Prints what the file holds, with the share of a selection that the next
    step selects again. Needs the extra `capture`; nothing is downloaded.
    """
    from offstage.testbeds.capture import run

    options = run.Options(
        model=model_folder(model),
        text=text,
        out=out,
        mode=mode.value,
        steps=steps,
        context_tokens=context_tokens,
        block_tokens=block_tokens,
        windows=windows or run.WINDOWS,
        prefill_piece=prefill_piece,
        layers=limit_layers,
        dtype=dtype.value,
        device=device.value,
        temperature=temperature,
        seed=seed,
        threads=len(os.sched_getaffinity(0)) if threads is None else threads,
        rope=rope,
        draft_model=None if draft_model is None else model_folder(draft_model),
    )
    with shown(4 if mode is Mode.both else 3) as progress:
        result = run.capture(options, progress)
    _tell(result, form)


def _tell(result: "Result", form: Format) -> None:
    from offstage.testbeds.workloads.selections.locality import overlap_of_file

    header = result.header
    found: TraceCaptured = {
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
        "perplexity": None if result.perplexity is None else round(result.perplexity, 3),
        "rows": result.row_count,
        "size_bytes": result.size_bytes,
        "wall_s": round(result.wall_s, 1),
        "overlap": overlap_of_file(result.path),
    }
    emit(found, form, table(found))
