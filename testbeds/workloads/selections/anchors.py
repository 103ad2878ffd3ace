"""Published figures of locality, and the same statistics of a score process.

An anchor is one figure: its source, its size, and how the statistic is counted here. `measure`
draws the process, selects the plain top-k and counts. Sizes are the published ones, or an eighth of
them with the same shares; a unit is what the source ranked: a token, a chunk, a block or a cluster.

A match means only that the process has the locality of that figure. Anchors come from different
models, selectors and prompts, and differ from each other by more than the uncertainty of any one:
no process meets all. Pure functions of (anchors, process, seeds); nothing can fail.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.field import Field, FieldShape
from offstage.testbeds.workloads.selections.locality import (
    BUFFERS,
    buffer_misses,
    distinct,
    overlap,
    shared_by,
)

__all__ = ["ANCHORS", "Anchor", "Sample", "error", "measure", "selections"]


@dataclass(frozen=True)
class Sample:
    """The draw for a statistic: `select` of `units` at every step.

    clump: neighbours that drift together, 16 tokens as in the first fit to HiSparse. highest_of:
    draws of which a unit is the maximum. unit_tokens: the unit that the source ranked, in tokens.
    """

    units: int
    select: int
    steps: int
    clump: int = 1
    highest_of: int = 1
    unit_tokens: int = 1


@dataclass(frozen=True)
class Anchor:
    """One figure; `low` and `high` are equal where one number was published.

    statistic: the statistic, in words; `asks` is the same for `measure`: a buffer of
    `locality.BUFFERS` and its size in units; "overlap" and a distance in steps; "shared" and steps
    from 1; "distinct" and a number of steps; "newest" and a number of units. `complement`: one
    minus that. tolerance: the error that weighs 1 in a fit.
    """

    name: str
    statistic: str
    low: float
    high: float
    sample: Sample
    asks: tuple[str, tuple[int, ...]]
    source: str
    complement: bool = False
    tolerance: float = 0.005

    @property
    def middle(self) -> float:
        """The target of a fit."""
        return (self.low + self.high) / 2

    @property
    def target(self) -> str:
        """The figure as printed."""
        if self.low == self.high:
            return f"{self.low:.3f}"
        return f"{self.low:.2f}-{self.high:.2f}" if self.low else f"< {self.high:.3f}"


_HISPARSE = "HiSparse arXiv:2608.07009, GLM-5.1 DSA on LongBenchV2, k = 2048, a buffer a layer"
_GVR = "GVR arXiv:2604.22312, DeepSeek-V3.2, prompt of 68,665 tokens, k = 2048"
_RETROINFER = "RetroInfer arXiv:2505.02922, Llama-3-8B-1048K"
_LADDER = Sample(4096, 256, 260, clump=16)
_LONG_CODE = Sample(8192, 256, 60, clump=16)


def _ladder(buffer: str, size: int, target: float) -> Anchor:
    return Anchor(
        f"hisparse-{buffer}-{size}k",
        f"miss rate of {buffer}, buffer of {size} k",
        *(target, target, _LADDER, (buffer, (size * _LADDER.select,)), _HISPARSE),
    )


def _adjacent(name: str, target: float, sample: Sample, source: str) -> Anchor:
    statistic = "share of a selection that the step before selected"
    return Anchor(name, statistic, target, target, sample, ("overlap", (1,)), source)


_ALL = (
    _ladder("lru", 1, 0.300),
    _ladder("lru", 2, 0.134),
    _ladder("lru", 4, 0.067),
    _ladder("fifo", 2, 0.172),
    _ladder("random", 2, 0.161),
    _ladder("belady", 2, 0.082),
    _adjacent("gvr-layers-20-60", 0.44, _LONG_CODE, f"{_GVR}: 35-50 %, mean about 44 %"),
    _adjacent("gvr-layers-0-1", 0.015, _LONG_CODE, f"{_GVR}: about 1.5 %, where chance is 3.0 %"),
    Anchor(
        "retroinfer-drift",
        "share of a top-100 common to steps 1, 20 and 40",
        *(0.31, 0.31, Sample(131072, 100, 40, clump=16), ("shared", (1, 20, 40))),
        f"{_RETROINFER}, one head",
        tolerance=0.02,
    ),
    Anchor(
        "retroinfer-cache",
        "hit rate of lru, 1.8 % selected, buffer of 5 %",
        *(0.79, 0.94, Sample(8192, 147, 260, unit_tokens=16), ("lru", (410,))),
        f"{_RETROINFER}, clusters, by task",
        complement=True,
        tolerance=0.05,
    ),
    Anchor(
        "flexicache-moves",
        "share of a selection that 16 steps replace",
        *(0.23, 0.35, _LONG_CODE, ("overlap", (16,))),
        "FlexiCache arXiv:2511.00868, Llama-3.1-8B, stable heads, re-ranked every 16 steps",
        complement=True,
    ),
    Anchor(
        "ess-pool",
        "miss rate of lru, buffer of 3.1 k",
        *(0.0, 0.098, _LADDER, ("lru", (800,))),
        "ESS arXiv:2512.10576, DeepSeek-V3.2-Exp on LongBench-v2, 6,400 slots, k = 2048",
    ),
    _adjacent(
        "msa",
        0.87,
        Sample(1024, 16, 80, unit_tokens=128),
        "MiniMax-M3 MSA, vllm PR 52963, 16 blocks of 128 tokens: 22 distinct of 64 in 4 queries",
    ),
    _adjacent(
        "solidattention",
        0.81,
        Sample(4096, 32, 80, unit_tokens=32),
        "SolidAttention FAST'26, 3-8B models, 32 blocks of 32 tokens, 128K",
    ),
    _adjacent(
        "prr",
        0.68,
        Sample(2048, 64, 80, unit_tokens=64),
        "PRR arXiv:2606.30389, Quest and InfLLM-v2 blocks; its k is not known: 64 of 2,048 here",
    ),
    _adjacent(
        "shadowkv",
        0.60,
        Sample(16384, 256, 80, unit_tokens=8),
        "ShadowKV arXiv:2410.21465, Llama-3.1-8B, 256 chunks of 8 tokens, 128K",
    ),
)

ANCHORS: Mapping[str, Anchor] = MappingProxyType({anchor.name: anchor for anchor in _ALL})
"""Every figure by name."""


def error(anchor: Anchor, value: float) -> float:
    """The value's distance to the figure; 0 inside a range, negative below."""
    return value - min(max(value, anchor.low), anchor.high)


def selections(params: ProcessParams, sample: Sample, seed: int) -> npt.NDArray[np.int64]:
    """The top `select` of each step, int64 `[steps, select]`, unordered."""
    drawn = sample.units * sample.highest_of
    field = Field([params], FieldShape(drawn, clump=sample.clump), seed, stream=0)
    chosen = np.empty((sample.steps, sample.select), np.int64)
    rest = sample.units - sample.select
    for step in range(sample.steps):
        if step:
            field.advance()
        scores = field.scores(drawn)[0].reshape(sample.units, sample.highest_of).max(axis=1)
        chosen[step] = np.argpartition(scores, rest)[rest:]
    return chosen


def measure(
    anchors: Iterable[Anchor],
    params: ProcessParams,
    seeds: Iterable[int],
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, npt.NDArray[np.float64]]:
    """The statistic of each anchor by seed, by the anchor's name. Each sample is drawn once.

    `advance` gets 1 for every sample drawn."""
    groups: dict[Sample, list[Anchor]] = {}
    for anchor in anchors:
        groups.setdefault(anchor.sample, []).append(anchor)
    values: dict[str, list[float]] = {}
    for seed in seeds:
        for sample, members in groups.items():
            selected = selections(params, sample, seed)
            for name, value in _count(members, selected, sample.units).items():
                values.setdefault(name, []).append(value)
            advance(1)
    return {name: np.array(found) for name, found in values.items()}


def _count(members: list[Anchor], selected: npt.NDArray[np.int64], units: int) -> dict[str, float]:
    sizes: dict[str, tuple[int, ...]] = {}
    for what, numbers in (one.asks for one in members):
        if what in BUFFERS:
            sizes[what] = tuple(sorted({*sizes.get(what, ()), *numbers}))
    missed = buffer_misses(selected, units, sizes) if sizes else {}
    result = {}
    for one in members:
        what, numbers = one.asks
        if what in BUFFERS:
            value = missed[what, numbers[0]]
        elif what == "overlap":
            value = overlap(selected, numbers[0], units)
        elif what == "shared":
            value = shared_by(selected[np.array(numbers) - 1], units)
        elif what == "distinct":
            value = distinct(selected, numbers[0], units)
        else:
            assert what == "newest"
            value = float(np.mean(selected >= units - numbers[0]))
        result[one.name] = 1 - value if one.complement else value
    return result
