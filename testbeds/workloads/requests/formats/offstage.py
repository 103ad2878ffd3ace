"""Our own form of any trace: a header line, then one request a line; what `trace import` writes.

`{"offstage_trace": 1, "name", "format", "licence", "sha256", "notes", "block_tokens", "requests"}`,
then `{"t": s, "in": tokens, "out": tokens, "runs": [[id, n], ...], "s": session, "think": s,
"follows": bool}`, in order of arrival; what is empty or false is left out. The number of requests
in the header distinguishes a complete file from one that was cut at the end of a line.
"""

import gzip
import io
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from offstage.bindings.durable import replacing
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import decoded

__all__ = ["FORMAT", "PACKED", "VERSION", "write"]

VERSION = 1
PACKED = {".gz", ".zst", ".xz", ".bz2", ".lz4"}
"""Endings of files that are packed."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_EXPECTED = 'a header with "offstage_trace", then lines of "t", "in", "out" are expected'


class _Header(msgspec.Struct):
    offstage_trace: int
    name: str
    format: str
    requests: Annotated[int, msgspec.Meta(ge=1)]
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None
    licence: str = ""
    sha256: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Row(msgspec.Struct, gc=False, omit_defaults=True):
    t: Annotated[float, msgspec.Meta(ge=0, le=1e19)]
    input: _Count = msgspec.field(name="in")
    output: _Count = msgspec.field(name="out")
    runs: list[tuple[_Count, _Count]] = msgspec.field(default_factory=list)
    session: str | None = msgspec.field(name="s", default=None)
    think: float | None = None
    follows: bool = False


def _knows(head: Head) -> bool:
    return head.json is not None and "offstage_trace" in head.json


def _read(source: Source) -> Trace:
    path = source.path
    rows = msgspec.json.Decoder(_Row)
    header: _Header | None = None
    per_s = source.per_second("s")
    columns = Columns(None, ordered=True)
    for where, raw in source.lines():
        if header is None:
            header = decoded(msgspec.json.Decoder(_Header), raw, where, _EXPECTED, source.unread)
            if header.offstage_trace != VERSION:
                raise BadInput(
                    f"version {header.offstage_trace} of the trace format",
                    where,
                    f"this release reads version {VERSION}: import the trace again",
                )
            columns = Columns(header.block_tokens, ordered=True)
            continue
        row = decoded(rows, raw, where, _EXPECTED, source.unread)
        if row.runs and header.block_tokens is None:
            raise BadInput("runs of blocks without block_tokens in the header", where, _EXPECTED)
        columns.add(
            where,
            row.t / per_s,
            row.input,
            row.output,
            row.runs,
            session=row.session,
            think_s=None if row.think is None else row.think / per_s,
            follows=row.follows,
        )
        if source.full(len(columns)):
            break
    if header is None:
        raise BadInput("the file is empty", str(path), _EXPECTED)
    if len(columns) != header.requests and not source.full(len(columns)):
        raise BadInput(
            f"{len(columns)} requests, the header says {header.requests}",
            str(path),
            "the file is torn: copy it again",
        )
    return columns.finish(
        Origin(header.name, header.format, header.licence, header.sha256, header.notes)
    )


def write(trace: Trace, path: Path) -> None:
    """Write the trace, gzip if the name ends in .gz; the same trace gives the same bytes.

    The file is written atomically. Raises BadInput for another packed name, and BadInput or
    RunFailed if it cannot be written.
    """
    if path.suffix in PACKED - {".gz"}:
        raise BadInput(f"a file named {path.suffix}", str(path), "name it .jsonl, or .jsonl.gz")
    origin = trace.origin
    header = _Header(
        VERSION,
        origin.name,
        origin.format,
        len(trace),
        trace.block_tokens,
        origin.licence,
        origin.sha256,
        origin.notes,
    )
    encoder = msgspec.json.Encoder()
    with replacing(path) as part, part.open("wb") as raw:
        # No name and no time in the gzip header, so that equal traces give equal files.
        packed = gzip.GzipFile("", "wb", 9, raw, mtime=0) if path.suffix == ".gz" else raw
        with io.BufferedWriter(packed) as file:
            file.write(encoder.encode(header) + b"\n")
            for row in _rows(trace):
                file.write(encoder.encode(row) + b"\n")
        packed.close()


def _rows(trace: Trace) -> Any:
    offsets, first, count = (
        trace.offsets.tolist(),
        trace.run_first.tolist(),
        trace.run_count.tolist(),
    )
    thinks: list[float | None] = [
        None if unknown else float(value)
        for value, unknown in zip(trace.think_s, np.isnan(trace.think_s), strict=True)
    ]
    for index in range(len(trace)):
        span = slice(offsets[index], offsets[index + 1])
        session = int(trace.session[index])
        yield _Row(
            float(trace.arrival_s[index]),
            int(trace.input_tokens[index]),
            int(trace.output_tokens[index]),
            list(zip(first[span], count[span], strict=True)),
            trace.session_names[session] if session >= 0 else None,
            thinks[index],
            bool(trace.follows[index]),
        )


FORMAT = Format(
    "offstage", "our own form, written by `offstage trace import`", "", _knows, _read, "s"
)
