"""Every error that Offstage raises on purpose.

An error states three things in one line: what happened, where, and how to fix it. The command line
prints that line and exits with the class's `exit_code`: 2 if the user's input or machine must
change before a retry can help, 3 if there is no answer, 1 if a run failed, 130 if the user ended
it. A traceback is a bug in Offstage.
"""

import importlib.util
from collections.abc import Iterable

from offstage.bindings.near import like

__all__ = [
    "BadInput",
    "Corrupt",
    "DeviceTimeout",
    "Incompatible",
    "Interrupted",
    "Missing",
    "NoAnswer",
    "OffstageError",
    "RunFailed",
    "StoreFull",
    "Unknown",
    "Unreachable",
    "brings",
    "nearest",
    "needs",
    "printable",
]


class OffstageError(Exception):
    """The root of the tree: `what` happened, `where`, and the `fix`, each one phrase.

    `errno` is the number the firmware returned, where the error came from there; 0 otherwise.
    """

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "", *, errno: int = 0) -> None:
        self.what = _one_line(what)
        self.where = _one_line(where)
        self.fix = _one_line(fix)
        self.errno = errno
        super().__init__(self.what, self.where, self.fix)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.fix}" if self.fix else line


class BadInput(OffstageError):
    """A file, option or message the user can correct."""

    exit_code = 2


class Unknown(BadInput):
    """A daemon knows nothing of that name: a tenant, or a session that is closed by now."""


class Unreachable(BadInput):
    """A daemon or server that was named is not there, or does not answer; the input may be right,
    and a second try may help."""

    exit_code = 3


class RunFailed(OffstageError):
    """The input was good, and the run still did not finish."""


class NoAnswer(RunFailed):
    """A server that a run hangs on is away, and was there or may come back."""

    exit_code = 3


class Missing(OffstageError):
    """An optional library is not installed; `extra` is the pip extra that brings it."""

    exit_code = 2

    def __init__(self, extra: str, what: str = "", where: str = "") -> None:
        self.extra = extra
        super().__init__(
            what or f"the optional part {extra!r} is not installed",
            where,
            brings(extra),
        )


def needs(library: str, extra: str, where: str = "") -> None:
    """Missing unless `library` is installed. Ask before work that cannot end without it."""
    if importlib.util.find_spec(library) is None:
        raise Missing(extra, f"{library} is not installed", where)


def nearest(name: str, known: Iterable[str]) -> str:
    """The fix of an unknown name: what was meant, if any of `known` is like it, or all of them."""
    names = list(known)
    near = like(name, names)
    return f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}"


def brings(extra: str) -> str:
    """How to install an optional part. Not by name: `offstage` on the package index is an unrelated
    package."""
    return f"in a checkout of Offstage: pip install '.[{extra}]'; of a wheel: 'WHEEL[{extra}]'"


class StoreFull(OffstageError):
    """The store, or the disk below it, has no room; nothing that was acknowledged is lost."""


class Interrupted(OffstageError):
    """The user ended it; the error says what is left behind."""

    exit_code = 130


class Corrupt(OffstageError):
    """Bytes failed their check. They are never handed out as data."""


class DeviceTimeout(OffstageError):
    """A device or a peer did not answer within its deadline."""

    exit_code = 3


class Incompatible(OffstageError):
    """Two parts of different versions, or a file of another format or geometry."""

    exit_code = 2


def printable(text: object, keep: str = "") -> str:
    """As text that moves no cursor, begins no line and turns no direction of a terminal or a page;
    what would is written as its number, unless it is in `keep`."""
    return "".join(
        one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in str(text)
    )


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
