"""Fits `dpu_x86_measured` to a recorded run, and judges its predictions of other runs.

Model: a recorded run times one in 31 of its commands and reads, stage by stage. Each stage maps to
one or two parameters of the preset, so the fit is arithmetic and needs no search. It uses none of
the judged figures (hit, late and miss, bandwidth, fetch latency). The work of a command (demands
and scores) is counted, not timed: the three costs of a command keep their proportion in the preset
and are scaled until a command of the run's mean work takes as long as `decide` did. Reads of one
command are submitted in turn, so `read_queue` is the cost of one times the mean place in its
batch. The spread of read times comes from all reads of the log, since one in 31 is too few for a
tail. Reads that begin within a mean service time of each other take the same time, as those of one
batch did.

A prediction is compared with the spread of repeats of the measured run. A figure that the machine
does not repeat within the tolerance is not measurable here: neither met nor missed.

What can fail: `BadInput` for a run without the stage times that a fit needs.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.result import ChipRun, Logged, demands_of
from offstage.asic_model.trace import Trace
from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import share
from offstage.bindings.stages import Stages

__all__ = [
    "FIGURES",
    "Figure",
    "Judged",
    "StageError",
    "Status",
    "fit",
    "judge",
    "stage_errors",
    "status_of",
    "write_preset",
]

NEEDED = ("ring_wait", "decide", "read_queue", "read_service", "publish")
NS = 1000  # ps
Status = Literal["calibrated", "uncalibrated", "not measurable here"]
QUANTILES = {"least": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}


def fit(preset: Preset, stages: Stages, trace: Trace, where: str) -> Preset:
    """The preset with the stage times of one run. `stages`: those of its record, and those of its
    host where known (answer, copy, check)."""
    missing = [name for name in NEEDED if name not in stages or not stages[name].count]
    if missing:
        raise BadInput(
            f"has no stage times of {', '.join(missing)}",
            where,
            "record a run that reads, with daemon.stage_timers on",
        )
    ns = {name: stage.ns_mean for name, stage in stages.items()}
    known = dict(preset.numbers())
    stretch = ns["decide"] * NS / _command_ps(preset, trace)
    values_ps = {
        "cores.command": known["cores.command"].base * stretch,
        "cores.demand": known["cores.demand"].base * stretch,
        "cores.score": known["cores.score"].base * stretch,
        "cores.read": ns["read_queue"] * NS / _place_in_batch(trace),
        "cores.publish": ns["publish"] * NS,
        "front_end.latency": NS * (ns["ring_wait"] + ns.get("answer", 0.0)),
    }
    values = {name: value / known[name].scale for name, value in values_ps.items()}
    if "copy" in ns:
        rate = trace.block_bytes / ((ns["copy"] + ns.get("check", 0.0)) / 1e9)
        values["front_end.lane_rate"] = rate / known["front_end.lane_rate"].scale
    if preset.nvme.drive == "disk":
        # The timer includes the wait in the disk's queue, so there is no second wait before it.
        values["disk.service"] = ns["read_service"] * NS / known["disk.service"].scale
        values["disk.depth"] = max(known["disk.depth"].value, preset.nvme.reads.value)
        values["disk.together"] = ns["read_service"] * NS / known["disk.together"].scale
        values |= _spread(trace)
    return preset.with_(values)


def _command_ps(preset: Preset, trace: Trace) -> float:
    """The preset's time for a command of the run's mean work."""
    count = len(trace.fetches)
    cores = preset.cores
    assert cores is not None, "only a DPU has software to time"
    demands = sum(one.demands for one in trace.fetches) / count
    scores = sum(one.scores for one in trace.fetches) / count
    return cores.command.base + demands * cores.demand.base + scores * cores.score.base


def _spread(trace: Trace) -> dict[str, float]:
    """Quantiles of the read times over their mean: of all reads in the log, not the timed few."""
    took = np.array([read.ended_ns - read.at_ns for read in trace.reads], np.float64)
    return {
        f"disk.{name}": float(np.quantile(took, share) / took.mean())
        for name, share in QUANTILES.items()
    }


def _place_in_batch(trace: Trace) -> float:
    """The mean place of a read among those decided at the same moment, from 1."""
    batches = Counter(read.at_ns for read in trace.reads)
    places = sum(count * (count + 1) / 2 for count in batches.values())
    return share(places, len(trace.reads))


class Figure(msgspec.Struct, frozen=True):
    """One predicted figure. `tolerance`: in points (of a share) or relative."""

    key: str
    text: str
    tolerance: float
    points: bool = False

    def of(self, run: "ChipRun | Logged") -> float:
        """Its value in a run."""
        if self.points:
            return share(getattr(run, self.key), demands_of(run))
        if self.key == "bandwidth":
            return share(run.bytes_read, run.seconds)
        return float(getattr(run.fetch_ns, self.key))

    def error(self, predicted: float, measured: float) -> float:
        """Signed: points of a share, or relative to the measured value."""
        if self.points:
            return predicted - measured
        return predicted / measured - 1.0 if measured else 0.0


FIGURES = (
    Figure("hits", "hit", 0.01, True),
    Figure("late", "late", 0.01, True),
    Figure("misses", "miss", 0.01, True),
    Figure("bandwidth", "bandwidth", 0.05),
    Figure("mean", "fetch mean", 0.10),
    Figure("p99", "fetch p99", 0.20),
)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one predicted run. `spread`: between repeats of the measured run, in the unit
    of the error; None where it was not repeated."""

    run: str
    figure: str
    measured: float
    predicted: float
    error: float
    tolerance: float
    spread: float | None
    points: bool

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or `not measurable here`."""
        if self.spread is not None and self.spread > self.tolerance:
            return "not measurable here"
        return "met" if abs(self.error) <= self.tolerance else "missed"


def judge(name: str, predicted: ChipRun, repeats: Sequence[Logged]) -> list[Judged]:
    """Every figure of one run. `repeats`: the measured run and its repeats, in any number. The
    measured value is their mean, the spread the distance between the two furthest apart."""
    found = []
    for figure in FIGURES:
        values = [figure.of(one) for one in repeats]
        measured = sum(values) / len(values)
        apart = max(values) - min(values)
        spread = figure.error(measured + apart, measured) if len(values) > 1 else None
        value = figure.of(predicted)
        found.append(
            Judged(
                run=name,
                figure=figure.text,
                measured=measured,
                predicted=value,
                error=figure.error(value, measured),
                tolerance=figure.tolerance,
                spread=spread,
                points=figure.points,
            )
        )
    return found


def status_of(judged: Sequence[Judged]) -> Status:
    """`uncalibrated` if any figure missed. Otherwise every figure must be met somewhere: one whose
    repeats lie too far apart to judge is no evidence for the model."""
    if any(one.verdict == "missed" for one in judged):
        return "uncalibrated"
    met = {one.figure for one in judged if one.verdict == "met"}
    return "calibrated" if all(one.text in met for one in FIGURES) else "not measurable here"


class StageError(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a fetch, measured by the stage timers and in the model, in ns."""

    run: str
    stage: str
    measured_ns: float
    modelled_ns: float


def stage_errors(name: str, predicted: ChipRun, stages: Stages) -> list[StageError]:
    """Where the model's time differs from the timers': the drive alone, the rest of a read, and the
    rest of a fetch."""
    ns = {stage: one.ns_mean for stage, one in stages.items()}
    units = {unit.name: unit for unit in predicted.units}
    drive = units["drive"].time_ns_mean
    around = ns["read_queue"] + ns["publish"]
    pairs = {
        "read_service": (ns["read_service"], drive),
        "read_queue and publish": (around, predicted.read_ns.mean - drive),
        "ring_wait and answer": (
            ns["ring_wait"] + ns.get("answer", 0.0),
            units["link_in"].time_ns_mean,
        ),
    }
    return [
        StageError(run=name, stage=stage, measured_ns=measured, modelled_ns=modelled)
        for stage, (measured, modelled) in pairs.items()
    ]


def write_preset(preset: Preset, path: Path, fitted_to: str) -> None:
    """Write what the fit changed, as a TOML file that extends the preset. BadInput where it cannot
    be written."""
    before = dict(read_preset(preset.name).numbers())
    lines = [
        f"# Fitted to {fitted_to} by `offstage asic validate`.",
        f'extends = "{preset.name}"',
        f"calibrated = {str(preset.calibrated).lower()}",
    ]
    tables: dict[str, list[str]] = {}
    for name, number in preset.numbers():
        if number != before.get(name):
            block, _, key = name.partition(".")
            tables.setdefault(block, []).append(
                f'{key} = {{ value = {number.value!r}, unit = "{number.unit}", '
                f'low = {number.low!r}, high = {number.high!r}, tag = "measured", '
                f'source = "fitted to the stage timers of one run" }}'
            )
    for block, rows in tables.items():
        lines += ["", f"[{block}]", *rows]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(path), "give another --out"
        ) from None
