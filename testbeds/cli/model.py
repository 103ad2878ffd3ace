"""`offstage model`: what a model keeps of a session, from its config.json alone."""

from typing import Annotated

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit
from offstage.testbeds.cli.names import kv_models

__all__ = ["register"]

model = typer.Typer(
    no_args_is_help=True, help="What a model stores for each session, and its size."
)


def register(app: typer.Typer) -> None:
    """Add `offstage model`."""
    app.add_typer(model, name="model")


@model.callback()
def _model() -> None:
    """What a model stores for each session, and its size."""


@model.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            autocompletion=kv_models,
            help="a name such as deepseek-v3, a config.json, the folder of one, or an id that is "
            "in the local cache of Hugging Face",
        ),
    ],
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", help="format of the values: bf16, fp16, fp8, fp4")
    ] = "bf16",
    form: FormatOption = Format.text,
) -> None:
    """The cache groups of a model, its bytes at 8K to 1M tokens, and what a step reads of them.

    No weights are read and nothing is fetched.
    """
    from rich.console import Group

    from offstage.testbeds.models import shown as of

    found = of.shown(of.model_named(name), kv_dtype)
    tables = ("", of.table(found), "", of.lengths_table(found))
    emit(found, form, Group(*of.lines(found), *tables, *of.notes(found)))
