"""Predictions for a generated workload: as often right as a trained model's, layer by layer.

Model: a generated workload has no layer inputs from which to predict the next layer's query. So the
scores of a predicted query are drawn: those of the layer with an error, normal and independent for
each block and step. The errors of a layer are sized so that the share of its best k that is among
the best k predicted equals that of captures (`captured.toml`). They lose barely selected blocks
first, as predicted queries do. A model's first two layers use the captured model's first two, and
the others take those of its other layers by depth.

Row 0 is the first layer of the next step, by a draft of its token. No draft predicts a user's
input, so nothing is predicted where a turn begins, nor for a block that is written only then.
Everything follows from the workload's seed, however steps are cut. Nothing can fail.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.ledger import share
from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.coarse import Alike
from offstage.testbeds.workloads.selections.field import Field, FieldShape, normals
from offstage.testbeds.workloads.selections.generated import (
    GeneratedOptions,
    GeneratedWorkload,
    TracedWorkload,
)
from offstage.testbeds.workloads.selections.profiles import BLOCK_TOKENS, OF_CAPTURES
from offstage.testbeds.workloads.selections.slab import Slab

__all__ = [
    "AGREEMENT",
    "AGREEMENT_NEW",
    "PREDICTED",
    "Predicting",
    "agreements",
    "drawn",
    "of_capture",
    "of_layers",
]

_ERRORS = 21
"""Purpose of the words of errors; `field.py` and `generated.py` use smaller numbers."""
CAPTURED_BLOCK_TOKENS = 16
_PROBE_SEED, _PROBES = 77, 16
_SCORE_MAX = 65534
_BISECTIONS = 24
_BLOCKS, _STEPS, _SELECT = 512, 256, 16
"""Of the captures."""
_OWN_KIND = 2
"""Layers at the front for which a prediction is more, or less, accurate than for all others."""

Scores = npt.NDArray[np.uint16]


class _Capture(msgspec.Struct, rename="kebab"):
    """The fields of `captured.toml` that are read here."""

    predicted: list[float]
    predicted_new: list[float]


def _means(rows: list[list[float]]) -> tuple[float, ...]:
    return tuple(round(float(mean), 4) for mean in np.array(rows).mean(axis=0))


_CAPTURES = msgspec.toml.decode(
    Path(__file__).with_name("captured.toml").read_bytes(), type=dict[str, dict[str, _Capture]]
)["pycode-3m"].values()
AGREEMENT = _means([one.predicted for one in _CAPTURES])
"""By layer of the captured model: share of a selection that is among the best k predicted."""
AGREEMENT_NEW = _means([one.predicted_new for one in _CAPTURES])
"""The same for blocks that the step before did not select."""


PREDICTED: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        **{
            f"predicted-{layer}": (
                f"share of layer {layer}'s selection in the best k predicted",
                share,
            )
            for layer, share in enumerate(AGREEMENT)
        },
        **{
            f"predicted-new-{layer}": (
                f"the same of what layer {layer} did not select before",
                share,
            )
            for layer, share in enumerate(AGREEMENT_NEW)
        },
    }
)
"""Each figure in words, with the captures' values: the first half is drawn to match."""


def of_layers(layers: int) -> tuple[float, ...]:
    """The agreement to draw for each layer of a model."""
    others = len(AGREEMENT) - _OWN_KIND
    found = []
    for layer in range(layers):
        if layer >= _OWN_KIND:
            layer = _OWN_KIND + (layer - _OWN_KIND) * others // (layers - _OWN_KIND)
        found.append(AGREEMENT[layer])
    return tuple(found)


class Predicting(Alike):
    """A `slab.Workload`: a generated one, with predictions."""

    def __init__(self, workload: GeneratedWorkload | TracedWorkload, seed: int) -> None:
        self.workload, self._seed = workload, seed
        self.sessions = workload.sessions
        super().__init__(workload)
        self.predicts = True

    def describe(self) -> dict[str, object]:
        """The base workload's description, with the predictions and the source of their
        agreement."""
        return {
            **self.workload.describe(),
            "predicted": {
                "drawn": "with the agreement measured on captures of pycode-3m, layer by layer",
                "agreement": list(of_layers(self.layer_count)),
                "agreement_captured": list(AGREEMENT),
            },
        }

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The workload's slabs, one step behind: row 0 is of the step after."""
        size = self._errors(session)
        turns = set(self.sessions[session].turns)
        held: Slab | None = None
        for slab in self.workload.slabs(session, steps):
            if held is not None:
                yield self._told(held, size, turns, slab.scores[0, 0])
            held = slab
        if held is not None:
            yield self._told(held, size, turns, None)

    def prefill(self, session: int) -> Scores | None:
        """The workload's."""
        return self.workload.prefill(session)

    def _told(
        self, slab: Slab, size: npt.NDArray[np.float32], turns: set[int], after: Scores | None
    ) -> Slab:
        """`after`: the first layer's scores in the step after the slab, None without one."""
        told = np.zeros_like(slab.scores)
        for row, scores in enumerate(slab.scores):
            step, last = slab.first_step + row, row + 1 == len(slab.scores)
            first = after if last else slab.scores[row + 1, 0]
            own = scores.astype(np.float32)
            own[0] = 0 if first is None or step + 1 in turns else np.where(own[0] > 0, first, 0)
            key = (self._seed % 2**64, 2 * slab.session)
            drawn = normals(key, _ERRORS, step, own.size).reshape(own.shape)
            erred = np.clip(own + size * drawn[self.index_source], 1, _SCORE_MAX)
            told[row] = np.where(own > 0, erred, 0)
        told.setflags(write=False)
        return Slab(slab.session, slab.first_step, slab.selected, slab.scores, slab.draft, told)

    def _errors(self, session: int) -> npt.NDArray[np.float32]:
        """The standard deviation of each layer's errors, in steps of its 16-bit scores."""
        drawn = self.workload.drawn(session)
        found = [
            _error(process.params, drawn.shape, drawn.select_blocks, share)
            for process, share in zip(drawn.processes, of_layers(self.layer_count), strict=True)
        ]
        raw = np.array(found, np.float32)[self.index_source][:, None]
        return (raw / drawn.score_unit).astype(np.float32)


@functools.lru_cache(maxsize=1024)
def _error(params: ProcessParams, shape: FieldShape, select: int, share: float) -> float:
    """The error of a score at which that share of a selection is predicted, by bisection."""
    scores, errors = _probes(
        params, FieldShape(shape.context, clump=shape.clump, structure=shape.structure)
    )
    low, high = 1e-3, 1e3
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        if agreement(scores, scores + middle * errors, select) > share:
            low = middle
        else:
            high = middle
    return float(np.sqrt(low * high))


@functools.lru_cache(maxsize=8)
def _probes(
    params: ProcessParams, shape: FieldShape
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Scores of a process, each of a separate session, and as many errors of size 1."""
    drawn = [
        Field([params], shape, _PROBE_SEED, number).scores(shape.context)[0].copy()
        for number in range(_PROBES)
    ]
    errors = normals((_PROBE_SEED, 1), _ERRORS, 0, _PROBES * shape.context)
    return np.stack(drawn), errors.reshape(_PROBES, -1)


def agreement(
    scores: npt.NDArray[Any], told: npt.NDArray[Any], select: int, of: Any = True
) -> float:
    """The share of the best `select` of each row of `scores` that is among the best `told`; only
    those marked in `of` count."""
    best = _best(scores, select) & of
    return share(int((best & _best(told, select)).sum()), int(best.sum()))


def _best(scores: npt.NDArray[Any], select: int) -> npt.NDArray[np.bool_]:
    """Marks, along the last axis."""
    count = scores.shape[-1]
    chosen = np.argpartition(scores, count - min(select, count), axis=-1)[..., -select:]
    marks = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(marks, chosen, True, axis=-1)
    return marks


def of_capture(path: Path, select: int) -> tuple[list[float], list[float]]:
    """Shares by layer of a captured file's first session: those that `AGREEMENT` and
    `AGREEMENT_NEW` are means of. Its best `select` blocks by mass, without sinks and window."""
    slabs = list(CapturedWorkload(path, select, sink_blocks=0, window_blocks=0).slabs(0, 64))
    return agreements(slabs, select)


def drawn(profile: str, seed: int) -> dict[str, float]:
    """The agreement of a profile, with the context and number of steps of the captures."""
    size = CAPTURED_BLOCK_TOKENS if profile in OF_CAPTURES else BLOCK_TOKENS
    options = GeneratedOptions(
        profile=profile,
        layers=len(AGREEMENT),
        context_tokens=_BLOCKS * size,
        steps=_STEPS,
        block_tokens=size,
        select_blocks=_SELECT,
        sink_blocks=0,
        window_blocks=0,
        seed=seed,
    )
    slabs = list(Predicting(GeneratedWorkload(options), seed).slabs(0))
    every, new = agreements(slabs, _SELECT)
    return dict(zip(PREDICTED, (*every, *new), strict=True))


def agreements(slabs: list[Slab], select: int) -> tuple[list[float], list[float]]:
    """Agreement by layer: of all selected blocks, and of those that are new in the step."""
    scores = np.concatenate([slab.scores for slab in slabs])
    told = np.concatenate([slab.predicted for slab in slabs if slab.predicted is not None])
    told[1:, 0] = told[:-1, 0].copy()  # row 0 is of the step after
    every, new = [], []
    for layer in range(scores.shape[1]):
        own, ahead = scores[1:, layer], told[1:, layer]
        came = ~_best(scores[:-1, layer], select)
        every.append(round(agreement(own, ahead, select), 4))
        new.append(round(agreement(own, ahead, select, came), 4))
    return every, new
