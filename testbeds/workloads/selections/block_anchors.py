"""Locality of blocks of tokens whose tokens follow a process: targets for processes of blocks.

Published figures of selectors that rank tokens do not apply to blocks directly. A block counts by
its highest token, and the highest of 64 stays far longer than one token does. So a process of
blocks is fitted to what its process of tokens gives for blocks: the tokens are drawn, each block
of 64 gets the highest of its tokens' scores, the best 32 of 2,048 blocks are selected (128K
tokens and 2,048 selected ones in blocks), and the selections are counted. These targets are
recomputed on every use, on the same seeds as the process that is compared with them: the bursts of
a seed then fall on the same steps in both, so that a difference is one of the processes.

Pure functions of (process, seeds); nothing can fail.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from offstage.testbeds.workloads.selections.anchors import ANCHORS, Anchor, Sample, measure
from offstage.testbeds.workloads.selections.profiles import (
    BLOCK_TOKENS,
    CLUMP_TOKENS,
    PROCESSES,
    Process,
)

__all__ = ["STATISTICS", "Values", "aims", "derive"]


Values = dict[str, npt.NDArray[np.float64]]
"""A statistic of each seed, by the anchor's name."""

_SAMPLE = Sample(2048, 32, 260, unit_tokens=BLOCK_TOKENS)
_TOKENS = replace(_SAMPLE, clump=CLUMP_TOKENS, highest_of=BLOCK_TOKENS)


def _statistic(what: str, number: int, words: str, tolerance: float) -> Anchor:
    asks = (what, (number,))
    return Anchor(
        f"blocks-{what}-{number}", words, 0.0, 0.0, _SAMPLE, asks, "", tolerance=tolerance
    )


_STATISTICS = (
    *(
        _statistic("overlap", steps, f"share common to the selections of t and t + {steps}", 0.01)
        for steps in (1, 2, 5, 20, 100)
    ),
    *(
        _statistic("distinct", steps, f"distinct blocks of {steps} steps over k", tolerance)
        for steps, tolerance in ((4, 0.03), (16, 0.05), (64, 0.1))
    ),
    _statistic("newest", 32, "share of a selection among the newest 1/64 of the blocks", 0.02),
)

STATISTICS: Mapping[str, Anchor] = MappingProxyType({anchor.name: anchor for anchor in _STATISTICS})
"""The derived statistics by name, without targets. Tolerances are choices: about the standard error
of the target over eight seeds."""


def derive(
    names: Iterable[str],
    process: Process,
    seeds: Iterable[int],
    advance: Callable[[int], None] = lambda count: None,
) -> Values:
    """The named statistics for blocks whose tokens follow the process."""
    anchors = [replace(STATISTICS[name], sample=_TOKENS) for name in names]
    return measure(anchors, process.params, seeds, advance)


def aims(
    process: Process,
    seeds: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[dict[str, Anchor], Values]:
    """The figures that a process was fitted to and is compared with, in that order.

    With them, by seed, the targets of the derived ones. `advance` gets 1 for every sample drawn:
    as many as seeds for a process of blocks, else none."""
    names = (*process.fitted_to, *process.compared_with)
    own = [name for name in names if name in STATISTICS]
    targets: Values = {}
    if own:
        targets = derive(own, PROCESSES[process.tokens], seeds, advance)
    source = f"tokens of {process.tokens}, highest of {BLOCK_TOKENS}"
    anchors = {}
    for name in names:
        if name in targets:
            target = float(targets[name].mean())
            anchors[name] = replace(STATISTICS[name], low=target, high=target, source=source)
        else:
            anchors[name] = ANCHORS[name]
    return anchors, targets
