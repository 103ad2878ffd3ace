"""`offstage demo`: a daemon, a host agent and a report on this machine."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.bindings.errors import BadInput, Interrupted, OffstageError
from offstage.testbeds.cli.common import (
    DecodeCostOption,
    DeviceOption,
    Format,
    FormatOption,
    Kernel,
    TimeUnitOption,
    TraceOption,
    explicit,
    refuse_both_paces,
    seed_option,
)
from offstage.testbeds.cli.lab import run_spec
from offstage.testbeds.cli.names import models

if TYPE_CHECKING:
    from offstage.testbeds.live.demo_options import DemoOptions
    from offstage.testbeds.live.results import Summary

__all__ = ["DRAWN", "register"]

LABORATORY = (
    "\nThe scale of a large model: 80 layers, 128K tokens, selections drawn from published "
    "statistics, in virtual time.\n"
)
WITHOUT_MODEL = "No real model: which blocks a step selects is drawn from published statistics.\n"

DRAWN = (
    "quick",
    "trace",
    "time_unit",
    "seed",
    "storage",
    "time_per_token",
    "decode_cost",
    "steps",
    "sessions",
    "context_tokens",
    "pool",
    "warm_up",
    "kernel",
    "device",
    "layer_ahead",
    "baseline",
)
"""Options of sessions whose selections are drawn."""
QUICK = {"sessions": 2, "context_tokens": 32_768, "steps": 60}
"""The defaults that --quick changes; explicit options win."""


class StorageChoice(StrEnum):
    """The storages of the demo."""

    measured = "measured"
    emulated = "emulated"
    both = "both"


def register(app: typer.Typer) -> None:
    """Add `offstage demo`."""
    app.command()(demo)


QuickOption = Annotated[
    bool, typer.Option("--quick", help="2 sessions of 32K tokens, 60 steps each: a smoke test")
]
StorageOption = Annotated[
    StorageChoice,
    typer.Option("--storage", help="this machine's disk, a modelled gen-5 drive, or both"),
]
TimeOption = Annotated[
    str | None,
    typer.Option("--time-per-token", help="compute time of the GPU per token; default: 25ms"),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", help="decode steps per session; default: 300")
]
SessionsOption = Annotated[
    int | None, typer.Option("--sessions", help="sessions that decode, 1 to 64; default: 4")
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context-tokens", help="context of each session, 4,096 to 131,072; default: 131,072"
    ),
]
PoolOption = Annotated[
    float,
    typer.Option("--pool", help="size of the HBM pool, over a layer's selection; 0: none"),
]
WarmUpOption = Annotated[
    bool,
    typer.Option(
        "--warm-up/--no-warm-up", help="predict first steps from the prefill's last windows"
    ),
]
KernelOption = Annotated[
    Kernel, typer.Option("--kernel", help="attention kernel; triton needs a GPU")
]
KeepOption = Annotated[
    bool, typer.Option("--keep-store", help="leave store, configurations and logs in place")
]
IsolateOption = Annotated[
    bool,
    typer.Option(
        "--isolate", help="a core for the daemon's reactor alone, before other work; needs root"
    ),
]
AheadOption = Annotated[
    bool,
    typer.Option(
        "--layer-ahead", help="repeat the run with the most prefetchers, fetching a layer ahead"
    ),
]
BaselineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline", help="also run without a DPU: g2 (host memory), g3 (drive); may be repeated"
    ),
]

DemoModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        autocompletion=models,
        help="name, folder or GGUF file, or `none` for drawn sessions; default: smollm2-135m, or "
        "none if an option of drawn sessions is given",
    ),
]
AskOption = Annotated[
    str | None, typer.Option("--ask", help="the question; default: how a bill becomes a law")
]
DocumentOption = Annotated[
    Path | None, typer.Option("--text", help="text to ask about; default: the US Constitution")
]


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="folder for the results")] = Path("demo-out"),
    trace: TraceOption = None,
    time_unit: TimeUnitOption = None,
    seed: Annotated[int, seed_option("seed of the workload")] = 1,
    quick: QuickOption = False,
    storage: StorageOption = StorageChoice.both,
    time_per_token: TimeOption = None,
    decode_cost: DecodeCostOption = None,
    steps: StepsOption = None,
    sessions: SessionsOption = None,
    context_tokens: ContextOption = None,
    pool: PoolOption = 1.5,
    warm_up: WarmUpOption = True,
    kernel: KernelOption = Kernel.numpy,
    device: DeviceOption = "cpu",
    keep_store: KeepOption = False,
    isolate: IsolateOption = False,
    layer_ahead: AheadOption = False,
    baseline: BaselineOption = None,
    model: DemoModelOption = None,
    text: DocumentOption = None,
    ask: AskOption = None,
    form: FormatOption = Format.text,
) -> None:
    """A model decodes through a DPU daemon, with and without prefetch.

    SmolLM2 answers a question about a document, its KV in the tier, once for each way to prefetch:
    none, window, window+ema, window+predicted. Then the laboratory runs 80 layers at 128K tokens in
    virtual time. Without a model, sessions of 128K tokens whose selections are drawn run on this
    disk and on a modelled drive. Writes summary.json and report.html to --out and prints the table
    of runs. A comparison of the last run with models of other devices follows, in compare.html; its
    record stays in records/.
    """
    from offstage.testbeds.cli.summary import print_summary

    sizes = {"steps": steps, "sessions": sessions, "context_tokens": context_tokens}
    given = {name: value for name, value in sizes.items() if value is not None}
    asked = _asked(model, text, ask, bool(explicit(context, DRAWN)))
    options = options_of(
        {**(QUICK if quick else {}), **given},
        **asked,
        out=out,
        trace=trace,
        time_unit=time_unit,
        seed=seed,
        pool_ratio=pool,
        warm_up=warm_up,
        keep_store=keep_store,
        cores="alone" if isolate else "any",
        kernel=kernel.value,
        device=device,
        time_per_token=time_per_token,
        decode_cost=decode_cost,
        storages=("measured", "emulated") if storage == "both" else (storage.value,),
        ahead=layer_ahead,
        baselines=tuple(dict.fromkeys(baseline or ())),
    )
    summary = _decoded(options)
    if options.model is None and form is Format.text:
        print(WITHOUT_MODEL)
    print_summary(summary, out, form)
    if options.model is not None and form is Format.text:
        print(LABORATORY)
        run_spec("demo-128k", out / "128k", form)
    _compare(out, options.command, form)


def _decoded(options: "DemoOptions") -> "Summary":
    """The runs of the demo. Interrupted says what is left where."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.demo import run
    from offstage.testbeds.live.demo_options import MODEL_ARMS

    if options.model is not None:
        stages = 4 + len(MODEL_ARMS)  # load, prefill, write; the arms; dense attention
    else:  # prefill, the runs, the curve; and the same for baselines
        arms = len(options.arms) + options.ahead + len(options.baselines)
        stages = 2 + arms * len(options.storages) + bool(options.baselines)
    try:
        with shown(stages) as progress:
            return run(options, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted",
            str(options.out / "work"),
            "store, configurations and logs are left there: delete them, or begin again",
        ) from None


def _compare(out: Path, command: str, form: Format) -> None:
    """The run compared with models of other devices: a separate page, and its table for the
    terminal. If its log cannot be compared a line says so, and the run is still a success."""
    from rich.console import Group

    from offstage.testbeds.cli.common import emit
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.report.compare.build import small
    from offstage.testbeds.report.compare.page import write_comparison
    from offstage.testbeds.report.compare.table import console_table

    try:
        with shown(3) as progress:
            found = small(out, command, progress)
    except BadInput as error:
        print(f"offstage: no comparison: {error}", file=sys.stderr)
        return
    page, _ = write_comparison(found, out)
    if form is Format.text:
        emit({}, form, Group("", console_table(found.columns), "", found.sentence, "", str(page)))


def _asked(
    model: str | None, text: Path | None, ask: str | None, drawn: bool
) -> dict[str, Path | str]:
    """The demo's options about a model, which is fetched first; none for drawn sessions."""
    from offstage.testbeds.cli.models import model_folder
    from offstage.testbeds.live.demo_options import MODEL

    folder: Path | None = None
    if model is None and not drawn:
        folder = _default(MODEL)
    elif model not in (None, "none"):
        folder = model_folder(Path(model))
    given = {"document": text, "question": ask, "model": folder}
    if folder is None and (text is not None or ask is not None):
        raise BadInput("nothing reads --text or --ask", "demo", "name a model with --model")
    return {name: one for name, one in given.items() if one is not None}


def _default(name: str) -> Path | None:
    """The folder of the model of a demo that names none, fetched if need be; None, and a line that
    says why, where it cannot be had."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.models.get import get
    from offstage.testbeds.models.library import library

    try:
        library()
        with shown(2) as progress:
            return get(name, None, progress)[0]
    except OffstageError as error:
        print(f"offstage: drawn sessions instead of a real model: {error}", file=sys.stderr)
        return None


def options_of(
    sizes: dict[str, int],
    *,
    time_per_token: str | None,
    decode_cost: Path | None = None,
    **others: Any,
) -> "DemoOptions":
    """The demo's options, checked; BadInput names what is out of range."""
    import msgspec

    from offstage.bindings.units import parse_time
    from offstage.testbeds.live.demo_options import DemoOptions

    refuse_both_paces(time_per_token, decode_cost)
    if time_per_token is not None:
        others["time_per_token_s"] = parse_time(time_per_token, "--time-per-token") / 1e9
    command = shlex.join(["offstage", *sys.argv[1:]])
    options = msgspec.structs.replace(DemoOptions(command=command, **others), **sizes)
    if decode_cost is not None:
        options = options.at_measured_pace(decode_cost)
    options.check()
    return options
