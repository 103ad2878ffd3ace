"""What a recording measured, as samples: service of reads, processor time of the reactor, waits.

Model: a read's service is from the moment the storage had it until the reactor took its end. That
includes the wait until the reactor looks, at most from POLLED on (`struct ofs_moment`); the wait
behind other ends of the same look, and the core's own work, come after it and are not part of it.
Processor time is of turns that nothing interrupted, against the work that they did; those that
wrote a prefill, and those far over what their work costs, are left out. A read that finds the drive
idle wakes it, and on a virtual one the processor leaves the machine for that: ten times what a read
costs that joins others.

Reads that are submitted in one turn, a batch, end in one look more often than not: the reactor
sleeps until the first of them ends and needs longer to wake up than the drive for the others. So
the drive's time is known by batch, from the submission of its last read (`service - held`), and by
all reads in flight then (`beside`).

What can fail: `BadInput` for a recording without moments, or with a hole in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.asic_model.trace import Trace
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES
from offstage.bindings.moments import MOMENT, PHASES, Moments, station

__all__ = [
    "COSTS",
    "DEMAND",
    "REST_NS",
    "WORK",
    "Cost",
    "Samples",
    "cost_of",
    "pooled",
    "read_samples",
    "samples_of",
    "samples_of_log",
]

DRAWS = 200  # of the bootstrap
NAME = "moments.bin"
FIX = "record it again, with daemon.stage_timers on"
WORK = (
    "commands",
    "demands",
    "scores",
    "begun",
    "ended",
    "starts",
    "wakes",
    "rests",
    "cold_scores",
)
"""What a turn did, as columns of MOMENT; `begun` and `ended` count reads. `wakes`: starts after
`REST_NS` without a read; `rests`: it took commands after as long without a command or a read's end,
by when other work has the caches; `cold_scores`: the scores of these."""
COSTS = ("command", "demand", "score", "read", "publish", "start", "wake", "cold", "cold_score")
"""What each of these costs, as parameters of a preset's [cores]."""
DEMAND = CAUSES.index("demand")
REST_NS = 1_000_000
WAKE_NS = (20_000, 200_000)
"""A command after a rest that was taken sooner found the reactor awake; one that was taken later
waited for a processor."""
EXCESS_NS, ROUNDS = 100_000, 30
"""A turn so much over what its work costs was interrupted from outside: by the host of a virtual
machine, which takes a processor for 100 to 250 us and which no clock of the guest shows."""


@dataclass(frozen=True)
class Cost:
    """A fitted cost with its 95 % interval, and the number of samples behind it."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Samples:
    """Of one recording, in ns. `cause`, `beside`, `service`, `held`: of each read; `held` how long
    after it the last of its batch was submitted, `beside` the other reads in flight then. `before`,
    `after`: its waits for the reactor, until it was submitted and from its end to the answer.
    `around`: of each command that waited for reads, from the decision until the first of them was
    submitted, and from the end of the last to the answer; `awaited`: how many they were. `device`:
    of each command with demands, from the decision until its last block was staged; 0 where all
    were. `ring`: from sent to taken, where the host said when it was sent; `woke`: the same of
    commands that woke the reactor up. `turns`: those in which the reactor was on its processor all
    the while, without those that wrote."""

    cause: npt.NDArray[np.int64]
    beside: npt.NDArray[np.int64]
    service: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    around: npt.NDArray[np.int64]
    awaited: npt.NDArray[np.int64]
    device: npt.NDArray[np.float64]
    ring: npt.NDArray[np.int64]
    woke: npt.NDArray[np.int64]
    turns: npt.NDArray[np.void]
    work: dict[str, int]
    """Of all commands and reads, by the names of `WORK`."""

    @cached_property
    def costs(self) -> dict[str, float]:
        """Processor time in ns of one of each kind of work, by the names of `WORK`; empty without
        turns."""
        if not len(self.turns):
            return {}
        did, took, calm = self._calm
        return dict(zip(WORK, _least_squares(did[calm], took[calm]).tolist(), strict=True))

    @cached_property
    def ranges(self) -> dict[str, Cost]:
        """The same with their intervals, which take a bootstrap."""
        if not len(self.turns):
            return {}
        did, took, calm = self._calm
        return dict(zip(WORK, cost_of(did[calm], took[calm]), strict=True))

    @property
    def interrupted(self) -> float:
        """Share of the turns' processor time in those that were interrupted from outside, which the
        costs leave out; 0 without turns."""
        _, took, calm = self._calm
        return float(took[~calm].sum() / took.sum()) if len(took) else 0.0

    @cached_property
    def _calm(
        self,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Work [turns, kinds] and time of all turns, and which of them nothing interrupted."""
        did = np.stack([_did(self.turns, name) for name in WORK], 1).astype(np.float64)
        took = self.turns["at_ns"][:, : len(PHASES)].sum(1).astype(np.float64)
        calm = np.ones(len(took), bool)
        for _ in range(ROUNDS if len(took) else 0):
            again = took - did @ _least_squares(did[calm], took[calm]) <= EXCESS_NS
            if (again == calm).all():
                break
            calm = again
        return did, took, calm

    @property
    def cpu_ns(self) -> float:
        """Processor time of the reactor's work on commands and reads, whole: its costs, times all
        work."""
        return self.at(self.costs)

    @property
    def wake_ns(self) -> float:
        """How long the reactor took to wake up, in the mean; 0: it never slept."""
        return float(self.woke.mean()) if len(self.woke) else 0.0

    def at(self, costs: Mapping[str, float]) -> float:
        """Processor time in ns of all work at these costs, by the names of `WORK`."""
        return sum(cost * self.work[name] for name, cost in costs.items())


def read_samples(folder: Path) -> Samples:
    """The samples of a recorded run, from its folder."""
    path = folder / NAME
    try:
        rows = np.frombuffer(path.read_bytes(), MOMENT)
    except (OSError, ValueError):
        raise BadInput("has no moments of reads and commands", str(folder), FIX) from None
    found = Moments(rows)
    if not len(found.commands) or not len(found.reads):
        raise BadInput("has no moments of reads and commands", str(path), FIX)
    if found.lost:
        raise BadInput(f"lacks {found.lost} moments: the ring was full", str(path), FIX)
    return samples_of(found)


def samples_of_log(trace: Trace) -> Samples:
    """What a decision log alone has, one of a recording without moments: the service of each read,
    with its waits for the reactor, which a log does not tell apart."""
    at, ended = (
        np.array([getattr(one, key) for one in trace.reads], np.int64)
        for key in ("at_ns", "ended_ns")
    )
    began = np.arange(len(at)) - np.searchsorted(np.sort(ended), at, side="right")
    none = np.zeros(0, np.int64)
    return Samples(
        cause=np.array([one.cause for one in trace.reads], np.int64),
        beside=np.maximum(began, 0),
        service=np.maximum(ended - at, 1),
        held=np.zeros(len(at), np.int64),
        before=none,
        after=none,
        around=none,
        awaited=none,
        device=np.zeros(0),
        ring=none,
        woke=none,
        turns=np.zeros(0, MOMENT),
        work=dict.fromkeys(WORK, 0) | {"begun": len(at), "ended": len(at)},
    )


def pooled(runs: Sequence[Samples]) -> Samples:
    """The samples of several recordings as those of one."""
    columns = {
        one.name: np.concatenate([getattr(run, one.name) for run in runs])
        for one in fields(Samples)
        if one.name != "work"
    }
    work = {name: sum(run.work[name] for run in runs) for name in WORK}
    return Samples(**columns, work=work)


def samples_of(found: Moments) -> Samples:
    """The samples of these moments."""
    reads, commands, turns = found.reads, found.commands, found.turns
    sent, taken = (station(commands, "command", name) for name in ("sent", "taken"))
    decided, answered = (station(commands, "command", name) for name in ("decided", "answered"))
    submitted, reaped = (station(reads, "read", name) for name in ("submitted", "reaped"))
    asked = commands["demands"] > 0
    said = asked & (sent > 0) & (sent <= taken)
    calm = found.undisturbed & (turns["puts"] == 0) & _worked(turns)
    told = turns[(turns["puts"] == 0) & _worked(turns)]
    last = _last_of_batch(station(reads, "read", "decided"), submitted)
    around, awaited = _around(reads, commands[commands["begun"] > 0])
    return Samples(
        cause=reads["cause"].astype(np.int64),
        beside=reads["begun"][last].astype(np.int64),
        service=reaped - submitted,
        held=submitted[last] - submitted,
        before=submitted - station(reads, "read", "decided"),
        after=station(reads, "read", "answered") - reaped,
        around=around,
        awaited=awaited,
        device=((answered - decided) * (commands["begun"] > 0))[asked].astype(np.float64),
        ring=(taken - sent)[said],
        woke=_woke(sent[said], taken[said], np.sort(np.concatenate([taken, reaped]))),
        turns=turns[calm],
        work={
            "commands": len(commands),
            "demands": int(commands["demands"].sum()),
            "scores": int(commands["scores"].sum()),
            "begun": len(reads),
            "ended": len(reads),
            "starts": int(_did(told, "starts").sum()),
            "wakes": int(_did(told, "wakes").sum()),
            "rests": int(_did(told, "rests").sum()),
            "cold_scores": int(_did(told, "cold_scores").sum()),
        },
    )


def _last_of_batch(
    decided: npt.NDArray[np.int64], submitted: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each read, which one was submitted last of its batch. A turn decides first and submits
    then, so the first of a batch was decided when all before it had been submitted."""
    order = np.argsort(submitted, kind="stable")
    batch = np.cumsum(np.append(True, decided[order][1:] > submitted[order][:-1])) - 1
    ends = np.append(np.flatnonzero(np.diff(batch)), len(order) - 1)
    last = np.empty(len(order), np.int64)
    last[order] = order[ends[batch]]
    return last


def _around(
    reads: npt.NDArray[np.void], waited: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of commands that waited for reads of their own alone: their time beside these reads, and how
    many. A session's commands follow each other, so a demanded read is of its last one."""
    found = [np.zeros((0, 2), np.int64)]
    reads = reads[reads["cause"] == DEMAND]
    for session in np.unique(waited["session"]):
        mine = waited[waited["session"] == session]
        decided, answered = (station(mine, "command", name) for name in ("decided", "answered"))
        order = np.argsort(decided, kind="stable")
        decided, answered, own = decided[order], answered[order], reads[reads["session"] == session]
        of = np.searchsorted(decided, station(own, "read", "decided"), side="right") - 1
        own, of = own[of >= 0], of[of >= 0]
        first, last = np.full(len(mine), np.iinfo(np.int64).max), np.zeros(len(mine), np.int64)
        np.minimum.at(first, of, station(own, "read", "submitted"))
        np.maximum.at(last, of, station(own, "read", "reaped"))
        count = np.bincount(of, minlength=len(mine))
        whole = (count == mine["begun"][order]) & (last <= answered)
        beside = first - decided + answered - last
        found.append(np.stack([beside, count], 1)[whole])
    both = np.concatenate(found)
    return both[:, 0], both[:, 1]


def _woke(
    sent: npt.NDArray[np.int64], taken: npt.NDArray[np.int64], events: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """From sent to taken, of the commands that ended a rest of a reactor that slept; `events`: when
    it took any command or the end of a read, in order."""
    before = np.searchsorted(events, sent, side="right") - 1
    first = np.searchsorted(events, taken, side="left") == before + 1
    rested = (before >= 0) & (sent - events[before] >= REST_NS)
    took = taken - sent
    asleep = (took >= WAKE_NS[0]) & (took <= WAKE_NS[1])
    return np.asarray(took[first & rested & asleep], np.int64)


def _did(turns: npt.NDArray[np.void], name: str) -> npt.NDArray[np.int64]:
    if name in ("rests", "cold_scores"):
        rested = (turns["rested_us"] >= REST_NS // 1000) & (turns["commands"] > 0)
        return np.asarray(rested * (turns["scores"] if name == "cold_scores" else 1), np.int64)
    return np.asarray(turns[name], np.int64)


def _worked(turns: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    worked = [turns[name] > 0 for name in WORK if name not in ("rests", "cold_scores")]
    return np.asarray(np.any(worked, axis=0), np.bool_)


def cost_of(work: npt.NDArray[np.float64], took: npt.NDArray[np.float64]) -> list[Cost]:
    """Costs of a unit of each kind of work: `took` [n] as a sum of `work` [n, kinds], none below 0,
    scaled so that the sums agree. The intervals are of a bootstrap over the samples."""
    draw = np.random.default_rng(1)
    best = _least_squares(work, took)
    count = len(took)
    again = [
        _least_squares(work[rows], took[rows])
        for rows in (draw.integers(0, count, count) for _ in range(DRAWS))
    ]
    low, high = np.quantile(np.array(again), (0.025, 0.975), axis=0)
    return [
        Cost(float(value), float(min(a, value)), float(max(b, value)), count)
        for value, a, b in zip(best, low, high, strict=True)
    ]


def _least_squares(
    work: npt.NDArray[np.float64], took: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Non-negative: the best of all subsets of the few kinds of work, each by its normal
    equations."""
    kinds = work.shape[1]
    scale = np.maximum(np.sqrt((work**2).sum(0)), 1.0)
    among, with_took = (work / scale).T @ (work / scale), (work / scale).T @ took
    best, error = np.zeros(kinds), 0.0
    for chosen in range(1, 1 << kinds):
        columns = [kind for kind in range(kinds) if chosen >> kind & 1]
        part = among[np.ix_(columns, columns)]
        found = np.linalg.lstsq(part, with_took[columns], rcond=None)[0]
        left = float(found @ part @ found - 2 * found @ with_took[columns])
        if (found >= 0).all() and left < error:
            best, error = np.zeros(kinds), left
            best[columns] = found / scale[columns]
    whole = float((work @ best).sum())
    return best * (took.sum() / whole) if whole else best
