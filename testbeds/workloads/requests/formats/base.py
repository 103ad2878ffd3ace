"""What a format of request traces consists of.

A reader is given the files and yields a `Trace`. It may assume nothing about the bytes: whatever is
not as its module says is a `BadInput` with file and line, and nothing is skipped. What it adds or
changes (a common clock, an order, a length that the format does not have) stands in `Origin.notes`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.columns import Origin, Trace

__all__ = ["Format", "Head", "Source"]


@dataclass(frozen=True)
class Head:
    """The begin of a file. `text`: its first line, "" for a binary one; `json`: the object on that
    line, or the one that is the whole file; `is_tar`: it is a tar archive (packed or not)."""

    text: str
    json: dict[str, Any] | None
    is_tar: bool = False


@dataclass(frozen=True)
class Source:
    """The files to read, and the options that a reader may use.

    limit: at most so many requests, counted in order of arrival. seed: of formats that are a
    generator. part: which part of a file with several, after a colon in the name of the format.
    """

    paths: tuple[Path, ...]
    limit: int | None = None
    seed: int = 1
    part: str = ""

    @property
    def path(self) -> Path:
        """The only file. BadInput where several were given."""
        if len(self.paths) != 1:
            raise BadInput(
                f"{len(self.paths)} files of a format that has one for a trace",
                str(self.paths[1]),
                "give one file; only formats with a file for a session (weka, lmcache) take more",
            )
        return self.paths[0]

    def full(self, count: int) -> bool:
        """The limit is reached with `count` requests."""
        return self.limit is not None and count >= self.limit

    def origin(self, found: "Format", *notes: str) -> Origin:
        """Where the trace is from, for its head; reads the files once more for their hashes."""
        name = self.paths[0].name
        if len(self.paths) > 1:
            name = f"{name} and {len(self.paths) - 1} more"
        sha256 = []
        for path in self.paths:
            with path.open("rb") as file:
                sha256.append(hashlib.file_digest(file, "sha256").hexdigest())
        return Origin(name, found.name, found.licence, tuple(sha256), notes)


@dataclass(frozen=True)
class Format:
    """One format. `licence` is that of the data set it was published with, as far as known."""

    name: str
    about: str
    licence: str
    knows: Callable[[Head], bool]
    read: Callable[[Source], Trace]
