"""`offstage host calibrate`: measures the cost of a layer of a decode step, into a file."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from offstage.bindings.durable import writable, write_text
from offstage.bindings.errors import BadInput
from offstage.bindings.units import format_count
from offstage.testbeds.cli.common import DeviceOption, Format, FormatOption, Kernel, emit
from offstage.testbeds.cli.models import model_folder
from offstage.testbeds.document import as_json
from offstage.testbeds.table import Column, Table

__all__ = ["calibrate"]


def calibrate(
    out: Annotated[Path, typer.Option("--out", callback=writable, help="the file to write")],
    geometry: Annotated[
        str, typer.Option("--geometry", help="model of the layer: its KV, and its widths if known")
    ] = "llama-3-8b",
    model: Annotated[
        Path | None,
        typer.Option("--model", help="take a layer of this model: its name, folder or GGUF file"),
    ] = None,
    kernel: Annotated[
        Kernel, typer.Option("--kernel", help="attention kernel; triton needs a GPU")
    ] = Kernel.torch,
    device: DeviceOption = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="type of the weights; default: float32 on a CPU, bfloat16 on a GPU"
        ),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", help="sessions per batch")] = "1,4,16",
    tokens: Annotated[
        str, typer.Option("--tokens", help="tokens that each session attends to")
    ] = "512,2048,8192",
    selector: Annotated[
        str,
        typer.Option("--selector", help="also time the selection by quest, quest8 or mean_key"),
    ] = "",
    context_tokens: Annotated[
        int, typer.Option("--context-tokens", help="context of each session, for --selector")
    ] = 131_072,
    form: FormatOption = Format.text,
) -> None:
    """Measure what one layer of a decode step costs: projections, MLP, attention at several sizes.

    `demo`, `host run` and the laboratory pace themselves by the file.
    """
    import msgspec

    from offstage.host.decode.calibrate import Plan
    from offstage.host.decode.calibrate import calibrate as measure
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.machine import machine

    on_cuda = device.startswith("cuda")
    shape, widths = _layer_of(geometry, model)
    chosen = dtype or ("bfloat16" if on_cuda else "float32")
    if chosen not in ("float32", "bfloat16", "float16"):
        raise BadInput(f"no type {chosen!r}", "--dtype", "choose float32, bfloat16 or float16")
    plan = Plan(
        geometry=shape,
        widths=widths,
        kernel=kernel.value,
        device=device,
        dtype=chosen,
        batches=_numbers(batch, "--batch"),
        tokens=_numbers(tokens, "--tokens"),
        processor=machine().processor,
        command=shlex.join(["offstage", *sys.argv[1:]]),
        selectors=tuple(dict.fromkeys(part.strip() for part in selector.split(",") if part)),
        context_tokens=context_tokens,
    )
    plan.check()
    with shown(1) as progress:
        progress.start("measure", plan.steps, "steps")
        cost = measure(plan, progress.advance)
    write_text(out, as_json(cost))
    emit({**msgspec.to_builtins(cost), "out": str(out)}, form, _shown(cost, out))


def _layer_of(name: str, model: Path | None) -> tuple[Any, tuple[int, int]]:
    """The layer's KV and its widths. Without published widths, those of Llama 3's form: as wide
    as its query heads, and an MLP 3.5 times that."""
    from offstage.host.decode.calibrate import WIDTHS
    from offstage.host.model.models import geometry

    if model is None:
        shape = geometry(name)
        _, _, _, head_dim = shape.block_shape(0)
        hidden = shape.q_heads * head_dim
        return shape, WIDTHS.get(name, (hidden, 7 * hidden // 2))
    from offstage.host.transformer.dense import kv_geometry
    from offstage.testbeds.capture.model import look

    found = look(model_folder(model))
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(found.folder, local_files_only=True)
    shape = kv_geometry(found.name, config, 64, "float16")
    return replace(shape, source=str(model)), (config.hidden_size, config.intermediate_size)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise BadInput(
            f"{text!r} is not a list of numbers", option, "write for example 1,4,16"
        ) from None


def _shown(cost: Any, out: Path) -> Any:
    from rich.console import Group

    columns = [
        Column("sessions"),
        Column("tokens each", format_count),
        *(Column(f"{name} us", _us) for name in ("projections", "MLP", "attention")),
        Column("token ms, all layers", "{:,.2f}".format),
    ]
    rows = [
        [
            row.batch,
            row.tokens,
            row.projection_ns,
            row.mlp_ns,
            row.attention_ns,
            row.layer_ns * cost.layer_count / 1e6,
        ]
        for row in cost.rows
    ]
    head = (
        f"One layer of {cost.geometry} ({cost.hidden} and {cost.mlp} wide, {cost.dtype}) on "
        f"{cost.device}, {cost.kernel} kernel"
    )
    parts: list[Any] = [head, "", Table.of(columns, rows)]
    if cost.selection:
        chosen = [
            Column("sessions"),
            Column("context tokens", format_count),
            Column("selector"),
            Column("selection us", _us),
        ]
        found = [
            [row.batch, row.context_tokens, row.selector, row.selection_ns]
            for row in cost.selection
        ]
        parts += ["", Table.of(chosen, found)]
    return Group(*parts, "", str(out))


def _us(ns: float) -> str:
    return f"{ns / 1e3:,.1f}"
