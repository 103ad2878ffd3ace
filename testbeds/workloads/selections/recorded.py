"""Recorded block selections as a workload: what a model selected, without the scores.

The file is JSON lines, plain or gzip, one run of one model each: `run`, `model`, `layers`,
`prompt_tokens`, `block_tokens` and `steps`, a list of `[token, layer, selected, ...]` with tokens
from 1, in order of token and layer. This is the form of `attn_block_selection_*.jsonl.gz`, made of
the published runs of ZjuXxxc/solidattention-repro: Qwen3-0.6B, prompts of 512 and 4,096 tokens, at
most 39 steps. That is enough to check a policy on selections of a real model, but too little to
base claims on.

A run is a session. Missing data is not invented: a selected block has the score `PRESENT`, every
other 0, so policies that rank by score see only how often and how recently a block was selected;
contexts share nothing. Read whole and checked on open; every error is `BadInput` with its line.
"""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.outside import json_line
from offstage.testbeds.workloads.requests.trace import lines
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab

__all__ = ["PRESENT", "SelectionWorkload"]


PRESENT = 0xFFFF
"""The score of a selected block, the maximum: averages shift a score to the right, and a small one
would become 0."""


class _Run(msgspec.Struct, frozen=True):
    run: str
    model: str
    layers: int
    prompt_tokens: int
    block_tokens: int
    steps: list[tuple[int, int, list[int], Any]]


class SelectionWorkload:
    """A `slab.Workload` of recorded runs. All runs of a file have the same model and block size.

    `sink_blocks` and `window_blocks` are counted: the blocks in every selection of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        digest = hashlib.sha256()
        runs: list[_Run] = []
        self._selected: list[npt.NDArray[np.uint32]] = []
        for number, line in lines(self.path):
            digest.update(line)
            where = f"{self.path}:{number}"
            run = _parse(line, where)
            if runs and _shape(run) != _shape(runs[0]):
                raise _bad(
                    f"{_named(run)} after {_named(runs[0])}", where, "keep one model to a file"
                )
            runs.append(run)
            self._selected.append(_selections(run, where))
        if not runs:
            raise _bad("holds no run", str(self.path), "give a file of recorded selections")
        self._digest = digest.hexdigest()
        self.model = runs[0].model
        self.layer_count = runs[0].layers
        self.block_tokens = runs[0].block_tokens
        self.sessions = tuple(
            _session(run, len(rows)) for run, rows in zip(runs, self._selected, strict=True)
        )
        self.select_blocks = max(rows.shape[2] for rows in self._selected)
        self.sink_blocks = min(_sinks(rows) for rows in self._selected)
        self.window_blocks = min(
            self._window(session, rows)
            for session, rows in zip(self.sessions, self._selected, strict=True)
        )
        self.index_source = np.arange(self.layer_count)
        self.draft_agreement: float | None = None
        self.predicts = False

    def describe(self) -> dict[str, object]:
        """The file, its hash as unpacked, the model; `synthetic` is false."""
        return {
            "kind": "recorded",
            "synthetic": False,
            "source": self.path.name,
            "sha256": self._digest,
            "model": self.model,
            "scores": f"{PRESENT} for a selected block, 0 for any other: scores were not recorded",
        }

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The run from its first step on."""
        info, rows = self.sessions[session], self._selected[session]
        blocks = self._written(info, info.steps - 1)
        for first in range(0, info.steps, steps):
            selected = rows[first : first + steps]
            # One extra column takes absent ones.
            scores = np.zeros((*selected.shape[:2], blocks + 1), np.uint16)
            columns = np.minimum(selected, np.uint32(blocks)).astype(np.int64)
            np.put_along_axis(scores, columns, np.uint16(PRESENT), axis=2)
            scores = scores[:, :, :blocks]
            scores.setflags(write=False)
            yield Slab(session, first, selected, scores)

    def prefill(self, session: int) -> None:
        """None: not recorded."""
        return None

    def _written(self, info: SessionInfo, step: int) -> int:
        return info.blocks + step // self.block_tokens

    def _window(self, info: SessionInfo, rows: npt.NDArray[np.uint32]) -> int:
        """Blocks from the end in every selection of the run."""
        count = 0
        ends = np.array([self._written(info, step) for step in range(info.steps)])
        while count < rows.shape[2]:
            wanted = (ends - 1 - count)[:, None, None]
            if not (rows == wanted).any(axis=2).all():
                break
            count += 1
        return count


_RUN = msgspec.json.Decoder(_Run)
LAYERS_MAX, TOKENS_MAX = 4096, 1 << 30


def _parse(line: bytes, where: str) -> _Run:
    run = json_line(_RUN, line, where, "see docs/reference/workloads.md", "is not a recorded run")
    if run.layers > LAYERS_MAX or run.prompt_tokens > TOKENS_MAX:
        what = f"{run.layers:,} layers and a prompt of {run.prompt_tokens:,} tokens"
        raise _bad(what, where, f"record at most {LAYERS_MAX:,} layers and {TOKENS_MAX:,} tokens")
    if run.layers < 1 or run.block_tokens < 1 or not run.steps:
        raise _bad("a run without layers, tokens of a block or steps", where, "record one step")
    if run.prompt_tokens < run.block_tokens:
        raise _bad(f"a prompt of {run.prompt_tokens} tokens", where, "record at least one block")
    return run


def _selections(run: _Run, where: str) -> npt.NDArray[np.uint32]:
    """uint32 `[steps, layers, width]`, checked: order, range, ascending ordinals."""
    if len(run.steps) % run.layers:
        raise _bad(f"{len(run.steps)} rows for {run.layers} layers", where, "record every layer")
    context = run.prompt_tokens // run.block_tokens
    width = max(1, max(len(row[2]) for row in run.steps))
    result = np.full((len(run.steps) // run.layers, run.layers, width), ABSENT)
    for index, (token, layer, selected, _) in enumerate(run.steps):
        step, of_layer = divmod(index, run.layers)
        if (token, layer) != (step + 1, of_layer):
            raise _bad(
                f"token {token}, layer {layer} where token {step + 1}, layer {of_layer} belongs",
                where,
                "write rows in order, tokens from 1",
            )
        blocks = context + step // run.block_tokens
        if selected and not (0 <= selected[0] and selected[-1] < blocks):
            raise _bad(
                f"token {token}, layer {layer} selects outside 0 to {blocks - 1}",
                where,
                "number blocks from 0; the last one is whole",
            )
        if any(a >= b for a, b in itertools.pairwise(selected)):
            raise _bad(
                f"token {token}, layer {layer}: ordinals do not ascend",
                where,
                "sort them, once each",
            )
        result[step, of_layer, : len(selected)] = selected
    result.setflags(write=False)
    return result


def _session(run: _Run, steps: int) -> SessionInfo:
    blocks = run.prompt_tokens // run.block_tokens
    digest = hashlib.blake2b(run.run.encode(), digest_size=8).digest()
    contents = np.empty((blocks, 2), np.uint64)
    contents[:, 0] = int.from_bytes(digest, "little")
    contents[:, 1] = np.arange(blocks)
    return SessionInfo(run.run, blocks, steps, contents)


def _sinks(rows: npt.NDArray[np.uint32]) -> int:
    """Blocks from the front in every selection of the run."""
    count = 0
    while count < rows.shape[2] and (rows[:, :, count] == count).all():
        count += 1
    return count


def _shape(run: _Run) -> tuple[str, int, int]:
    return run.model, run.layers, run.block_tokens


def _named(run: _Run) -> str:
    return f"{run.model} of {run.layers} layers, {run.block_tokens} tokens a block,"


def _bad(what: str, where: str, fix: str) -> BadInput:
    return BadInput(what, where, fix)
