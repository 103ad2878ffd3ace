"""Structure of selections over several layers, beyond one layer's locality: a model's statistics.

Selections are uint32 `[steps, layers, k]` of one session: the plain best k of all blocks, without
forced sinks and window. Counted are the share selected again after some steps, the share
that adjacent layers have in common, the share whose neighbour in the context is selected too, how
often all layers change together, and the misses of a buffer. The targets are those of captures of
two models, in `captured.toml` with the commands that made it; `--fit` searches a profile's process
for them from its present values, and prints the best. Pure functions except for reading the file.
`python -m offstage.testbeds.workloads.selections.structure MODEL [FILE...] [--fit N]`.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.ledger import share
from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.field import Field, FieldShape, Structure
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload
from offstage.testbeds.workloads.selections.locality import buffer_misses, distinct
from offstage.testbeds.workloads.selections.predicted import CAPTURED_BLOCK_TOKENS, of_capture
from offstage.testbeds.workloads.selections.profiles import (
    BLOCK_TOKENS,
    OF_CAPTURES,
    STRUCTURES,
    layer_processes,
)
from offstage.testbeds.workloads.selections.simplex import minimise

__all__ = [
    "CAPTURED",
    "CAPTURES",
    "RECORDED",
    "STRUCTURE",
    "Captures",
    "as_recorded",
    "drawn",
    "drawn_as_recorded",
    "of_file",
    "selections",
    "structure",
]


@dataclass(frozen=True)
class Captures:
    """Captures of one model: the best `select` of so many blocks of `CAPTURED_BLOCK_TOKENS` at so
    many steps. `profile`: the one that was fitted to them, on the texts whose names
    begin with `fitted`; it is judged by those that begin with `judged`. `prefix`: of the names of
    its figures."""

    layers: int
    blocks: int
    select: int
    steps: int
    profile: str
    fitted: str
    judged: str
    prefix: str
    about: str


CAPTURES: Mapping[str, Captures] = MappingProxyType(
    {
        "pycode-3m": Captures(
            6, 512, 16, 256, "pycode", "dev", "dev", "", "pycode-3m on two texts"
        ),
        "smollm2-135m": Captures(
            30,
            480,
            32,
            128,
            "smollm2",
            "tune",
            "judge",
            "smollm2-",
            "SmolLM2-135M on four kinds of text",
        ),
    }
)
"""By model: the shape of its captures, and of the draws that are compared with them."""

LAGS = (1, 2, 5, 20, 100)
TURNED = 0.6
"""A step at which the layers keep less than this share of the median is a turn."""

STRUCTURE: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"lag-{lag}": f"share of a selection that was selected {lag} steps before"
            for lag in LAGS
        },
        "layers-1": "share of a selection that the layer before selects in the same step",
        "layers-2": "the same of the layer two before",
        "neighbours": "share of a selection whose neighbour is selected too",
        "distinct-64": "distinct blocks of 64 steps over k",
        "turns": f"share of steps at which all layers keep less than {TURNED} of the median",
        "lru-2k": "miss rate of lru, buffer of 2 k",
        "lru-4k": "miss rate of lru, buffer of 4 k",
        "belady-4k": "miss rate of Belady, no prefetch, buffer of 4 k",
    }
)
"""The statistics, in words."""

Shares = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def structure(selected: npt.NDArray[np.uint32], blocks: int) -> dict[str, float]:
    """Every statistic of `STRUCTURE`, as a mean over steps and layers."""
    _, layers, k = selected.shape
    marks = _marks(selected, blocks)
    found = {f"lag-{lag}": _kept(marks, lag) for lag in LAGS}
    for apart in (1, 2):
        both = (marks[:, apart:] & marks[:, :-apart]).sum()
        found[f"layers-{apart}"] = share(float(both), int(marks[:, apart:].sum()))
    found["neighbours"] = _beside(marks)
    kept = (marks[1:] & marks[:-1]).sum(axis=(1, 2)) / (layers * k)
    found["turns"] = float(np.mean(kept < TURNED * np.median(kept)))
    runs = [selected[:, layer].astype(np.int64) for layer in range(layers)]
    found["distinct-64"] = float(np.mean([distinct(one, 64, blocks) for one in runs]))
    sizes = {"lru": (2 * k, 4 * k), "belady": (4 * k,)}
    missed = [buffer_misses(one, blocks, sizes) for one in runs]
    for kind, over in (("lru", 2), ("lru", 4), ("belady", 4)):
        found[f"{kind}-{over}k"] = float(np.mean([one[kind, over * k] for one in missed]))
    return {name: found[name] for name in STRUCTURE}


def _marks(selected: npt.NDArray[np.uint32], blocks: int) -> Bools:
    marks = np.zeros((*selected.shape[:2], blocks), np.bool_)
    np.put_along_axis(marks, selected.astype(np.int64), True, axis=2)
    return marks


def _kept(marks: Bools, lag: int) -> float:
    return float((marks[lag:] & marks[:-lag]).sum() / marks[lag:].sum())


def _beside(marks: Bools) -> float:
    beside = np.zeros_like(marks)
    beside[:, :, 1:] |= marks[:, :, :-1]
    beside[:, :, :-1] |= marks[:, :, 1:]
    return float((marks & beside).sum() / marks.sum())


def of_file(path: Path, select: int) -> dict[str, float]:
    """The statistics of a file's first session, selected by mass."""
    workload = CapturedWorkload(path, select, sink_blocks=0, window_blocks=0)
    slabs = list(workload.slabs(0, 64))
    return structure(np.concatenate([slab.selected for slab in slabs]), slabs[0].scores.shape[2])


def selections(
    of: Captures, params: Sequence[ProcessParams], shape: Structure, block_tokens: int, seed: int
) -> npt.NDArray[np.uint32]:
    """The best of every layer at each step, of a context as large as the captures'."""
    field = Field(params, FieldShape(of.blocks, of.steps // block_tokens, structure=shape), seed, 0)
    found = np.empty((of.steps, len(params), of.select), np.uint32)
    for step in range(of.steps):
        if step:
            field.advance()
        count = of.blocks + step // block_tokens
        scores = field.scores(count)[:, :count]
        chosen = np.argpartition(scores, count - of.select, axis=1)[:, count - of.select :]
        found[step] = np.sort(chosen, axis=1)
    return found


def drawn(profile: str, seed: int, model: str = "pycode-3m") -> dict[str, float]:
    """The statistics of a profile in the shape of a model's captures: in their blocks if fitted to
    captures, else in those of the laboratory."""
    of = CAPTURES[model]
    size = CAPTURED_BLOCK_TOKENS if profile in OF_CAPTURES else BLOCK_TOKENS
    params = [process.params for process in layer_processes(profile, of.layers, size)]
    found = selections(of, params, STRUCTURES[profile], size, seed)
    return structure(found, of.blocks + of.steps // size)


RECORDED: Mapping[str, float] = MappingProxyType(
    {"recorded-lag-1": 0.852, "recorded-layers-1": 0.665, "recorded-neighbours": 0.787}
)
"""The same of recorded selections: Qwen3-0.6B, 28 layers, 32 of 128 blocks of 32 tokens, the sink
included, 3 steps; the run V9-long-policy-validation of ZjuXxxc/solidattention-repro (MIT). All its
other runs have 16 blocks."""


def as_recorded(selected: npt.NDArray[np.uint32], blocks: int) -> dict[str, float]:
    """The statistics of `RECORDED`, over the few steps there are."""
    marks = _marks(selected, blocks)
    both = (marks[:, 1:] & marks[:, :-1]).sum() / marks[:, 1:].sum()
    found = _kept(marks, 1), float(both), _beside(marks)
    return dict(zip(RECORDED, found, strict=True))


def drawn_as_recorded(profile: str, seed: int) -> dict[str, float]:
    """The statistics of a profile, in the shape of the recording."""
    options = GeneratedOptions(
        profile=profile,
        layers=28,
        context_tokens=128 * 32,
        steps=3,
        block_tokens=32,
        select_blocks=32,
        sink_blocks=1,
        window_blocks=0,
        seed=seed,
    )
    (slab,) = GeneratedWorkload(options).slabs(0)
    return as_recorded(slab.selected, 128)


Targets = Mapping[str, tuple[float, float]]


def targets(model: str, texts: str) -> Targets:
    """The lowest and the highest value of each statistic in a model's captures of the texts whose
    names begin so."""
    path = Path(__file__).with_name("captured.toml")
    captures = [
        msgspec.convert({name: one[name] for name in STRUCTURE}, dict[str, float])
        for text, one in tomllib.loads(path.read_text(encoding="utf-8"))[model].items()
        if text.startswith(texts)
    ]
    values = {name: [one[name] for one in captures] for name in STRUCTURE}
    return {name: (min(found), max(found)) for name, found in values.items()}


CAPTURED: Mapping[str, Targets] = MappingProxyType(
    {model: targets(model, of.judged) for model, of in CAPTURES.items()}
)
"""What a model's profile is judged by."""

FIT_SEEDS = (1001, 1002, 1003)
TOLERANCE = 0.02
"""The error that weighs 1 in the search; for distinct blocks, twenty times as much."""
_FREE = ("w_static", "tau_slow", "w_fast", "tau_fast", "recency")


def _fit(model: str, evaluations: int, say: Callable[[str], None]) -> None:
    """Search the five parameters of the model's profile and its structure together."""
    of, aims = CAPTURES[model], targets(model, CAPTURES[model].fitted)
    (process,) = set(layer_processes(of.profile, 1, CAPTURED_BLOCK_TOKENS))
    shape = STRUCTURES[of.profile]

    def at(point: npt.NDArray[np.float64]) -> tuple[ProcessParams, Structure]:
        *free, layers, neighbours = np.exp(point).tolist()
        params = replace(process.params, **dict(zip(_FREE, free, strict=True)))
        return params, Structure(layers / (1 + layers), min(neighbours, 1.0))

    def cost(point: npt.NDArray[np.float64]) -> float:
        params, structured = at(point)
        size = CAPTURED_BLOCK_TOKENS
        each = [
            structure(
                selections(of, [params] * of.layers, structured, size, seed),
                of.blocks + of.steps // size,
            )
            for seed in FIT_SEEDS
        ]
        value = 0.0
        for name, (low, high) in aims.items():
            scale = TOLERANCE * (20 if name.startswith("distinct") else 1)
            mean = float(np.mean([one[name] for one in each]))
            value += ((mean - (low + high) / 2) / scale) ** 2
        say(f"{value:8.1f}  {params}  {structured}")
        return value

    start = [getattr(process.params, name) for name in _FREE]
    start += [shape.layers / (1 - shape.layers), shape.neighbours]
    best, _ = minimise(cost, np.log(start), evaluations)
    say(f"best: {at(best)}")


def main() -> None:
    """Print the statistics of files of a model as TOML, or the search."""
    parser = argparse.ArgumentParser(description="Statistics of files of block scores.")
    parser.add_argument("model", choices=CAPTURES)
    parser.add_argument("file", nargs="*", type=Path)
    parser.add_argument("--fit", type=int, default=0, metavar="EVALUATIONS")
    chosen = parser.parse_args()
    select = CAPTURES[chosen.model].select
    for path in chosen.file:
        print(f"[{chosen.model}.{path.stem}]")
        for name, value in of_file(path, select).items():
            print(f"{name} = {value:.4f}")
        every, new = of_capture(path, select)
        print(f"predicted = {every}\npredicted-new = {new}")
    if chosen.fit:
        _fit(chosen.model, chosen.fit, print)


if __name__ == "__main__":
    main()
