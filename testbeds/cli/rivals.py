"""`offstage rivals`: does flash behind a DPU earn its place among other ways to keep KV?"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption, emit, seed_option
from offstage.testbeds.cli.names import devices, gpus, kv_models

if TYPE_CHECKING:
    from offstage.testbeds.plan.rivals.question import Asked

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `offstage rivals`."""
    app.command()(rivals)


UseAsked = Annotated[
    str, typer.Argument(metavar="USE", help="what is read: tokens, blocks or prefix")
]
ModelAsked = Annotated[
    str | None,
    typer.Option(
        "--model",
        autocompletion=kv_models,
        help="model that the KV belongs to; default: deepseek-v3.2 for tokens, else llama-3-70b",
    ),
]
DtypeAsked = Annotated[
    str | None, typer.Option("--dtype", help="type of the KV: fp16, fp8 (default), fp4")
]
GpuAsked = Annotated[str | None, typer.Option("--gpu", autocompletion=gpus, help="default: h200")]
DpuAsked = Annotated[
    str | None,
    typer.Option("--dpu", autocompletion=devices, help="bluefield3 (default), bluefield4"),
]
ContextAsked = Annotated[
    str | None,
    typer.Option("--context", metavar="TOKENS", help="context of each session; default: 128K"),
]
UsersAsked = Annotated[int | None, typer.Option("--users", help="sessions of one GPU; default: 64")]
KAsked = Annotated[
    int | None,
    typer.Option(
        "--k", help="tokens (2048), or blocks of 16 (128) or of the capture, that a layer selects"
    ),
]
BudgetAsked = Annotated[
    float | None,
    typer.Option("--budget", metavar="USD", help="budget for one GPU's tier; default: 10000"),
]
PaceAsked = Annotated[
    float | None,
    typer.Option("--pace", metavar="MS", help="slowest token that is served; default: 100"),
]
OnlyAsked = Annotated[
    str | None, typer.Option("--rivals", metavar="NAME,...", help="only these; default: all")
]
CaptureAsked = Annotated[
    Path | None,
    typer.Option("--capture", metavar="FILE", help="for blocks: scores of a captured model"),
]
TraceAsked = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="for prefix: request trace, for its reuse"),
]
TraceFormatAsked = Annotated[
    str | None, typer.Option("--trace-format", metavar="NAME", help="format of the trace")
]
PricesAsked = Annotated[
    list[Path] | None,
    typer.Option("--prices", metavar="FILE", help="file with your prices; may be repeated"),
]
StepsAsked = Annotated[
    int, typer.Option("--steps", min=1, max=10_000, help="decode steps of the selections")
]
DrawsAsked = Annotated[
    int,
    typer.Option(
        "--draws", min=8, max=10_000, help="draws per range; the map uses a quarter as many"
    ),
]
SeedAsked = Annotated[int, seed_option("seed of the draws behind ranges")]


def rivals(
    use: UseAsked = "tokens",
    model: ModelAsked = None,
    dtype: DtypeAsked = None,
    gpu: GpuAsked = None,
    dpu: DpuAsked = None,
    context: ContextAsked = None,
    users: UsersAsked = None,
    k: KAsked = None,
    budget: BudgetAsked = None,
    pace: PaceAsked = None,
    only: OnlyAsked = None,
    capture: CaptureAsked = None,
    trace: TraceAsked = None,
    trace_format: TraceFormatAsked = None,
    time_unit: TimeUnitOption = None,
    prices: PricesAsked = None,
    steps: StepsAsked = 32,
    draws: DrawsAsked = 256,
    seed: SeedAsked = 0,
    form: FormatOption = Format.text,
) -> None:
    """Who keeps KV below HBM best at equal cost: DRAM, C2C, CXL, RDMA, drives, HBF, or a DPU?

    Tokens per dollar and joule, the wait of the slowest, and a map of who is best where.
    """
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.plan.rivals.question import of_capture, of_use
    from offstage.testbeds.plan.rivals.result import make_rivals, numbers_of
    from offstage.testbeds.plan.rivals.reuse import with_trace
    from offstage.testbeds.plan.rivals.table import console, sentence
    from offstage.testbeds.prices import catalog

    given: dict[str, object] = {
        "model": model,
        "dtype": dtype,
        "gpu": gpu,
        "dpu": dpu,
        "context": context,
        "users": users,
        "k": k,
        "budget": budget,
        "pace_s": None if pace is None else pace / 1e3,
        "rivals": None if only is None else [one.strip() for one in only.split(",")],
    }
    asked = of_use(use, given)
    _check_files(asked, k, capture, trace, trace_format or time_unit)
    if capture is not None:
        asked = of_use(use, given | of_capture(capture, k))
    known = catalog()
    for file in prices or []:
        known = known.with_file(file)
    asked.check(known)
    inputs = numbers_of(asked, known)
    if trace is not None:
        asked, inputs = with_trace(asked, inputs, trace, trace_format, time_unit)
    with shown(1) as progress:
        found = make_rivals(
            asked,
            inputs,
            progress,
            capture=capture,
            steps=steps,
            draws=draws,
            map_draws=max(8, draws // 4),
            seed=seed,
        )
    found.sentence = sentence(found)
    found.command = shlex.join(["offstage", *sys.argv[1:]])
    emit(found, form, console(found))


def _check_files(
    asked: "Asked", k: int | None, capture: Path | None, trace: Path | None, of_trace: str | None
) -> None:
    """BadInput for an option that the use does not read."""
    read = {
        "--k": (k, ("tokens", "blocks")),
        "--capture": (capture, ("blocks",)),
        "--trace": (trace, ("prefix",)),
        "--trace-format or --time-unit": (of_trace, ("prefix",) if trace else ()),
    }
    for option, (value, uses) in read.items():
        if value is not None and asked.use not in uses:
            needs = f"ask for {' or '.join(uses)}" if uses else "give --trace FILE"
            raise BadInput(f"{option} is not read by {asked.use}", "offstage rivals", needs)
