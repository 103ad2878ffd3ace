"""The measured DPU as a column: figures of its decision log and of its stage timers.

Counts are the log's, and a fetch takes what the host's own clock says from asking for its blocks
until it has them, which is the model's definition too (`asic_model/result.py`). Software stages
take the place of units; with a modelled device in the loop, they are the times that it held
commands, reads and answers. A timer has a stage's distribution, not per fetch. So each stage of a
fetch gets its mean, and the storage gets the remainder.
"""

from offstage.asic_model.result import Logged, demands_of
from offstage.bindings.ledger import share
from offstage.bindings.stages import Stages
from offstage.testbeds.report.compare.columns import Column, UnitFigures
from offstage.testbeds.report.compare.recorded import Recorded

__all__ = ["measured_column"]

PATH = (
    "ring_wait",
    "model_command",
    "decide",
    "read_queue",
    "read_service",
    "publish",
    "model_hit",
    "answer",
    "copy",
    "check",
)
STORAGE = ("read_queue", "read_service", "publish")
"""Stages that only a fetch that waits for a block has."""


def measured_column(run: Recorded, logged: Logged, tokens: int) -> Column:
    """The column of the run itself."""
    demands = demands_of(logged)
    return Column(
        device=f"{run.device} in the loop" if run.device else f"{run.provenance} DPU",
        provenance=run.provenance,
        storage=logged.storage,
        demands=demands,
        hits=logged.hits,
        late=logged.late,
        misses=logged.misses,
        fetch_ns=logged.fetch_ns,
        stall_ns=logged.stall_ns,
        seconds=logged.seconds,
        bytes_read=logged.bytes_read,
        bytes_per_s=share(logged.bytes_read, logged.seconds),
        tokens=tokens,
        tokens_per_s=tokens / logged.seconds if logged.seconds else None,
        units=_units(run.stages, logged) if not demands or logged.hits < demands else [],
        notes=run.notes,
    )


def _units(stages: Stages, logged: Logged) -> list[UnitFigures]:
    found = []
    for name in PATH:
        if name in stages:
            unit = UnitFigures(name=name.replace("_", " "))
            unit.ns_p50 = _spent(stages, name, logged.fetch_ns.p50)
            unit.ns_p99 = _spent(stages, name, logged.fetch_ns.p99)
            found.append(unit)
    return found


def _spent(stages: Stages, name: str, whole_ns: float) -> float:
    """The time of a stage in a fetch of that length: means; for the storage the remainder."""
    means = {one: stages[one].ns_mean for one in PATH if one in stages}
    short = {one: ns for one, ns in means.items() if one not in STORAGE}
    waited = "read_service" in means and whole_ns > sum(short.values())
    if not waited:
        return whole_ns * short.get(name, 0.0) / (sum(short.values()) or 1.0)
    if name == "read_service":
        return max(whole_ns - sum(ns for one, ns in means.items() if one != name), 0.0)
    return means[name]
