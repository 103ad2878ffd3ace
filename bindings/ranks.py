"""The best blocks of a layer by their 16-bit scores, and a regression on scores: `ofs_ranks.h`.

Pure functions of numpy arrays, each layer separately; of equal scores the lower ordinal is better.
A wrong shape is a bug in the caller and an assertion; nothing else can fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.analysis import ffi, lib

__all__ = ["Averages", "best", "hits", "limits", "top"]

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint16]
Limits = npt.NDArray[np.uint64]
Scores = npt.NDArray[np.uint16]


def best(values: Scores, count: int) -> Bools:
    """The `count` highest of each row of `[layers, blocks]`; of equals the first, and no zeros."""
    values = np.ascontiguousarray(values, np.uint16)
    marks = np.empty(values.shape, np.bool_)
    rows, blocks = values.shape
    lib.ofs_ranks_best(_pointer(values), rows, blocks, max(count, 0), _bytes(marks))
    return marks


def top(
    scores: Scores, begin: int, end: int, count: int, chosen: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Ordinals of the `count` highest of each row between two ordinals, zeros among them, into the
    front of the rows of `chosen`, ascending; gives `chosen`."""
    assert 0 <= begin <= end <= scores.shape[1] and 0 <= count <= end - begin
    assert chosen.dtype == np.uint32 and chosen.strides[1] == 4 and chosen.shape[1] >= count
    scores = np.ascontiguousarray(scores, np.uint16)
    lib.ofs_ranks_top(
        _pointer(scores),
        len(scores),
        scores.shape[1],
        begin,
        end,
        count,
        ffi.cast("uint32_t *", chosen.ctypes.data),
        chosen.strides[0] // 4,
    )
    return chosen


def limits(ranks: Scores, buffers: Sequence[int]) -> Limits:
    """The least key among the best `buffers` of each row of `[layers, blocks]`: `[layers,
    buffers]`."""
    assert ranks.flags.c_contiguous and ranks.dtype == np.uint16 and min(buffers) > 0
    found = np.empty((len(ranks), len(buffers)), np.uint64)
    sizes = np.minimum(np.array(buffers, np.int64), 2**32 - 1).astype(np.uint32)
    lib.ofs_ranks_limits(
        _pointer(ranks),
        *ranks.shape,
        ffi.cast("uint32_t *", sizes.ctypes.data),
        len(sizes),
        ffi.cast("uint64_t *", found.ctypes.data),
    )
    return found


def hits(
    ranks: Scores,
    limits: Limits,
    selected: npt.NDArray[np.uint32],
    demanded: Bools,
    nontrivial: Bools,
    written: Bools,
    known: int,
) -> tuple[Counts, Counts]:
    """Hits and non-trivial hits of one step, uint16 `[layers, buffers]`: demands whose key in
    `ranks` `[layers, blocks]` reaches the limit, and those written from ordinal `known` on. The
    other arrays are `[layers, width]`; a demanded ordinal is below `blocks`."""
    layers, width = selected.shape
    arrays = [np.ascontiguousarray(one) for one in (demanded, nontrivial, written)]
    selected = np.ascontiguousarray(selected, np.uint32)
    assert len(ranks) == len(limits) == layers and ranks.flags.c_contiguous
    found = np.zeros((2, layers, limits.shape[1]), np.uint16)
    asked: Any = ffi.new("struct ofs_ranks_asked *")
    asked.layers, asked.width, asked.blocks = layers, width, ranks.shape[1]
    asked.buffer_count, asked.known = limits.shape[1], known
    asked.selected = ffi.cast("uint32_t *", selected.ctypes.data)
    asked.demanded, asked.nontrivial, asked.written = (_bytes(one) for one in arrays)
    limits = np.ascontiguousarray(limits, np.uint64)
    lib.ofs_ranks_hits(
        asked,
        _pointer(ranks),
        ffi.cast("uint64_t *", limits.ctypes.data),
        _pointer(found[0]),
        _pointer(found[1]),
    )
    return found[0], found[1]


@dataclass
class Averages:
    """Of one session, uint16 `[layers, blocks]`: its last scores, a fast and a slow average of
    them. With the number `middle`, where a block is written, they are its four features."""

    scores: Scores
    fast: Scores
    slow: Scores
    middle: int

    def sums(self, following: Scores) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """`[layers, 4, 4]`: the features with each other; `[layers, 4]`: with what followed."""
        following = np.ascontiguousarray(following, np.uint16)
        assert following.shape == self.scores.shape
        products = np.empty((len(following), 4, 4))
        outcomes = np.empty((len(following), 4))
        lib.ofs_ranks_sums(
            self._struct(), _pointer(following), _doubles(products), _doubles(outcomes)
        )
        return products, outcomes

    def take(self, scores: Scores, fast_shift: int, slow_shift: int) -> None:
        """The scores of the next step, by shares of 2^-shift; a block's first as it is."""
        assert scores.shape == self.scores.shape
        self.scores = np.ascontiguousarray(scores, np.uint16)
        lib.ofs_ranks_move(self._struct(), fast_shift, slow_shift)

    def ahead(self, weights: npt.NDArray[np.float64]) -> Scores:
        """Ranks `[layers, blocks]` by weights `[layers, 4]`, 1 to 65,535; 0: not written."""
        weights = np.ascontiguousarray(weights, np.float64)
        assert weights.shape == (len(self.scores), 4)
        ranks = np.empty(self.scores.shape, np.uint16)
        lib.ofs_ranks_ahead(self._struct(), _doubles(weights), _pointer(ranks))
        return ranks

    def _struct(self) -> Any:
        for one in (self.scores, self.fast, self.slow):
            assert one.flags.c_contiguous and one.dtype == np.uint16
            assert one.shape == self.scores.shape
        struct: Any = ffi.new("struct ofs_ranks_features *")
        struct.layers, struct.blocks = self.scores.shape
        struct.middle = self.middle
        struct.scores, struct.fast, struct.slow = map(_pointer, (self.scores, self.fast, self.slow))
        return struct


def _pointer(array: Scores) -> Any:
    return ffi.cast("uint16_t *", array.ctypes.data)


def _bytes(array: Bools) -> Any:
    return ffi.cast("uint8_t *", array.ctypes.data)


def _doubles(array: npt.NDArray[np.float64]) -> Any:
    return ffi.cast("double *", array.ctypes.data)
