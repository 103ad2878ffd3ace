"""One reader for every format of request traces: finds the format out, reads, and writes ours.

The registry is `FORMATS`. The format is recognized by the content, never from the name of the file;
a user who knows better says it. Everything that can be wrong is a `BadInput`.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats import (
    azure,
    hashed,
    lmcache,
    mooncake,
    offstage,
    servegen,
    weka,
)
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.formats.weka import FILE_BYTES_MAX
from offstage.testbeds.workloads.requests.trace import opened

__all__ = ["FORMATS", "SELECTIONS", "open_trace", "selections_kind", "write_trace"]

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        offstage.FORMAT,
        mooncake.FORMAT,
        weka.FORMAT,
        lmcache.FORMAT,
        hashed.SHAREGPT,
        azure.FORMAT,
        servegen.FORMAT,
    )
}

_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257


def open_trace(
    path: str | Path | Sequence[str | Path],
    format: str | None = None,
    *,
    limit: int | None = None,
    seed: int = 1,
) -> Trace:
    """The trace in these files: several only where a format has a file for each session.

    `format` is a name of `FORMATS`, `servegen:FOLDER` for one part of such an archive, None to find
    it out from the first file. `limit`: only the first requests by arrival. `seed` is of formats
    that are generators. Raises BadInput, with file and line where there is one.
    """
    given = [path] if isinstance(path, str | Path) else list(path)
    paths = tuple(Path(one) for one in given)
    if not paths:
        raise BadInput("no file", "trace", "give one or more files")
    if limit is not None and limit < 1:
        raise BadInput(f"limit of {limit} requests", str(paths[0]), "give a limit of 1 or more")
    name, _, part = (format or "").partition(":")
    found = FORMATS.get(name) if name else _found(paths[0])
    if found is None or (part and found.name != servegen.FORMAT.name):
        raise BadInput(
            f"no format {format!r}", str(paths[0]), f"choose one of {', '.join(FORMATS)}"
        )
    return found.read(Source(paths, limit, seed, part))


def write_trace(trace: Trace, path: str | Path) -> None:
    """Writes the trace in our own form; BadInput where the file cannot be written."""
    offstage.write(trace, Path(path))


def _found(path: Path) -> Format:
    head = _head(path)
    for one in FORMATS.values():
        if one.knows(head):
            return one
    if kind := _kind(head):
        raise BadInput(
            f"{SELECTIONS[kind]}, and no requests", str(path),
            "run it in the laboratory: `offstage trace info` of this file alone says by which spec",
        )  # fmt: skip
    if head.text == "" and not head.is_tar:
        raise BadInput("the file holds no request", str(path), "give a file that is not empty")
    raise BadInput(
        "no format of request traces begins like this",
        f"{path}:1",
        f"check the file, or say what it is: --trace-format of {', '.join(FORMATS)}",
    )


SELECTIONS = {"captured": "captured scores", "selections": "recorded selections"}
"""What a file has that is no trace of requests, by the `[workload] kind` that runs it."""

CAPTURE_MAGIC = "PAR1"
_RUN_KEYS = {"run", "model", "layers", "prompt_tokens", "steps"}


def selections_kind(path: Path) -> str:
    """What `[workload] kind` a file is that has selections or the scores behind them in place of
    requests; empty where it is neither. BadInput where it cannot be read."""
    return _kind(_head(path))


def _kind(head: Head) -> str:
    if head.text.startswith(CAPTURE_MAGIC):
        return "captured"
    return "selections" if head.json is not None and head.json.keys() >= _RUN_KEYS else ""


def _head(path: Path) -> Head:
    with opened(path) as file:
        begin = file.read(1024)
        if begin[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
            return Head("", None, is_tar=True)
        newline = begin.find(b"\n")
        line = begin[:newline] if newline >= 0 else begin + file.readline(FILE_BYTES_MAX)
        if line.strip() == b"{":
            line = begin + file.read(FILE_BYTES_MAX)
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None
    text = line[:1024].decode("utf-8", "replace").removeprefix("\ufeff")
    return Head(text, value if isinstance(value, dict) else None)
