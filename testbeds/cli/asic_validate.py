"""`offstage asic validate`: whether the model, fitted to one run, predicts the others."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.table import Table

if TYPE_CHECKING:
    from offstage.testbeds.report.compare.validate import Validation

__all__ = ["validate"]

LEAST_REPEATS = 2
"""Fewer leave no interval."""


def validate(
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibrate", metavar="RUN", help="a run to fit to; may be repeated: one fit to all"
        ),
    ] = None,
    predict: Annotated[
        list[Path] | None,
        typer.Option(
            "--predict",
            metavar="RUN",
            help="a run of another workload; may be repeated: "
            "runs of one workload count as repeats of each other",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="DIR", help="instead: record them here first, 49 runs of some 10 s"
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            "--repeats",
            metavar="N",
            min=LEAST_REPEATS,
            show_default=False,
            help="with --record: rounds; default: 14, more where intervals stay too wide",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option("--isolate", help="with --record: a core for the reactor alone; needs root"),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="TOML file for the fitted preset")
    ] = None,
    busy: Annotated[
        bool,
        typer.Option("--busy", help="take recordings of a busy machine too: never calibrated"),
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Fit dpu_x86_measured to recorded runs, and predict runs of other workloads with it.

    With --record it records both first: two workloads to predict in each round, and three to
    fit to in every second. Exit code 0 for `calibrated`, 1 for any other verdict. A model that
    misses any figure is `uncalibrated`; one that misses none, but could not be judged on all, is
    `not measurable here`.
    """
    from rich.console import Group

    from offstage.asic_model.calibrate import write_preset
    from offstage.testbeds.report.compare.validate import validate as judge_all

    fits, others = _runs(calibrate or [], predict or [], record, repeats, isolate)
    found, preset = judge_all(fits, others, busy=busy)
    lines = [f"{name}: {what}" for name, what in found.workloads.items()]
    lines += [found.structure(), "", _verdict(found)]
    figures = Table.named(FIGURES, found.rows(), left=2)
    stages = Table.named(STAGES, found.stage_rows(), left=2)
    if out is not None:
        write_preset(preset, out, found.calibrated_on)
        lines.append(str(out))
    emit(found, form, Group(figures, "", stages, *lines))
    if found.status != "calibrated":
        raise typer.Exit(1)


def _runs(
    calibrate: list[Path],
    predict: list[Path],
    record: Path | None,
    repeats: int | None,
    isolate: bool,
) -> tuple[list[Path], list[Path]]:
    """The runs to fit to and to predict: those given, or recorded now."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.report.compare import recordings

    if record is None:
        if not calibrate or not predict or isolate or repeats:
            raise BadInput(
                f"{'--isolate' if isolate else '--repeats'} is for runs that are recorded now"
                if isolate or repeats
                else "no runs to fit to, or none to predict",
                "asic validate",
                "give --calibrate RUN and --predict RUN, or --record DIR to record them",
            )
        return calibrate, predict
    if calibrate or predict:
        raise BadInput(
            "--record makes the runs that --calibrate and --predict name",
            "asic validate",
            "give one or the other",
        )
    repeats = repeats or recordings.REPEATS
    command = shlex.join(["offstage", *sys.argv[1:]])
    with shown(recordings.phases(repeats)) as progress:
        return recordings.record(
            record, progress, repeats=repeats, isolate=isolate, command=command
        )


def _verdict(found: "Validation") -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.verdicts.items())
    unmeasured = found.verdicts.get("not measurable here", 0)
    if found.status == "uncalibrated":
        return f"uncalibrated: {counts}; the stage with the largest error is {found.off}"
    if found.status == "calibrated":
        return f"calibrated: {counts}"
    return (
        f"not measurable here: {unmeasured} of {len(found.judged)}, "
        f"{found.verdicts.get('met', 0)} met, 0 missed; "
        f"never met: {', '.join(found.unseen)}"
    )


FIGURES = (
    "run",
    "figure",
    "measured",
    "predicted",
    "error",
    "tolerance",
    "repeats",
    "verdict",
)
STAGES = ("run", "stage", "measured", "in the model")
