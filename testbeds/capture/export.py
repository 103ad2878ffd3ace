"""Writes a generated workload's scores as a file in the capture format.

A score is the logit of a block, so the file's `mass` is its softmax over the blocks of a layer, in
float16: the order of blocks is kept as far as float16 distinguishes them. Selections are not in the
format: a reader can replay any k (`workloads/selections/captured.py`). Drafts are not either.
Holds one slab and the writer's row group. What can fail: a size above SIZE_MAX, granules, the path
(BadInput), and the disk (RunFailed).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.testbeds.progress import Progress, Silent
from offstage.testbeds.workloads.selections.generated import (
    PREFILL_WINDOWS,
    GeneratedOptions,
    GeneratedWorkload,
)
from offstage.testbeds.workloads.selections.scores_file import Header, Session
from offstage.testbeds.workloads.selections.scores_writer import Writer, check_path

__all__ = ["SIZE_MAX", "check", "export"]

SIZE_MAX = 2 << 30
"""Maximum bytes of scores in one file, before compression. Above that a lab generates the workload
faster than it reads one."""


def check(options: GeneratedOptions, path: Path) -> None:
    """BadInput for a workload that no file holds, and for a path; draws nothing."""
    check_path(path)
    context = options.context_tokens // options.block_tokens
    steps = options.steps + min(PREFILL_WINDOWS, context)
    blocks = context + options.steps // options.block_tokens
    size = 2 * options.sessions * steps * options.layers * blocks
    if size > SIZE_MAX:
        raise BadInput(
            f"{size / 2**30:.1f} GiB of scores, but a file holds at most {SIZE_MAX >> 30}",
            str(path),
            "write fewer steps, layers or sessions; the lab can generate a workload of any size",
        )
    if options.factor > 1:
        raise BadInput("granules cannot be written", str(path), "leave granule_tokens out")


def export(workload: GeneratedWorkload, path: Path, progress: Progress | None = None) -> None:
    """Write all sessions, each with its prefill windows before its steps."""
    progress = progress or Silent()
    options = workload.options
    windows = workload.prefill_windows
    check(options, path)
    progress.start("write scores", options.sessions * (options.steps + windows), "steps")
    with Writer(path, _header(workload), ("mass",)) as writer:
        for session in range(options.sessions):
            for window, scores in enumerate(workload.prefill(session)):
                written = workload.written((window + 1 - windows) * options.block_tokens)
                writer.step(session, window - windows, _mass(workload, scores[:, :written]))
                progress.advance(1)
            for slab in workload.slabs(session):
                for row, scores in enumerate(slab.scores):
                    step = slab.first_step + row
                    writer.step(session, step, _mass(workload, scores[:, : workload.written(step)]))
                    progress.advance(1)


def _mass(
    workload: GeneratedWorkload, scores: npt.NDArray[np.uint16]
) -> dict[str, npt.NDArray[np.float16]]:
    weights = np.exp(scores * workload.score_unit)
    weights /= weights.sum(axis=1, keepdims=True)
    return {"mass": weights.astype(np.float16)[:, None]}


def _header(workload: GeneratedWorkload) -> Header:
    options = workload.options
    return Header(
        model=f"generated: {options.profile}",
        config_sha256="",
        text_sha256="",
        tokenizer="",
        dtype="float32",
        synthetic=True,
        block_tokens=options.block_tokens,
        layer_count=options.layers,
        group_count=1,
        layers=tuple(range(options.layers)),
        index_source=tuple(workload.index_source.tolist()),
        sessions=tuple(
            Session(
                name=session.name,
                mode="generated",
                context_tokens=options.context_tokens,
                steps=session.steps,
                content=f"seed {options.seed}, session {index}",
                prefix=f"seed {options.seed}, group {session.group}" if session.group >= 0 else "",
                prefix_tokens=options.shared_prefix_tokens,
                turns=session.turns,
                group=session.group,
                arrival_s=session.arrival_s,
            )
            for index, session in enumerate(workload.sessions)
        ),
        parameters=workload.describe(),
    )
