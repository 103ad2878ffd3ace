"""`offstage bench cmx`: the rules of engines on CMX, measured in virtual time."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.testbeds.cli.bench_shown import OutOption, SeedOption, finish, say
from offstage.testbeds.cli.common import Format, FormatOption, TimeUnitOption
from offstage.testbeds.cli.lab_pod import toml_values

__all__ = ["cmx"]


def cmx(
    traces: Annotated[
        list[Path] | None,
        typer.Option("--trace", metavar="FILE", help="a trace of requests; may be repeated"),
    ] = None,
    time_unit: TimeUnitOption = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="change a key of `lab pod`"),
    ] = None,
    seed: SeedOption = 1,
    out: OutOption = None,
    form: FormatOption = Format.text,
) -> None:
    """What NVIDIA asks of engines that use CMX, each rule as an arm, in virtual time.

    Retrieve without asking first, holes computed, values of 10 MB or 1 MB, and hints ahead of
    need, over the requests of traces, next to no tier and to perfect hints. Without --trace
    requests are generated. Keys of 16 bytes are counted.
    """
    from offstage.testbeds.bench.cmx import bench_cmx

    found = bench_cmx(
        traces=traces or (),
        changes=toml_values(changes, None),
        seed=seed,
        time_unit=time_unit,
        say=say,
    )
    finish("cmx", found, out, form)
