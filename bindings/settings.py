"""What every file of settings shares: how TOML is read, and how an unknown key is refused.

The daemon's configuration and an experiment's spec are read by the same rules: whatever is wrong is
one `BadInput` that names the file, and a key that is not known names the nearest that is. Numbers
with a unit: `units.py`.
"""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput

__all__ = ["check_known", "read_toml"]


def read_toml(path: Path, mend: str) -> dict[str, Any]:
    """The tables of a file. `mend` says what to give where it is none, or not text."""
    where = str(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput("no such file", where, mend) from None
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", where, "check the file") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is not TOML ({error})", where, "correct that line") from None
    except UnicodeDecodeError:
        raise BadInput("is not text", where, mend) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, a bottomless list
        raise BadInput("holds a value beyond any bound", where, "remove it") from None


def check_known(key: str, known: Iterable[str], where: str, noun: str = "key") -> None:
    """BadInput, naming the nearest of `known`, where `key` is none of them."""
    names = list(known)
    if key in names:
        return
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
    raise BadInput(f"unknown {noun} {key!r}", where, f"did you mean {near[0]!r}?")
