"""A workload from a file of block scores: a captured model's, or a generated one's.

The file has scores of every KV head; a block carries all heads of its layer, so the scores are
pooled over them, and one selection is made for the layer: sinks, window and the best of the rest,
as `offstage.host.selection.select` makes it. Any k and any score of the file can be replayed.
The block that decode is filling stays in the HBM pool until it is full, as in the host agent: it is
neither selected nor counted. Reading holds one row group and one slab. What can fail is the file
(BadInput, see `scores_reader`) and settings that do not fit it.
"""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.host.selection import ScoreScale, quantize, select
from offstage.testbeds.workloads.selections.scores_file import (
    PREDICTED,
    Session,
    Step,
    open_capture,
)
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab

__all__ = ["MASS_LEVELS_PER_OCTAVE", "CapturedWorkload"]

MASS_LEVELS_PER_OCTAVE = 65534 / 24
"""uint16 of a mass m: 1 + 65534 (24 + log2 m) / 24, and 1 below 2^-24, the smallest positive
float16: fixed, equal for all layers, and steps of 2^(1/2731), finer than those of float16."""

Floats = npt.NDArray[np.float32]


class CapturedWorkload:
    """See `offstage.testbeds.workloads.selections.slab.Workload`.

    select_blocks: k, sinks and window included. selector: the score that selects, of "mass",
    "quest", "mean_key". pool: how the KV heads' scores become one, "max" or "mean". Raises BadInput
    as `open_capture` does, for a score that the file lacks, and if sinks and window exceed k.
    """

    def __init__(
        self,
        path: str | Path,
        select_blocks: int,
        selector: Literal["mass", "quest", "mean_key"] = "mass",
        sink_blocks: int = 1,
        window_blocks: int = 2,
        pool: Literal["max", "mean"] = "max",
    ) -> None:
        self._capture = capture = open_capture(path)
        self._header = capture.header
        self._selector, self._pool = selector, pool
        self._select, self._sinks, self._window = select_blocks, sink_blocks, window_blocks
        if selector not in capture.scores:
            have = ", ".join(capture.scores)
            raise BadInput(f"no scores of {selector!r}", str(path), f"it has {have}")
        if pool not in ("max", "mean"):
            raise BadInput(f"pool = {pool!r}", str(path), "choose max or mean")
        if min(sink_blocks, window_blocks) < 0 or select_blocks < max(
            1, sink_blocks + window_blocks
        ):
            raise BadInput(
                f"{sink_blocks} sinks and {window_blocks} of a window in a selection of "
                f"{select_blocks} blocks",
                str(path),
                "select at least as many as both",
            )
        self._infos = tuple(
            self._info(self._header.sessions[held.index], held.steps) for held in capture.sessions
        )
        self._scales: dict[int, list[ScoreScale]] = {}

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """Sessions with at least one decode step, in the file's order."""
        return self._infos

    @property
    def layer_count(self) -> int:
        """Number of layers in the file."""
        return self._header.layer_count

    @property
    def select_blocks(self) -> int:
        """k."""
        return self._select

    @property
    def sink_blocks(self) -> int:
        """Blocks from the front in every selection."""
        return self._sinks

    @property
    def window_blocks(self) -> int:
        """Blocks from the end in every selection."""
        return self._window

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self._header.block_tokens

    @property
    def index_source(self) -> npt.NDArray[np.int64]:
        """`[layers]`, from the header."""
        return np.array(self._header.index_source, np.int64)

    @property
    def draft_agreement(self) -> float | None:
        """A capture has no draft."""
        return None

    @property
    def predicts(self) -> bool:
        """Whether the file has predictions of the score that selects."""
        return self._selector in self._capture.predicted

    def describe(self) -> dict[str, object]:
        """The manifest's facts: the model, the text, and how it is replayed."""
        header = self._header
        names = ("model", "config_sha256", "text_sha256", "tokenizer", "dtype", "synthetic")
        return {
            "kind": "captured",
            "source": str(self._capture.path),
            **{name: getattr(header, name) for name in names},
            "block_tokens": header.block_tokens,
            "layers": list(header.layers),
            "groups": header.group_count,
            "sessions": [
                {
                    "name": one.name,
                    "mode": header.sessions[held.index].mode,
                    "blocks": one.blocks,
                    "steps": one.steps,
                }
                for one, held in zip(self._infos, self._capture.sessions, strict=True)
            ],
            "selector": self._selector,
            "predicted": self.predicts,
            "pool": self._pool,
            "select_blocks": self._select,
            "sink_blocks": self._sinks,
            "window_blocks": self._window,
        }

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The session from its first step to its last, `steps` at a time."""
        end = self._infos[session].steps
        own = self._capture.steps(session, self._selector, 0, end)
        predicted: Iterator[Step | None] = itertools.repeat(None)
        if self.predicts:
            predicted = self._capture.steps(session, PREDICTED + self._selector, 0, end)
        while waiting := list(itertools.islice(zip(own, predicted, strict=False), steps)):
            yield self._slab(session, waiting)

    def prefill(self, session: int) -> npt.NDArray[np.uint16] | None:
        """uint16 `[windows, layers, blocks]`, the last window last; None without any."""
        windows = self._capture.sessions[session].windows
        if not windows:
            return None
        result = np.zeros((windows, self.layer_count, self._blocks(session)), np.uint16)
        for one in self._capture.steps(session, self._selector, -windows, 0):
            pooled = self._pooled(one, one.blocks)
            result[one.step + windows, :, : one.blocks] = self._quantized(session, pooled)
        return result

    def _info(self, session: Session, steps: int) -> SessionInfo:
        blocks = session.context_tokens // self._header.block_tokens
        prefix_blocks = session.prefix_tokens // self._header.block_tokens
        contents = np.empty((blocks, 2), np.uint64)
        for name, part in (
            (session.prefix, slice(0, prefix_blocks)),
            (session.content, slice(prefix_blocks, blocks)),
        ):
            digest = hashlib.sha256(name.encode()).digest()
            contents[part, 0] = int.from_bytes(digest[:8], "little")
            contents[part, 1] = np.arange(blocks, dtype=np.uint64)[part]
        turns = tuple(turn for turn in session.turns if 0 < turn < steps)
        return SessionInfo(
            session.name, blocks, steps, contents, turns, session.group, session.arrival_s
        )

    def _blocks(self, session: int) -> int:
        """Full blocks at the last step: context, and the blocks that decode has written."""
        info = self._infos[session]
        return info.blocks + (info.steps - 1) // self.block_tokens

    def _slab(self, session: int, steps: list[tuple[Step, Step | None]]) -> Slab:
        layers, blocks = self.layer_count, self._blocks(session)
        selected = np.full((len(steps), layers, self._select), ABSENT)
        scores = np.zeros((len(steps), layers, blocks), np.uint16)
        predicted = np.zeros_like(scores) if self.predicts else None
        best = self._select - self._sinks - self._window
        for row, (one, ahead) in enumerate(steps):
            full = self._infos[session].blocks + one.step // self.block_tokens
            pooled = self._pooled(one, full)
            scores[row, :, :full] = self._quantized(session, pooled)
            for layer in range(layers):
                chosen = select(pooled[layer], best, self._sinks, self._window, full)
                selected[row, layer, : chosen.size] = chosen
            if predicted is not None and ahead is not None:
                told = (ahead.scores != 0).any(axis=(1, 2))[self.index_source][:, None]
                values = self._quantized(session, self._pooled(ahead, full))
                predicted[row, :, :full] = np.where(told, values, 0)
        return Slab(session, steps[0][0].step, selected, scores, predicted=predicted)

    def _pooled(self, one: Step, full: int) -> Floats:
        """Scores `[layers, full]`, each layer with those of the layer whose selection it uses."""
        scores = one.scores[:, :, :full]
        if self._pool == "max":
            pooled = _greatest(scores).astype(np.float32)
        else:
            pooled = scores.mean(axis=1, dtype=np.float32)
        result: Floats = pooled[self.index_source]
        return result

    def _quantized(self, session: int, pooled: Floats) -> npt.NDArray[np.uint16]:
        if self._selector == "mass":
            octaves = np.log2(np.maximum(pooled, np.float32(2.0**-24))) + np.float32(24.0)
            levels = 1.0 + np.clip(octaves * np.float32(MASS_LEVELS_PER_OCTAVE), 0.0, 65534.0)
            result: npt.NDArray[np.uint16] = np.rint(levels).astype(np.uint16)
            return result
        scales = self._layer_scales(session)
        return np.stack([quantize(row, scale) for row, scale in zip(pooled, scales, strict=True)])

    def _layer_scales(self, session: int) -> list[ScoreScale]:
        """The scale of each layer, from the session's first row, so that a score has the same
        meaning throughout, as for a daemon."""
        if session not in self._scales:
            windows = self._capture.sessions[session].windows
            first = next(self._capture.steps(session, self._selector, -windows, 1 - windows))
            pooled = self._pooled(first, first.blocks)
            self._scales[session] = [ScoreScale.fit(row) for row in pooled]
        return self._scales[session]


def _greatest(scores: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """The maximum over axis 1, taken over integers in the floats' order: numpy's maximum of float16
    is many times slower, and would be most of a replay's time."""
    bits = scores.view(np.int16)
    best = _ordered(bits).max(axis=1)
    return _ordered(best).view(np.float16)


def _ordered(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """Inverts all bits but the sign of a negative float; its own inverse."""
    return bits ^ ((bits >> 15) & np.int16(0x7FFF))
