"""The ledger of a lab run: one row for every (session, step, layer), and sums over its rows.

The C engine writes the rows; `ledger_file.py` stores them. Every figure of a report is computed
from these rows and the core's counters of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ROW
from offstage.bindings.layouts import ENDS
from offstage.bindings.ledger import Ledger, hits_of, share
from offstage.testbeds.lab.results.summary import FIRST_STEPS, TURN_STEPS, SeedBounds, SeedRun

__all__ = [
    "ROW",
    "BoundTotals",
    "RunTotals",
    "bound_totals",
    "pool_bounds",
    "pool_runs",
    "totals",
]

# A run's ledger summed by request: small, and sufficient for all figures of a point.
#
# A sweep cannot keep the rows of every point in memory, but it can keep these sums. Nothing is
# estimated here: every number is a count of rows, or a sum over them.

Integers = npt.NDArray[np.int64]

COUNTS = (
    "selected",
    "pool_hits",
    "demands",
    "nontrivial",
    "nontrivial_selected",
    "nontrivial_pool_hits",
    "shadow_misses",
    "pollution",
    "demand_reads",
    "prefetch_reads",
)
AXES = ("layer", "step")
RATES = ("hits", "demands", "nontrivial_hits", "nontrivial")


@dataclass(frozen=True)
class RunTotals:
    """Sums over the rows of one run; `n` requests in order of session.

    requests: `(seed, session)` `[n]`. columns: by name, `[n]`: the fields of a row, ends as
    `end_NAME` and `nontrivial_end_NAME`, and of `RATES` those of the first steps (`first_`) and
    after turns (`turn_`). layers: `RATES` by name, `[n, layers]`. stall_ns, stall_request:
    `[tokens]`, each token's wait over all its layers and the index of its request.
    """

    seed: int
    requests: tuple[tuple[int, int], ...]
    columns: dict[str, Integers]
    layers: dict[str, Integers]
    stall_ns: Integers
    stall_request: Integers
    counters: Ledger
    end_ns: int
    reads: int
    failed: int
    decoded_ns: int = 0
    sessions_ns: int = 0
    tiers: tuple[dict[str, int], ...] = ()
    weights: dict[str, int] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    units: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class BoundTotals:
    """Sums over the rows of one seed's bounds; `hits`, `nontrivial_hits`: `[n, bounds]`."""

    seed: int
    names: tuple[str, ...]
    requests: tuple[tuple[int, int], ...]
    demands: Integers
    nontrivial: Integers
    hits: Integers
    nontrivial_hits: Integers
    reads: dict[str, int]
    limit_hits: int | None


def totals(run: SeedRun | RunTotals) -> RunTotals:
    """Sums over one run; totals are returned unchanged."""
    if isinstance(run, RunTotals):
        return run
    rows = run.rows
    sessions, request = np.unique(rows["session"], return_inverse=True)
    count = len(sessions)

    def total(values: Any, at: Any = request, size: int = count) -> Integers:
        # Sums of counts stay far below 2^53, up to which float64 is exact.
        return np.bincount(at, values, minlength=size).astype(np.int64)

    columns = {name: total(rows[name]) for name in COUNTS}
    columns["rows"] = total(np.ones(len(rows)))
    for prefix, names in (("end_", "ends"), ("nontrivial_end_", "nontrivial_ends")):
        columns |= {f"{prefix}{end}": total(rows[names][:, at]) for at, end in enumerate(ENDS)}
    rates = {
        "hits": hits_of(rows["ends"]),
        "demands": rows["demands"],
        "nontrivial_hits": hits_of(rows["nontrivial_ends"]),
        "nontrivial": rows["nontrivial"],
    }
    columns["hits"], columns["nontrivial_hits"] = (
        total(rates[name]) for name in ("hits", "nontrivial_hits")
    )
    first = rows["step"] < FIRST_STEPS
    turn = _behind_turns(rows, run.turns)
    for name, values in rates.items():
        columns[f"first_{name}"] = total(values[first], request[first])
        columns[f"turn_{name}"] = total(values[turn], request[turn])
    width, step_count = (int(rows[name].max()) + 1 if len(rows) else 0 for name in AXES)
    cell = request * width + rows["layer"]
    layers = {
        name: total(values, cell, count * width).reshape(count, width)
        for name, values in rates.items()
    }
    tokens, token = np.unique(request * step_count + rows["step"], return_inverse=True)
    columns["tokens"] = np.bincount(tokens // max(1, step_count), minlength=count).astype(np.int64)
    _bytes(columns, run.counters)
    return RunTotals(
        seed=run.seed,
        requests=tuple((run.seed, int(session)) for session in sessions),
        columns=columns,
        layers=layers,
        stall_ns=total(rows["stall_ns"], token, len(tokens)),
        stall_request=tokens // max(1, step_count),
        counters=run.counters,
        end_ns=run.end_ns,
        reads=run.reads,
        failed=run.failed,
        decoded_ns=run.decoded_ns,
        sessions_ns=run.sessions_ns,
        tiers=tuple(run.tiers),
        weights=run.weights,
        used=run.used,
        units=run.units,
    )


def _behind_turns(
    rows: npt.NDArray[np.void], turns: dict[int, tuple[int, ...]]
) -> npt.NDArray[np.bool_]:
    """Rows in the first `TURN_STEPS` steps of a turn."""
    behind = np.zeros(len(rows), np.bool_)
    for session, begins in turns.items():
        own = np.flatnonzero(rows["session"] == session) if begins else np.zeros(0, np.intp)
        step = rows["step"][own].astype(np.int64)
        for begin in begins:
            behind[own[(step >= begin) & (step < begin + TURN_STEPS)]] = True
    return behind


def _bytes(columns: dict[str, Integers], counters: Ledger) -> None:
    """Add bytes by request: the run's bytes, divided in proportion to each request's reads; bytes
    of hints, in proportion to its layers.

    Reads of one kind have one size, except with granules of different sizes.
    """
    kinds = {"demand": counters.demand_bytes_read, "prefetch": counters.prefetch_bytes_read}
    for kind, read in kinds.items():
        reads = columns[f"{kind}_reads"]
        caused = int(reads.sum())
        assert caused or not read, f"{read} bytes of {kind} reads that no row counts"
        columns[f"{kind}_bytes"] = np.rint(reads * share(read, caused)).astype(np.int64)
    layers = columns["rows"]
    told = share(counters.hint_bytes, int(layers.sum()))
    columns["hint_bytes"] = np.rint(layers * told).astype(np.int64)


def bound_totals(bounds: SeedBounds | BoundTotals) -> BoundTotals:
    """Sums over one seed's bounds; totals are returned unchanged."""
    if isinstance(bounds, BoundTotals):
        return bounds
    rows = bounds.rows
    sessions, request = np.unique(rows["session"], return_inverse=True)
    count = len(sessions)

    def total(values: npt.NDArray[Any]) -> Integers:
        return np.bincount(request, values, minlength=count).astype(np.int64)

    def each(name: str) -> Integers:
        found = [total(rows[name][:, at]) for at in range(len(bounds.names))]
        return np.stack(found, axis=1) if found else np.zeros((count, 0), np.int64)

    return BoundTotals(
        seed=bounds.seed,
        names=bounds.names,
        requests=tuple((bounds.seed, int(session)) for session in sessions),
        demands=total(rows["demands"]),
        nontrivial=total(rows["nontrivial"]),
        hits=each("hits"),
        nontrivial_hits=each("nontrivial_hits"),
        reads=bounds.reads,
        limit_hits=bounds.limit_hits,
    )


def pool_runs(runs: Sequence[RunTotals], recurring: bool) -> RunTotals:
    """All seeds as one run: their requests concatenated in order of seed, or, if every seed has the
    same requests, each request summed over the seeds."""
    runs = sorted(runs, key=lambda run: run.seed)
    assert len({run.seed for run in runs}) == len(runs), "a seed was run twice"
    units, unit = _units([run.requests for run in runs], recurring)
    first = np.cumsum([0, *(len(run.requests) for run in runs)])
    stall_units = [unit[at + run.stall_request] for at, run in zip(first, runs, strict=False)]
    return RunTotals(
        seed=runs[0].seed,
        requests=units,
        columns={
            name: _summed([run.columns[name] for run in runs], unit, len(units))
            for name in runs[0].columns
        },
        layers={
            name: _summed([run.layers[name] for run in runs], unit, len(units))
            for name in runs[0].layers
        },
        stall_ns=np.concatenate([run.stall_ns for run in runs]),
        stall_request=np.concatenate(stall_units),
        counters=Ledger.total(run.counters for run in runs),
        end_ns=max(run.end_ns for run in runs),
        reads=sum(run.reads for run in runs),
        failed=sum(run.failed for run in runs),
    )


def pool_bounds(bounds: Sequence[BoundTotals], recurring: bool) -> BoundTotals:
    """As `pool_runs`, for bounds; all seeds have the same ones."""
    bounds = sorted(bounds, key=lambda one: one.seed)
    names = bounds[0].names
    assert all(one.names == names for one in bounds), "bounds differ between seeds"
    units, unit = _units([one.requests for one in bounds], recurring)

    limits = [one.limit_hits for one in bounds if one.limit_hits is not None]

    def summed(name: str) -> Integers:
        return _summed([getattr(one, name) for one in bounds], unit, len(units))

    return BoundTotals(
        seed=bounds[0].seed,
        names=names,
        requests=units,
        demands=summed("demands"),
        nontrivial=summed("nontrivial"),
        hits=summed("hits"),
        nontrivial_hits=summed("nontrivial_hits"),
        reads={
            name: sum(one.reads[name] for one in bounds)
            for name in names
            if all(name in one.reads for one in bounds)
        },
        limit_hits=sum(limits) if len(limits) == len(bounds) else None,
    )


def _units(
    requests: Sequence[tuple[tuple[int, int], ...]], recurring: bool
) -> tuple[tuple[tuple[int, int], ...], Integers]:
    """The units of resampling, and the unit of each request."""
    found = [request for part in requests for request in part]
    if not recurring:
        return tuple(found), np.arange(len(found))
    sessions, unit = np.unique([session for _, session in found], return_inverse=True)
    return tuple((0, int(session)) for session in sessions), unit


def _summed(parts: Sequence[Integers], unit: Integers, count: int) -> Integers:
    values = np.concatenate(parts)
    out = np.zeros((count, *values.shape[1:]), np.int64)
    np.add.at(out, unit, values)
    return out
