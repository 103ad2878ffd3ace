"""`offstage bench sparse`: decoding from drives, live and in virtual time."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.bench_shown import OutOption, PageOption, SeedOption, finish, say
from offstage.testbeds.cli.common import Format, FormatOption

__all__ = ["sparse"]

NONE = "none"


CONTEXTS = "128K,64K,32K"
ContextsOption = Annotated[
    str | None,
    typer.Option("--context", metavar="N,...", help=f"tokens of a context; default: {CONTEXTS}"),
]
CapturesOption = Annotated[
    str | None,
    typer.Option(
        "--capture",
        metavar="FILE,...",
        help="files of a captured model's scores, in place of drawn contexts",
    ),
]
SelectedOption = Annotated[
    str, typer.Option("--select", metavar="K,...", help="blocks that a layer reads in a step")
]
DrivesOption = Annotated[
    str, typer.Option("--drives", metavar="N,...", help="drives behind one core")
]
StoragesOption = Annotated[
    str,
    typer.Option(
        "--storage",
        metavar="NAME,...",
        help="of live runs: disk, which is this machine's, presets of drives, or none",
    ),
]
ModelOption = Annotated[
    str, typer.Option("--model", help="whose KV is read in virtual time, or none")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="PRESET", help="DPU whose core serves")
]
DriveOption = Annotated[
    str, typer.Option("--drive", metavar="PRESET", help="its drives in virtual time")
]
PolicyOption = Annotated[str, typer.Option("--policy", help="what prefetches")]
BufferOption = Annotated[
    float, typer.Option("--buffer", help="staged blocks of a layer, over those selected")
]
WaitsOption = Annotated[float, typer.Option("--waits", help="stated stall: % of a token's time")]
StepsOption = Annotated[int, typer.Option("--steps", min=2, help="tokens in virtual time")]
DilationOption = Annotated[
    int,
    typer.Option("--dilation", min=1, help="how much slower time runs for a live device model"),
]
WorkOption = Annotated[Path, typer.Option("--work", help="folder on the disk that is measured")]


def sparse(
    contexts: ContextsOption = None,
    captures: CapturesOption = None,
    selected: SelectedOption = "32,16,64",
    drives: DrivesOption = "1,2,4",
    storages: StoragesOption = "disk,gen5-tlc",
    model: ModelOption = "llama-3-70b",
    device: DeviceOption = "bluefield3",
    drive: DriveOption = "gen5-tlc",
    policy: PolicyOption = "window+ema",
    buffer: BufferOption = 2.0,
    waits: WaitsOption = 20.0,
    steps: StepsOption = 32,
    dilation: DilationOption = 500,
    work: WorkOption = Path(),
    seed: SeedOption = 1,
    page: PageOption = None,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Decoding from drives: stall per token, and the sessions that a drive and a core carry.

    Against context, k and drives, one axis at a time around the first value of each. Live a small
    geometry decodes against a daemon, every block checked, beside the same run in virtual time.
    Then a whole model decodes in virtual time with more sessions, until tokens wait for --waits.
    With --capture one session replays a real model's selections, beside a drawn one.
    """
    from offstage import __version__
    from offstage.asic_model.parameters import read_preset
    from offstage.testbeds.bench.sparse.sweep import Axes, bench_sparse
    from offstage.testbeds.bench.sparse.virtual import Setting
    from offstage.testbeds.plan.question import parse_tokens
    from offstage.testbeds.report.sparse import write_page

    _check(work, contexts, captures)
    live = () if storages == NONE else _names(storages)
    if not live and model == NONE:
        raise BadInput("nothing to run", "bench sparse", "give a --storage or a --model")
    if read_preset(device).cores is None:
        raise BadInput("a chip has no core", f"--device {device}", "give a DPU, such as bluefield3")
    base = Setting(
        model="llama-3-70b" if model == NONE else model,
        context_tokens=131_072,
        selected=32,
        device=f"{device},cores.reactors=1",
        drive=drive,
        policy=policy,
        buffer_over_k=buffer,
        steps=steps,
        seed=seed,
    )
    found = bench_sparse(
        axes=Axes(
            contexts=[parse_tokens(one, "--context") for one in _names(contexts or CONTEXTS)],
            captures=[Path(one) for one in _names(captures)] if captures else (),
            selected=_numbers(selected, "--select"),
            drives=_numbers(drives, "--drives"),
        ),
        storages=live,
        base=base,
        waits=waits / 100,
        dilation=dilation,
        virtual=model != NONE,
        work=work,
        say=say,
    )
    if page is not None:
        write_page(found, page, __version__)
    finish("sparse", found, out, form)


def _check(work: Path, contexts: str | None, captures: str | None) -> None:
    """BadInput for a folder that is not there, and for two sources of contexts."""
    if not work.is_dir():
        raise BadInput("is not a folder", str(work), "give --work an existing one")
    if contexts and captures:
        raise BadInput(
            "a capture has its own context", "--context", "leave --context out, or --capture"
        )


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _numbers(text: str, where: str) -> list[int]:
    try:
        return [int(one) for one in _names(text)]
    except ValueError:
        raise BadInput(f"{text!r} is not a list of numbers", where, "write 1,2,4") from None
