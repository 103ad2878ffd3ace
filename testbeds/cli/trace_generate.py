"""`offstage trace generate`: a generated workload held against published figures, or written."""

from typing import Annotated

import typer

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.progress import shown

__all__ = ["register"]


def register(trace: typer.Typer) -> None:
    """Add the command to `offstage trace`."""
    trace.command("generate")(generate)


def generate(
    profile: Annotated[str, typer.Option("--profile", help="which layers behave how")] = "mixed",
    explain: Annotated[
        bool, typer.Option("--explain", help="measure the profile against published figures")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="fixes what is drawn")] = 1,
    form: FormatOption = Format.text,
) -> None:
    """A workload drawn from fitted score processes."""
    from offstage.testbeds.workloads import explain as figures
    from offstage.testbeds.workloads.profiles import layer_processes

    if not explain:
        raise BadInput("nothing to do", "trace generate", "give --explain or --out FILE")
    names = {process.name for process in layer_processes(profile, figures.LAYERS)}
    with shown(len(names)) as progress:
        rows = figures.explain(profile, seed, progress=progress)
    emit(figures.to_dict(profile, rows, seed), form, figures.render(profile, rows))
