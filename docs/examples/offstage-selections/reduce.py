"""Reduce captures to what a selection is made of: `python reduce.py FULL.parquet REDUCED.parquet`.

Scores of `mass` are pooled over KV heads by their maximum, as the laboratory pools them. Of each
step and layer the best `KEPT` are rounded to eight levels an octave and stay in their order, also
on one level: a selection of k blocks is that of the full capture for every k up to `KEPT`. The
others are rounded to two levels an octave, since averages of scores need them. Of what was
predicted the best `KEPT_FORETOLD` are kept and the others become 0. The result is a file of the
capture format, which the laboratory reads like a full one.

A reduced file called *-heads keeps KV heads apart, and decode steps alone: of each head the best
`KEPT_FORETOLD`, in their order within and across the heads of a layer, and the others become 0.
"""

import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from offstage.testbeds.workloads.selections.scores_file import PREDICTED, Capture, open_capture
from offstage.testbeds.workloads.selections.scores_writer import Writer

KEPT = 160
"""A buffer of 4 k blocks, and k in the HBM pool, at k = 32."""

KEPT_FORETOLD = 96
"""`lookahead-query` looks at the best 1.5 k; k = 64."""

_LEVEL = 1 << 7  # of float16's ten bits of mantissa, three are kept
_ROUGH = 1 << 9

Halves = npt.NDArray[np.float16]


def reduced(scores: Halves, kept: int, rest: bool) -> Halves:
    """`[layers, heads, blocks]` in fewer levels; `rest`: of what is not kept too."""
    # The bits of float16 from 0 on are ordered as the numbers are.
    bits = scores.view(np.uint16)
    result = np.zeros_like(bits)
    for rows, out in zip(bits, result, strict=True):
        # Of equal scores the lower ordinal comes first, as in a selection.
        order = np.argsort(-rows.astype(np.int32), axis=1, kind="stable")
        best = np.zeros(rows.shape, bool)
        np.put_along_axis(best, order[:, :kept], True, axis=1)
        values, place = np.unique(rows[best & (rows > 0)], return_inverse=True)
        level = values // _LEVEL
        first = np.searchsorted(level, level)
        count = np.searchsorted(level, level, side="right") - first
        start = np.minimum(_LEVEL // 2, _LEVEL - count)
        out[best & (rows > 0)] = (level * _LEVEL + start + np.arange(values.size) - first)[place]
        if rest and order.shape[1] > kept:
            highest = np.take_along_axis(rows, order[:, kept : kept + 1], axis=1)
            below = np.maximum(highest // _LEVEL * _LEVEL, 1) - 1
            rough = np.minimum(rows // _ROUGH * _ROUGH + _ROUGH // 2, below)
            np.copyto(out, rough, where=~best & (rows > 0))
    return result.view(np.float16)


def reduce(capture: Capture, path: Path, heads: bool) -> None:
    """Write the reduced file of a capture, with its `heads` apart or pooled."""
    header = capture.header
    kept = KEPT_FORETOLD if heads else KEPT
    parameters = {**header.parameters, "kept": [kept, KEPT_FORETOLD]}
    groups = header.group_count if heads else 1
    small = msgspec.structs.replace(header, group_count=groups, parameters=parameters)
    names = ("mass", PREDICTED + "mass")
    with Writer(path, small, names) as writer:
        for index, held in enumerate(capture.sessions):
            context_blocks = header.sessions[held.index].context_tokens // header.block_tokens
            first = 0 if heads else -held.windows
            whole = [capture.steps(index, name, first, held.steps) for name in names]
            for own, told in zip(*whole, strict=True):
                # The block that decode fills is never selected; of a window nothing is predicted.
                full = (
                    own.blocks if own.step < 0 else context_blocks + own.step // header.block_tokens
                )
                scores, predicted = (
                    one.scores[:, :, :full]
                    if heads
                    else one.scores[:, :, :full].max(axis=1, keepdims=True)
                    for one in (own, told)
                )
                found = reduced(np.ascontiguousarray(scores), kept, rest=not heads)
                ahead = np.zeros_like(found)
                if own.step >= 0:
                    ahead = reduced(np.ascontiguousarray(predicted), KEPT_FORETOLD, rest=False)
                writer.step(index, own.step, dict(zip(names, (found, ahead), strict=True)))


def packed(source: Path, path: Path) -> None:
    """The same rows in as few bytes as Parquet makes of them; a row group holds 64 steps."""
    table = pq.read_table(source)
    rows = len(table["layer"].unique()) * len(table["group"].unique())
    pq.write_table(
        table,
        path,
        row_group_size=64 * rows,
        compression="brotli",
        compression_level=11,
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )


def main() -> None:
    """Reduce one file."""
    full, path = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        reduce(open_capture(full), Path(folder) / "wide.parquet", path.stem.endswith("-heads"))
        packed(Path(folder) / "wide.parquet", path)


if __name__ == "__main__":
    main()
