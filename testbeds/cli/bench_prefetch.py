"""`offstage bench prefetch`: when prefetch pays, in virtual time."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.testbeds.cli.bench_shown import OutOption, SeedOption, finish, say
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption
from offstage.testbeds.cli.lab_pod import toml_values

__all__ = ["prefetch"]


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
            help="speed of arrivals, relative to the trace; may be repeated; default 0.25, 1, 4",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a key of `lab pod`"),
    ] = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """When a hint must be sent for prefetch to pay, from an idle pod to a saturated one.

    Hints at a request's arrival, by a router that knows what hosts keep, as a host takes it, and at
    the pause before it, next to none and to perfect ones: what is staged on time, late, or for
    nothing, and times to the first token. Without --trace requests are generated.
    """
    from offstage.testbeds.bench.prefetch import bench_prefetch

    found = bench_prefetch(
        traces=traces or (),
        changes=toml_values(changes, None),
        loads=loads or (0.25, 1.0, 4.0),
        seed=seed,
        time_unit=time_unit,
        say=say,
    )
    finish("prefetch", found, out, form)
