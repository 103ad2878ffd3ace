"""One reader for every format of request traces: detects the format, reads, and writes ours.

The registry is `FORMATS`. The format is detected from the content, never from the name of the file;
a user can override it. Every error is a `BadInput`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.outside import json_line
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.containers import holds_rates, opened
from offstage.testbeds.workloads.requests.formats import (
    azure,
    burstgpt,
    hashed,
    lmcache,
    mooncake,
    offstage,
    qwen,
    servegen,
    weka,
)
from offstage.testbeds.workloads.requests.formats.base import PER_SECOND, Format, Head, Source
from offstage.testbeds.workloads.requests.formats.weka import FILE_BYTES_MAX

__all__ = ["FORMATS", "SELECTIONS", "format_of", "open_trace", "selections_kind", "write_trace"]

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        offstage.FORMAT,
        qwen.FORMAT,
        mooncake.FORMAT,
        weka.FORMAT,
        lmcache.FORMAT,
        hashed.SHAREGPT,
        azure.FORMAT,
        burstgpt.FORMAT,
        servegen.FORMAT,
    )
}


def open_trace(
    path: str | Path | Sequence[str | Path],
    format: str | None = None,
    *,
    limit: int | None = None,
    seed: int = 1,
    time_unit: str | None = None,
    block_tokens: int | None = None,
    counted: Callable[[int], None] | None = None,
) -> Trace:
    """The trace in these files; several only for a format with a file per session.

    `format`: a name of `FORMATS`, `servegen:FOLDER` for one part of such an archive, None to detect
    it from the first file. `limit`: only the first requests by arrival. `seed`: for formats that
    are generators. `time_unit`: s, ms, us or ns, if its times are not in the format's unit; without
    it, a note warns of implausible times. `block_tokens`: tokens of one id, if not the format's.
    `counted` gets the bytes of each read. BadInput names file and line.
    """
    given = [path] if isinstance(path, str | Path) else list(path)
    paths = tuple(Path(one) for one in given)
    if not paths:
        raise BadInput("no file", "trace", "give one or more files")
    if limit is not None and limit < 1:
        raise BadInput(f"limit of {limit} requests", str(paths[0]), "give a limit of 1 or more")
    found, part = format_of(paths[0], format), (format or "").partition(":")[2]
    if time_unit is not None and (time_unit not in PER_SECOND or not found.time_unit):
        raise BadInput(
            f"times in {time_unit}"
            if found.time_unit
            else f"a time unit, and times of format {found.name} are not numbers",
            "--time-unit",
            f"give one of {', '.join(PER_SECOND)}" if found.time_unit else "leave it out",
        )
    if block_tokens is not None and not found.block_tokens:
        raise BadInput(
            f"blocks of {block_tokens:,} tokens, and format {found.name} leaves no choice",
            "--block-tokens",
            "leave it out",
        )
    source = Source(paths, limit, seed, part, time_unit, block_tokens, counted)
    trace = found.read(source)
    notes = trace.origin.notes
    if (
        trace.block_tokens is None
        and (unknown := _UNKNOWN.format(trace.origin.format)) not in notes
    ):
        notes = (*notes, unknown)
    if unread := str(source.unread):
        called = source.unread.called
        notes = (
            *notes,
            f"{called} that format {found.name} does not read have no effect: {unread}",
        )
    if time_unit and time_unit != found.time_unit:
        notes = (*notes, f"times read as {time_unit}; format {found.name} has {found.time_unit}")
    if block_tokens and block_tokens != found.block_tokens:
        held = found.block_tokens
        notes = (*notes, f"blocks read as {block_tokens:,} tokens; format {found.name} has {held}")
    if not time_unit and (note := _implausible(trace, found.time_unit)):
        notes = (*notes, note)
    if note := _mixed(trace, time_unit or found.time_unit):
        notes = (*notes, note)
    return replace(trace, origin=replace(trace.origin, notes=notes))


_UNKNOWN = "format {} names no blocks: what prompts share is not known, and no reuse is assumed"


def format_of(path: Path, format: str | None) -> Format:
    """The format of a trace that begins with this file, given or detected. BadInput if there is
    none."""
    name, _, part = (format or "").partition(":")
    found = FORMATS.get(name) if name else _found(path)
    if found is None or (part and not found.drawn):
        raise BadInput(f"no format {format!r}", str(path), f"choose one of {', '.join(FORMATS)}")
    return found


RATE_MAX, RATE_MAX_FRACTIONS, GAP_S_MAX = 100.0, 20.0, 900.0
"""Requests/s above which a trace is probably in another unit: in general, and for times with
fractions of the unit; and seconds between two requests, likewise."""


def _implausible(trace: Trace, unit: str) -> str:
    """A warning about implausible times; empty if they are plausible."""
    duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if not unit or len(trace) < 2 or duration_s <= 0:
        return ""
    rate = len(trace) / duration_s
    times = trace.arrival_s * PER_SECOND[unit]
    whole = bool((np.abs(times - np.rint(times)) < 1e-6 * np.maximum(times, 1.0)).all())
    if unit != "s" and rate > (RATE_MAX if whole else RATE_MAX_FRACTIONS):
        finer = "s or ms" if unit in ("us", "ns") else "s"
        what = f"{rate:,.0f} requests/s"
    elif unit == "s" and rate > RATE_MAX:
        return f"{rate:,.0f} requests/s, if its times are in s: check what they are in"
    elif rate < 1 / GAP_S_MAX and len(trace) >= 8 and not trace.has_sessions:
        finer, what = "a finer one", f"{1 / rate:,.0f} s between two requests"
    else:
        return ""
    return (
        f"{what}, if its times are in {unit}: where they are in {finer}, say it with "
        "--time-unit, here or in `offstage trace import`"
    )


MIXED_FACTOR, MIXED_AFTER = 900, 60
"""A time this many times the one before, which is at least so many units, is probably of another
unit."""


def _mixed(trace: Trace, unit: str) -> str:
    """A warning that the times change their unit; empty if they do not."""
    if not unit:
        return ""
    before, after = trace.arrival_s[:-1], trace.arrival_s[1:]
    jumps = (before * PER_SECOND[unit] >= MIXED_AFTER) & (after >= MIXED_FACTOR * before)
    if not jumps.any():
        return ""
    at = int(np.argmax(jumps))
    return (
        f"request {at + 2:,} arrives at {after[at]:g} s, the one before it at {before[at]:g} s: "
        "check whether the times are all in one unit"
    )


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the trace in our own form; BadInput if the file cannot be written."""
    offstage.write(trace, Path(path))


def _found(path: Path) -> Format:
    head = _head(path)
    for one in FORMATS.values():
        if one.knows(head):
            return one
    if kind := _kind(head):
        raise BadInput(
            f"{SELECTIONS[kind]}, and no requests",
            str(path),
            "run it in the laboratory: `offstage trace info` of this file alone says by which spec",
        )
    if head.text == "" and not head.is_tar:
        raise BadInput("the file holds no request", str(path), "give a file that is not empty")
    raise BadInput(
        "matches no format of request traces",
        f"{path}:1",
        f"check the file, or name its format in `offstage trace import`: --trace-format of "
        f"{', '.join(FORMATS)}",
    )


SELECTIONS = {"captured": "captured scores", "selections": "recorded selections"}
"""What a file without requests contains, by the `[workload] kind` that runs it."""

CAPTURE_MAGIC = "PAR1"
_ANY = msgspec.json.Decoder()
_RUN_KEYS = {"run", "model", "layers", "prompt_tokens", "steps"}


def selections_kind(path: Path) -> str:
    """The `[workload] kind` of a file with selections or scores in place of requests; empty
    otherwise. BadInput if it cannot be read."""
    return _kind(_head(path))


def _kind(head: Head) -> str:
    if head.text.startswith(CAPTURE_MAGIC):
        return "captured"
    return "selections" if head.json is not None and head.json.keys() >= _RUN_KEYS else ""


def _head(path: Path) -> Head:
    if holds_rates(path):
        return Head("", None, is_tar=True)
    with opened(path, lambda: f"{path}:1") as file:
        begin = file.read(1024)
        newline = begin.find(b"\n")
        line = begin[:newline] if newline >= 0 else begin + file.readline(FILE_BYTES_MAX)
        if line.strip() == b"{":
            line = begin + file.read(FILE_BYTES_MAX)
    value = None
    if line.lstrip().startswith(b"{"):
        try:
            value = json_line(_ANY, line, f"{path}:1", "a trace has one JSON object per line")
        except BadInput as bad:
            if "nested" in bad.what:
                raise
    text = line[:1024].decode("utf-8", "replace")
    return Head(text, value if isinstance(value, dict) else None)
