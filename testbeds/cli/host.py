"""`offstage host`: the host agent in place of a GPU node, against any daemon."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.bindings.errors import BadInput
from offstage.host.endpoint import DEFAULT_ENDPOINT
from offstage.testbeds.cli.common import (
    CurveOption,
    DecodeCostOption,
    DeviceOption,
    Dtype,
    EndpointOption,
    Fabric,
    Format,
    FormatOption,
    Kernel,
    RopeOption,
    RuntimeDirOption,
    TimeUnitOption,
    TraceOption,
    refuse_both_paces,
    seed_option,
)
from offstage.testbeds.cli.host_calibrate import calibrate
from offstage.testbeds.cli.host_model import (
    AheadName,
    AheadOption,
    CheckpointOption,
    DtypeOption,
    GenerateOption,
    IndexHomeName,
    IndexKeysOption,
    KvDtypeOption,
    MaxKlOption,
    ModelOption,
    PoolRatioOption,
    PredictOption,
    SelectOption,
    SelectorOption,
    TextOption,
    TrafficOption,
    run_model,
)

if TYPE_CHECKING:
    from offstage.host.endpoint import Endpoint

__all__ = ["register"]

host = typer.Typer(no_args_is_help=True, help="The host agent, standing in for a GPU node.")


def register(app: typer.Typer) -> None:
    """Add `offstage host`."""
    app.add_typer(host, name="host")
    host.command()(calibrate)


@host.callback()
def about() -> None:
    """The host agent, standing in for a GPU node."""


TenantOption = Annotated[
    str,
    typer.Option(
        "--tenant", help="tenant that owns the blocks; default: from daemons.toml, or default"
    ),
]
SecretOption = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        help="file with the tenant's secret; default: the one that the daemon left for this user",
    ),
]
FabricOption = Annotated[
    Fabric,
    typer.Option("--fabric", help="shm on one machine; verbs and nixl over RDMA; zmq anywhere"),
]
RdmaOption = Annotated[
    str, typer.Option("--rdma", help="verbs: DEVICE,gid=INDEX,mtu=BYTES; each is optional")
]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", help="time limit for an answer of the daemon")
]
GeometryOption = Annotated[
    str,
    typer.Option("--geometry", help="model that the KV belongs to; must fit the daemon's blocks"),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context-tokens",
        metavar="N",
        help="context length; default: 131,072; with --model the whole text, or several: 2048,4096",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", help="decode steps per session; default: 300, with --model 128"),
]
SeedOption = Annotated[int, seed_option("seed of the workload")]
KernelOption = Annotated[
    Kernel | None,
    typer.Option("--kernel", help="attention kernel; default: numpy, with --model torch"),
]
TimeOption = Annotated[
    str | None,
    typer.Option("--time-per-token", help="compute time of the GPU per token; default: 20ms"),
]
GranuleOption = Annotated[
    int,
    typer.Option(
        "--granule-tokens",
        help="select and read this many tokens of a block separately, as the daemon's "
        "arena.granule_tokens; default: whole blocks",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="folder for summary.json, report.html and requests.parquet; with --model, for "
        "model.json alone",
    ),
]


SessionsOption = Annotated[
    int | None,
    typer.Option(
        "--sessions",
        help="sessions that decode, 1 to 64; default: 4; with --model 1, or each a part of the "
        "text",
    ),
]


@host.command()
def run(
    endpoint: EndpointOption = DEFAULT_ENDPOINT,
    tenant: TenantOption = "",
    secret: SecretOption = None,
    runtime_dir: RuntimeDirOption = None,
    curve_dir: CurveOption = None,
    fabric: FabricOption = Fabric.shm,
    rdma: RdmaOption = "",
    timeout: TimeoutOption = "5s",
    geometry: GeometryOption = "demo",
    trace: TraceOption = None,
    time_unit: TimeUnitOption = None,
    sessions: SessionsOption = None,
    context_tokens: ContextOption = None,
    steps: StepsOption = None,
    seed: SeedOption = 1,
    kernel: KernelOption = None,
    device: DeviceOption = "cpu",
    time_per_token: TimeOption = None,
    decode_cost: DecodeCostOption = None,
    granule_tokens: GranuleOption = 0,
    out: OutOption = None,
    model: ModelOption = None,
    text: TextOption = None,
    select_blocks: SelectOption = "32",
    selector: SelectorOption = "quest",
    pool_ratio: PoolRatioOption = 1.5,
    dtype: DtypeOption = Dtype.auto,
    kv_dtype: KvDtypeOption = "model",
    max_kl: MaxKlOption = None,
    index_keys: IndexKeysOption = IndexHomeName.resident,
    checkpoint_blocks: CheckpointOption = 256,
    generate: GenerateOption = False,
    rope: RopeOption = "",
    predict: PredictOption = False,
    ahead: AheadOption = AheadName.none,
    traffic: TrafficOption = 1.3,
    form: FormatOption = Format.text,
) -> None:
    """Drive a workload against a running daemon: prefill what it lacks, decode, print the figures.

    It logs in as a tenant. Policy, storage and buffer are the daemon's; figures are of this run
    alone. With --model a real model decodes a text, compared with its own dense attention.
    """
    refuse_both_paces(time_per_token, decode_cost)
    link = _link(endpoint, tenant, secret, runtime_dir, curve_dir, fabric, rdma, timeout)
    given = _given(device, kernel, steps, context_tokens, time_per_token, selector, sessions)
    if model is None:
        given |= {"trace": trace, "time_unit": time_unit, "seed": seed}
        given |= {"granule_tokens": granule_tokens, "select_blocks": _one_selection(select_blocks)}
        return _run_drawn(link, out, form, geometry, decode_cost, **given)
    given |= {"index_keys": index_keys.value, "checkpoint_blocks": checkpoint_blocks}
    given |= {"sessions": given.get("sessions", 1), "traffic": traffic}
    run_model(
        link,
        out,
        form,
        model=model,
        text=text,
        select_blocks=select_blocks,
        pool_ratio=pool_ratio,
        dtype=dtype.value,
        kv_dtype=kv_dtype,
        max_kl=max_kl,
        generate=generate,
        rope=rope,
        predict=predict,
        ahead=ahead.value,
        **given,
    )


def _link(
    endpoint: str,
    tenant: str,
    secret: Path | None,
    runtime_dir: Path | None,
    curve_dir: Path | None,
    fabric: Fabric,
    rdma: str,
    timeout: str,
) -> "Endpoint":
    from offstage.bindings.units import parse_time_between
    from offstage.bindings.verbs import parse_rdma
    from offstage.host.endpoint import Endpoint

    return Endpoint.find(
        endpoint,
        tenant=tenant,
        secret=secret,
        runtime_dir=runtime_dir,
        curve_dir=curve_dir,
        fabric=fabric.value,
        name="host-run",
        rdma=parse_rdma(rdma),
        timeout_s=parse_time_between(timeout, "--timeout", "1ms", "1h") / 1e9,
    )


def _given(
    device: str,
    kernel: Kernel | None,
    steps: int | None,
    context_tokens: str | None,
    time_per_token: str | None,
    selector: str,
    sessions: int | None,
) -> dict[str, str | float | Path | None]:
    """The options shared by drawn sessions and a real model; those not given keep their
    defaults."""
    from offstage.bindings.units import parse_time

    sizes: dict[str, str | int | None] = {"steps": steps, "context_tokens": context_tokens}
    sizes |= {"sessions": sessions, "kernel": kernel and kernel.value}
    given: dict[str, str | float | Path | None] = {
        name: one for name, one in sizes.items() if one is not None
    }
    if time_per_token is not None:
        given["time_per_token_s"] = parse_time(time_per_token, "--time-per-token") / 1e9
    command = shlex.join(["offstage", *sys.argv[1:]])
    return given | {"device": device, "selector": selector, "command": command}


def _one_length(text: str) -> int:
    from offstage.testbeds.live.model.options import parse_lengths

    lengths = parse_lengths(text)
    if len(lengths) > 1:
        raise BadInput(
            "several lengths for sessions that are drawn",
            "--context-tokens",
            "give one, or --model",
        )
    return lengths[0]


def _one_selection(text: str) -> int:
    from offstage.testbeds.live.model.options import ALL_BLOCKS, parse_selections

    chosen = parse_selections(text)
    if len(chosen) > 1 or ALL_BLOCKS in chosen:
        raise BadInput(
            f"{text!r} for sessions that are drawn",
            "--select-blocks",
            "give one number, or --model",
        )
    return chosen[0]


def _run_drawn(
    link: "Endpoint",
    out: Path | None,
    form: Format,
    geometry: str,
    decode_cost: Path | None,
    **given: Any,
) -> None:
    """Sessions whose keys and queries are drawn."""
    from offstage.host.model.models import geometry as geometry_of
    from offstage.host.request_file import Recorded
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.cli.summary import print_summary
    from offstage.testbeds.live.host_run import run as drive
    from offstage.testbeds.live.options import DriveOptions

    if "context_tokens" in given:
        given["context_tokens"] = _one_length(given["context_tokens"])
    options = DriveOptions(geometry=geometry_of(geometry), **given)
    if decode_cost is not None:
        options = options.at_measured_pace(decode_cost)
    options.check()
    if out is not None:
        _make_folder(out)
    served: list[Recorded] = []
    with shown(2) as progress:
        summary = drive(options, link, progress, served)
    print_summary(summary, out, form, served)


def _make_folder(out: Path) -> None:
    """Create the folder before minutes of decoding. BadInput if it is not writable."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(out), "give another --out"
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise BadInput("cannot be written", str(out), "give another --out")
