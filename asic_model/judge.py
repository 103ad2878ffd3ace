"""Judges the model of the measured machine: its predictions of runs that it was not fitted to.

Model: both sides are reduced to the same `Observed`, and each figure has a limit. Every repeat of a
run is predicted from its own log, so that what the host took is the same on both sides; judged is
the mean error, and how well the repeats know it is shown. A figure whose error they do not know
within its limit is not measurable here: neither met nor missed.

Time on the device is from the decision on a command until its last block is staged, 0 where all
were; processor time is the reactor's for commands and reads, without polling. Nothing here can
fail.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from offstage.asic_model.account import logged_of
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import ChipRun, Times, times_of
from offstage.asic_model.samples import COSTS, WORK, Samples
from offstage.asic_model.trace import Trace
from offstage.bindings.ledger import share
from offstage.bindings.stages import Stages

__all__ = [
    "FIGURES",
    "Figure",
    "Judged",
    "Observed",
    "StageError",
    "Status",
    "judge",
    "mean_stages",
    "measured_of",
    "predicted_of",
    "stage_errors",
    "status_of",
    "structure",
]

PS = 1000  # in a ns
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for 95 % on both sides, of 2, 3, ... repeats."""
Status = Literal["calibrated", "uncalibrated", "not measurable here"]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged of a run, measured or predicted."""

    hit: float
    late: float
    miss: float
    bytes_read: float
    cpu_ns: float
    device_ns: Times
    tokens_per_s: float

    def value(self, key: str) -> float:
        """A figure's value, by its key."""
        if key in ("mean", "p99"):
            return float(getattr(self.device_ns, key))
        return float(getattr(self, key))


def measured_of(trace: Trace, samples: Samples) -> Observed:
    """A recorded run."""
    logged = logged_of(trace)
    demands = logged.hits + logged.late + logged.misses
    tokens = {(one.session, one.step) for one in trace.fetches if one.demands and not one.retry}
    return Observed(
        hit=share(logged.hits, demands),
        late=share(logged.late, demands),
        miss=share(logged.misses, demands),
        bytes_read=logged.bytes_read,
        cpu_ns=samples.cpu_ns,
        device_ns=times_of(samples.device),
        tokens_per_s=len(tokens) / logged.seconds,
    )


def predicted_of(run: ChipRun, preset: Preset, trace: Trace) -> Observed:
    """The model's run of a trace in closed loop."""
    cores = preset.cores
    assert cores is not None, "only a DPU has software to time"
    scores = sum(one.scores for one in trace.fetches)
    cpu_ps = (
        len(trace.fetches) * cores.command.base
        + sum(one.demands for one in trace.fetches) * cores.demand.base
        + scores * cores.score.base
        + run.reads * (cores.read.base + cores.publish.base)
        + run.starts * cores.start.base
        + run.wakes * cores.wake.base
        + run.rests * cores.cold.base
        + run.cold_scores * cores.cold_score.base
    )
    return Observed(
        hit=share(run.hits, run.demands),
        late=share(run.late, run.demands),
        miss=share(run.misses, run.demands),
        bytes_read=run.bytes_read,
        cpu_ns=cpu_ps / PS,
        device_ns=run.device_ns,
        tokens_per_s=run.tokens_per_s,
    )


class Figure(msgspec.Struct, frozen=True):
    """One predicted figure. `tolerance`: in points (of a share) or relative."""

    key: str
    text: str
    tolerance: float
    points: bool = False

    def error(self, predicted: float, measured: float) -> float:
        """Signed: points of a share, or relative to the measured value."""
        if self.points:
            return predicted - measured
        return predicted / measured - 1.0 if measured else 0.0


FIGURES = (
    Figure("hit", "hit", 0.01, True),
    Figure("late", "late", 0.01, True),
    Figure("miss", "miss", 0.01, True),
    Figure("bytes_read", "bytes read", 0.03),
    Figure("cpu_ns", "reactor's processor time", 0.05),
    Figure("mean", "on the device, mean", 0.10),
    Figure("p99", "on the device, p99", 0.20),
    Figure("tokens_per_s", "tokens/s", 0.05),
)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one predicted run: means over its `repeats`, and the error between these.
    `spread`: half of the error's 95 % interval by Student's t, in its unit; None for one run."""

    run: str
    figure: str
    measured: float
    predicted: float
    error: float
    tolerance: float
    spread: float | None
    repeats: int
    points: bool

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or `not measurable here`."""
        if self.spread is not None and self.spread > self.tolerance:
            return "not measurable here"
        return "met" if abs(self.error) <= self.tolerance else "missed"


def judge(name: str, predicted: Sequence[Observed], measured: Sequence[Observed]) -> list[Judged]:
    """Every figure of one run. `measured`: the run and its repeats, in any number; `predicted`: of
    each its prediction."""
    found = []
    for figure in FIGURES:
        values, were = (
            np.array([one.value(figure.key) for one in side]) for side in (predicted, measured)
        )
        mean, count = float(were.mean()), len(were)
        spread = None
        if count > 1:
            student = T95[min(count, len(T95) + 1) - 2]
            apart = student * float(np.std(values - were, ddof=1)) / math.sqrt(count)
            spread = figure.error(mean + apart, mean)
        found.append(
            Judged(
                run=name,
                figure=figure.text,
                measured=mean,
                predicted=float(values.mean()),
                error=figure.error(float(values.mean()), mean),
                tolerance=figure.tolerance,
                spread=spread,
                repeats=count,
                points=figure.points,
            )
        )
    return found


def structure(name: str, modelled: Times, measured: Times) -> list[Judged]:
    """The rung below: with each read's own time, the times on the device are the log's exactly."""
    return [
        Judged(
            run=name,
            figure=f"structure, {key}",
            measured=(was := float(getattr(measured, key))),
            predicted=(value := float(getattr(modelled, key))),
            error=value / was - 1.0 if was else value,
            tolerance=0.0,
            spread=None,
            repeats=1,
            points=False,
        )
        for key in ("mean", "p99", "max")
    ]


def status_of(judged: Sequence[Judged]) -> Status:
    """`uncalibrated` if any figure missed. Otherwise every figure must be met somewhere: one whose
    repeats lie too far apart to judge is no evidence for the model."""
    if any(one.verdict == "missed" for one in judged):
        return "uncalibrated"
    met = {one.figure for one in judged if one.verdict == "met"}
    return "calibrated" if all(one.text in met for one in FIGURES) else "not measurable here"


class StageError(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, measured in a run and in the model of it, in ns."""

    run: str
    stage: str
    measured_ns: float
    modelled_ns: float

    @property
    def factor(self) -> float:
        """How far apart, as a factor of 1 or more."""
        one, other = sorted((max(self.measured_ns, 1.0), max(self.modelled_ns, 1.0)))
        return other / one


def stage_errors(
    name: str, predicted: ChipRun, preset: Preset, samples: Samples, stages: Stages
) -> list[StageError]:
    """Where the model's time differs: the drive alone, the rest of a read, the way of a command,
    and the reactor's work for a command and for a read."""
    drive = next(one for one in predicted.units if one.name == "drive").time_ns_mean
    way = float(np.median(samples.ring)) if len(samples.ring) else 0.0
    way += stages["answer"].ns_p50 if "answer" in stages else 0
    cores = preset.cores
    assert cores is not None
    pairs = {
        "read service": (_mean(samples.service), drive),
        "a read's waits for the reactor": (
            _mean(samples.before) + _mean(samples.after),
            predicted.read_ns.mean - drive,
        ),
        "host to reactor and back, median": (way, preset.front_end.latency.base / PS),
    }
    costs = {work: getattr(cores, name).base / PS for work, name in zip(WORK, COSTS, strict=True)}
    for what, kinds, each in (
        ("command", (*WORK[:3], *WORK[7:]), "commands"),
        ("read", WORK[3:7], "begun"),
    ):
        pairs[f"processor time for a {what}"] = (
            _each(samples, samples.costs, kinds, each),
            _each(samples, costs, kinds, each),
        )
    return [
        StageError(run=name, stage=stage, measured_ns=measured, modelled_ns=modelled)
        for stage, (measured, modelled) in pairs.items()
    ]


def mean_stages(name: str, runs: Sequence[Sequence[StageError]]) -> list[StageError]:
    """The stages of a workload in the mean of its runs, as its figures are judged."""
    return [
        StageError(
            run=name,
            stage=of[0].stage,
            measured_ns=sum(one.measured_ns for one in of) / len(of),
            modelled_ns=sum(one.modelled_ns for one in of) / len(of),
        )
        for of in zip(*runs, strict=True)
    ]


def _mean(values: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> float:
    return float(values.mean()) if len(values) else 0.0


def _each(samples: Samples, costs: dict[str, float], kinds: Sequence[str], each: str) -> float:
    """ns of processor time for each command or read of the run, at these costs of work."""
    work = samples.work
    return share(sum(costs.get(name, 0.0) * work[name] for name in kinds), work[each])
