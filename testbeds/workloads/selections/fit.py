"""The search that fits score processes to their anchors:
`python -m offstage.testbeds.workloads.selections.fit`.

A fit minimises the sum over a process's anchors of (error / tolerance) squared, the error being
the distance to the figure or to the middle of its range, by the simplex
search of Nelder and Mead (Computer Journal 7(4), 1965) over the logarithms of the free parameters.
Every point is measured on the same seeds, so that two points differ by their parameters and not by
chance, and the search is a function of its start, the first fits in `process.py`. The seeds of the
fit differ from those of `offstage trace generate --explain`. A process of blocks is fitted to
targets that its process of tokens gives on those seeds.

Prints the fitted values as TOML, for `processes.toml`; it writes nothing itself.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.anchors import Anchor, measure
from offstage.testbeds.workloads.selections.block_anchors import aims
from offstage.testbeds.workloads.selections.profiles import PROCESSES, Process
from offstage.testbeds.workloads.selections.simplex import Vector, minimise

__all__ = ["BLOCK_FIT_SEEDS", "FIT_SEEDS", "cost", "fit"]


FIT_SEEDS = range(1001, 1013)
"""Seeds of the search; measurements of a fit use others."""

BLOCK_FIT_SEEDS = range(1001, 1041)
"""Seeds for blocks: 32 selected of 2,048 scatter more than 256 of 4,096 or 8,192."""


def cost(
    anchors: Iterable[Anchor], params: ProcessParams, seeds: Sequence[int] = FIT_SEEDS
) -> float:
    """Sum of (error / tolerance) squared over the anchors."""
    named = {anchor.name: anchor for anchor in anchors}
    found = measure(named.values(), params, seeds)
    errors = (
        (float(values.mean()) - named[name].middle) / named[name].tolerance
        for name, values in found.items()
    )
    return sum(one * one for one in errors)


def fit(
    process: Process, evaluations: int, say: Callable[[str], None] = lambda line: None
) -> tuple[ProcessParams, float]:
    """The best parameters found within `evaluations` points, and their cost."""
    seeds = BLOCK_FIT_SEEDS if process.tokens else FIT_SEEDS
    figures, _ = aims(process, seeds)
    anchors = [figures[name] for name in process.fitted_to]

    def params_at(point: Vector) -> ProcessParams:
        values = {name: math.exp(x) for name, x in zip(process.free, point, strict=True)}
        if "burst" in values:
            values["burst"] = min(values["burst"], 1.0)
        return replace(process.start, **values)

    def cost_at(point: Vector) -> float:
        value = cost(anchors, params_at(point), seeds)
        say(f"{value:10.2f}  " + "  ".join(f"{math.exp(x):.4g}" for x in point))
        return value

    start = np.log([getattr(process.start, name) for name in process.free])
    best, value = minimise(cost_at, start, evaluations)
    return params_at(best), value


def main() -> None:
    """Fit the processes named on the command line, by default all that have figures."""
    fitted = [name for name, process in PROCESSES.items() if process.fitted_to]
    parser = argparse.ArgumentParser(description="Fit the score processes to published figures.")
    parser.add_argument("process", nargs="*", default=fitted, help=", ".join(fitted))
    parser.add_argument("--evaluations", type=int, default=200)
    chosen = parser.parse_args()
    for name in chosen.process:
        params, value = fit(
            PROCESSES[name], chosen.evaluations, lambda line: print(line, file=sys.stderr)
        )
        print(f"[{name}]  # cost {value:.2f}")
        for free in PROCESSES[name].free:
            print(f"{free} = {getattr(params, free):.4g}")


if __name__ == "__main__":
    main()
