"""The result of `offstage bench prefetch` in a real engine: arms by load, against a measured
deadline."""

from collections.abc import Sequence

import msgspec
import numpy as np

from offstage.bindings.ledger import quantile, share
from offstage.bindings.units import format_time
from offstage.testbeds.bench.hint_arms import NONE, HintArm, HintCase
from offstage.testbeds.bench.rows import UNITS, BenchResult
from offstage.testbeds.lab.results.bootstrap import RESAMPLES, Bootstrap
from offstage.testbeds.table import Cell, Column, Table

__all__ = ["Cost", "LiveLoad", "LiveMoment", "LivePrefetchResult", "Loaded"]


class Cost(msgspec.Struct, frozen=True):
    """Measured seconds to the first token of a prompt that is alone and computed, by tokens."""

    tokens: list[int]
    seconds: list[float]

    def of(self, tokens: int) -> float:
        """Seconds of computing so many tokens: between measured lengths on a straight line, below
        the first and above the last in proportion."""
        if tokens <= self.tokens[0]:
            return self.seconds[0] * tokens / self.tokens[0]
        if tokens >= self.tokens[-1]:
            return self.seconds[-1] * tokens / self.tokens[-1]
        return float(np.interp(tokens, self.tokens, self.seconds))


class Loaded(msgspec.Struct, frozen=True):
    """One load: its tokens, what it took (of one within a step, what the step waited for it), and
    its deadline, the measured time of computing those tokens."""

    tokens: int
    took_s: float
    deadline_s: float


class LiveMoment(msgspec.Struct, kw_only=True):
    """One arm at one load. `first_s`: of each request, in order. `on_time`, `late`, `missing`:
    objects read, by whether the tier's memory had all of one, some, or none. By the daemon's
    ledger: `read`, the blocks that it read from its drive, `wasted`, those of them that left its
    memory without a demand, and `dropped`, those that were hinted and never read."""

    name: str
    first_s: list[float] = []
    loads: list[Loaded] = []
    on_time: int = 0
    late: int = 0
    missing: int = 0
    read: int = 0
    wasted: int = 0
    dropped: int = 0
    gained: float | None = None
    """By how much the mean time to the first token is shorter than with no hints."""
    gained_range: tuple[float, float] | None = None
    """Its 95 % interval over requests, each paired with itself without hints. Where requests wait
    for each other it is narrower than what another run would show."""

    @property
    def past_deadline(self) -> int:
        """Loads that took longer than computing their tokens takes."""
        return sum(one.took_s > one.deadline_s for one in self.loads)

    @property
    def objects(self) -> int:
        """Objects read."""
        return self.on_time + self.late + self.missing


class LiveLoad(msgspec.Struct, kw_only=True):
    """One speed of arrivals. `load`: time of computing every prompt alone over the time in which
    they arrive. `speed`: seconds of the trace in one here."""

    load: float
    speed: float
    moments: list[LiveMoment] = []

    def compare(self) -> None:
        """Set what each arm gains, from the times of the same requests without hints."""
        base = next(one.first_s for one in self.moments if one.name == NONE)
        boot = Bootstrap(len(base), RESAMPLES, 0)
        for one in self.moments:
            found = boot.ratio(one.first_s, base)
            if found is None:
                continue
            one.gained, ends = 1.0 - found.value, found.ends
            one.gained_range = None if ends is None else (1.0 - ends[1], 1.0 - ends[0])


class LivePrefetchResult(BenchResult, kw_only=True):
    """The arms at every load. `cost` is measured in the same run and is every load's deadline."""

    provenance: str
    storage: str
    model: str
    trace: str
    requests: int
    scale: float
    tokens: list[int]
    """Of each prompt."""
    sessions: int
    arena_bytes: int
    stored_bytes: int
    engine_tokens: int
    """That vLLM's own cache holds."""
    cost: Cost
    loads: list[LiveLoad]
    left_out: dict[str, str]
    load_before: float
    """Processes that ran on this machine in the minute before, in the mean."""

    def shown(self) -> list[HintCase]:
        """The arms as the page shows them."""
        loads = {one.load: _shown(one) for one in self.loads}
        return [HintCase(self.trace, loads, "the blocks read from the drive")]

    def about(self) -> list[str]:
        """Whether prefetch pays, and the setup."""
        return [*(one.said() for one in self.shown()), *self.setup()]

    def setup(self) -> list[str]:
        """How it was measured."""
        costs = zip(self.cost.tokens, self.cost.seconds, strict=True)
        told = ", ".join(f"{tokens:,} tokens {_time(seconds)}" for tokens, seconds in costs)
        return [
            f"{self.provenance} on {self.storage}: {self.requests} requests of {self.sessions} "
            f"sessions of {self.trace} in vLLM, {self.model}; a token is {1 / self.scale:.3g} of "
            f"the trace's, {int(np.median(self.tokens)):,} at the median; "
            f"{self.load_before:.1f} processes ran on this machine before",
            f"vLLM's cache holds {self.engine_tokens:,} tokens, the tier's memory "
            f"{UNITS['bytes'](self.arena_bytes)} of the {UNITS['bytes'](self.stored_bytes)} stored",
            f"computing, measured alone in this run, and the deadline of a load: {told}",
            "load: time of computing every prompt alone, over the time in which they arrive",
            "gained: by how much the mean time to the first token is shorter than without hints, "
            "and its 95 % interval over pairs of requests",
            "on time, late, missing: objects read, of which the tier's memory had all, some, none",
            "past deadline: loads that took longer than computing; wasted: of the blocks read from "
            "the drive, those that nobody demanded",
            *(f"no arm {arm}: {reason}" for arm, reason in self.left_out.items()),
        ]

    def own_tables(self) -> list[Table]:
        """A load and arm to a row."""
        columns = [
            Column("load", left=True),
            Column("hints", left=True),
            Column("first token mean", _time, short="mean"),
            *(Column(name, _time) for name in ("p50", "p90", "p99")),
            Column("gained", UNITS["%"]),
            *(Column(name, UNITS["%"]) for name in ("on time", "late", "missing")),
            Column("past deadline"),
            Column("wasted", UNITS["%"]),
        ]
        rows = [_row(load, one) for load in self.loads for one in load.moments]
        return [Table.of(columns, rows, f"{self.trace}, {self.requests} requests")]


def _row(load: LiveLoad, one: LiveMoment) -> Sequence[object]:
    times = [float(np.mean(one.first_s)), *(quantile(one.first_s, at) for at in (0.5, 0.9, 0.99))]
    past = f"{one.past_deadline} of {len(one.loads)}" if one.loads else None
    return [f"{load.load:g}", one.name, *times, _gained(one), *_ends(one), past, _wasted(one)]


def _gained(one: LiveMoment) -> Cell | None:
    if one.gained is None:
        return None
    form = UNITS["%"]
    return Cell(form(one.gained), small=" to ".join(map(form, one.gained_range or ())))


def _ends(one: LiveMoment) -> list[float | None]:
    """Shares on time, late and missing; None: no object was read."""
    counts = one.on_time, one.late, one.missing
    return [share(count, one.objects) if one.objects else None for count in counts]


def _wasted(one: LiveMoment) -> float | None:
    return share(one.wasted, one.read) if one.read else None


def _shown(load: LiveLoad) -> list[HintArm]:
    found = []
    for one in load.moments:
        on_time, late, missing = _ends(one)
        found.append(
            HintArm(
                name=one.name,
                mean_s=float(np.mean(one.first_s)),
                p50_s=quantile(one.first_s, 0.5),
                p99_s=quantile(one.first_s, 0.99),
                gained=one.gained,
                gained_range=one.gained_range,
                on_time=on_time,
                late=late,
                missing=missing,
                wasted=_wasted(one),
            )
        )
    return found


def _time(seconds: float) -> str:
    return format_time(1e9 * seconds)
