"""Which blocks a layer reads in a step: summaries of keys, scores from a query, the selection.

A `Selector` belongs to one (session, layer) and one thread. It owns a summary of each block's keys
in float32, updated when a block is written, and turns a query into one score per block. Scores of
all query heads are pooled by their mean, because a block carries all KV heads and is read whole.
Quest and the mean key are linear in a vector made once per query, so the mean over heads is taken
in that vector, and a step costs one matrix-vector product over the summaries; `mass` is the exact
weight that they approximate.

To add a selector: write a class with the three methods of `Selector` and enter it in `SELECTORS`;
the tests over all selectors then check it against the contract.

After construction only a caller's mistake can fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput, nearest
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.outward import rounded_outwards

__all__ = [
    "SELECTORS",
    "MakeSelector",
    "Mass",
    "MeanKey",
    "Quest",
    "Quest8",
    "ScoreQuantizer",
    "ScoreScale",
    "SelectionRule",
    "Selector",
    "best_tokens",
    "quantize",
    "select",
    "selector",
]

Floats = npt.NDArray[np.float32]

# Steps of one robust standard deviation in a quantized score: 16 bits hold +-8 of them.
_QUANTA_PER_SPREAD = 4096.0
_QUANTA_MIDDLE = 32768.0
# A scale follows a drift over a few hundred steps, far slower than scores are averaged.
_REFRESH_STEPS = 64
_REFRESH_SHARE = 0.25


class Selector(Protocol):
    """Contract: `scores` depends only on the keys written and the query; a block rewritten by
    `write` forgets its old keys; a block filled by `write` and then `append` scores as the same
    block written whole."""

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        """Summarise consecutive blocks: `[blocks, kv_heads, tokens, head_dim]`. `first_ordinal`
        is at most the number of blocks known."""
        ...

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        """Add tokens to a known or the next block: `[kv_heads, tokens, head_dim]`."""
        ...

    def scores(self, query: Floats) -> Floats:
        """One score per block, float32 `[blocks]`, from `[q_heads, head_dim]`; higher is better.
        Units differ between selectors."""
        ...


class _Rows:
    """Rows of float32 that grow by doubling, and the tokens behind each."""

    def __init__(self, width: int) -> None:
        self.values = np.zeros((16, width), np.float32)
        self.tokens = np.zeros(16, np.int32)
        self.count = 0

    def open(self, first: int, count: int) -> None:
        """Make rows `[first, first + count)` exist."""
        assert 0 <= first <= self.count, "blocks are written in order"
        self.count = max(self.count, first + count)
        if self.count > len(self.values):
            size = max(self.count, 2 * len(self.values))
            wider = np.zeros((size, self.values.shape[1]), np.float32)
            wider[: len(self.values)] = self.values
            self.values = wider
            self.tokens = np.concatenate([self.tokens, np.zeros(size - self.tokens.size, np.int32)])


class Quest:
    """Upper bound of q.k over a block's keys from the minimum and maximum of each channel
    (Tang et al. 2024, arXiv:2406.10774): the sum over channels of max(q * min, q * max), that is
    max(q, 0) . max + min(q, 0) . min."""

    def __init__(self, geometry: KvGeometry, layer: int = 0) -> None:
        self._shape = _head_shape(geometry, layer)
        # A row is [min, max] x kv_heads x head_dim.
        self._rows = _Rows(2 * self._shape[0] * self._shape[2])

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(first_ordinal, len(keys))
        wide = keys.astype(np.float32)
        low, high = self._bounds(first_ordinal, len(keys))
        np.min(wide, axis=2, out=low)
        np.max(wide, axis=2, out=high)
        self._rows.tokens[first_ordinal : first_ordinal + len(keys)] = keys.shape[2]

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(ordinal, 1)
        if self._rows.tokens[ordinal] == 0:
            self.write(ordinal, keys[None])
            return
        wide = keys.astype(np.float32)
        low, high = self._bounds(ordinal, 1)
        np.minimum(low, wide.min(axis=1), out=low)
        np.maximum(high, wide.max(axis=1), out=high)
        self._rows.tokens[ordinal] += keys.shape[1]

    def scores(self, query: Floats) -> Floats:
        grouped = query.reshape(self._shape)
        pooled = np.stack([np.minimum(grouped, 0).sum(axis=1), np.maximum(grouped, 0).sum(axis=1)])
        weights = (pooled / len(query)).astype(np.float32).reshape(-1)
        result: Floats = self._rows.values[: self._rows.count] @ weights
        return result

    def _bounds(self, first: int, count: int) -> tuple[Floats, Floats]:
        rows = self._rows.values[first : first + count].reshape(
            count, 2, self._shape[0], self._shape[2]
        )
        return rows[:, 0], rows[:, 1]


class Quest8(Quest):
    """`Quest` over bounds that are rounded outwards to 8 bits (`offstage.host.model.outward`):
    never a lower score, from half the bytes of bfloat16. Here the rounded numbers lie in float32;
    on a device they lie in their 8 bits."""

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        super().write(first_ordinal, keys)
        self._round(first_ordinal, len(keys))

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        super().append(ordinal, keys)
        self._round(ordinal, 1)

    def _round(self, first: int, count: int) -> None:
        low, high = self._bounds(first, count)
        low[:], high[:] = rounded_outwards(low, high)


class MeanKey:
    """q . mean key of the block: the mean of q.k over its tokens (one representative per block, as
    InfLLM's, arXiv:2402.04617, with the plain mean in place of its representative tokens)."""

    def __init__(self, geometry: KvGeometry, layer: int = 0) -> None:
        self._shape = _head_shape(geometry, layer)
        self._rows = _Rows(self._shape[0] * self._shape[2])

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(first_ordinal, len(keys))
        means = keys.mean(axis=2, dtype=np.float32)
        self._rows.values[first_ordinal : first_ordinal + len(keys)] = means.reshape(len(keys), -1)
        self._rows.tokens[first_ordinal : first_ordinal + len(keys)] = keys.shape[2]

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(ordinal, 1)
        row = self._rows.values[ordinal]
        before, added = int(self._rows.tokens[ordinal]), keys.shape[1]
        total = keys.sum(axis=1, dtype=np.float32).reshape(-1)
        row += (total - added * row) / (before + added)
        self._rows.tokens[ordinal] = before + added

    def scores(self, query: Floats) -> Floats:
        weights = query.reshape(self._shape).sum(axis=1) / len(query)
        flat = weights.astype(np.float32).reshape(-1)
        result: Floats = self._rows.values[: self._rows.count] @ flat
        return result


class Mass:
    """The attention that falls on the block, as a logarithm: the softmax over all keys, summed in
    the block, mean over the heads. It selects optimally by weight but is no summary: it keeps and
    reads every key, so it is a reference, not for serving."""

    def __init__(self, geometry: KvGeometry, layer: int = 0) -> None:
        self._shape = _head_shape(geometry, layer)
        self._tokens = geometry.block_tokens
        self._rows = _Rows(self._shape[0] * self._tokens * self._shape[2])

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(first_ordinal, len(keys))
        tokens = keys.shape[2]
        self._keys(slice(first_ordinal, first_ordinal + len(keys)))[:, :, :tokens] = keys
        self._rows.tokens[first_ordinal : first_ordinal + len(keys)] = tokens

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        self._rows.open(ordinal, 1)
        first, added = int(self._rows.tokens[ordinal]), keys.shape[1]
        self._keys(slice(ordinal, ordinal + 1))[0, :, first : first + added] = keys
        self._rows.tokens[ordinal] = first + added

    def scores(self, query: Floats) -> Floats:
        mass = self._weights(query, slice(0, self._rows.count)).sum(axis=3).mean(axis=(0, 1))
        result: Floats = np.log(np.maximum(mass, np.finfo(np.float32).tiny))
        return result

    def weights(self, query: Floats, ordinals: npt.NDArray[np.int32]) -> Floats:
        """The attention on each token of these blocks, if they alone are attended: float32
        `[blocks, block_tokens]`, mean over the heads, 0 for tokens that are not there. DSA's
        indexer is trained towards this distribution (arXiv:2512.02556)."""
        result: Floats = self._weights(query, ordinals).mean(axis=(0, 1))
        return result

    def _weights(self, query: Floats, rows: slice | npt.NDArray[np.int32]) -> Floats:
        """The softmax over all tokens of some blocks, `[kv_heads, group, blocks, tokens]`."""
        kv_heads, _, head_dim = self._shape
        grouped = query.reshape(self._shape) * np.float32(head_dim**-0.5)
        keys = self._keys(rows)
        logits = np.stack(
            [(keys[:, head] @ grouped[head].T).transpose(2, 0, 1) for head in range(kv_heads)]
        )
        absent = np.arange(self._tokens) >= self._rows.tokens[rows, None]
        logits[:, :, absent] = -np.inf
        weights: Floats = np.exp(logits - logits.max(axis=(2, 3), keepdims=True))
        weights /= weights.sum(axis=(2, 3), keepdims=True)
        return weights

    def _keys(self, rows: slice | npt.NDArray[np.int32]) -> Floats:
        kv_heads, _, head_dim = self._shape
        taken = self._rows.values[rows]
        return taken.reshape(len(taken), kv_heads, self._tokens, head_dim)


SELECTORS: dict[str, type[Quest] | type[MeanKey] | type[Mass]] = {
    "quest": Quest,
    "quest8": Quest8,
    "mean_key": MeanKey,
    "mass": Mass,
}


class MakeSelector(Protocol):
    """Makes the selector of a layer: `selector`, or one with its summaries on a device."""

    def __call__(self, name: str, geometry: KvGeometry, layer: int = 0) -> Selector:
        """A new, empty selector."""
        ...


def selector(name: str, geometry: KvGeometry, layer: int = 0) -> Selector:
    """A new, empty selector. Raises `BadInput` for an unknown name, or a layer whose entries are of
    several tokens."""
    if name not in SELECTORS:
        raise BadInput(f"unknown selector {name!r}", "selector", nearest(name, SELECTORS))
    return SELECTORS[name](geometry, layer)


def select(
    scores: Floats, k_blocks: int, sink_blocks: int, window_blocks: int, length_blocks: int
) -> npt.NDArray[np.int32]:
    """Ordinals to read, ascending, int32: the first `sink_blocks`, the last `window_blocks`, and
    the `k_blocks` best of the rest of the `length_blocks` blocks; of equal scores, the lower
    ordinal. A score that is NaN or minus infinity is never selected."""
    assert scores.size >= length_blocks >= 0, "a block has no score"
    first = min(sink_blocks, length_blocks)
    last = max(first, length_blocks - window_blocks)
    rest = np.nan_to_num(scores[first:last], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    k_blocks = min(k_blocks, rest.size)
    if k_blocks < 1:
        chosen = np.empty(0, np.intp)
    else:
        bar = np.partition(rest, rest.size - k_blocks)[rest.size - k_blocks]
        above = np.flatnonzero(rest > bar)
        level = np.flatnonzero((rest == bar) & (rest > -np.inf))
        chosen = np.sort(np.concatenate([above, level[: k_blocks - above.size]]))
    runs = [np.arange(first), chosen + first, np.arange(last, length_blocks)]
    return np.concatenate(runs).astype(np.int32)


def best_tokens(
    weights: Floats, counts: npt.NDArray[np.int32], top_k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The `top_k` tokens of greatest weight among the first `counts` of each block, or all if there
    are fewer: rows of `weights` `[blocks, block_tokens]` and slots, ascending; of equal weights,
    the first."""
    there = np.flatnonzero(np.arange(weights.shape[1]) < counts[:, None])
    chosen = there[select(weights.reshape(-1)[there], top_k, 0, 0, there.size)]
    rows, slots = np.divmod(chosen, weights.shape[1])
    return rows.astype(np.int32), slots.astype(np.int32)


@dataclass(frozen=True)
class SelectionRule:
    """Blocks that a layer reads in a step: the first `sink_blocks`, the last `window_blocks` and
    the best of the rest, `select_blocks` in all."""

    selector: str = "quest"
    select_blocks: int = 32
    sink_blocks: int = 1
    window_blocks: int = 4

    @property
    def top_blocks(self) -> int:
        """How many are chosen by score."""
        return self.select_blocks - self.sink_blocks - self.window_blocks


@dataclass(frozen=True)
class ScoreScale:
    """Centre and spread of a layer's scores: the median, and the median deviation from it in
    units of a normal distribution's standard deviation, which no sink or needle can move."""

    centre: float
    spread: float

    @classmethod
    def fit(cls, scores: Floats) -> "ScoreScale":
        """The scale of the finite ones among `scores`; of none at all, (0, 1)."""
        finite = scores[np.isfinite(scores)]
        if finite.size == 0:
            return cls(0.0, 1.0)
        centre = float(np.median(finite))
        spread = 1.4826 * float(np.median(np.abs(finite - centre)))
        if spread <= 0.0:
            spread = float(np.std(finite))
        return cls(centre, spread if spread > 0.0 else 1.0)


def quantize(scores: Floats, scale: ScoreScale) -> npt.NDArray[np.uint16]:
    """Scores as uint16 for the decision core: 32,768 at the centre and 4,096 per spread, clamped
    to 1...65,535. Order is kept: a higher score never gets a lower value, and values differ where
    scores differ by more than spread / 4,096 inside +-8 spreads. 0, "never", is NaN or minus
    infinity."""
    levels = (scores - np.float32(scale.centre)) * np.float32(_QUANTA_PER_SPREAD / scale.spread)
    levels += np.float32(_QUANTA_MIDDLE)
    never = np.isnan(levels) | (levels == -np.inf)
    np.clip(levels, 1.0, 65535.0, out=levels)
    levels[never] = 0.0
    return levels.astype(np.uint16)


class ScoreQuantizer:
    """`quantize` with a scale per (session, layer) that stays comparable from step to step, so
    that the firmware may average its values: fitted to the first scores, then moved a quarter of
    the way to a new fit every 64 calls."""

    def __init__(self) -> None:
        self._scale: ScoreScale | None = None
        self._calls = 0

    def __call__(self, scores: Floats) -> npt.NDArray[np.uint16]:
        """uint16 `[blocks]` from float32 `[blocks]`."""
        return quantize(scores, self.scale(lambda: scores))

    def scale(self, scores: Callable[[], Floats]) -> ScoreScale:
        """The scale of the next scores; calls `scores` only when it is fitted to them."""
        if self._scale is None:
            self._scale = ScoreScale.fit(scores())
        elif self._calls % _REFRESH_STEPS == 0:
            fresh, share = ScoreScale.fit(scores()), _REFRESH_SHARE
            self._scale = ScoreScale(
                self._scale.centre + share * (fresh.centre - self._scale.centre),
                self._scale.spread + share * (fresh.spread - self._scale.spread),
            )
        self._calls += 1
        return self._scale


def _head_shape(geometry: KvGeometry, layer: int) -> tuple[int, int, int]:
    """(kv_heads, query heads per KV head, head_dim): query head h reads KV head h // group."""
    _, kv_heads, _, head_dim = geometry.block_shape(layer)
    return kv_heads, geometry.q_heads // kv_heads, head_dim
