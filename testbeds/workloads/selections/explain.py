"""How well a profile meets the published figures: every row is drawn and counted on request.

Rows of basis "fitted" are the figures that a process of the profile was fitted to, measured with
other seeds than the search had. Rows "derived" are fitted too, but their target is not a published
figure: it is what a process of tokens gives for blocks, drawn and counted now. Rows "compared" were
not fitted to: figures of a process, and figures of the profile as a whole, whose value is the mean
over its layers of a model of 80, each with its process for units of that figure's size. The row
"chosen" is a published share that is a parameter. Only the name of the profile can fail.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.selections import predicted, structure
from offstage.testbeds.workloads.selections.anchors import ANCHORS, Anchor, Sample, error, measure
from offstage.testbeds.workloads.selections.block_anchors import STATISTICS, Values, aims
from offstage.testbeds.workloads.selections.process import HEAD_CLASS_FRACTIONS
from offstage.testbeds.workloads.selections.profiles import (
    BLOCK_TOKENS,
    PROCESSES,
    PROFILES,
    Process,
    layer_processes,
)

__all__ = [
    "EXPLAIN_SEEDS",
    "LAYERS",
    "Explained",
    "Row",
    "explain",
    "explained",
    "processes_of",
    "render",
]


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
"""Figures measured over layers or heads, which apply to a profile as a whole."""


@dataclass(frozen=True)
class Row:
    """One figure. `part` is the process measured, or "all layers". `error` is the distance to the
    target, 0 inside a range; `spread` is its standard error over the seeds. A derived target
    scatters too: then `spread` is that of the difference seed by seed."""

    part: str
    anchor: str
    statistic: str
    target: str
    value: float
    error: float
    spread: float
    basis: str
    source: str


def processes_of(profile: str) -> list[Process]:
    """The profile's processes, over all unit sizes."""
    used = {*_layers(profile, 1), *_layers(profile, BLOCK_TOKENS)}
    return [process for name, process in PROCESSES.items() if name in used]


def explain(
    profile: str, seed: int = 1, seeds: int = EXPLAIN_SEEDS, progress: Progress | None = None
) -> list[Row]:
    """Measure a profile's processes. Raises BadInput for an unknown profile."""
    progress = progress or Silent()
    numbers = range(seed, seed + seeds)
    shares = {one: _layers(profile, ANCHORS[one].sample.unit_tokens) for one in _WHOLE}
    rows, listed = [], set()
    found: dict[str, Values] = {}
    for process in processes_of(profile):
        name = process.name
        wanted = [ANCHORS[one] for one in _WHOLE if name in shares[one]]
        own = [one for one in process.fitted_to + process.compared_with if one in ANCHORS]
        samples = {one.sample for one in wanted} | {ANCHORS[one].sample for one in own}
        # A process of blocks draws its statistics twice: for its tokens, and for itself.
        progress.start(
            f"process {name}", (len(samples) + 2 * bool(process.tokens)) * seeds, "samples"
        )
        anchors, targets = aims(process, numbers, progress.advance)
        every = {one.name: one for one in (*anchors.values(), *wanted)}
        values = measure(every.values(), process.params, numbers, progress.advance)
        rows += [_own(process, one, values[one.name], targets) for one in anchors.values()]
        listed |= {(name, one) for one in anchors}
        found[name] = values
    rows += _structure(profile, numbers, progress)
    rows += _recorded(profile, numbers)
    rows += _predicted(profile, numbers, progress)
    if profile == "published-mix":
        rows.append(_unstable(_layers(profile, BLOCK_TOKENS)))
    for one, layers in shares.items():
        if len(layers) == 1 and (next(iter(layers)), one) in listed:
            continue
        weighted = [found[name][one] * (count / LAYERS) for name, count in layers.items()]
        rows.append(_row("all layers", ANCHORS[one], np.sum(weighted, axis=0), "compared"))
    return rows


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with its processes, and the rows that were measured."""

    profile: str
    about: str
    synthetic: bool
    seed: int
    layers: int
    processes: dict[str, dict[str, str | float | tuple[str, ...]]]
    """By name: layers by the size of their units, what was fitted, and every parameter."""
    rows: Sequence[Row]


def explained(profile: str, rows: Sequence[Row], seed: int) -> Explained:
    """The document of `--explain`."""
    blocks, tokens = _layers(profile, BLOCK_TOKENS), _layers(profile, 1)
    return Explained(
        profile=profile,
        about=PROFILES[profile],
        synthetic=True,
        seed=seed,
        layers=LAYERS,
        processes={
            process.name: {
                "layers": blocks[process.name],
                "layers_of_small_units": tokens[process.name],
                "about": process.about,
                "fitted": process.free,
                **asdict(process.params),
            }
            for process in processes_of(profile)
        },
        rows=rows,
    )


def render(profile: str, rows: Sequence[Row]) -> Group:
    """The rows as a table for the terminal, followed by each figure's definition and source."""
    title = f"{profile}: {PROFILES[profile]}"
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    for name in ("part", "figure"):
        table.add_column(name, no_wrap=True)
    for name in ("target", "here", "±", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    for row in rows:
        numbers = (f"{row.value:.3f}", f"{row.spread:.3f}", f"{row.error:+.3f}")
        table.add_row(row.part, row.anchor, row.target, *numbers, row.basis)
    sources: dict[str, list[str]] = {}
    for row in rows:
        known = sources.setdefault(f"{row.anchor}: {row.statistic}", [])
        if row.source not in known:
            known.append(row.source)
    about = (f"{figure}; {' or '.join(of)}" for figure, of in sources.items())
    return Group(table, *(Text(line, style="dim") for line in about))


def _layers(profile: str, unit_tokens: int) -> Counter[str]:
    return Counter(process.name for process in layer_processes(profile, LAYERS, unit_tokens))


def _own(process: Process, anchor: Anchor, values: npt.NDArray[np.float64], targets: Values) -> Row:
    if anchor.name in STATISTICS:
        row = _row(process.name, anchor, values, "derived")
        return replace(row, spread=_standard_error(values - targets[anchor.name]))
    basis = "fitted" if anchor.name in process.fitted_to else "compared"
    return _row(process.name, anchor, values, basis)


def _row(part: str, anchor: Anchor, values: npt.NDArray[np.float64], basis: str) -> Row:
    value = float(values.mean())
    return Row(
        part,
        anchor.name,
        anchor.statistic,
        anchor.target,
        value,
        error(anchor, value),
        _standard_error(values),
        basis,
        anchor.source,
    )


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def _drawn(
    draw: Callable[[str, int], Mapping[str, float]],
    profile: str,
    seeds: Sequence[int],
    progress: Progress,
) -> list[Mapping[str, float]]:
    """The statistics of a draw with each seed."""
    found = []
    for seed in seeds:
        found.append(draw(profile, seed))
        progress.advance(1)
    return found


def _structure(profile: str, seeds: Sequence[int], progress: Progress) -> list[Row]:
    """Structure over layers, neighbours and long distances, compared with captures of models."""
    rows = []
    for model, of in structure.CAPTURES.items():
        progress.start(f"structure of {model}", len(seeds), "seeds")
        found = _drawn(partial(structure.drawn, model=model), profile, seeds, progress)
        basis = "fitted" if profile == of.profile and of.fitted == of.judged else "compared"
        sample = Sample(of.blocks, of.select, of.steps)
        for name, (low, high) in structure.CAPTURED[model].items():
            words = structure.STRUCTURE[name]
            anchor = Anchor(
                of.prefix + name, words, low, high, sample, ("structure", ()), _source(of)
            )
            row = _row("all layers", anchor, np.array([one[name] for one in found]), basis)
            rows.append(replace(row, target=f"{low:.3f}-{high:.3f}"))
    return rows


def _source(of: structure.Captures) -> str:
    """What a figure of captures is of."""
    return (
        f"captures of {of.about}, {of.select} of {of.blocks} blocks, {of.layers} layers, "
        f"{of.steps} steps"
    )


def _recorded(profile: str, seeds: Sequence[int]) -> list[Row]:
    """The few statistics of another model's recorded selections, in their shape."""
    found = [structure.drawn_as_recorded(profile, seed) for seed in seeds]
    rows = []
    for name, target in structure.RECORDED.items():
        words = structure.STRUCTURE[name.removeprefix("recorded-")]
        anchor = Anchor(name, words, target, target, _LIKE_RECORDED, ("structure", ()), _RECORDED)
        rows.append(_row("all layers", anchor, np.array([one[name] for one in found]), "compared"))
    return rows


def _predicted(profile: str, seeds: Sequence[int], progress: Progress) -> list[Row]:
    """The prediction of each layer, if the workload draws it, compared with the captures."""
    progress.start("predicted", len(seeds), "seeds")
    found = _drawn(predicted.drawn, profile, seeds, progress)
    rows = []
    for name, (words, share) in predicted.PREDICTED.items():
        anchor = Anchor(
            name, words, share, share, _LIKE_CAPTURED, ("predicted", ()), _source(_PYCODE)
        )
        values = np.array([one[name] for one in found])
        basis = "compared" if name.startswith("predicted-new") else "fitted"
        rows.append(_row("all layers", anchor, values, basis))
    return rows


_LIKE_RECORDED = Sample(128, 32, 3)
_RECORDED = "selections of Qwen3-0.6B (ZjuXxxc/solidattention-repro), 32 of 128 blocks, 3 steps"
_PYCODE = structure.CAPTURES["pycode-3m"]
_LIKE_CAPTURED = Sample(_PYCODE.blocks, _PYCODE.select, _PYCODE.steps)


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
