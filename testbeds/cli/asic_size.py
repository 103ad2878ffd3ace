"""`offstage asic size`: the smallest chip of a family for a load."""

from pathlib import Path
from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.names import kv_models, presets
from offstage.testbeds.table import Table

__all__ = ["size"]


def size(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a recorded run: one GPU's decisions")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs that share the chip")],
    tokens_per_s: Annotated[
        float, typer.Option("--tokens-per-s", help="tokens per second of all of them")
    ],
    model: Annotated[
        str, typer.Option("--model", autocompletion=kv_models, help="default: the run's own")
    ] = "",
    sessions: Annotated[
        int, typer.Option("--sessions", min=0, help="sessions of each GPU; 0: the run's")
    ] = 0,
    pace: Annotated[
        str, typer.Option("--pace", help="a GPU's own time for a token, such as 25ms")
    ] = "",
    family: Annotated[
        str,
        typer.Option(
            "--family",
            metavar="PRESET",
            autocompletion=presets,
            help="the chip that is made smaller",
        ),
    ] = "asic_7nm",
    form: FormatOption = Format.text,
) -> None:
    """Find the smallest chip that serves a load: lanes, memories, SRAM, drives, mm², W and $.

    Names the unit that a larger load fills first. A chip too small for its own metadata is refused.
    """
    from offstage.asic_model.parameters import read_preset
    from offstage.asic_model.trace import read_trace
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.report.compare.effect import parse_load
    from offstage.testbeds.report.compare.recorded import find_runs, read_run
    from offstage.testbeds.report.compare.size import WHERE
    from offstage.testbeds.report.compare.size import size as sized

    if not 0 < tokens_per_s < 1e12:
        fix = "give a rate above 0 and below 1e12"
        raise BadInput(f"--tokens-per-s {tokens_per_s:g}", WHERE, fix)
    given = {"gpus": gpus, "sessions": sessions or "", "model": model, "pace": pace}
    load = parse_load(",".join(f"{key}={value}" for key, value in given.items() if value), WHERE)
    recorded = read_run(find_runs(run)[0])
    with shown(1) as progress:
        trace = load.trace(read_trace(recorded.path), recorded)
        found = sized(trace, load, read_preset(family), tokens_per_s, progress)
    emit(found, form, Table.named(("part", "smallest", "family", "used"), _rows(found), left=1))


def _rows(found: object) -> list[list[str]]:
    from offstage.testbeds.report.compare.size import Sized

    assert isinstance(found, Sized)
    rows = [
        [
            one.parameter,
            f"{one.value:g} {one.unit}".removesuffix(" 1"),
            f"{one.family:g}",
            "" if one.used is None else f"{one.used:.0%}",
        ]
        for one in found.parts
    ]
    for name, value, unit in (
        ("area", found.area_mm2, "mm²"),
        ("power", found.watt, "W"),
        ("price with drives", found.dollars, "$"),
    ):
        if value is not None:
            rows.append([name, f"{value.value:,.0f} {unit}", f"{value.low:,.0f}–{value.high:,.0f}"])
    rows.append(
        ["tokens/s", f"{found.tokens_per_s:,.0f}", f"at most {found.tokens_per_s_max:,.0f}"]
    )
    rows.append(["next bottleneck", found.next_bottleneck, "", f"{found.next_used:.0%}"])
    return rows
