"""`offstage bench prefetch`: when prefetch pays, in virtual time or in a real engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.bench_shown import OutOption, PageOption, SeedOption, finish, say
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption
from offstage.testbeds.cli.lab_pod import toml_values

if TYPE_CHECKING:
    from offstage.testbeds.bench.engines.moment_result import LivePrefetchResult
    from offstage.testbeds.bench.prefetch import PrefetchResult

__all__ = ["prefetch"]

LIVE_SESSIONS, LIVE_REQUESTS = 8, 32
"""Of `lab pod`, what a real engine has time for, unless it is given: generated, or of a trace."""
LIVE_LOADS = (0.25, 0.75, 1.5)


def prefetch(
    traces: Annotated[
        list[Path] | None,
        typer.Option("--trace", metavar="FILE", help="a trace of requests; may be repeated"),
    ] = None,
    time_unit: TimeUnitOption = None,
    loads: Annotated[
        list[float] | None,
        typer.Option(
            "--load",
            metavar="X",
            help="speed of arrivals, relative to the trace; may be repeated; default 0.25, 1, 4; "
            "with --python the share of time in which the engine would compute without the tier, "
            "by default 0.25, 0.75, 1.5",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a key of `lab pod`"),
    ] = None,
    python: Annotated[
        Path | None, typer.Option("--python", help="Python that has vLLM: run in that engine")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="its model: name, folder or GGUF file")
    ] = None,
    context: Annotated[
        int, typer.Option("--context", min=1024, help="context length of that model")
    ] = 2048,
    backend: Annotated[
        str, typer.Option("--backend", help="storage of that engine's daemon")
    ] = "io_uring",
    seed: SeedOption = 1,
    page: PageOption = None,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """When a hint must be sent for prefetch to pay, from an idle pod to a saturated one.

    Hints at a request's arrival, by a router that knows what hosts keep, as a host takes it, and at
    the pause before it, next to none and to perfect ones: what is staged on time, late, or for
    nothing, times to the first token, and whether it pays here. Without --trace requests are
    generated. With --python vLLM serves them, each load has the measured time of computing its
    tokens as deadline, and --set changes the keys that describe requests.
    """
    from offstage import __version__
    from offstage.testbeds.bench.prefetch import bench_prefetch
    from offstage.testbeds.report.prefetch import write_page

    if (python is None) != (model is None):
        raise BadInput("--python or --model alone", "bench prefetch", "give both, or neither")
    found: PrefetchResult | LivePrefetchResult
    if python is not None and model is not None:
        asked = python, model, traces or [], time_unit, loads, changes, context, backend, seed
        found = _live(*asked)
    else:
        found = bench_prefetch(
            traces=traces or (),
            changes=toml_values(changes, None),
            loads=loads or (0.25, 1.0, 4.0),
            seed=seed,
            time_unit=time_unit,
            say=say,
        )
    if page is not None:
        write_page(found, page, __version__)
    finish("prefetch", found, out, form)


def _live(
    python: Path,
    model: Path,
    traces: list[Path],
    time_unit: str | None,
    loads: list[float] | None,
    changes: list[str] | None,
    context: int,
    backend: str,
    seed: int,
) -> "LivePrefetchResult":
    """The arms in vLLM. BadInput: several traces, or a setting that is none."""
    from offstage.testbeds.bench.engines.bed import bed_of
    from offstage.testbeds.bench.engines.moments import bench_moments
    from offstage.testbeds.bench.engines.turns import turns_of
    from offstage.testbeds.bench.prefetch import requests_by
    from offstage.testbeds.cli.models import model_folder

    if len(traces) > 1:
        raise BadInput(f"{len(traces)} traces", "--trace", "give one: an engine runs for each")
    trace = traces[0] if traces else None
    few = {"sessions": LIVE_SESSIONS} if trace is None else {"requests": LIVE_REQUESTS}
    given: dict[str, Any] = few | toml_values(changes, None)
    requests = requests_by(given, trace=trace, seed=seed, time_unit=time_unit)
    bed = bed_of(python, model_folder(model), context, backend)
    turns = turns_of(
        requests,
        trace.name if trace is not None else "generated",
        longest=context - 5,
        vocabulary=bed.vocabulary,
        seed=seed,
    )
    return bench_moments(bed, turns, loads or LIVE_LOADS, seed=seed, say=say)
