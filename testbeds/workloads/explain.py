"""How well a profile meets the published figures: every row is drawn and counted when it is asked.

Rows of basis "fitted" are the figures that a process of the profile was fitted to, measured on that
process with other seeds than the search had. Rows "compared" are figures that were never aimed at:
those of a process, and those of the profile as a whole, whose value is the mean over its layers of
a model of 80. The row "chosen" is a published share that goes in as a parameter. Nothing can fail
but the name of the profile.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.testbeds.drive.progress import Progress, Silent
from offstage.testbeds.workloads.anchors import ANCHORS, Anchor, error, measure
from offstage.testbeds.workloads.process import HEAD_CLASS_FRACTIONS
from offstage.testbeds.workloads.profiles import PROCESSES, PROFILES, layer_processes

__all__ = ["EXPLAIN_SEEDS", "LAYERS", "Row", "explain", "render", "to_dict"]

LAYERS = 80
EXPLAIN_SEEDS = 8

_WHOLE = (
    "hisparse-lru-1k",
    "hisparse-lru-2k",
    "hisparse-lru-4k",
    "ess-pool",
    "retroinfer-cache",
    "msa",
    "solidattention",
    "prr",
    "shadowkv",
)
"""Figures that were taken over layers or heads, and so belong to a profile as a whole."""


@dataclass(frozen=True)
class Row:
    """One figure. `part` is the process measured, or "all layers". `error` is the distance to the
    figure, 0 inside a range; `spread` is the standard error of `value` over the seeds."""

    part: str
    anchor: str
    statistic: str
    target: str
    value: float
    error: float
    spread: float
    basis: str
    source: str


def explain(
    profile: str, seed: int = 1, seeds: int = EXPLAIN_SEEDS, progress: Progress | None = None
) -> list[Row]:
    """Measures a profile's processes. Raises BadInput for a profile that does not exist."""
    progress = progress or Silent()
    layers = Counter(process.name for process in layer_processes(profile, LAYERS))
    names = [name for name in PROCESSES if name in layers]
    wanted = {name: _wanted(name) for name in names}
    found: dict[str, dict[str, npt.NDArray[np.float64]]] = {}
    for name in names:
        anchors = [ANCHORS[one] for one in wanted[name]]
        samples = len({anchor.sample for anchor in anchors})
        progress.start(f"process {name}", samples * seeds)
        params = PROCESSES[name].params
        found[name] = measure(anchors, params, range(seed, seed + seeds), progress.advance)
    rows = []
    for name in names:
        process = PROCESSES[name]
        for one in (*process.fitted_to, *process.compared_with):
            basis = "fitted" if one in process.fitted_to else "compared"
            rows.append(_row(name, ANCHORS[one], found[name][one], basis))
    if len(names) > 1:
        rows.append(_unstable(layers))
    for one in _WHOLE:
        if len(names) == 1 and one in (*process.fitted_to, *process.compared_with):
            continue
        weighted = [found[name][one] * (layers[name] / LAYERS) for name in names]
        rows.append(_row("all layers", ANCHORS[one], np.sum(weighted, axis=0), "compared"))
    return rows


def to_dict(profile: str, rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """JSON-ready: the profile, what it is, its processes with their parameters, and the rows."""
    layers = Counter(process.name for process in layer_processes(profile, LAYERS))
    return {
        "profile": profile,
        "about": PROFILES[profile],
        "synthetic": True,
        "seed": seed,
        "layers": LAYERS,
        "processes": {
            name: {
                "layers": count,
                "about": PROCESSES[name].about,
                "fitted": list(PROCESSES[name].free),
                **asdict(PROCESSES[name].params),
            }
            for name, count in layers.items()
        },
        "rows": [asdict(row) for row in rows],
    }


def render(profile: str, rows: Sequence[Row]) -> Group:
    """The rows as a table for the terminal, and below it what each figure is and whose."""
    title = f"{profile}: {PROFILES[profile]}"
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("part", "figure"):
        table.add_column(name, no_wrap=True)
    for name in ("published", "here", "±", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    for row in rows:
        numbers = (f"{row.value:.3f}", f"{row.spread:.3f}", f"{row.error:+.3f}")
        table.add_row(row.part, row.anchor, row.target, *numbers, row.basis)
    about = {row.anchor: f"{row.anchor}: {row.statistic}; {row.source}" for row in rows}
    return Group(table, *(Text(line, style="dim") for line in about.values()))


def _wanted(name: str) -> list[str]:
    process = PROCESSES[name]
    return list(dict.fromkeys((*process.fitted_to, *process.compared_with, *_WHOLE)))


def _row(part: str, anchor: Anchor, values: npt.NDArray[np.float64], basis: str) -> Row:
    value = float(values.mean())
    spread = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
    return Row(
        part,
        anchor.name,
        anchor.statistic,
        anchor.target,
        value,
        error(anchor, value),
        spread,
        basis,
        anchor.source,
    )


def _unstable(layers: Counter[str]) -> Row:
    value = 1 - layers["flexicache"] / LAYERS
    target = HEAD_CLASS_FRACTIONS["retrieval"]
    return Row(
        "all layers",
        "flexicache-unstable",
        "share of layers that are not stable",
        f"{target:.3f}",
        value,
        value - target,
        0.0,
        "chosen",
        "FlexiCache arXiv:2511.00868, share of KV heads; here of layers",
    )
