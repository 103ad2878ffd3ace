"""`offstage plan`: which tier, how much of it, and at what price."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit, seed_option
from offstage.testbeds.cli.names import devices, gpus, kv_models

if TYPE_CHECKING:
    from offstage.testbeds.plan.result import Plan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage plan`."""
    app.command()(plan)


SpecOption = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="the question as a TOML file")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        autocompletion=kv_models,
        help="model that the KV belongs to: a name, its id at Hugging Face, or a config.json; "
        "default: llama-3-70b",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        autocompletion=gpus,
        help="h100 (default), h200, b200, b300, gb300, h20, mi355x, or one of --prices",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="type of the model's weights: fp16, fp8 (default), fp4"),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="TOKENS", help="context of each session, such as 128K"),
]
TurnsOption = Annotated[
    int | None,
    typer.Option("--turns", help="turns over which a context grows, in equal parts; default: 10"),
]
DpuOption = Annotated[
    str | None,
    typer.Option("--dpu", autocompletion=devices, help="bluefield3 (default), bluefield4"),
]
TiersOption = Annotated[
    str | None,
    typer.Option(
        "--tiers",
        metavar="NAME,...",
        help="tiers where KV may wait; default: hbm,ddr5,cxl,tlc,dpu,object",
    ),
]
SharedOption = Annotated[
    float | None,
    typer.Option("--shared", help="share of a context that is a common prefix; default: 0"),
]
PricesOption = Annotated[
    list[Path] | None,
    typer.Option("--prices", metavar="FILE", help="file with your prices; may be repeated"),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="show what to set for an engine instead, with files to paste: vllm, lmcache, sglang, "
        "or cmx, which is LMCache over libdoca_kv",
    ),
]
TenantsOption = Annotated[
    int | None, typer.Option("--tenants", help="tenants of each daemon of an engine; default: 1")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE", help="memory of an engine's daemon; default: most of --dpu's"
    ),
]
ColdStartOption = Annotated[
    str | None,
    typer.Option(
        "--cold-start",
        metavar="TIME",
        help="drives hold the weights too, and load a replica's within this time beside KV, such "
        "as 30s",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="only the first N requests of the trace")
]
RunsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="take inputs from a recorded run, a comparison, or a file of `bench sparse`",
    ),
]


def plan(
    spec: SpecOption = None,
    model: ModelOption = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="type of the KV: fp16 (default), fp8, fp4")
    ] = None,
    weights: WeightsOption = None,
    users: Annotated[
        int | None, typer.Option("--users", help="concurrent sessions; default: 100")
    ] = None,
    context: ContextOption = None,
    turns: TurnsOption = None,
    shared: SharedOption = None,
    gpu: GpuOption = None,
    dpu: DpuOption = None,
    tiers: TiersOption = None,
    cold_start: ColdStartOption = None,
    engine: EngineOption = None,
    tenants: TenantsOption = None,
    memory: MemoryOption = None,
    prices: PricesOption = None,
    runs: RunsOption = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="also plot curves of this request trace"),
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option("--trace-format", metavar="NAME", help="format of the trace")
    ] = None,
    time_unit: TimeUnitOption = None,
    limit: LimitOption = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="simulate the whole of a long trace, for up to an hour")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="folder for the page")
    ] = None,
    inputs: Annotated[bool, typer.Option("--inputs", help="show every input instead")] = False,
    seed: Annotated[int, seed_option("seed of the draws behind ranges")] = 0,
    form: FormatOption = Format.text,
) -> None:
    """Which tier KV should wait in between turns, how much of it, and at what price, with ranges.

    Options win over the file SPEC.
    """
    asked: dict[str, object] = {
        "model": model,
        "dtype": dtype,
        "weights": weights,
        "users": users,
        "context": context,
        "turns": turns,
        "shared": shared,
        "gpu": gpu,
        "dpu": dpu,
        "cold_start": cold_start,
        "engine": engine,
        "tenants": tenants,
        "memory": memory,
        "tiers": None if tiers is None else [one.strip() for one in tiers.split(",")],
    }
    request = _request(trace, trace_format, limit, whole, time_unit)
    _show(_plan(spec, asked, prices or [], runs or [], request, seed), out, inputs, form)


Request = tuple[Path, str | None, int | None, bool, str | None]
"""A trace's file, its format, the number of requests, whether all ways of keeping are simulated,
its times' unit."""


def _request(
    trace: Path | None, form: str | None, limit: int | None, whole: bool, unit: str | None
) -> Request | None:
    if trace is not None:
        return trace, form, limit, whole, unit
    if form or unit or limit is not None or whole:
        raise BadInput(
            "there is no trace to read",
            "offstage plan",
            "give --trace FILE, or leave out --trace-format, --time-unit, --limit and --whole",
        )
    return None


def _plan(
    spec: Path | None,
    given: dict[str, object],
    prices: list[Path],
    runs: list[Path],
    trace: Request | None,
    seed: int,
) -> "Plan":
    """The question, its numbers, the measured inputs, and the plan."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.plan.curves import from_trace, measured_workload
    from offstage.testbeds.plan.engine import make_engine
    from offstage.testbeds.plan.inputs import gather
    from offstage.testbeds.plan.measured import with_runs
    from offstage.testbeds.plan.question import read_spec
    from offstage.testbeds.plan.result import make_plan
    from offstage.testbeds.plan.table import sentence
    from offstage.testbeds.prices import catalog

    asked = read_spec(spec, {name: one for name, one in given.items() if one is not None})
    known = catalog()
    for file in prices:
        known = known.with_file(file)
    known = known.with_tables(asked.numbers, asked.where)
    asked.check(known)
    numbers = with_runs(gather(asked, known), runs, asked.plan.dpu)
    curves = None
    if trace is not None:
        with shown(2) as progress:
            path, form, limit, whole, unit = trace
            curves, read = from_trace(
                path, form, limit, numbers.values, progress, whole=whole, time_unit=unit
            )
        numbers = numbers.set(measured_workload(read, curves), "measured")
    found = make_plan(asked, numbers, seed=seed)
    found.curves = curves
    found.engine = make_engine(asked, numbers) if asked.plan.engine else None
    found.notes += [] if curves is None else curves.notes
    found.sentence = sentence(found)
    found.command = shlex.join(["offstage", *sys.argv[1:]])
    return found


def _show(found: "Plan", out: Path | None, inputs: bool, form: Format) -> None:
    """Write the files if requested, and print to the terminal."""
    from rich.console import Group

    from offstage.testbeds.plan.page import write_plan
    from offstage.testbeds.plan.table import console, engine_console, inputs_table

    paths = write_plan(found, out) if out is not None else ()
    if inputs:
        return emit(found, form, Group(inputs_table(found), *map(str, paths)))
    text = console(found) if found.engine is None else engine_console(found.engine)
    emit(found, form, Group(text, *map(str, paths)))
