"""Locality of selections: shares that stay selected, and misses of a buffer of blocks.

A run of selections is an int array `[steps, k]` of one layer, ordinals below `blocks`. A buffer
serves each selection as a set: a block selected at a step cannot leave during it, and blocks that
came at one step leave in order of their ordinals. First touches are misses; the first step, which
misses everything, is not counted. Pure functions, no loop over blocks.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.ledger import share
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.ranking import top_selection

__all__ = [
    "BUFFERS",
    "OVERLAP_STEPS",
    "buffer_misses",
    "distinct",
    "overlap",
    "overlap_of_file",
    "shared_by",
]

Ordinals = npt.NDArray[np.int64]
_Shares = npt.NDArray[np.float64]

BUFFERS = ("lru", "fifo", "random", "belady")


def overlap(selected: Ordinals, distance: int, blocks: int) -> float:
    """Mean share of a step's selection that was also selected `distance` steps before."""
    held = np.zeros(blocks, bool)
    shares = []
    for step in range(distance, len(selected)):
        held[:] = False
        held[selected[step - distance]] = True
        shares.append(float(held[selected[step]].mean()))
    return sum(shares) / len(shares)


def shared_by(selections: Ordinals, blocks: int) -> float:
    """Share of one selection that is in all the selections `[n, k]`."""
    counts = np.bincount(selections.ravel(), minlength=blocks)
    return float(np.mean(counts[selections[0]] == len(selections)))


def distinct(selected: Ordinals, steps: int, blocks: int) -> float:
    """Distinct blocks of `steps` consecutive selections over the size of one, mean of all runs."""
    last = len(selected) - steps
    used = np.full(blocks, -1, np.int64)
    count = 0
    for step, chosen in enumerate(selected):
        # A run counts a block at its first use in it: for runs that begin after the use before.
        begin = np.maximum(used[chosen] + 1, step - steps + 1)
        count += int(np.maximum(min(step, last) - begin + 1, 0).sum())
        used[chosen] = step
    return count / (last + 1) / len(selected[0])


def buffer_misses(
    selected: Ordinals, blocks: int, sizes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> dict[tuple[str, int], float]:
    """Miss rates by (buffer, size in blocks), for the sizes requested of each buffer of `BUFFERS`.

    `belady` evicts the block whose next selection is furthest away, knowing the whole run.
    """
    draw = np.random.Generator(np.random.Philox(seed))
    upcoming = _next_uses(selected, blocks) if "belady" in sizes else None
    runs = [(kind, size) for kind, all_sizes in sizes.items() for size in all_sizes]
    resident = {run: np.zeros(blocks, bool) for run in runs}
    came = {run: np.full(blocks, -1, np.int64) for run in runs}
    misses = dict.fromkeys(runs, 0)
    last_use = np.full(blocks, -1, np.int64)
    for step, chosen in enumerate(selected):
        last_use[chosen] = step
        for run in runs:
            kind, size = run
            here = resident[run]
            new = chosen[~here[chosen]]
            misses[run] += len(new) if step else 0
            here[new] = True
            came[run][new] = step
            excess = int(here.sum()) - size
            if excess <= 0:
                continue
            inside = np.flatnonzero(here & (last_use < step))
            if kind == "lru":
                worth = last_use[inside]
            elif kind == "fifo":
                worth = came[run][inside]
            elif kind == "random":
                worth = draw.integers(0, 1 << 40, len(inside))
            else:
                assert upcoming is not None
                worth = -upcoming[step][inside]
            key = worth * blocks + inside
            here[inside[np.argpartition(key, excess - 1)[:excess]]] = False
    total = (len(selected) - 1) * selected.shape[1]
    return {run: count / total for run, count in misses.items()}


def _next_uses(selected: Ordinals, blocks: int) -> npt.NDArray[np.int64]:
    """`[steps, blocks]`: the step after this one at which each block is selected next."""
    result = np.empty((len(selected), blocks), np.int64)
    ahead = np.full(blocks, len(selected), np.int64)
    for step in range(len(selected) - 1, -1, -1):
        result[step] = ahead
        ahead[selected[step]] = step
    return result


# A first look at a file of scores: how much of a selection the next step selects again, the figure
# that most papers on sparse attention report, and how much of it was predicted, to compare a
# capture with theirs before any experiment. It owns nothing, and reads one slab at a time.

OVERLAP_STEPS = 64


def overlap_of_file(path: str | Path, steps: int = OVERLAP_STEPS) -> dict[str, object]:
    """Share of selected blocks that the step before selected too.

    By mass, maximum over groups, without sinks and window; k is a quarter of the context's blocks,
    at most 32. Mean over the first `steps` steps and all layers of the first session, the layer
    with the minimum, and each layer's value; None with one step only. `predicted`: for each layer,
    the share of its selection that is among the best k predicted, None without predictions.
    """
    first = CapturedWorkload(path, 1, sink_blocks=0, window_blocks=0)
    k = max(1, min(32, first.sessions[0].blocks // 4))
    workload = CapturedWorkload(path, k, sink_blocks=0, window_blocks=0)
    shared, predicted = np.zeros((2, workload.layer_count))
    count = 0
    before: np.ndarray | None = None
    first_ahead = np.full(k, ABSENT)
    for slab in workload.slabs(0):
        for index, selected in enumerate(slab.selected):
            told = np.full((workload.layer_count, k), ABSENT)
            if slab.predicted is not None:
                told = top_selection(slab.predicted[index], slab.predicted.shape[2], k, 0, 0)
                told[~slab.predicted[index].any(axis=1)] = ABSENT
            # Row 0 is of the next step.
            first_ahead, told[0] = told[0].copy(), first_ahead
            if before is not None and count < steps:
                count += 1
                shared += _shares(selected, before)
                predicted += _shares(selected, told)
            before = selected
        if count >= steps:
            break
    if count == 0:
        return {"k_blocks": k, "steps": 0, "mean": None, "least": None, "least_layer": None}
    rates = shared / count
    return {
        "k_blocks": k,
        "steps": count,
        "mean": round(float(rates.mean()), 4),
        "least": round(float(rates.min()), 4),
        "least_layer": int(rates.argmin()),
        "layers": [round(float(one), 4) for one in rates],
        "predicted": [round(float(one), 4) or None for one in predicted / count],
    }


def _shares(selected: npt.NDArray[np.uint32], others: npt.NDArray[np.uint32]) -> _Shares:
    """The share of each layer's selection that is in `others` too."""
    shares = []
    for now, then in zip(selected, others, strict=True):
        chosen = now[now != ABSENT]
        shares.append(share(int(np.isin(chosen, then).sum()), chosen.size))
    return np.array(shares)
