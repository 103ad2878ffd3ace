"""Which blocks a layer selects when it ranks them by 16-bit scores: one rule for every workload.

A selection has the sinks (the first blocks), the window (the last blocks that exist) and, of the
blocks between, those with the highest scores; the smaller ordinal wins ties. So ranks are total,
and a selection follows from the scores that policies see. Pure functions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.ranks import top

__all__ = ["ranked", "top_selection"]


def top_selection(
    scores: npt.NDArray[np.uint16], blocks: int, select: int, sinks: int, window: int
) -> npt.NDArray[np.uint32]:
    """Selects in every layer: uint32 `[layers, min(select, blocks)]`, ascending.

    scores: uint16 `[layers, at least blocks]`. `select` counts sinks and window too.
    """
    layers = scores.shape[0]
    if select >= blocks:
        return np.tile(np.arange(blocks, dtype=np.uint32), (layers, 1))
    assert 0 <= sinks and 0 <= window and sinks + window <= select
    free = select - sinks - window
    chosen = np.empty((layers, select), np.uint32)
    chosen[:, :sinks] = np.arange(sinks)
    chosen[:, select - window :] = np.arange(blocks - window, blocks)
    if free:
        top(scores, sinks, blocks - window, free, chosen[:, sinks:])
    return chosen


def ranked(scores: npt.NDArray[np.uint16], counts: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Ordinals by falling score, split but not sorted: uint32 `[layers, blocks]`.

    For every `c` of `counts`, 1 to blocks, the first `c` of a row are its `c` best.
    """
    blocks = scores.shape[1]
    assert counts and min(counts) >= 1 and max(counts) <= blocks
    # Score and ordinal in one number: a partition of integers is several times as fast as an
    # argpartition, and ties have a defined order.
    wide, shift = (np.uint32, 16) if blocks <= 1 << 16 else (np.uint64, 32)
    keys: npt.NDArray[Any] = np.subtract(0xFFFF, scores, dtype=wide)
    np.left_shift(keys, wide(shift), out=keys)
    np.bitwise_or(keys, np.arange(blocks, dtype=wide), out=keys)
    keys.partition(sorted({count - 1 for count in counts}), axis=1)
    np.bitwise_and(keys, wide((1 << shift) - 1), out=keys)
    return keys.astype(np.uint32, copy=False)
