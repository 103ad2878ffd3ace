"""`offstage bottleneck`: what binds a run, and what the next limit then is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit

if TYPE_CHECKING:
    from offstage.testbeds.report.bottleneck.tree import Bottleneck

__all__ = ["bottleneck_of", "register"]

PHASES = 3
"""The run unchanged, each step changed, and each once more on top of what binds."""

PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="the arm or policy of the run to explain, as its report names it; default: the one "
        "that its report is about",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `offstage bottleneck`."""
    app.command()(bottleneck)


def bottleneck(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="folder of a demo, of a lab, testbed or pod run"),
    ],
    policy: PolicyOption = "",
    form: FormatOption = Format.text,
) -> None:
    """Say what binds a run: compute, HBM, arena, link, DPU, flash, or metadata and control.

    Each step has the figure that decides it. Then the run is run again in virtual time with one
    step changed at a time: what gains most tokens/s binds, and the same on top of that change gives
    the next limit. Without a decision log there are the figures only. Of a pod, with a recording of
    each member in a folder of its name, it also says which member binds, and what even loads gain.
    """
    from rich.console import Group
    from rich.text import Text

    from offstage.bindings.notes import note_lines
    from offstage.testbeds.report.bottleneck.section import (
        absences,
        bottleneck_table,
        members_table,
        unchanged,
    )

    found = bottleneck_of(run, policy)
    lines = [
        found.reading,
        *filter(None, [unchanged(found)]),
        *absences(found),
        *note_lines(found.notes),
    ]
    tables = [bottleneck_table(found), *([members_table(found)] if found.members else [])]
    shown = Group(Text(found.sentence), "", *tables, *map(Text, lines))
    emit(found, form, shown)


def bottleneck_of(run: Path, policy: str = "") -> "Bottleneck":
    """The bottleneck of any run, with its progress on stderr. BadInput: a policy of a pod,
    and a file that belongs to no run."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.lab.pod.summary import POD_JSON
    from offstage.testbeds.report.compare.recorded import LOG_NAME
    from offstage.testbeds.report.page.files import SUMMARY_NAME, holds_lab_summary
    from offstage.testbeds.report.rerun.lab import lab_bottleneck
    from offstage.testbeds.report.rerun.pod import holds_pod, pod_bottleneck, read_pod
    from offstage.testbeds.report.rerun.recorded import FIX, recorded_bottleneck

    if run.is_file() and run.name not in (SUMMARY_NAME, POD_JSON, LOG_NAME):
        raise BadInput("holds no run", str(run), FIX)
    run = run.parent if run.is_file() else run
    if holds_pod(run):
        if policy:
            raise BadInput("a pod has one run, and no policies", "--policy", "leave it out")
        phases = PHASES * len(read_pod(run).members)  # each member's log is read and run again
        with shown(phases) as progress:
            return pod_bottleneck(run, progress)
    is_lab = (run / SUMMARY_NAME).is_file() and holds_lab_summary(run)
    with shown(PHASES) as progress:
        return (lab_bottleneck if is_lab else recorded_bottleneck)(run, policy, progress)
