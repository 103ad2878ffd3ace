"""summary.json and report.html on disk: written atomically, read with every check."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from offstage.bindings.durable import write_text
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import ENDS, FATES
from offstage.bindings.outside import decode_json
from offstage.testbeds.document import as_json, refuse_later
from offstage.testbeds.lab.results.summary import (
    LAB_KIND,
    BoundSummary,
    Interval,
    LabSummary,
    PointSummary,
    Subset,
)
from offstage.testbeds.live.results import RunResult, Summary

__all__ = [
    "SUMMARY_NAME",
    "holds_lab_summary",
    "read_json",
    "read_lab_summary",
    "read_struct",
    "read_summary",
    "refuse_model_run",
    "write_lab_summary",
    "write_summary",
]

Kind = TypeVar("Kind", bound=msgspec.Struct)
SUMMARY_NAME = "summary.json"
MODEL_NAME = "model.json"
"""What `host run --model --out` writes, and nothing else."""
SUMMARY_SIZE_BYTES_MAX = 256 << 20
ROUNDING = 1e-9
SHARES = (
    "hit",
    "nontrivial_hit",
    "hit_without_cold",
    "hbm_share",
    "selection_hit",
    "late",
    "miss",
    "accuracy",
    "busy_share",
)
LOWEST = {
    "coverage": -math.inf,
    "decisions_replayed": -1,
    "busy_share": -1,
    "log_diverged_at": -1,
    "pace_overruns": -1,
}


def write_summary(summary: Summary, path: str | Path) -> None:
    """Write `summary` as indented JSON; NaN or infinity in it is a bug."""
    for number, run in enumerate([*summary.runs, *summary.ahead, *summary.baselines]):
        wrong = _wrong(run)
        assert not wrong, f"runs[{number}]: {wrong}"
    write_text(Path(path), as_json(summary))


def read_json(path: str | Path, fix: str) -> tuple[bytes, str]:
    """A summary.json, or the one in a folder, as bytes, and its path; BadInput if it is unreadable,
    or of a later version."""
    path = Path(path)
    if path.is_dir():
        refuse_model_run(path)
        path = path / SUMMARY_NAME
    try:
        if path.stat().st_size > SUMMARY_SIZE_BYTES_MAX:
            raise BadInput("too large for a summary", str(path), fix)
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(error.strerror or "cannot be read", str(path), fix) from None
    refuse_later(data, str(path))
    return data, str(path)


def refuse_model_run(folder: Path) -> None:
    """BadInput for a folder that has only what a run with a real model writes."""
    if (folder / MODEL_NAME).is_file() and not (folder / SUMMARY_NAME).exists():
        raise BadInput(
            f"holds {MODEL_NAME} of `host run --model`, and neither a summary nor requests",
            str(folder),
            f"read {MODEL_NAME}, or give the folder of a run without --model",
        )


def read_struct(path: Path, kind: type[Kind], fix: str) -> Kind:
    """Decode a page's JSON into the struct that it was made from; BadInput if it is invalid."""
    data, where = read_json(path, fix)
    return decode_json(data, where, fix, kind, what="cannot be read")


def read_summary(path: str | Path) -> Summary:
    """Read a summary.json, or the one in a folder; BadInput if it is invalid."""
    fix = "name a folder that `offstage demo --out` wrote"
    data, where = read_json(path, fix)
    summary = decode_json(data, where, fix, Summary, what="not a summary")
    for number, run in enumerate([*summary.runs, *summary.ahead, *summary.baselines]):
        if wrong := _wrong(run):
            raise BadInput(f"runs[{number}]: {wrong}", where, "run again to rewrite it")
    for point in summary.curve:
        if not (0.0 <= point.hit <= 1.0 and 0.0 <= point.traffic_ratio < math.inf):
            raise BadInput(
                f"curve point {point.label!r} is invalid", where, "run again to rewrite it"
            )
    return summary


def _wrong(run: RunResult) -> str:
    """The first impossible figure of a run, as a phrase; empty if there is none."""
    for name in run.__struct_fields__:
        value = getattr(run, name)
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} = {value} is no number"
        if isinstance(value, int | float) and value < LOWEST.get(name, 0):
            return f"{name} = {value} is below {LOWEST.get(name, 0)}"
    for name in (*SHARES, "coverage"):
        if getattr(run, name) > 1.0:
            return f"{name} = {getattr(run, name)} is above 1"
    for step, value in enumerate(run.hit_rate_by_step):
        if not (value == -1.0 or 0.0 <= value <= 1.0):
            return f"hit_rate_by_step[{step}] = {value} is neither a share nor -1"
    if len(run.hit_rate_by_step) != len(run.demands_by_step):
        return "hit_rate_by_step and demands_by_step differ in length"
    lists = ("demands_by_step", "lead_ns_log2", "late_ns_log2", "stall_ms_by_token", "fabric_ms")
    for name in lists:
        if not all(0 <= value < math.inf for value in getattr(run, name)):
            return f"{name} has a value that is negative or not a number"
    for name in ("ends", "nontrivial_ends"):
        if set(getattr(run, name)) - set(ENDS):
            return f"{name} knows {', '.join(ENDS)} only"
    if any(set(row) - set(FATES) for row in run.fates.values()):
        return f"the keys of fates are not {', '.join(FATES)}"
    counted = [run.ends, run.nontrivial_ends, *run.fates.values()]
    if any(count < 0 for counts in counted for count in counts.values()):
        return "a count of ends or fates is below 0"
    return _contradicted(run)


def _contradicted(run: RunResult) -> str:
    """The first figure that others of the run contradict, as a phrase; empty if there is none."""
    if run.demands > run.selected:
        return f"demands = {run.demands} and selected = {run.selected}"
    ended = run.ended
    rates = {
        "hit": ended.hit_rate,
        "late": ended.late_rate,
        "miss": ended.miss_rate,
        "hit_without_cold": ended.warm_hit_rate,
    }
    for name, rate in rates.items():
        if abs(getattr(run, name) - rate) > ROUNDING:
            return f"{name} = {getattr(run, name)}, and the ends of its demands give {rate}"
    return ""


# `summary.json` of a lab run on disk, and which kind of summary a file holds.
#
# It is written atomically and read with every check: an invalid or impossible summary is refused
# in one line.

FIX = "name a folder that `offstage lab` wrote"
# Figures that are not shares: they may be below 0 or above 1, or have another unit.
UNBOUNDED = ("coverage", "gap_closed", "nontrivial_gap_closed")
RATIOS = (
    "traffic_ratio",
    "traffic_vs_reference",
    "stall_ms_p50",
    "stall_ms_p99",
    "tokens_per_s",
    "token_ms_mean",
    "hint_bytes_per_token",
    "kv_bytes_per_token",
)


class _Kind(msgspec.Struct):
    kind: str = ""


def holds_lab_summary(path: str | Path) -> bool:
    """Whether the summary.json, or the one in the folder, is a lab's."""
    fix = "name the folder of a run"
    data, where = read_json(path, fix)
    try:
        return decode_json(data, where, fix, _Kind).kind == LAB_KIND
    except BadInput:  # the reader of the summary reports it
        return False


def write_lab_summary(summary: LabSummary, path: str | Path) -> None:
    """Write the summary as indented JSON; an impossible figure is a bug."""
    wrong = _wrong_lab(summary)
    assert not wrong, wrong
    write_text(Path(path), as_json(summary))


def read_lab_summary(path: str | Path) -> LabSummary:
    """Read a lab's summary.json, or the one in a folder; BadInput if it is invalid."""
    data, where = read_json(path, FIX)
    summary = decode_json(data, where, FIX, LabSummary, what="not the summary of a lab run")
    if decode_json(data, where, FIX, _Kind).kind != LAB_KIND:
        raise BadInput("not the summary of a lab run", where, FIX)
    if wrong := _wrong_lab(summary):
        raise BadInput(wrong, where, "run again to rewrite it")
    return summary


def _wrong_lab(summary: LabSummary) -> str:
    """The first impossible figure, as a phrase; empty if there is none."""
    for at, point in enumerate(summary.points):
        for wrong in _wrong_in(point):
            return f"points[{at}]: {wrong}"
    for at, row in enumerate(summary.requests):
        rates = (row.block_hit_rate, row.token_hit_rate, row.request_hit_rate, row.ideal, row.opt)
        shares = all(0.0 <= rate <= 1.0 for rate in rates)
        if not (shares and 0.0 < row.capacity_share < math.inf and row.capacity_blocks >= 0):
            return f"requests[{at}]: a rate is not a share, or a capacity is below 1"
        if row.ttl_s is not None and not 0.0 <= row.ttl_s < math.inf:
            return f"requests[{at}]: ttl_s = {row.ttl_s}"
    return ""


def _wrong_in(point: PointSummary) -> Iterator[str]:
    info = point.info
    over = (info.buffer_over_k, info.block_bytes, info.buffer_blocks)
    if not (all(0 < value < math.inf for value in over) and 0 <= info.hbm_pool_over_k < math.inf):
        yield "info: the size of a buffer, pool or block is invalid"
    for name in point.__struct_fields__:
        value = getattr(point, name)
        if isinstance(value, Interval):
            yield from _wrong_interval(name, value)
        if isinstance(value, int) and value < 0:
            yield f"{name} = {value}"
    subsets = (point.worst_layer, point.worst_requests, point.first_steps, point.turn_steps)
    rated: list[Subset | BoundSummary] = [one for one in subsets if one is not None]
    rated += point.bounds
    for one in rated:
        for interval in (one.hit, one.nontrivial_hit):
            if interval is not None:
                yield from _wrong_interval("hit", interval)
    for bound in point.bounds:
        for traffic in (bound.traffic_ratio, bound.traffic_vs_reference):
            if traffic is not None and not 0.0 <= traffic < math.inf:
                yield f"bound {bound.name}: traffic {traffic}"
    for rates in (point.hit_by_layer, point.nontrivial_hit_by_layer):
        if not all(rate is None or 0.0 <= rate <= 1.0 for rate in rates):
            yield "a layer's hit rate is not a share"
    for ends in (point.ends, point.nontrivial_ends):
        if set(ends) - set(ENDS):
            yield f"the keys of ends are not {', '.join(ENDS)}"
    if any(set(fates) != set(FATES) for fates in point.fates.values()):
        yield f"the keys of fates are not {', '.join(FATES)}"
    if any(n < 0 for counts in (point.lead_ns_log2, point.late_ns_log2) for n in counts):
        yield "a histogram has a count below 0"


def _wrong_interval(name: str, interval: Interval) -> Iterator[str]:
    lowest = -math.inf if name in UNBOUNDED else 0.0
    highest = math.inf if name in (*UNBOUNDED, *RATIOS) else 1.0
    for value in (interval.value, interval.low, interval.high):
        if value is not None and not (lowest <= value <= highest and math.isfinite(value)):
            yield f"{name} = {value}"
    if (interval.low is None) != (interval.high is None):
        yield f"{name}: an interval has only one end"
    if interval.low is not None and interval.high is not None and interval.low > interval.high:
        yield f"{name}: the interval from {interval.low} to {interval.high} is invalid"
