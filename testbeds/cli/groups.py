"""Groups of commands: their order, the answer to a name that is none, and help that wraps.

typer names what `difflib` finds alike, which is `trace` for `store`. Here a name is suggested if it
begins with what was typed, or is one slip away from it, two if it is long.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import typer
import typer.core

from offstage.bindings.errors import BadInput

__all__ = ["in_order", "like", "suggested", "usage_line"]

LETTERS_OF_A_SLIP = 3
"""What was typed may differ by one slip for so many of its letters."""


class _Group(typer.core.TyperGroup):
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
    return " ".join(str(error.format_message()).split()).rstrip(".")


def suggested(typed: str, known: Iterable[str]) -> str:
    """`did you mean ...?` with what is like it; empty if nothing is."""
    found = like(typed, known)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""


def like(typed: str, known: Iterable[str]) -> list[str]:
    """Those of `known` that were probably meant, the likeliest first."""
    word = typed.lstrip("-")
    most = max(1, len(word) // LETTERS_OF_A_SLIP)
    found = []
    for name in known:
        bare = name.lstrip("-")
        slips = 0 if len(word) > 1 and bare.startswith(word) else _slips(word, bare)
        if slips <= most and slips < min(len(word), len(bare)):
            found.append((slips, name))
    return [name for _, name in sorted(found)]


def _slips(typed: str, meant: str) -> int:
    """Letters left out, added, replaced or swapped with the next: the four slips of Damerau, A
    technique for computer detection and correction of spelling errors, 1964."""
    rows = [list(range(len(meant) + 1))]
    for at, letter in enumerate(typed, 1):
        row = [at]
        for to, other in enumerate(meant, 1):
            least = min(row[-1] + 1, rows[-1][to] + 1, rows[-1][to - 1] + (letter != other))
            if min(at, to) > 1 and typed[at - 2 : at] == meant[to - 2 : to][::-1]:
                least = min(least, rows[-2][to - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]
