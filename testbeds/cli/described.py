"""The command line as data: every command and its options, from the parser's own definitions.

The command-line page of the docs (`tests/reference/pages.py`) and the man pages (`man_pages.py`)
are both made from this, so that they say what `--help` says. Nothing can fail.
"""

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

__all__ = ["Described", "Parameter", "described", "first"]

WORDS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""How a value of a type is written where an option does not name it."""


@dataclass(frozen=True)
class Parameter:
    """An option or an argument. `names` are empty for an argument, `word` for a flag; `default` is
    empty where there is none to show, or it is needed. `meaning` may have `code` in backticks."""

    names: tuple[str, ...]
    word: str
    default: str
    needed: bool
    meaning: str

    @property
    def is_option(self) -> bool:
        """Whether it is named on the command line, not only placed."""
        return bool(self.names)


@dataclass(frozen=True)
class Described:
    """A command, or a group with its `commands` by name; `words` begin with `offstage`. A paragraph
    of `text` is one line."""

    words: tuple[str, ...]
    text: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    commands: dict[str, "Described"]

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(self.words)

    @property
    def summary(self) -> str:
        """The first sentence of the text, without its full stop."""
        return first(self.text[0]) if self.text else ""

    def all(self) -> Iterator["Described"]:
        """It, and every command below it."""
        yield self
        for one in self.commands.values():
            yield from one.all()


def described() -> Described:
    """The whole command line."""
    import typer

    from offstage.testbeds.cli import COMMANDS, build

    return _command(typer.main.get_command(build(list(COMMANDS))), ("offstage",))


def first(text: str) -> str:
    """The first sentence of a help text."""
    return re.split(r"(?<=[.;]) |\n\n", " ".join(text.split()))[0].rstrip(".;")


def _command(command: Any, words: tuple[str, ...]) -> Described:
    below = sorted(getattr(command, "commands", {}).items())
    text = inspect.cleandoc(command.help or "").split("\n\n")
    callback = command.callback
    kinds = typing.get_type_hints(inspect.unwrap(callback)) if callback is not None else {}
    return Described(
        words,
        tuple(" ".join(part.split()) for part in text),
        tuple(_parameter(one, kinds) for one in command.params if one.name != "help"),
        {name: _command(one, (*words, name)) for name, one in below},
    )


def _parameter(one: Any, kinds: dict[str, Any]) -> Parameter:
    kind, values = _kind(kinds.get(one.name, bool))
    option = one.opts[0].startswith("-")
    word = one.metavar or kind if option else _placed(one)
    default = "" if callable(one.default) else one.default
    default = getattr(default, "value", default)
    shown = "on" if default is True else "" if not default and default != 0 else str(default)
    meaning = ": ".join(part for part in (values, one.help or "") if part)
    if one.envvar:
        meaning += f"; also `{one.envvar}`"
    return Parameter(
        names=(*one.opts, *one.secondary_opts) if option else (),
        word=word,
        default="" if one.required or default is False else shown,
        needed=bool(one.required),
        meaning=meaning,
    )


def _placed(one: Any) -> str:
    """An argument as a usage line has it: in brackets if it may be left out, then dots if it may be
    repeated."""
    word = str(one.metavar or one.name.upper())
    dots = "..." if one.nargs == -1 else ""
    return (word if one.required else f"[{word}]") + dots


def _kind(annotation: Any) -> tuple[str, str]:
    """The word for a value of this type, and its choices."""
    parts = [part for part in typing.get_args(annotation) if part is not NoneType]
    if isinstance(annotation, UnionType) or typing.get_origin(annotation) in (list, typing.Union):
        return _kind(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        values = [f"`{one.value}`" for one in annotation]
        return "", " or ".join([", ".join(values[:-1]), values[-1]]).removeprefix(" or ")
    return WORDS.get(annotation, ""), ""
