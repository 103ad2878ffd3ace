"""The command that comes next, which a command that prepared something ends with."""

import shlex
from os import PathLike

from rich.console import Group, RenderableType

__all__ = ["then"]


def then(told: RenderableType, *words: str | PathLike[str]) -> Group:
    """What a command tells a person, and below it `offstage WORDS`, to be typed as it stands."""
    return Group(told, "", "next:", f"  {shlex.join(['offstage', *map(str, words)])}")
