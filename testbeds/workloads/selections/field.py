"""The score process (`host/model/score_process.py`) for all layers of one session at once.

Drawn with the parameters of each layer's process. In addition:
- every draw is addressed by (seed, stream, purpose, tick), Philox (Salmon et al. 2011): a session
  does not depend on other sessions, and a longer one begins as the shorter one does;
- a normal is a 16-bit number through a table of quantiles, 65,536 values up to 4.3: a fifth of the
  time of numpy's, and decayed sums of them are as good as normal;
- a topic burst strikes the layers of a session at one moment: one uniform number a step, and a
  layer bursts where it is below its probability. Each layer alone has the same law as before;
- sessions of a group share a prefix: its static part, and a share of the innovations of its slow
  part;
- layers have part of static and slow in common, and so have neighbouring units (`Structure`). Each
  unit of each layer alone has the same law as without.

A unit has one score: it is a block, or a granule of one. A tick is a token; tick 0 is the first
prefill window, and many ticks can be passed in one call. Owns its state arrays, float32 `[layers,
units]`; one thread. Nothing can fail.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from offstage.host.model.score_process import (
    BURST_SHARE,
    STATIC_SCALE,
    ProcessParams,
    blend,
    kept,
    moved,
)

__all__ = ["HEAVY_MAX", "Field", "FieldShape", "Structure", "words"]

Floats = npt.NDArray[np.float32]

RECENCY_FRACTION = 1 / 64
"""Length of the recency part, as a share of the context at the start."""

# The purpose of a draw: a word of the generator's counter. GROWN is added for blocks decode writes.
_STATIC, _SLOW, _FAST, _TOPIC, _MOMENT, _NOISE, _TURN = 2, 4, 6, 8, 10, 12, 14
_GROWN = 1


COMMON_LAYERS = 6
"""Layers from one common part to the next; a layer between them has some of both. This is the
number of layers of the trained model that was measured."""


@dataclass(frozen=True)
class Structure:
    """layers: the share of static's and slow's variance that near layers have in common.
    neighbours: the weight of each of the two units before it, 0 to 1, relative to its weight."""

    layers: float = 0.0
    neighbours: float = 0.0


@dataclass(frozen=True)
class FieldShape:
    """context: units of the prompt. grown: units that decode may add. clump: neighbouring units
    that share their slow part. prefix: units from the front that the group shares.
    slow_share: the group's share of the variance of the slow part there. structure: what layers and
    neighbours have in common."""

    context: int
    grown: int = 0
    clump: int = 1
    prefix: int = 0
    slow_share: float = 0.0
    structure: Structure = Structure()

    @property
    def units(self) -> int:
        """All units that have a column."""
        return self.context + self.grown


class Field:
    """Scores of one session, a tick at a time. `stream` numbers the session, `group` its group."""

    def __init__(
        self,
        params: Sequence[ProcessParams],
        shape: FieldShape,
        seed: int,
        stream: int,
        group: int = -1,
    ) -> None:
        self.shape = shape
        self._layers = len(params)
        self._mixed = _mixing(len(params), shape.structure.layers)
        self._key = (seed % 2**64, 2 * stream)
        self._group_key = (seed % 2**64, 2 * group + 1) if group >= 0 and shape.prefix else None
        self._tick = 0
        self._keep_slow = _column([kept(one.tau_slow) for one in params])
        self._keep_fast = _column([kept(one.tau_fast) for one in params])
        self._move_slow = moved(self._keep_slow)
        self._w_fast = _column([one.w_fast for one in params])
        self._move_fast = moved(self._keep_fast) * self._w_fast
        self._burst = np.array([one.burst for one in params])
        self._recency = _column([one.recency for one in params])
        self._noise = _column([one.noise for one in params])
        self._fixed = self._static() * _column([one.w_static * STATIC_SCALE for one in params])
        self._fixed[:, :1] += _column([one.sink for one in params])
        self._slow = self._slow_draw(_SLOW)
        self._fast = self._draw(_FAST, shape.context, shape.grown) * self._w_fast
        self._base, self._base_blocks = self._fixed, -1
        self._scores = np.empty_like(self._fixed)

    def advance(self, ticks: int = 1) -> None:
        """Advance by `ticks`, with one draw: the law equals that of single ticks."""
        self._tick += ticks
        keep_slow, move_slow = self._keep_slow, self._move_slow
        keep_fast, move_fast = self._keep_fast, self._move_fast
        if ticks > 1:
            keep_slow, keep_fast = keep_slow**ticks, keep_fast**ticks
            move_slow, move_fast = moved(keep_slow), moved(keep_fast) * self._w_fast
        blend(self._slow, keep_slow, self._slow_draw(_SLOW), move_slow)
        fresh = self._draw(_FAST, self.shape.context, self.shape.grown)
        blend(self._fast, keep_fast, fresh, move_fast)
        moments = words(self._key, _MOMENT, self._tick, ticks) * 2.0**-64
        bursts = (moments < self._burst[:, None]).sum(axis=1)
        if bursts.any():
            self._redraw(_TOPIC, 1 - (1 - BURST_SHARE) ** bursts)

    def turn(self, share: float) -> None:
        """A turn of the conversation: `share` of slow's variance is drawn anew in every layer."""
        self._redraw(_TURN, np.full(self._layers, share))

    def scores(self, units: int) -> Floats:
        """float32 `[layers, shape.units]` at this tick when `units` exist; valid until the next."""
        if units != self._base_blocks:
            distance = np.maximum(units - 1 - np.arange(self.shape.units), 0)
            recency = np.exp(-distance / (self.shape.context * RECENCY_FRACTION))
            self._base = self._fixed + self._recency * recency.astype(np.float32)
            self._base_blocks = units
        clump, context = self.shape.clump, self.shape.context
        result = self._scores
        if clump == 1:
            np.add(self._fast, self._slow, out=result)
        else:
            result[...] = self._fast
            split = -(-context // clump)
            front = np.repeat(self._slow[:, :split], clump, axis=1)
            result[:, :context] += front[:, :context]
            back = np.repeat(self._slow[:, split:], clump, axis=1)
            result[:, context:] += back[:, : self.shape.grown]
        if self._noise.any():
            result += self._noise * self._draw(_NOISE, context, self.shape.grown)
        self._smoothed(result)
        result += self._base
        return result

    def _redraw(self, purpose: int, share: npt.NDArray[np.float64]) -> None:
        layers = np.flatnonzero(share)
        # A topic belongs to the session, on a shared prefix too.
        drawn = self._draw(purpose, *self._clumps(), self._layers + self._mixed.shape[1])
        fresh = self._shared(drawn)[layers]
        part = share[layers, None].astype(np.float32)
        self._slow[layers] = np.sqrt(1 - part) * self._slow[layers] + np.sqrt(part) * fresh

    def _clumps(self) -> tuple[int, int]:
        clump = self.shape.clump
        return -(-self.shape.context // clump), -(-self.shape.grown // clump)

    def _slow_draw(self, purpose: int) -> Floats:
        return self._shared(self._grouped(purpose, *self._clumps(), self.shape.slow_share))

    def _static(self) -> Floats:
        """Static scores by the ranks of normal draws, so that a structured draw keeps its tail."""
        drawn = self._grouped(_STATIC, self.shape.context, self.shape.grown, 1.0)
        even = self._smoothed(self._shared(drawn))
        ranks = np.searchsorted(_normal_table()[:-1], even.ravel())
        return _heavy_table().take(ranks).reshape(self._layers, -1)

    def _grouped(self, purpose: int, context: int, grown: int, share: float) -> Floats:
        """A draw of every layer and of the layers' common part; on the prefix `share` of the
        variance is the group's."""
        rows = self._layers + self._mixed.shape[1]
        own = self._draw(purpose, context, grown, rows)
        if self._group_key is not None:
            shared = self.shape.prefix * context // self.shape.context
            bits = self._bits(purpose, self._group_key, rows * shared)
            group = _normal_table().take(bits).reshape(rows, shared)
            front = own[:, :shared]
            front *= np.float32(math.sqrt(1 - share))
            front += group * np.float32(math.sqrt(share))
        return own

    def _shared(self, drawn: Floats) -> Floats:
        """Layers with their common parts; the variance stays 1."""
        own = drawn[: self._layers]
        if share := self.shape.structure.layers:
            own *= np.float32(math.sqrt(1 - share))
            # Group by group: two products, where a matrix of mostly zeros would cost many.
            common = drawn[self._layers :]
            for part in range(len(common) - 1):
                rows = slice(part * COMMON_LAYERS, (part + 1) * COMMON_LAYERS)
                own[rows] += self._mixed[rows, part, None] * common[part]
                own[rows] += self._mixed[rows, part + 1, None] * common[part + 1]
        return own

    def _smoothed(self, drawn: Floats) -> Floats:
        """Units with the two before them, in place; the variance stays."""
        if share := self.shape.structure.neighbours:
            # The first two have fewer before them, and are scaled the same: a sink is the first.
            drawn *= np.float32(1 / math.sqrt(1 + 2 * share**2))
            before = np.float32(share) * drawn
            drawn[:, 1:] += before[:, :-1]
            drawn[:, 2:] += before[:, :-2]
        return drawn

    def _draw(self, purpose: int, context: int, grown: int, rows: int = 0) -> Floats:
        """`[rows, context + grown]`, by default a row per layer. Units that decode adds are drawn
        one by one, so that their number changes nothing else."""
        table, rows = _normal_table(), rows or self._layers
        result = np.empty((rows, context + grown), np.float32)
        bits = self._bits(purpose, self._key, rows * context)
        result[:, :context] = table.take(bits).reshape(rows, context)
        if grown:
            bits = self._bits(purpose + _GROWN, self._key, rows * grown)
            result[:, context:] = table.take(bits).reshape(grown, rows).T
        return result

    def _bits(self, purpose: int, key: tuple[int, int], count: int) -> npt.NDArray[np.uint16]:
        return words(key, purpose, self._tick, -(-count // 4)).view(np.uint16)[:count]


def words(key: tuple[int, int], purpose: int, tick: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random words at one address."""
    # As arrays of words: numpy turns a list with a word above 2**63 into floats.
    address = np.array([0, 0, purpose, tick], np.uint64)
    generator = np.random.Philox(key=np.array(key, np.uint64), counter=address)
    drawn: npt.NDArray[np.uint64] = generator.random_raw(count)
    return drawn


def normals(key: tuple[int, int], purpose: int, tick: int, count: int) -> Floats:
    """`count` standard normal numbers at one address."""
    bits = words(key, purpose, tick, -(-count // 4)).view(np.uint16)[:count]
    drawn: Floats = _normal_table().take(bits)
    return drawn


def _mixing(layers: int, share: float) -> Floats:
    """The weight of each common part in each layer, `[layers, parts]`; no parts if share is 0."""
    if not share:
        return np.zeros((layers, 0), np.float32)
    place = np.arange(layers) / COMMON_LAYERS
    first = place.astype(int)
    angle = (place - first) * (math.pi / 2)
    result = np.zeros((layers, int(first[-1]) + 2), np.float32)
    result[np.arange(layers), first] = np.cos(angle)
    result[np.arange(layers), first + 1] = np.sin(angle)
    return result * np.float32(math.sqrt(share))


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float32)[:, None]


@functools.cache
def _normal_table() -> Floats:
    """Standard normal quantiles at the middles of 65,536 equal shares, scaled to variance 1."""
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((index + 0.5) / 65536) for index in range(32768)])
    half /= math.sqrt(float(np.mean(half * half)))
    return np.concatenate([half, -half[::-1]]).astype(np.float32)


HEAVY_MAX = 30.0
"""An upper bound of the static part, before its weight and scale."""


@functools.cache
def _heavy_table() -> Floats:
    """Quantiles of |Student t, 4 degrees of freedom|, in closed form (Shaw, J. Computational
    Finance 9(4), 2006)."""
    upper = 0.5 + (np.arange(65536) + 0.5) / 131072
    root = np.sqrt(4 * upper * (1 - upper))
    values: Floats = (2 * np.sqrt(np.cos(np.arccos(root) / 3) / root - 1)).astype(np.float32)
    return values
