"""`offstage compare`: compares a recorded run with device models on the same decisions."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.names import presets

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import Compared, ComparedRun
    from offstage.testbeds.report.compare.build import Plan

__all__ = ["register"]

FEW = 6
"""Draws of a quick comparison."""


def register(app: typer.Typer) -> None:
    """Add `offstage compare`."""
    app.command()(compare)


AsicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--asic",
        metavar="PRESET",
        autocompletion=presets,
        help="a chip's preset or its file; may be repeated; default: both chips. The BlueFields "
        "are always there",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="the arm of a demo to compare, as its report names it; default: the first",
    ),
]
LoadOption = Annotated[
    str,
    typer.Option(
        "--load",
        metavar="KEY=N,...",
        help="the load of the headline: gpus, sessions of each, tenants, model, pace of a token; "
        "from another run; of a folder with several runs each is a load. "
        "Default: the run's own on as many GPUs as fill a BlueField-3",
    ),
]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="folders with a decision log")],
    asic: AsicOption = None,
    out: Annotated[Path, typer.Option("--out", help="folder for the page")] = Path("compare-out"),
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=10_000, help="draws per interval")
    ] = 32,
    quick: Annotated[
        bool, typer.Option("--quick", help="few draws, without sensitivity, load and isolation")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="the file that `offstage asic validate --out` wrote"),
    ] = None,
    load: LoadOption = "",
    policy: PolicyOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Compare chips with BlueFields at a load of many GPUs, on the decisions of a recorded run.

    The model of the measured machine is a check of the method, and its error is in every range.
    Writes compare.html and compare.json to --out, in a folder per run if there are several.
    """
    from offstage.bindings.durable import writable
    from offstage.testbeds.report.compare.build import Plan
    from offstage.testbeds.report.compare.effect import parse_load
    from offstage.testbeds.report.compare.page import PAGE_NAME

    writable(out / PAGE_NAME)
    plan = Plan.of(
        asic or [],
        load=parse_load(load),
        samples=min(samples, FEW) if quick else samples,
        deep=not quick,
        calibration=calibration,
        command=shlex.join(["offstage", *sys.argv[1:]]),
    )
    _compare(runs, policy, plan, out, form)


def _compare(runs: list[Path], policy: str, plan: "Plan", out: Path, form: Format) -> None:
    """Write a page per run and print its table."""
    from rich.console import Group, RenderableType
    from rich.text import Text

    from offstage.bindings.notes import note_lines
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.report.compare.build import compare_run, runs_of
    from offstage.testbeds.report.compare.models_shown import models_table
    from offstage.testbeds.report.compare.page import noted, under_load, write_comparison
    from offstage.testbeds.report.compare.table import console_table

    found = runs_of(runs, policy)
    texts: list[RenderableType] = []
    results: list[ComparedRun] = []
    with shown(len(found) * plan.stage_count) as progress:
        for run in found:
            result = compare_run(run, plan, progress)
            folder = out if len(found) == 1 else out / run.path.name
            page, figures = write_comparison(result, folder)
            notes = noted(result)
            unsaid = {note: of for note, of in notes.items() if note.code != "uncalibrated"}
            told = map(Text, note_lines(unsaid))  # the table marks what is uncalibrated
            said = under_load(result)
            texts += [result.sentence, "", console_table(result.columns), said, *told]
            texts += ["", models_table(result.models)] if result.models else []
            texts += ["", str(page), ""]
            results.append(
                {
                    "run": str(run.path),
                    "sentence": result.sentence,
                    "notes": list(notes),
                    "report": str(page),
                    "figures": str(figures),
                }
            )
    compared: Compared = {"runs": results}
    emit(compared, form, Group(*texts[:-1]))
