"""The rows and the table of `offstage lab bounds`: the bounds of a spec, without policies."""

from pathlib import Path

import msgspec

from offstage.bindings.units import format_count, format_rate, format_share
from offstage.testbeds.lab.bounds.names import bound_label
from offstage.testbeds.lab.results.ledger import (
    BoundTotals,
    bound_totals,
    pool_bounds,
)
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.bounds import bound_keys
from offstage.testbeds.lab.run.experiment import Experiment
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.source import recurs
from offstage.testbeds.table import Column, Table

__all__ = ["BoundRow", "bounds_rows", "bounds_table"]

NONE_FITS = "does not fit"
"""In place of a bound: the buffer cannot hold one layer's demands of a step."""


class BoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One bound at one buffer and cap, over all seeds; None: unknown, or the buffer is too small.
    `cap_bytes_per_s` None: no cap."""

    workload: str
    buffer_over_k: float
    granules_per_block: int
    cap_bytes_per_s: int | None
    bound: str
    hit: float | None = None
    nontrivial_hit: float | None = None
    reads: int | None = None


def bounds_rows(experiment: Experiment, folder: Path) -> list[BoundRow]:
    """One row for each variant, buffer, cap and bound, over all seeds, and one for each buffer that
    cannot hold one layer's demands of a step; parts are in `folder`."""
    rows: list[BoundRow] = []
    for variant in experiment.variants:
        spec = variant.spec
        seeds = [
            parts.read_bounds(folder / f"{Task(spec, seed, ()).parts(experiment.code)[0]}.npz")
            for seed in spec.seeds
        ]
        for key in bound_keys(spec):
            grain, buffer_blocks, cap = key
            unknown = BoundRow(
                workload=variant.label or spec.workload.kind,
                buffer_over_k=buffer_blocks / grain / spec.selection.k_blocks,
                granules_per_block=grain,
                cap_bytes_per_s=cap,
                bound=NONE_FITS,
            )
            if all(key in one for one in seeds):
                found = [bound_totals(one[key]) for one in seeds]
                rows += _known(unknown, pool_bounds(found, recurs(spec)))
            else:
                rows.append(unknown)
    return rows


def _known(row: BoundRow, pooled: BoundTotals) -> list[BoundRow]:
    """One copy of the row for each bound, with its figures."""
    demands, nontrivial = int(pooled.demands.sum()), int(pooled.nontrivial.sum())
    return [
        msgspec.structs.replace(
            row,
            bound=name,
            hit=int(pooled.hits[:, at].sum()) / demands if demands else None,
            nontrivial_hit=(
                int(pooled.nontrivial_hits[:, at].sum()) / nontrivial if nontrivial else None
            ),
            reads=pooled.reads.get(name),
        )
        for at, name in enumerate(pooled.names)
    ]


def bounds_table(rows: list[BoundRow]) -> Table:
    """The rows as a table to print; cap and granules only where rows differ in them."""
    capped = len({row.cap_bytes_per_s for row in rows}) > 1
    grained = len({row.granules_per_block for row in rows}) > 1
    columns = [
        Column("workload", left=True),
        Column("buffer", "{:g} k".format, left=True),
        *([Column("cap", _cap, left=True)] if capped else []),
        *([Column("granules")] if grained else []),
        Column("bound", left=True),
        Column("non-trivial", format_share),
        Column("hit", format_share),
        Column("blocks read", format_count),
    ]
    return Table.of(columns, (_cells(row, capped, grained) for row in rows))


def _cap(bytes_per_s: int | None) -> str:
    return "none" if bytes_per_s is None else format_rate(bytes_per_s)


def _cells(row: BoundRow, capped: bool, grained: bool) -> list[object]:
    setting: list[object] = [row.workload, row.buffer_over_k]
    setting += [row.cap_bytes_per_s] if capped else []
    setting += [row.granules_per_block] if grained else []
    reads = "" if row.reads is None else row.reads
    hits = ("n/a" if one is None else one for one in (row.nontrivial_hit, row.hit))
    named = row.bound if row.bound == NONE_FITS else bound_label(row.bound)
    return [*setting, named, *hits, reads]
