"""`offstage asic validate`: whether the model, fitted to one run, predicts the others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.table import Table

if TYPE_CHECKING:
    from offstage.testbeds.report.compare.validate import Validation

__all__ = ["validate"]


def validate(
    calibrate: Annotated[
        Path, typer.Option("--calibrate", metavar="RUN", help="the run to fit to")
    ],
    predict: Annotated[
        list[Path],
        typer.Option(
            "--predict",
            metavar="RUN",
            help="a run of another workload; may be repeated: "
            "runs of one workload count as repeats of each other",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="TOML file for the fitted preset")
    ] = None,
    busy: Annotated[
        bool,
        typer.Option("--busy", help="take recordings of a busy machine too: never calibrated"),
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Fit dpu_x86_measured to one recorded run, and predict runs of other workloads with it.

    Exit code 0 for `calibrated`, 1 for any other verdict. A model that misses any figure is
    `uncalibrated`; one that misses none, but could not be judged on all, is `not measurable here`.
    """
    from rich.console import Group

    from offstage.asic_model.calibrate import write_preset
    from offstage.testbeds.report.compare.validate import validate as judge_all

    found, preset = judge_all(calibrate, predict, busy=busy)
    lines = [f"{name}: {what}" for name, what in found.workloads.items()]
    lines += ["", _verdict(found)]
    figures = Table.named(FIGURES, found.rows(), left=2)
    stages = Table.named(STAGES, found.stage_rows(), left=2)
    if out is not None:
        write_preset(preset, out, found.calibrated_on)
        lines.append(str(out))
    emit(found, form, Group(figures, "", stages, *lines))
    if found.status != "calibrated":
        raise typer.Exit(1)


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
    "spread of repeats",
    "verdict",
)
STAGES = ("run", "stage", "measured", "in the model")
