"""summary.json and report.html on disk: written whole or not at all, read with every check.

A file is written beside its place and renamed, so that a reader never sees half of one.
"""

import contextlib
import errno
import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.live.results import ENDS, RunResult, Summary

__all__ = ["SUMMARY_NAME", "as_json", "read_json", "read_summary", "write_summary", "write_text"]

SUMMARY_NAME = "summary.json"
SUMMARY_SIZE_BYTES_MAX = 256 << 20
SHARES = (
    "hit_rate", "nontrivial_hit_rate", "hit_rate_without_cold", "hbm_share", "late_rate",
    "miss_rate", "accuracy", "busy_share",
)  # fmt: skip
LOWEST = {"coverage": -math.inf, "decisions_replayed": -1, "busy_share": -1}
NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS,
            errno.EEXIST, errno.ENAMETOOLONG)  # fmt: skip
FATES = ("used", "late", "unused", "dropped", "cancelled")


def write_summary(summary: Summary, path: str | Path) -> None:
    """Writes `summary` as indented JSON; NaN or infinity in it is a mistake of ours."""
    for number, run in enumerate(summary.runs):
        wrong = _wrong(run)
        assert not wrong, f"runs[{number}]: {wrong}"
    write_text(Path(path), as_json(summary))


def as_json(value: Any) -> str:
    """Indented JSON, lists of plain numbers on one line each."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    return _short_lists(text) + "\n"


def read_json(path: str | Path, mend: str) -> tuple[bytes, str]:
    """The bytes of a summary.json, or of the one in a folder, and its path; BadInput without."""
    path = Path(path)
    if path.is_dir():
        path = path / SUMMARY_NAME
    try:
        if path.stat().st_size > SUMMARY_SIZE_BYTES_MAX:
            raise BadInput("larger than any summary", str(path), mend)
        return path.read_bytes(), str(path)
    except OSError as error:
        raise BadInput(error.strerror or "cannot be read", str(path), mend) from None


def read_summary(path: str | Path) -> Summary:
    """Reads a summary.json, or the one in a folder. BadInput for what is not one."""
    mend = "name a folder that `offstage demo --out` wrote"
    data, where = read_json(path, mend)
    try:
        summary = msgspec.json.decode(data, type=Summary)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not a summary: {error}", where, mend) from None
    for number, run in enumerate(summary.runs):
        if wrong := _wrong(run):
            raise BadInput(f"runs[{number}]: {wrong}", where, "write it anew with a run")
    for point in summary.curve:
        if not (0.0 <= point.hit_rate <= 1.0 and 0.0 <= point.traffic_ratio < math.inf):
            raise BadInput(f"curve point {point.label!r}", where, "write it anew with a run")
    return summary


def write_text(path: Path, text: str) -> None:
    """Writes the file whole: a temporary beside it, then a rename. BadInput for a place that is
    none, RunFailed where the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        kind = BadInput if error.errno in NO_PLACE else RunFailed
        raise kind(
            f"cannot be written: {error.strerror}", str(path), "make room or name another place"
        ) from None


def _wrong(run: RunResult) -> str:
    """What cannot be true of a run, as one phrase; empty where nothing is."""
    for name in run.__struct_fields__:
        value = getattr(run, name)
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} = {value}"
        if isinstance(value, int | float) and value < LOWEST.get(name, 0):
            return f"{name} = {value}"
    for name in SHARES:
        if getattr(run, name) > 1.0:
            return f"{name} = {getattr(run, name)}"
    for step, value in enumerate(run.hit_rate_by_step):
        if not (value == -1.0 or 0.0 <= value <= 1.0):
            return f"hit_rate_by_step[{step}] = {value}"
    if len(run.hit_rate_by_step) != len(run.demands_by_step):
        return "hit_rate_by_step and demands_by_step differ in length"
    for name in ("demands_by_step", "lead_ns_log2", "late_ns_log2", "stall_ms_by_token"):
        if not all(0 <= value < math.inf for value in getattr(run, name)):
            return f"{name} holds a number below 0 or none at all"
    for name in ("ends", "nontrivial_ends"):
        if set(getattr(run, name)) - set(ENDS):
            return f"{name} knows {', '.join(ENDS)} only"
    if any(set(row) - set(FATES) for row in run.fates.values()):
        return f"fates knows {', '.join(FATES)} only"
    return ""


def _short_lists(text: str) -> str:
    """Lists of plain numbers on one line each; a line end is never inside a JSON string."""
    return re.sub(
        r"\[\n[\s\d.,eE+-]*\]", lambda match: re.sub(r"\s+", "", match.group()), text
    )
