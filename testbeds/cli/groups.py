"""Groups of commands: their order, the answer to a name that is none, and help that wraps.

typer names what `difflib` finds alike, which is `trace` for `store`. Here it is what `like` finds.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import typer
import typer.core

from offstage.bindings.errors import BadInput
from offstage.bindings.near import like

__all__ = ["Folding", "in_order", "suggested", "usage_line"]


class Folding:
    """Whose help cuts no long word, such as the name of a variable: typer's would."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils

        from offstage.testbeds.cli.folded import WholeWords

        setattr(rich_utils, "Columns", WholeWords)  # noqa: B010  (a class is no variable to mypy)
        super().format_help(ctx, formatter)  # type: ignore[misc]  # of the class beside this one


class _Group(Folding, typer.core.TyperGroup):
    """A group that names the command that was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            fix = "; ".join(filter(None, [suggested(name, self.commands), "see --help"]))
            raise BadInput(f"no command {name!r}", ctx.command_path.partition(" ")[2], fix)
        return super().resolve_command(ctx, args)


def in_order(app: typer.Typer, panels: Mapping[str, Iterable[str]]) -> None:
    """Make every group of `app` one of ours, and show its own commands panel by panel."""
    places = {name: at for at, name in enumerate(name for has in panels.values() for name in has)}

    class Whole(_Group):
        """All commands, in the order of their panels."""

        def list_commands(self, ctx: Any) -> list[str]:
            return sorted(self.commands, key=places.__getitem__)

    app.info.cls = Whole
    if app.registered_callback is not None:
        app.registered_callback.help = _text(app.registered_callback.callback)
    _prepare(app)


def _prepare(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.help = _text(command.callback)
    for group in app.registered_groups:
        group.cls = _Group
        if group.typer_instance is not None:
            _prepare(group.typer_instance)


def _text(callback: object) -> str:
    """A docstring whose paragraphs are lines: they end where a terminal's do, not the code's."""
    parts = (inspect.getdoc(callback) or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def usage_line(error: Any) -> str:
    """What the parser refuses, in one line, with options that are like one that it does not know;
    empty where it has printed the help instead."""
    if getattr(error, "option_name", None) and error.ctx is not None:
        known = (name for one in error.ctx.command.params for name in one.opts + one.secondary_opts)
        error.possibilities = like(error.option_name, known)
    line = " ".join(str(error.format_message()).split()).rstrip(".")
    return line.replace(": Value error, ", ": ")  # the word of the library that typer checks with


def suggested(typed: str, known: Iterable[str]) -> str:
    """`did you mean ...?` with what is like it; empty if nothing is."""
    found = like(typed, known)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
