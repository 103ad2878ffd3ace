"""What `offstage lab bounds` shows: the bounds of a spec, without a policy beside them."""

from pathlib import Path
from typing import Any

from rich.table import Table

from offstage.testbeds.lab.results.totals import BoundTotals, bound_totals, pool_bounds
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.bounds_task import bound_keys
from offstage.testbeds.lab.run.experiment import Experiment, Variant
from offstage.testbeds.lab.run.plan import Task

__all__ = ["bounds_rows", "bounds_table"]


def bounds_rows(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """One row for each variant, buffer, cap and bound, over all seeds, and one for a buffer that
    cannot hold what a layer demands together; parts are in `folder`."""
    rows = []
    for variant in experiment.variants:
        recurring = variant.spec.workload.kind in ("captured", "selections")
        seeds = [
            parts.read_bounds(
                folder / f"{Task(variant.spec, seed, ()).parts(experiment.code)[0]}.npz"
            )
            for seed in variant.spec.seeds
        ]
        for key in bound_keys(variant.spec):
            if not all(key in one for one in seeds):
                rows.append({"workload": _name(variant), **_setting(variant, key),
                             "bound": "does not fit", "hit": None, "nontrivial_hit": None,
                             "reads": None})  # fmt: skip
                continue
            pooled = pool_bounds([bound_totals(one[key]) for one in seeds], recurring)
            rows += [
                {"workload": _name(variant), **_setting(variant, key),
                 **_figures(pooled, at, name)}
                for at, name in enumerate(pooled.names)
            ]  # fmt: skip
    return rows


def _name(variant: Variant) -> str:
    return variant.label or variant.spec.workload.kind


def _setting(variant: Variant, key: parts.BoundKey) -> dict[str, Any]:
    grain, buffer_blocks, cap = key
    return {
        "buffer_over_k": buffer_blocks / grain / variant.spec.selection.k_blocks,
        "granules_per_block": grain,
        "cap_bytes_per_s": cap,
    }


def _figures(pooled: BoundTotals, at: int, name: str) -> dict[str, Any]:
    demands, nontrivial = int(pooled.demands.sum()), int(pooled.nontrivial.sum())
    return {
        "bound": name,
        "hit": int(pooled.hits[:, at].sum()) / demands if demands else None,
        "nontrivial_hit": (
            int(pooled.nontrivial_hits[:, at].sum()) / nontrivial if nontrivial else None
        ),
        "reads": pooled.reads.get(name),
    }


def bounds_table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "B / k", "bound", "non-trivial hit", "hit", "reads"):
        table.add_column(column, justify="left" if column in ("workload", "bound") else "right")
    for row in rows:
        table.add_row(
            row["workload"], f"{row['buffer_over_k']:g}", row["bound"].replace("_", " "),
            _percent(row["nontrivial_hit"]), _percent(row["hit"]),
            "" if row["reads"] is None else f"{row['reads']:,}",
        )  # fmt: skip
    return table


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"
