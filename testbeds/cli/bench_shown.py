"""What the commands of `offstage bench` share: options, and how a result is shown and judged."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from offstage.bindings.durable import writable, write_text
from offstage.bindings.errors import RunFailed, printable
from offstage.bindings.notes import note_lines
from offstage.testbeds.cli.common import Format, emit, seed_option
from offstage.testbeds.document import as_json

if TYPE_CHECKING:
    from offstage.testbeds.bench.rows import BenchResult

__all__ = ["OutOption", "PageOption", "SeedOption", "finish", "say"]

OutOption = Annotated[
    Path | None, typer.Option("--out", callback=writable, help="also write the figures as JSON")
]
PageOption = Annotated[
    Path | None, typer.Option("--page", callback=writable, help="also write the report")
]
SeedOption = Annotated[int, seed_option("seed of the requests")]


def say(line: str) -> None:
    """Print a line on how far a bench is."""
    print(printable(line), file=sys.stderr, flush=True)


def finish(
    name: str, result: "BenchResult", out: Path | None, form: Format, strict: bool = False
) -> None:
    """Write the file, print the tables, and then raise RunFailed if a verdict is no, or, if
    `strict`, an aim was missed."""
    from rich.console import Group

    document = result.document()
    if out is not None:
        write_text(out, as_json(document))
    noted = [Text(line) for line in note_lines(result.notes)]
    tables = [piece for table in result.tables() for piece in (table, "")]
    about = [Text(line, style="dim") for line in result.about()]
    emit(document, form, Group(*noted, *tables, *about))
    told = [*result.failures, *(f"missed: {one}" for one in result.missed if strict)]
    if told:
        raise RunFailed(
            "; ".join(told),
            f"bench {name}",
            "see the table; on a machine with other work, run it again",
        )
