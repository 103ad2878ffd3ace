"""`offstage bench`: each figure against its reference, measured in the same run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import writable, write_text
from offstage.testbeds.cli.bench_cmx import cmx
from offstage.testbeds.cli.bench_prefetch import prefetch
from offstage.testbeds.cli.bench_shown import OutOption, PageOption, SeedOption
from offstage.testbeds.cli.bench_shown import finish as _finish
from offstage.testbeds.cli.bench_shown import say as _say
from offstage.testbeds.cli.bench_sparse import sparse
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption

if TYPE_CHECKING:
    from offstage.testbeds.bench.pod.result import PodResult, TraceResult

__all__ = ["register"]

bench = typer.Typer(
    no_args_is_help=True, help="Figures against a reference measured in the same run."
)


class Backend(StrEnum):
    """Storage that has a reference."""

    io_uring = "io_uring"
    spdk = "spdk"


StrictOption = Annotated[bool, typer.Option("--strict", help="exit with 1 if an aim is missed")]


def register(app: typer.Typer) -> None:
    """Add `offstage bench`."""
    bench.command()(cmx)
    bench.command()(prefetch)
    bench.command()(sparse)
    app.add_typer(bench, name="bench")


@bench.callback()
def about() -> None:
    """Figures against a reference measured in the same run."""


@bench.command()
def storage(
    file: Annotated[
        Path,
        typer.Option("--file", help="file to read; if missing, created (2 GiB) and removed"),
    ] = Path("offstage-bench.tmp"),
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="turns of each side")
    ] = 5,
    scale: Annotated[float, typer.Option("--scale", help="share of the reads to do")] = 1.0,
    seed: SeedOption = 1,
    entries: Annotated[
        bool, typer.Option("--entries", help="only single entries: 512 B, 1,152 B and 4 KiB")
    ] = False,
    backend: Annotated[
        Backend,
        typer.Option("--backend", help="io_uring against fio, or spdk against spdk_nvme_perf"),
    ] = Backend.io_uring,
    target: Annotated[
        str, typer.Option("--target", help="spdk: the nvmf_tgt that the bench starts")
    ] = "nvmf_tgt",
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """Our io_uring side and fio's, block size by block size, and emulated drives.

    Needs fio. Both read into the same memory, in base pages and in 2 MiB pages: the bench reserves
    the few it needs if it may, else those rows are missing with a note. Emulated drives stand next
    to the figures published for them. Then one of four granules of a 32 KiB block against the whole
    block, and single entries of a model that selects them: 512 B, 1,152 B and 4 KiB in whole
    sectors, beside the rates that the drive model says. Then values of a device past the page
    cache, stored and loaded in a file beside it, where the bench made the file. With --backend
    spdk: our side and spdk_nvme_perf on one target, over TCP and vfio-user.
    """
    if backend is Backend.spdk:
        from offstage.testbeds.bench.spdk import bench_spdk

        found = bench_spdk(target, rounds=rounds, scale=scale, seed=seed, say=_say)
        _finish("spdk", found, out, form, strict)
        return
    from offstage.testbeds.bench.storage import bench_storage

    result = bench_storage(
        file, rounds=rounds, scale=scale, seed=seed, entries_only=entries, say=_say
    )
    _finish("storage", result, out, form, strict)


@bench.command()
def fabric(
    links: Annotated[
        str,
        typer.Option(
            "--links", help="measure these fabrics instead, or `all`, each against its reference"
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="turns of each link")
    ] = 9,
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """A staged hit against memcpy, with and without its checksum; a command's round trip."""
    from offstage.testbeds.bench.fabric import bench_fabric
    from offstage.testbeds.bench.links import bench_links

    if links:
        names = () if links == "all" else tuple(links.split(","))
        beside = bench_links(names, rounds=rounds, seed=seed, say=_say)
        _finish("links", beside, out, form, strict)
    else:
        found = bench_fabric(rounds=rounds, seed=seed, say=_say)
        _finish("fabric", found, out, form, strict)


@bench.command()
def core(
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """Decisions per second by eviction policy, against libCacheSim with equal hit counts.

    `random` and `score` have no reference. OFFSTAGE_TRACES names the folder of the real trace, and
    the extra `test` brings the reference. The last row is an experiment at full scale: 128K tokens,
    80 layers, 1,000 steps, in seconds of one core.
    """
    from offstage.testbeds.bench.core import bench_core

    _finish("core", bench_core(seed=seed, say=_say), out, form, strict)


@bench.command()
def qos(
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """What the scheduler of tenants shares out, against one queue in order of arrival.

    In virtual time: four tenants with weights 1, 2, 4 and 8 that all have more to do than their
    share, and a fifth that asks now and then.
    """
    from offstage.testbeds.bench.qos import bench_qos

    _finish("qos", bench_qos(seed=seed, say=_say), out, form, strict)


@bench.command()
def tenants(
    seconds: Annotated[float, typer.Option("--seconds", help="length of each phase")] = 3.0,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="folder for the store: 1 GiB")
    ] = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """What neighbours that flood do to a tenant, and what weights give, at a daemon it starts.

    A tenant fetches 16 unstaged blocks: alone, next to processes that only compute, and next to
    floods of demand reads, steps, puts, control messages and empty commands. Then tenants of
    weights 1 and 3 flood. A second table says where the tenant's time went.
    """
    from offstage.testbeds.bench.tenants import bench_tenants

    found = bench_tenants(seconds=seconds, folder=folder, seed=seed, say=_say)
    _finish("tenants", found, out, form, strict)


@bench.command()
def soak(
    seconds: Annotated[
        float, typer.Option("--seconds", help="length of the run with all processes")
    ] = 600.0,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="folder for the store: 192 MiB; default: /tmp"),
    ] = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Eight hosts of three tenants under users of their own, one hostile; as root.

    Exit code 1 where a verdict is no.
    """
    from offstage.testbeds.bench.soak import bench_soak

    found = bench_soak(seconds=seconds, folder=folder, seed=seed, say=_say)
    _finish("soak", found, out, form)


@bench.command()
def pod(
    folder: Annotated[
        Path,
        typer.Option("--folder", help="folder for stores and logs: 1 to 2 GiB, kept after the run"),
    ] = Path("offstage-bench-pod"),
    faults: Annotated[
        str,
        typer.Option("--faults", help="which of death, stop, join, drain, etcd, quorum to inject"),
    ] = "death,stop,join,drain,etcd,quorum",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="replay this trace instead, with random faults")
    ] = None,
    time_unit: TimeUnitOption = None,
    begin: Annotated[str, typer.Option("--begin", help="start time in the trace")] = "0s",
    span: Annotated[str, typer.Option("--span", help="length of the part of the trace")] = "1h",
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="length of each phase (20), or of the replay (600)"),
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="requests per second in a phase")] = 20.0,
    fetch_deadline: Annotated[
        str, typer.Option("--fetch-deadline", help="the longest that a host waits for one member")
    ] = "500ms",
    page: PageOption = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """What a death, a stop, a join, a drain and a failing etcd cost a live pod under load.

    Four daemons, against the same load without a fault in the same run. Exit code 1 where a verdict
    is no: a wrong block, a request that did not end, a miss without a reason, a block served past a
    fence. A verdict without data is `not judged` (JSON: null).
    """
    from offstage import __version__
    from offstage.testbeds.cli.pod_bench import run_phases, run_trace
    from offstage.testbeds.report.pod import write_page

    if trace is None:
        if time_unit is not None:
            from offstage.bindings.errors import BadInput

            raise BadInput("a time unit, and no trace", "--time-unit", "give --trace too")
        found: PodResult | TraceResult = run_phases(
            folder, faults, seconds or 20.0, rate, fetch_deadline, seed
        )
    else:
        found = run_trace(
            folder, trace, begin, span, seconds or 600.0, fetch_deadline, seed, time_unit
        )
    if page is not None:
        write_page(found, page, __version__)
    _finish("pod", found, out, form, strict)


@bench.command()
def l2(
    program: Annotated[Path, typer.Option("--lmcache", help="LMCache's program lmcache")],
    size: Annotated[int, typer.Option("--size", min=4, max=1 << 17, help="KiB per object")] = 512,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=256, help="objects in flight at once")
    ] = 16,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="rounds in each turn")] = 20,
    turns: Annotated[int, typer.Option("--turns", min=1, help="turns of each adapter")] = 3,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="folder for the objects: 1 GiB; default: /tmp"),
    ] = None,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """LMCache's own bench of a second level: our two adapters and its own files, in turn.

    Each turn has a fresh daemon or an empty folder, once in the page cache and once past it, in
    neither case flushed; every byte is verified. Past the page cache fio reads the same drive in
    each turn.
    """
    from offstage.testbeds.bench.engines.l2 import bench_l2

    _finish(
        "l2",
        bench_l2(
            program,
            folder=folder,
            size_kib=size,
            in_flight=in_flight,
            rounds=rounds,
            turns=turns,
            say=_say,
        ),
        out,
        form,
        strict,
    )


@bench.command()
def schedule(
    trace: Annotated[Path, typer.Option("--trace", help="whose requests, and when they come")],
    time_unit: TimeUnitOption = None,
    requests: Annotated[
        int, typer.Option("--requests", min=2, help="requests to take from the trace")
    ] = 300,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1, max=86_400, help="time over which the requests arrive"),
    ] = 60.0,
    saturated: Annotated[
        float,
        typer.Option("--saturated", min=1, max=1e6, help="speed of the second, saturated replay"),
    ] = 8.0,
    kept: Annotated[
        int,
        typer.Option("--kept", min=0, max=1 << 20, help="blocks of 512 tokens that a host keeps"),
    ] = 1024,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", help="folder for stores and logs: 1 to 2 GiB, kept until the next run"
        ),
    ] = Path("offstage-bench-schedule"),
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Which host of a live pod takes a request, by turns, load or reuse, next to the laboratory's.

    Four hosts over four daemons get a trace's requests by each schedule, as fast as --seconds says
    and then faster. Computing is a wait; blocks are fetched, kept and compared. Exit code 1 where a
    verdict is no: a wrong block, a request that did not end, an acknowledged block that is not
    found.
    """
    from offstage.testbeds.bench.pod.reuse import bench_schedule
    from offstage.testbeds.cli.progress import shown

    with shown(6) as progress:
        found = bench_schedule(
            trace=trace,
            requests=requests,
            seconds=seconds,
            saturated=saturated,
            kept_blocks=kept,
            folder=folder,
            seed=seed,
            progress=progress,
            time_unit=time_unit,
        )
    _finish("schedule", found, out, form)


@bench.command()
def engine(
    python: Annotated[Path, typer.Option("--python", help="Python that has vLLM")],
    model: Annotated[Path, typer.Option("--model", help="model: name, folder or GGUF file")],
    trace: Annotated[
        Path | None, typer.Option("--trace", help="whose requests, and when they come")
    ] = None,
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            help="instead of a trace: a stored prompt of so many tokens, alone in a second engine; "
            "may be repeated",
        ),
    ] = None,
    time_unit: TimeUnitOption = None,
    requests: Annotated[
        int, typer.Option("--requests", min=2, help="requests to take from the trace")
    ] = 40,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, help="time over which the requests of a round arrive"),
    ] = 30.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="turns of each arm")] = 3,
    context: Annotated[
        int, typer.Option("--context", min=128, help="context length of the model")
    ] = 8192,
    backend: Annotated[str, typer.Option("--backend", help="the daemon's storage")] = "io_uring",
    disaggregated: Annotated[
        bool, typer.Option("--disaggregated", help="one engine prefills, another decodes")
    ] = False,
    page: PageOption = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """vLLM with and without the tier: time to the first token, hits by tier, regret.

    Lengths are scaled so that the longest prompt fits the model's context, and every figure says by
    how much.
    """
    from offstage import __version__
    from offstage.testbeds.bench.engines.apart import bench_apart
    from offstage.testbeds.bench.engines.arms import bench_engine
    from offstage.testbeds.bench.engines.arrivals import arrivals_of
    from offstage.testbeds.bench.engines.bed import bed_of
    from offstage.testbeds.bench.engines.lone import bench_lone, prompts_of
    from offstage.testbeds.cli.models import model_folder
    from offstage.testbeds.report.engine import write_page

    bed = bed_of(python, model_folder(model), context, backend)
    if trace is None:
        bench_it, traffic = bench_lone, prompts_of(lengths or (), bed, seed)
    else:
        bench_it = bench_apart if disaggregated else bench_engine
        traffic = arrivals_of(
            trace,
            count=requests,
            context_tokens=context,
            seconds=seconds,
            vocabulary=bed.vocabulary,
            outputs=4,
            seed=seed,
            time_unit=time_unit,
        )
    result = bench_it(bed, traffic, rounds=rounds, say=_say)
    if page is not None:
        write_page(result, page, __version__)
    _finish("engine", result, out, form)


@bench.command()
def codec(
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--model", help="a model's KV too: its name, folder or GGUF file; may be repeated"
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", help="what models read; default: the US Constitution")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=64, help="tokens that each model reads")
    ] = 4096,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            callback=writable,
            help="write the ratios in the form that the chip model reads",
        ),
    ] = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """What KV shrinks to and how fast, against memcpy and zlib; errors of lossy modes.

    KV is the demo's and, with --model, the cache of each model after it read the text (extra
    `capture`). A store with store.codec runs next to one without, on emulated drives.
    """
    from offstage.asic_model.codec.measured import read_table
    from offstage.testbeds.bench.codec import bench_codec
    from offstage.testbeds.bench.codec_table import table_text
    from offstage.testbeds.cli.models import model_folder

    folders = [model_folder(one) for one in models or ()]
    result = bench_codec(models=folders, text=text, tokens=tokens, seed=seed, say=_say)
    if table is not None:
        write_text(table, table_text(result))
        read_table(table)
    _finish("codec", result, out, form)


@bench.command()
def asic(
    requests: Annotated[
        int, typer.Option("--requests", min=1000, max=10**9, help="requests of the memory run")
    ] = 2_000_000,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=1000, help="turns of each side")
    ] = 5,
    seed: SeedOption = 1,
    out: OutOption = None,
    strict: StrictOption = False,
    form: FormatOption = Format.text,
) -> None:
    """The chip model's engine against SimPy on one queueing network; blocks per second of a chip.

    Both must reach the mean that theory has. SimPy comes with the extra `test`.
    """
    from offstage.testbeds.bench.asic import bench_asic

    result = bench_asic(requests=requests, seed=seed, rounds=rounds, say=_say)
    _finish("asic", result, out, form, strict)
