"""`offstage host`: what stands in for the GPU node, against any daemon."""

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import (
    DeviceOption,
    EndpointOption,
    Format,
    FormatOption,
    Kernel,
    RuntimeDirOption,
)
from offstage.testbeds.cli.host_model import (
    Dtype,
    DtypeOption,
    ForetellOption,
    GenerateOption,
    ModelOption,
    PoolRatioOption,
    SelectOption,
    SelectorOption,
    TextOption,
    run_model,
)

__all__ = ["register"]

DEFAULT_ENDPOINT = "tcp://127.0.0.1:7411"

host = typer.Typer(no_args_is_help=True, help="The host agent, in the place of a GPU node.")


class FabricName(StrEnum):
    """How blocks come from the daemon."""

    shm = "shm"
    verbs = "verbs"
    nixl = "nixl"
    zmq = "zmq"


def register(app: typer.Typer) -> None:
    """Add `offstage host`."""
    app.add_typer(host, name="host")


@host.callback()
def about() -> None:
    """The host agent, in the place of a GPU node."""


@host.command()
def run(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    tenant: Annotated[str, typer.Option("--tenant", help="whose blocks they are")] = "default",
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret",
            help="file with the tenant's secret; default: as the daemon left it for this user",
        ),
    ] = None,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: Annotated[
        Path | None,
        typer.Option("--curve-dir", help="server.key and client.key_secret, for CURVE"),
    ] = None,
    fabric: Annotated[
        FabricName,
        typer.Option("--fabric", help="shm on the daemon's machine, verbs over RDMA, zmq anywhere"),
    ] = FabricName.shm,
    rdma: Annotated[
        str, typer.Option("--rdma", help="verbs: DEVICE,gid=INDEX,mtu=BYTES; each may be left out")
    ] = "",
    geometry: Annotated[
        str, typer.Option("--geometry", help="KV of which model; must fit the daemon's blocks")
    ] = "demo",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Mooncake-format trace; default: generated")
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions")] = 4,
    context_tokens: Annotated[
        int | None,
        typer.Option("--context-tokens", help="default: 131,072; with --model all of the text"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="decode steps per session; default: 300, with --model 128"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="fixes the workload")] = 1,
    kernel: Annotated[
        Kernel | None, typer.Option("--kernel", help="default: numpy, with --model torch")
    ] = None,
    device: DeviceOption = "cpu",
    time_per_token: Annotated[
        str, typer.Option("--time-per-token", help="the GPU's own time")
    ] = "20ms",
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for summary.json and report.html")
    ] = None,
    model: ModelOption = None,
    text: TextOption = None,
    select_blocks: SelectOption = "32",
    selector: SelectorOption = "quest",
    pool_ratio: PoolRatioOption = 1.5,
    dtype: DtypeOption = Dtype.auto,
    generate: GenerateOption = False,
    foretell: ForetellOption = False,
    form: FormatOption = Format.text,
) -> None:
    """Drive a workload against a running daemon: prefill what it lacks, decode, print the figures.

    Policy and buffer are the daemon's; figures are of this run alone. With --model a real model
    decodes a text instead, and is compared with its own dense attention.
    """
    from offstage.bindings.units import parse_time
    from offstage.bindings.verbs import parse_rdma
    from offstage.host.models import geometry as geometry_of
    from offstage.testbeds.beds.connect import Link
    from offstage.testbeds.cli.common import print_summary
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.host_run import run as drive
    from offstage.testbeds.live.options import DriveOptions

    link = Link(endpoint, tenant, fabric.value, "host-run", secret, runtime_dir, curve_dir,
                parse_rdma(rdma))  # fmt: skip
    pace_s = parse_time(time_per_token, "--time-per-token") / 1e9
    command = shlex.join(["offstage", *sys.argv[1:]])
    sizes = {"steps": steps, "context_tokens": context_tokens, "kernel": kernel and kernel.value}
    given: dict[str, Any] = {name: one for name, one in sizes.items() if one is not None}
    if model is not None and trace is not None:
        raise BadInput("both a model and a trace", "host run", "give --model or --trace")
    if model is not None:
        return run_model(
            link, out, form, model=model, text=text, select_blocks=select_blocks,
            selector=selector, pool_ratio=pool_ratio, dtype=dtype.value, generate=generate,
            foretell=foretell, device=device, time_per_token_s=pace_s, command=command, **given,
        )  # fmt: skip
    if text is not None or generate or foretell:
        raise BadInput("--text, --generate and --foretell are for a model", "host run",
                       "name it with --model")  # fmt: skip
    options = DriveOptions(
        trace=trace, seed=seed, sessions=sessions, time_per_token_s=pace_s, device=device,
        geometry=geometry_of(geometry), command=command, **given,
    )  # fmt: skip
    options.check()
    if out is not None:
        _make_folder(out)
    with shown(2) as progress:
        summary = drive(options, link, progress)
    print_summary(summary, out, form)


def _make_folder(out: Path) -> None:
    """Now, and not after minutes of decoding. BadInput where nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(out), "give another --out"
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadInput("cannot be written", str(out), "give another --out")
