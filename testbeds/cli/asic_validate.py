"""`offstage asic validate`: does the model, fitted to one run, predict the others?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit

if TYPE_CHECKING:
    from rich.table import Table

    from offstage.testbeds.report.compare.validate import Validation

__all__ = ["validate"]


def validate(
    calibrate: Annotated[
        Path, typer.Option("--calibrate", metavar="RUN", help="the run that is fitted to")
    ],
    predict: Annotated[
        list[Path],
        typer.Option(
            "--predict",
            metavar="RUN",
            help="a run that is predicted; again for more: "
            "runs of one workload are repeats of each other",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="TOML file for the fitted preset")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Fit dpu_x86_measured to the stage times of one recorded run, and predict others with it.

    Exit code 0 whatever the verdict: a model that misses is `uncalibrated`; one of which nothing
    was missed, and not all could be judged, is `not measurable here`. Neither is calibrated.
    """
    import msgspec
    from rich.console import Group

    from offstage.asic_model.calibrate import write_preset
    from offstage.testbeds.report.compare.validate import validate as judge_all

    found, preset = judge_all(calibrate, predict)
    lines = [f"{name}: {what}" for name, what in found.workloads.items()]
    lines += ["", _verdict(found)]
    if out is not None:
        write_preset(preset, out, found.calibrated_on)
        lines.append(str(out))
    emit(msgspec.to_builtins(found), form, Group(_table(found), "", _stages(found), *lines))


def _verdict(found: "Validation") -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.verdicts.items())
    unmeasured = found.verdicts.get("not measurable here", 0)
    if found.status == "uncalibrated":
        return f"uncalibrated: {counts}; the stage that is furthest off is {found.off}"
    if found.status == "calibrated":
        return f"calibrated: {counts}"
    return (
        f"not measurable here: {unmeasured} of {len(found.judged)}, "
        f"{found.verdicts.get('met', 0)} met, 0 missed; "
        f"nowhere met: {', '.join(found.unseen)}"
    )


def _table(found: "Validation") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in (
        "run",
        "figure",
        "measured",
        "predicted",
        "error",
        "tolerance",
        "repeats apart by",
        "verdict",
    ):
        table.add_column(name, justify="left" if name in ("run", "verdict") else "right")
    for row in found.rows():
        table.add_row(*row)
    return table


def _stages(found: "Validation") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("run", "stage, mean", "measured", "in the model"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for row in found.stage_rows():
        table.add_row(*row)
    return table
