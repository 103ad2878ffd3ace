"""The parts of a request trace format.

A reader gets the files and returns a `Trace`. It must not trust the bytes: any deviation from its
module's description is a `BadInput` with file and line, and nothing is skipped. `Origin.notes`
lists what it adds or changes (a common clock, an order, a length that the format does not have) and
the keys that it does not read.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.containers import on_disk
from offstage.testbeds.workloads.requests.trace import Unread, lines

__all__ = ["PER_SECOND", "Format", "Head", "Source", "numbered"]


def numbered(count: int, noun: str) -> str:
    """A number of things in a note: "1 turn", "2,000 turns"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


@dataclass(frozen=True)
class Head:
    """The beginning of a file. `text`: its first line, "" for a binary one; `json`: the object on
    that line, or the one that is the whole file; `is_tar`: whether it is an archive of rates."""

    text: str
    json: dict[str, Any] | None
    is_tar: bool = False


PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Time units of a trace, per second."""


@dataclass(frozen=True)
class Source:
    """The files to read, and the reader's options.

    limit: the maximum number of requests, in order of arrival. seed: for formats that are
    generators. part: the part of a file with several, after a colon in the name of the format.
    time_unit, block_tokens: the unit of the times and the tokens of a block, if the user overrides
    the format's. counted gets the bytes of each read. unread: counts the keys that the reader
    does not use.
    """

    paths: tuple[Path, ...]
    limit: int | None = None
    seed: int = 1
    part: str = ""
    time_unit: str | None = None
    block_tokens: int | None = None
    counted: Callable[[int], None] | None = None
    unread: Unread = field(default_factory=Unread)

    @property
    def path(self) -> Path:
        """The only file. BadInput if several were given."""
        if len(self.paths) != 1:
            raise BadInput(
                f"{len(self.paths)} files of a format that has one for a trace",
                str(self.paths[1]),
                "give one file; only formats with a file for a session (weka, lmcache) take more",
            )
        return self.paths[0]

    def per_second(self, own: str) -> float:
        """One second in the trace's time unit; `own` is the format's default."""
        return PER_SECOND[self.time_unit or own]

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Place and raw bytes of each line of the only file."""
        path = self.path
        return ((f"{path}:{number}", raw) for number, raw in lines(path, self.counted))

    def full(self, count: int) -> bool:
        """Whether the limit is reached with `count` requests."""
        return self.limit is not None and count >= self.limit

    def check_found(self, count: int, expected: str) -> None:
        """BadInput where no request was read."""
        if not count:
            raise BadInput("the file holds no request", str(self.path), expected)

    def origin(self, found: "Format", *notes: str) -> Origin:
        """The trace's origin for its head; reads the files again for their hashes."""
        name = self.paths[0].name
        if len(self.paths) > 1:
            name = f"{name} and {len(self.paths) - 1} more"
        sha256 = []
        for path in self.paths:
            with on_disk(path).open("rb") as file:
                sha256.append(hashlib.file_digest(file, "sha256").hexdigest())
        return Origin(name, found.name, found.licence, tuple(sha256), notes)


@dataclass(frozen=True)
class Format:
    """One format. `licence`: that of its data set, as far as known; `time_unit`: the unit of its
    times, empty where they are not numbers; `drawn`: requests are drawn from a seed;
    `block_tokens`: tokens of a block unless the user says otherwise, 0 where that is no choice."""

    name: str
    about: str
    licence: str
    knows: Callable[[Head], bool]
    read: Callable[[Source], Trace]
    time_unit: str = ""
    drawn: bool = False
    block_tokens: int = 0
