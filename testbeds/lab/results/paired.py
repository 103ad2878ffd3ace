"""Two points over the same requests: the difference of each figure, with its interval.

Computed from ledgers alone. Both sides are drawn with the same requests, so that variation between
requests cancels: the interval of a difference is much narrower than those of its sides. Two points
are comparable if workload, buffer, pool and granule are equal and every request selected the same
number of blocks on both sides; others are refused, because their workloads differ.

The bootstrap is that of `measure`: Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
section 13.3. It estimates how the difference varies over similar requests; it does not correct for
a policy that was chosen because it won on these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.bindings.units import format_rate
from offstage.testbeds.lab.results.bootstrap import Bootstrap, ratio
from offstage.testbeds.lab.results.ledger_file import (
    FIX,
    LEDGER_NAME,
    Described,
    describe,
    ledger_rows,
)
from offstage.testbeds.lab.results.summary import WEAK_REQUESTS, Interval, PointInfo

__all__ = ["FIGURES", "Difference", "Side", "difference", "pairs", "sides_of"]

SETTING = ("workload", "buffer_over_k", "hbm_pool_over_k", "granule")
HITS = tuple(f"end_{end}" for end in ENDS[:HIT_ENDS])
NONTRIVIAL_HITS = tuple(f"nontrivial_{name}" for name in HITS)
FIGURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nontrivial_hit": (NONTRIVIAL_HITS, ("nontrivial",)),
    "nontrivial_selection_hit": (
        ("nontrivial_pool_hits", *NONTRIVIAL_HITS),
        ("nontrivial_selected",),
    ),
    "hit": (HITS, ("demands",)),
    "selection_hit": (("pool_hits", *HITS), ("selected",)),
    "late": (("end_late",), ("demands",)),
    "pollution": (("pollution",), ("demands",)),
    "reads_per_demand": (("demand_reads", "prefetch_reads"), ("demands",)),
    "stall_ms_mean": (("stall_ms",), ("tokens",)),
}
"""Ratios of sums of a ledger's columns. All but the last two are shares; `stall_ms_mean` is in ms
per token, over all layers."""


@dataclass(frozen=True)
class Side:
    """One point of one run."""

    run: str
    path: Path
    number: int
    info: PointInfo
    recurring: bool

    @property
    def setting(self) -> tuple[Any, ...]:
        """The settings that both sides of a comparison must share."""
        return tuple(getattr(self.info, name) for name in SETTING)

    @property
    def name(self) -> str:
        """The policy, its eviction if that has another name, its parameters, device and cap."""
        own = "".join(f" {key}={value}" for key, value in self.info.parameters.items())
        device = f" on {self.info.device}" if self.info.device else ""
        policy, eviction = self.info.policy, self.info.eviction
        evicts = "" if eviction in (policy, "lru") else f" / {eviction}"
        rate = self.info.bandwidth_bytes_per_s
        cap = f", cap {format_rate(rate)}" if rate else ""
        return f"{policy}{evicts}{own}{device}{cap}"


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """`difference` is `second` - `first`; each is None if the figure has no value."""

    figure: str
    workload: str
    buffer_over_k: float
    hbm_pool_over_k: float
    first_run: str
    first: str
    second_run: str
    second: str
    requests: int
    weak: bool
    first_value: Interval | None
    second_value: Interval | None
    difference: Interval | None


def sides_of(run: Path) -> list[Side]:
    """The points of a lab run, from its ledger. BadInput for a run of another kind, and for a file
    that belongs to none."""
    path = run / LEDGER_NAME if run.is_dir() else run.with_name(LEDGER_NAME)
    if not run.exists():
        raise BadInput("no such file or folder", str(run), FIX)
    if run.is_file() and run.name not in (LEDGER_NAME, "summary.json"):
        raise BadInput("not a run", str(run), FIX)
    if not path.exists():
        raise BadInput(
            f"has no {LEDGER_NAME}, and only runs of the laboratory can be compared", str(run), FIX
        )
    folder = path.parent
    return [
        Side(folder.name or str(folder), path, number, one.info, one.recurring)
        for number, one in _described(path)
    ]


def _described(path: Path) -> list[tuple[int, Described]]:
    return sorted(describe(path).items())


def pairs(first: Sequence[Side], second: Sequence[Side], against: str) -> list[tuple[Side, Side]]:
    """The pairs of points to compare.

    Within one run: every point with that of policy `against` at its setting, under its cap if there
    is one, with the first eviction of the spec if there are several. Between two runs: every point
    of the second with the point of the first with equal policy, eviction, parameters and cap; or,
    if `against` is named, with that policy of the first. BadInput if no pair matches.
    """
    found = []
    for one in second:
        fitting = [
            other
            for other in first
            if other.setting == one.setting
            and (other.info.policy == against if against else _same_policy(other, one))
        ]
        alike = [other for other in fitting if _cap(other) == _cap(one)] or fitting
        if alike and alike[0] != one:
            found.append((alike[0], one))
    if not found:
        what = (
            f"no point has policy {against!r} at its setting"
            if against
            else "no point of the two runs has the same policy and setting"
        )
        there = ", ".join(sorted({side.info.policy for side in first}))
        fix = "choose one of" if against else "sweep alike, or give --against and choose one of"
        raise BadInput(what, str(first[0].path if first else "no points"), f"{fix} {there}")
    return found


def _cap(side: Side) -> int:
    return side.info.bandwidth_bytes_per_s


def _same_policy(one: Side, other: Side) -> bool:
    own = ("policy", "eviction", "parameters", "bandwidth_bytes_per_s")
    return all(getattr(one.info, name) == getattr(other.info, name) for name in own)


def difference(
    first: Side, second: Side, figures: Sequence[str], *, resamples: int = 2000, seed: int = 0
) -> list[Difference]:
    """The difference of each figure. BadInput if the two ran over different requests."""
    ours, theirs = _requests(first), _requests(second)
    if ours.names != theirs.names or not np.array_equal(ours.selected, theirs.selected):
        raise BadInput(
            "the two ran over different requests",
            f"{first.name} of {first.path}, {second.name} of {second.path}",
            "run both with the same workload and seeds",
        )
    boot = Bootstrap(len(ours.names), resamples, seed)
    found = []
    for figure in figures:
        top, bottom = FIGURES[figure]
        sides = [(one.sum(top), one.sum(bottom)) for one in (ours, theirs)]
        values = [float(ratio(a.sum(), b.sum())) for a, b in sides]
        drawn = [ratio(boot.sums(a), boot.sums(b)) for a, b in sides]
        found.append(
            Difference(
                figure=figure,
                workload=second.info.workload,
                buffer_over_k=second.info.buffer_over_k,
                hbm_pool_over_k=second.info.hbm_pool_over_k,
                first_run=first.run,
                first=first.name,
                second_run=second.run,
                second=second.name,
                requests=len(ours.names),
                weak=len(ours.names) < WEAK_REQUESTS,
                first_value=boot.interval(values[0], drawn[0]),
                second_value=boot.interval(values[1], drawn[1]),
                difference=boot.interval(values[1] - values[0], drawn[1] - drawn[0]),
            )
        )
    return found


@dataclass(frozen=True)
class _Requests:
    """Sums by request, in the order of `names`."""

    names: list[tuple[int, int]]
    columns: dict[str, npt.NDArray[np.float64]]

    @property
    def selected(self) -> npt.NDArray[np.float64]:
        return self.columns["selected"]

    def sum(self, names: Sequence[str]) -> npt.NDArray[np.float64]:
        return np.asarray(sum(self.columns[name] for name in names))


def _requests(side: Side) -> _Requests:
    """A point's rows summed by request; a request that recurs under every seed counts as one."""
    used = {name for both in FIGURES.values() for part in both for name in part}
    summed = sorted(used - {"stall_ms", "tokens"} | {"selected", "stall_ns"})
    own = {"seed", "session", "step", *summed}
    rows = ledger_rows(side.path, side.number, sorted(own))
    if not len(rows):
        raise BadInput(f"no row of {side.name}", str(side.path), "the point failed; run it again")
    by = ["session"] if side.recurring else ["seed", "session"]
    tokens = rows.group_by([*by, "seed", "step"] if side.recurring else [*by, "step"])
    token = tokens.aggregate([(name, "sum") for name in summed])
    table = (
        token.group_by(by)
        .aggregate([*((f"{name}_sum", "sum") for name in summed), ("step", "count")])
        .sort_by([(name, "ascending") for name in by])
    )
    columns = {name: table[f"{name}_sum_sum"].to_numpy().astype(np.float64) for name in summed}
    columns["stall_ms"] = columns["stall_ns"] / 1e6
    columns["tokens"] = table["step_count"].to_numpy().astype(np.float64)
    seeds = [0] * len(table) if side.recurring else table["seed"].to_pylist()
    return _Requests(list(zip(seeds, table["session"].to_pylist(), strict=True)), columns)
