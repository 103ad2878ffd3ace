"""`offstage accept`: whether a KV tier keeps the limits of its operator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.durable import writable, write_text
from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.document import as_json

if TYPE_CHECKING:
    from offstage.testbeds.report.accept.judge import Acceptance

__all__ = ["read_acceptance", "register"]

FIX = "give what `offstage accept --out` wrote"


def register(app: typer.Typer) -> None:
    """Add `offstage accept`."""
    app.command()(accept)


def _print_defaults(asked: bool) -> None:
    """Print the built-in limits as a file."""
    if asked:
        from offstage.testbeds.report.accept.rules import defaults_text

        typer.echo(defaults_text(), nl=False)
        raise typer.Exit


def accept(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="folder of any run, or the file of `bench engine --out`",
        ),
    ],
    benches: Annotated[
        list[Path] | None,
        typer.Option(
            "--bench",
            help="JSON of `bench fabric`, `storage`, `engine` or `schedule`; may be repeated",
        ),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option("--limits", help="TOML file of limits; default: those of --limits-default"),
    ] = None,
    limits_default: Annotated[
        bool,
        typer.Option(
            "--limits-default",
            callback=_print_defaults,
            is_eager=True,
            help="print the built-in limits as such a file, and exit",
        ),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="the arm, eviction or schedule of the run to judge; default: of a demo the arm "
            "that its report is about, else the worst",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", callback=writable, help="also write it as JSON, for `report --accept`"
        ),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Judge a KV tier by its operator's limits: pass, fail, or absent with the reason.

    Nothing is measured anew: figures come from a run and from benches that have ended, and of
    several sources the worst counts. Exit code 1 where a limit fails, or one that the limits
    require has no figure.
    """
    from rich.console import Group

    from offstage.testbeds.report.accept.figures import of_bench, of_run
    from offstage.testbeds.report.accept.judge import judge
    from offstage.testbeds.report.accept.rules import read_limits
    from offstage.testbeds.report.accept.section import acceptance_table

    rules = read_limits(limits)
    given = of_run(run, policy)
    seen = [*given.seen, *(one for path in benches or () for one in of_bench(path))]
    found = judge(rules, seen, str(run), given.subject, given.sha256)
    if out is not None:
        write_text(out, as_json(found))
    about = f"{run}: {given.subject}"
    emit(found, form, Group(found.sentence, "", acceptance_table(found), "", about))
    if not found.accepted:
        raise RunFailed("not accepted", str(run), "the first line names the limits that failed")


def read_acceptance(path: Path, run: Path) -> "Acceptance":
    """What `--out` wrote of that run. BadInput: it is none, or of another run."""
    from offstage.bindings.outside import read_json
    from offstage.testbeds.report.accept.figures import digest
    from offstage.testbeds.report.accept.judge import Acceptance

    found = read_json(path, FIX, Acceptance, what="not an acceptance")
    if found.run_sha256 != digest(run):
        raise BadInput(f"judged another run, {found.run}", str(path), f"accept {run} anew")
    return found
